"""Plans the synchronisation of one or more lists with files: all planned first, then applied one by one.

Nothing is changed until every file has been read and every difference is known, so a mistake in the
last file does no harm. The plan of each list always records what has happened to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bridge.api.lists import ListFileInfo
from bridge.lists.batches import Progress
from bridge.lists.client import ListClient
from bridge.lists.errors import ListNotFound, ListsError, clean
from bridge.lists.sync import Applied, Difference, WantedEntries, apply, difference
from bridge.lists.tree import Target
from bridge.runtime.counted import counted
from bridge.runtime.suggestion import did_you_mean


class State(StrEnum):
    PLANNED = "planned"  # nothing done yet
    UNCHANGED = "unchanged"  # there was nothing to do
    RUNNING = "running"  # started; if it stays in this state, it was interrupted
    DONE = "done"
    DIFFERENT = "different"  # everything was done, but the list still differs from the file: see `problem`
    FAILED = "failed"


@dataclass(slots=True)
class Plan:
    target: Target
    wanted: WantedEntries
    change: Difference
    prune: bool
    state: State = State.PLANNED
    applied: Applied = field(default_factory=Applied)
    problem: str = ""

    @property
    def is_empty(self) -> bool:
        return self.change.is_empty(prune=self.prune)

    @property
    def deletions(self) -> int:
        return len(self.change.deletions) if self.prune else 0

    @property
    def changes(self) -> int:
        """Additions and updates; the service does not distinguish them."""
        return len(self.change.additions) + len(self.change.updates)

    @property
    def uncertain(self) -> int:
        return self.applied.added.uncertain + self.applied.deleted.uncertain

    @property
    def left(self) -> int:
        """The number of changes that were certainly not made."""
        done = self.applied.added.confirmed + self.applied.deleted.confirmed
        return self.changes + self.deletions - done - self.uncertain - len(self.applied.added.refused)

    def as_data(self) -> dict[str, Any]:
        """For `--json`."""
        change, applied = self.change, self.applied
        return {
            "list": self.target.name,
            "tenant": self.target.tenant,
            "file": str(self.target.path),
            "state": str(self.state),
            "size_before": change.size,
            "additions": len(change.additions),
            "updates": len(change.updates),
            "not_in_file": len(change.deletions),
            "prune": self.prune,
            "done": {"added_or_updated": applied.added.confirmed, "deleted": applied.deleted.confirmed},
            "refused": applied.added.refused,
            "uncertain": self.uncertain,
            "not_done": self.left,
            "problem": self.problem or None,
        }

    def entries_as_data(self) -> dict[str, Any]:
        """The difference itself, for a dry run's `--json`."""
        return {
            "add": [entry.to_dict() for entry in self.change.additions],
            "update": [entry.to_dict() for entry in self.change.updates],
            "delete": self.change.deletions if self.prune else [],
        }

    def lines(self, limit: int | None = None) -> Iterator[str]:
        """The difference as text: `+` added, `~` new comment, `-` deleted; at most `limit` of each."""
        for sign, names in (
            ("+", [entry.entry for entry in self.change.additions]),
            ("~", [entry.entry for entry in self.change.updates]),
            ("-", self.change.deletions if self.prune else []),
        ):
            for name in names[:limit]:
                yield f"{sign} {clean(name)}"
            if limit is not None and len(names) > limit:
                yield f"{sign} ... and {len(names) - limit:,} more"


async def available(client: ListClient, targets: Iterable[Target]) -> dict[Target, ListFileInfo]:
    """The service's information about each list. Raises ListNotFound, naming all lists it does not have."""
    scopes: dict[str | None, dict[str, ListFileInfo]] = {}
    found, unknown = {}, []
    for target in targets:
        if target.tenant not in scopes:
            scopes[target.tenant] = {info.name: info for info in await client.lists(target.tenant)}
        info = scopes[target.tenant].get(target.name)
        if info is None:
            known = sorted(scopes[target.tenant])
            shown = clean(", ".join(known) or "none")
            hint = did_you_mean(target.name, known)
            unknown.append(f"there is no list {clean(str(target))}; available lists: {shown}{clean(hint)}")
        else:
            found[target] = info
    if unknown:
        raise ListNotFound("\n".join(unknown))
    return found


async def make(
    client: ListClient,
    target: Target,
    wanted: WantedEntries,
    max_size: int,
    *,
    prune: bool,
    progress: Progress | None = None,
) -> Plan:
    """Raises ListsError, including if the list would exceed its maximum size."""
    change = await difference(client, target.name, wanted, target.tenant, progress)
    change.check_fits(max_size, prune=prune)
    return Plan(target, wanted, change, prune)


async def carry_out(
    client: ListClient, plan: Plan, *, verify: bool, keep_going: bool = False, progress: Progress | None = None
) -> None:
    """Apply one plan and verify the result. Raises ListsError; the plan then records how far it got."""
    if plan.is_empty:
        plan.state = State.UNCHANGED
        return
    plan.state = State.RUNNING
    name, tenant, applied = plan.target.name, plan.target.tenant, plan.applied
    how = {"prune": plan.prune, "keep_going": keep_going}
    try:
        await apply(client, name, plan.change, tenant, **how, applied=applied, progress=progress)
        refused = applied.added.refused
        wanted = plan.wanted
        if refused:
            wanted = {entry: comment for entry, comment in wanted.items() if entry not in refused}
        left = await difference(client, name, wanted, tenant) if verify else None
    except ListsError as exc:
        plan.state, plan.problem = State.FAILED, str(exc)
        raise
    plan.state = State.DONE
    if left is not None and not left.is_empty(prune=plan.prune):
        plan.state, plan.problem = State.DIFFERENT, _what_differs(left, prune=plan.prune)
    elif refused:
        plan.state, plan.problem = State.DIFFERENT, f"refused and skipped: {counted(len(refused), 'entry', 'entries')}"


def _what_differs(left: Difference, *, prune: bool) -> str:
    names = [entry.entry for entry in [*left.additions, *left.updates]] + (left.deletions if prune else [])
    return still_different(len(names), names[0])


def still_different(number: int, example: str) -> str:
    return (
        f"still different: {counted(number, 'entry', 'entries')}, for example {clean(example)!r}; the file has the "
        "same entry in two forms, or someone else has changed the list in the meantime"
    )
