"""`scanbridge lists`: show, change and sync the lists of the service.

Standard output has the result, standard error has progress and problems, and the exit code tells a script what
to do next (docs/operate/lists.md): 75 means "run it again later", 1 means "needs attention".
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TextIO

import click

from bridge.api.lists import ListEntry, ListFileInfo
from bridge.cli.lists import dangers
from bridge.cli.lists.dangers import force_option
from bridge.cli.lists.progress import meter
from bridge.cli.lists.refresh import refresh
from bridge.cli.lists.session import (
    EXIT_FAILED,
    Session,
    account,
    attempt,
    fail,
    format_option,
    keep_going_option,
    naming,
    run,
    say_refused,
    with_session,
)
from bridge.cli.lists.sources import Source
from bridge.cli.lists.sync import sync
from bridge.cli.terminal import say, say_json, say_lines
from bridge.errors import BridgeError
from bridge.lists import files
from bridge.lists.batches import Tally
from bridge.lists.client import ListClient
from bridge.lists.errors import clean
from bridge.lists.files import Format, InputError
from bridge.lists.sync import with_rereads
from bridge.runtime.visible_text import visible, visible_lines


@click.group()
def lists() -> None:
    """Show, change and sync the lists of the service."""


lists.add_command(sync)
lists.add_command(refresh)


@lists.command()
@with_session
def show(session: Session) -> None:
    """Show the available lists."""

    async def ask() -> list[ListFileInfo]:
        async with ListClient(session.settings) as client:
            return await client.lists(session.tenant)

    infos = run(ask())
    if session.as_json:
        say_json({"tenant": session.tenant, "lists": [info.to_dict() for info in infos]}, indent=2)
        return
    width = max((len(info.name) for info in infos), default=0)
    for info in infos:
        size = f"up to {info.max_size:,}" if info.max_size else "-"
        row = f"{info.name:{width}}  {info.category or '-':12} {size:17} {info.description or info.display_name}"
        say(clean(row))


@lists.command()
@click.argument("name", metavar="LIST")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file; it is replaced only when the output is complete.",
)
@format_option
@with_session
def entries(session: Session, name: str, output: Path | None, kind: str | None) -> None:
    """Print the entries of LIST with their comments, in a format that `add` and `sync` can read."""
    chosen = Format(kind) if kind else Format.JSONL if session.as_json else Format.TEXT
    if output is not None:
        chosen = Format(kind) if kind else files.format_of(output)
        count = run(naming(session, name, _save(session, name, output, chosen)))
        say(f"{output}: {count:,} entries of {name} of {session.scope}", err=True)
        return
    try:
        with click.open_file("-", "w", encoding="utf-8") as target:
            is_terminal = sys.stdout.isatty()
            write = (lambda text: target.write(visible_lines(text))) if is_terminal else target.write
            run(naming(session, name, _stream(session, name, write, chosen, hidden=is_terminal)))
            target.flush()
    except BrokenPipeError:
        raise  # the reader closed the pipe: click exits quietly
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or flushing the buffer at exit would fail again
        fail(OutputError(f"cannot write to standard output: {exc.strerror}"))


class OutputError(BridgeError):
    """The entries cannot be written."""


async def _stream(
    session: Session, name: str, write: Callable[[str], Any], kind: Format, *, hidden: bool = False
) -> int:
    count = 0
    write(files.header(kind))
    with meter(name, None, hidden=hidden) as advance:
        async with ListClient(session.settings) as client, aclosing(client.entry_chunks(name, session.tenant)) as all_:
            async for chunk in all_:
                write(files.show(chunk, kind))
                count += len(chunk)
                advance(len(chunk))
    return count


async def _save(session: Session, name: str, output: Path, kind: Format) -> int:
    """Retries an interrupted download; replaces the file only when it is complete."""
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")

    async def once() -> int:
        with _create(unfinished) as target:
            return await _stream(session, name, target.write, kind)

    try:
        count = await with_rereads(once)
        unfinished.replace(output)
    except OSError as exc:
        raise OutputError(f"{output}: cannot be written: {exc.strerror}") from exc
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return count


def _create(path: Path) -> TextIO:
    """With mode 0644, even if the umask allows more."""
    return open(path, "w", encoding="utf-8", newline="", opener=lambda name, flags: os.open(name, flags, 0o644))


_source_options = (
    click.argument("name", metavar="LIST"),
    click.argument("given", metavar="[ENTRY]...", nargs=-1),
    click.option("-f", "--file", "paths", multiple=True, type=click.Path(path_type=Path, allow_dash=True),
                 help="Read entries from this file (- for standard input); repeatable."),
    format_option,
)  # fmt: skip


def _with_source(command: Callable[..., None]) -> Callable[..., None]:
    return functools.reduce(lambda made, option: option(made), reversed(_source_options), command)


@lists.command()
@_with_source
@click.option("--comment", help="Comment for entries that have none.")
@keep_going_option
@force_option
@with_session
def add(session: Session, name: str, given: tuple[str, ...], paths: tuple[Path, ...], kind: str | None,
        comment: str | None, keep_going: bool, force: bool) -> None:  # fmt: skip
    """Add entries to LIST from arguments, files or standard input. Existing ones get the new comment.

    An entry that affects far more mail than people expect (@gmail.com, 0.0.0.0/0, your own domain) needs --force.
    """
    entries_, sources = _given(given, paths, kind)
    if not force:
        run(dangers.check(session, name, entries_, sources))
    wanted = [ListEntry(entry, (comment or "") if own is None else own) for entry, own in entries_.items()]
    tally = Tally()

    async def send() -> None:
        with meter(name, len(wanted)) as advance:
            async with ListClient(session.settings) as client:
                await client.add(name, wanted, session.tenant, keep_going=keep_going, tally=tally, progress=advance)

    _change(session, name, "added or updated", len(wanted), tally, send())


@lists.command()
@_with_source
@with_session
def delete(session: Session, name: str, given: tuple[str, ...], paths: tuple[Path, ...], kind: str | None) -> None:
    """Delete entries from LIST, as given in arguments, files or standard input. Missing entries are ignored."""
    unwanted = list(_given(given, paths, kind)[0])
    tally = Tally()

    async def send() -> None:
        with meter(name, len(unwanted)) as advance:
            async with ListClient(session.settings) as client:
                await client.delete(name, unwanted, session.tenant, tally=tally, progress=advance)

    _change(session, name, "deleted", len(unwanted), tally, send())


def _given(
    arguments: tuple[str, ...], paths: tuple[Path, ...], kind: str | None
) -> tuple[dict[str, str | None], list[Source]]:
    """The entries with their comments, and the files that they come from."""
    found: dict[str, str | None] = dict.fromkeys(arguments)
    if not arguments and not paths:
        if sys.stdin.isatty():
            raise click.UsageError("give entries as arguments, with --file, or on standard input")
        paths = (Path("-"),)
    sources = [Source(path, Format(kind) if kind else None) for path in paths]
    try:
        for source in sources:
            found |= source.read()
        if "" in found:
            raise InputError("an entry is empty")
    except InputError as exc:
        fail(exc)
    return found, sources


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
        say(f"{name} of {session.scope}: {tally.modified:,} {'entry' if tally.modified == 1 else 'entries'} {verb}")
    if verb == "deleted" and not code and tally.modified < total:
        _say_absent(session, total - tally.modified)
    say_refused(tally.refused)
    if problem:
        say_lines(f"{visible(name)}: stopped: {problem}", err=True)
        say(account(tally.confirmed, total, tally.uncertain, left, again=code != EXIT_FAILED), err=True)
    sys.exit(code)


def _say_absent(session: Session, number: int) -> None:
    """Not an error: the result is what was wanted, unless the entry was misspelt or is in another scope."""
    other = "without --tenant" if session.tenant else "of a tenant with --tenant"
    what = "1 entry was" if number == 1 else f"{number:,} entries were"
    say(f"{what} not in the list of {session.scope}: check the spelling with `scanbridge lists entries`, "
        f"and look {other}", err=True)  # fmt: skip
