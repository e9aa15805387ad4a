"""The work of `scanbridge lists sync`: find the differences, ask, apply them, report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from bridge.api.lists import ListFileInfo
from bridge.cli.lists import dangers
from bridge.cli.lists.session import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    EXIT_UNCONFIRMED,
    DangerousEntries,
    Session,
    account,
    attempt,
    exit_code,
    fail,
    say_refused,
)
from bridge.cli.lists.sources import Source, add_places, with_place
from bridge.cli.progress import meter
from bridge.cli.terminal import confirm, say, say_json, say_lines
from bridge.lists import plan, tree
from bridge.lists.client import ListClient
from bridge.lists.danger import Dangers
from bridge.lists.errors import EntryRefused, ListFull, clean
from bridge.lists.files import Format, InputError
from bridge.lists.plan import Plan, State
from bridge.lists.tree import Target

_SHOWN = 20  # entries of each kind, on a terminal

Entries = dict[str, str | None]


def sync(session: Session, places: tuple[str, ...], kind: str | None, choices: Choices, *, dry_run: bool) -> NoReturn:
    """Ends the process with its exit code."""
    sources = {
        target: Source(target.path, Format(kind) if kind else None) for target in _targets_or_exit(session, places)
    }
    job = SyncJob(session, choices, sources)
    try:
        wanted = {target: source.read() for target, source in sources.items()}
    except InputError as exc:
        fail(exc)
    code, problem = attempt(job.run(wanted, dry_run=dry_run))
    job.report(code or job.code, problem, dry_run=dry_run)
    sys.exit(code or job.code)


def _targets_or_exit(session: Session, places: tuple[str, ...]) -> list[Target]:
    try:
        return _targets(session, places)
    except InputError as exc:
        fail(exc)


def _targets(session: Session, places: tuple[str, ...]) -> list[Target]:
    match places:
        case (name, file):
            return [Target(name, session.tenant, Path(file))]
        case (directory,) if os.path.isdir(directory):  # noqa: PTH112 (Path.is_dir may raise)
            if session.tenant:
                raise click.UsageError("--tenant cannot be used with a directory: its subdirectories are the tenants")
            found = tree.find(Path(directory))
            for path in found.ignored:
                say(f"{path}: skipped: its name is not that of a list file", err=True)
            return found.targets
        case (place,):
            raise click.UsageError(f"{place} is not a directory: give a directory, or LIST and FILE")
        case _:
            raise click.UsageError("expected LIST and FILE, or a directory")


@dataclass(frozen=True, slots=True)
class Choices:
    """The operator's options."""

    prune: bool
    verify: bool
    yes: bool
    keep_going: bool
    too_many: Callable[[Plan], bool]
    force: bool


class SyncJob:
    """All lists of one `sync`, from reading the files to the report."""

    def __init__(self, session: Session, choices: Choices, sources: dict[Target, Source]) -> None:
        self._session = session
        self._choices = choices
        self._sources = sources
        self.plans: list[Plan] = []
        self.code = 0
        self._to_correct: set[Target] = set()  # a second run would fail in the same way

    async def run(self, wanted: dict[Target, Entries], *, dry_run: bool) -> None:
        async with ListClient(self._session.settings) as client:
            await self._prepare(client, wanted, dry_run=dry_run)
            if dry_run:
                self.code = 0 if all(planned.is_empty for planned in self.plans) else EXIT_DIFFERENT
            elif not self._confirmed():
                self.code = EXIT_UNCONFIRMED
            else:
                await self._carry_out(client)

    async def _prepare(self, client: ListClient, wanted: dict[Target, Entries], *, dry_run: bool) -> None:
        """Find all differences before changing anything; report what is impossible for all lists together."""
        infos = await plan.available(client, wanted)
        full: list[str] = []
        for target, content in wanted.items():
            with meter(f"{target}: reading", None, hidden=not sys.stderr.isatty()) as advance:
                try:
                    size = infos[target].max_size
                    made = await plan.make(client, target, content, size, prune=self._choices.prune, progress=advance)
                    self.plans.append(made)
                except ListFull as exc:
                    full.append(f"{target}: {exc}")
        if full:
            raise ListFull("\n".join(full))
        if not self._choices.force:
            self._refuse_dangers(infos, dry_run=dry_run)

    def _refuse_dangers(self, infos: dict[Target, ListFileInfo], *, dry_run: bool) -> None:
        """Additions only: an entry that is already in the list is left alone. A dry run only reports the dangers."""
        known, shown = Dangers(self._session.own_domains), []
        for planned in self.plans:
            category = self._session.category(planned.target.name, infos[planned.target].category)
            reasons = dangers.found(known, category, [entry.entry for entry in planned.change.additions])
            shown += dangers.lines(reasons, [self._sources[planned.target]]) if reasons else []
        if shown and dry_run:
            for line in [*shown, "these need --force"]:
                say(line, err=True)
        elif shown:
            raise DangerousEntries("\n".join([*shown, "add --force if this is intended"]))

    def _confirmed(self) -> bool:
        for planned in self.plans:
            if self._choices.yes or not self._choices.too_many(planned):
                continue
            loss = f"{planned.target}: {planned.deletions:,} of {planned.change.size:,} entries would be deleted"
            if not (sys.stdin.isatty() and sys.stderr.isatty()):
                say(f"{loss}, more than --max-delete allows; nothing was changed; use --yes to confirm", err=True)
                return False
            for line in planned.lines(_SHOWN):
                say(line, err=True)
            if not confirm(f"{loss}. Continue?"):
                say("nothing was changed", err=True)
                return False
        return True

    async def _carry_out(self, client: ListClient) -> None:
        for planned in self.plans:
            try:
                with meter(str(planned.target), planned.changes + planned.deletions) as advance:
                    how = {"verify": self._choices.verify, "keep_going": self._choices.keep_going}
                    await plan.carry_out(client, planned, **how, progress=advance)
            except (ListFull, EntryRefused) as exc:  # a problem of this list only: continue with the others
                self.code = exit_code(exc)
                self._to_correct.add(planned.target)
                if isinstance(exc, EntryRefused):
                    planned.problem = str(with_place([self._sources[planned.target]], exc))
            finally:
                add_places([self._sources[planned.target]], planned.applied.added.refused)
            if planned.state is State.DIFFERENT:
                self.code = EXIT_FAILED

    def report(self, code: int, problem: str, *, dry_run: bool) -> None:
        if self._session.as_json:
            data = [planned.as_data() | (planned.entries_as_data() if dry_run else {}) for planned in self.plans]
            say_json({"lists": data, "problem": problem or None, "exit_code": code}, indent=2)
        for planned in self.plans:
            if not self._session.as_json:
                self._show(planned, dry_run=dry_run)
            if planned.problem:
                say(f"{planned.target}: {clean(planned.problem)}", err=True)
            say_refused(planned.applied.added.refused)
            if planned.state in (State.FAILED, State.RUNNING):
                done = planned.applied.added.confirmed + planned.applied.deleted.confirmed
                counts = (done, planned.changes + planned.deletions, planned.uncertain, planned.left)
                say(account(*counts, again=planned.target not in self._to_correct), err=True)
        if problem and not any(planned.problem for planned in self.plans):
            begun = any(planned.state is not State.PLANNED for planned in self.plans)
            say_lines(problem if begun else f"{problem}\nnothing was changed", err=True)

    def _show(self, planned: Plan, *, dry_run: bool) -> None:
        if dry_run:
            for line in planned.lines(_SHOWN if sys.stdout.isatty() else None):
                say(line)
        change, applied = planned.change, planned.applied
        kept = len(change.deletions) if not planned.prune else 0
        extra = f"; {kept:,} that are not in the file are kept (--prune deletes them)" if kept else ""
        if dry_run or planned.state is State.PLANNED:
            what = (
                f"to add {len(change.additions):,}, to update {len(change.updates):,}, to delete {planned.deletions:,}"
            )
        elif planned.state is State.UNCHANGED:
            what = "up to date"
        else:
            what = f"added or updated {applied.added.confirmed:,}, deleted {applied.deleted.confirmed:,}"
        say(f"{planned.target}: {what}{extra}")
