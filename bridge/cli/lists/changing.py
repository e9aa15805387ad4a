"""The work of `scanbridge lists add` and `delete`."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bridge.api.lists import ListEntry
from bridge.cli.lists import dangers
from bridge.cli.lists.session import EXIT_FAILED, Session, account, attempt, fail, naming, run, say_refused
from bridge.cli.lists.sources import Source, add_places, with_place
from bridge.cli.progress import meter
from bridge.cli.terminal import say, say_json, say_lines
from bridge.lists.batches import Tally
from bridge.lists.client import ListClient
from bridge.lists.errors import EntryRefused
from bridge.lists.files import Format, InputError
from bridge.runtime.counted import counted
from bridge.runtime.visible_text import visible


@dataclass(frozen=True, slots=True)
class Given:
    """Where the entries come from: arguments, files, or standard input."""

    arguments: tuple[str, ...]
    paths: tuple[Path, ...]
    kind: str | None  # of the files


def add(session: Session, name: str, given: Given, comment: str | None, *, keep_going: bool, force: bool) -> None:
    entries_, sources = _read(given)
    if not force:
        run(dangers.check(session, name, entries_, sources))
    wanted = [ListEntry(entry, (comment or "") if own is None else own) for entry, own in entries_.items()]
    tally = Tally()

    async def send() -> None:
        with meter(name, len(wanted)) as advance:
            async with ListClient(session.settings) as client:
                await client.add(name, wanted, session.tenant, keep_going=keep_going, tally=tally, progress=advance)

    _change(session, name, "added or updated", len(wanted), tally, _placing(sources, tally, send()))


def delete(session: Session, name: str, given: Given) -> None:
    entries_, sources = _read(given)
    unwanted = list(entries_)
    tally = Tally()

    async def send() -> None:
        with meter(name, len(unwanted)) as advance:
            async with ListClient(session.settings) as client:
                await client.delete(name, unwanted, session.tenant, tally=tally, progress=advance)

    _change(session, name, "deleted", len(unwanted), tally, _placing(sources, tally, send()))


def _read(given: Given) -> tuple[dict[str, str | None], list[Source]]:
    """The entries with their comments, and the files that they come from."""
    found: dict[str, str | None] = dict.fromkeys(given.arguments)
    paths = given.paths
    if not given.arguments and not paths:
        if sys.stdin.isatty():
            raise click.UsageError("give entries as arguments, with --file, or on standard input")
        paths = (Path("-"),)
    sources = [Source(path, Format(given.kind) if given.kind else None) for path in paths]
    try:
        for source in sources:
            found |= source.read()
        if "" in found:
            raise InputError("an entry is empty")
    except InputError as exc:
        fail(exc)
    return found, sources


async def _placing(sources: list[Source], tally: Tally, work: Coroutine[Any, Any, None]) -> None:
    """Refused entries get their file and line."""
    try:
        await work
    except EntryRefused as exc:
        raise with_place(sources, exc) from exc
    finally:
        add_places(sources, tally.refused)


def _change(session: Session, name: str, verb: str, total: int, tally: Tally, work: Coroutine[Any, Any, None]) -> None:
    """Run an addition or deletion and report what was done and what was not, even after an error."""
    code, problem = attempt(naming(session, name, work))
    code = code or (EXIT_FAILED if tally.refused else 0)
    left = total - tally.confirmed - tally.uncertain - len(tally.refused)
    if session.as_json:
        counts = {"given": total, "confirmed": tally.confirmed, "modified": tally.modified, "not_done": left}
        trouble = {"uncertain": tally.uncertain, "refused": tally.refused, "problem": problem or None}
        say_json({"list": name, "tenant": session.tenant, **counts, **trouble, "exit_code": code})
    else:
        say(f"{name} of {session.scope}: {counted(tally.modified, 'entry', 'entries')} {verb}")
    if verb == "deleted" and not code and tally.modified < total:
        _say_absent(session, total - tally.modified)
    say_refused(tally.refused)
    if problem:
        say_lines(f"{visible(name)}: stopped: {problem}", err=True)
        say(account(tally.confirmed, total, tally.uncertain, left, again=code != EXIT_FAILED), err=True)
    sys.exit(code)


def _say_absent(session: Session, number: int) -> None:
    """Not an error: the result is what was wanted, unless the entry was misspelled or is in another scope."""
    other = "without --tenant" if session.tenant else "in the lists of a tenant, with --tenant"
    what = "1 entry was" if number == 1 else f"{number:,} entries were"
    say(f"{what} not in the list of {session.scope}: check the spelling with `scanbridge lists entries`, "
        f"and look {other}", err=True)  # fmt: skip
