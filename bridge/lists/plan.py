"""One or many lists to be made equal to files: planned together, then applied one by one.

Nothing is changed before every file was read and every difference is known, so a mistake in the
last file costs nothing. What happened to each list is kept in its plan, at every moment.
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
from bridge.lists.sync import Applied, Difference, Wanted, apply, difference
from bridge.lists.tree import Target


class State(StrEnum):
    PLANNED = "planned"  # nothing done yet
    UNCHANGED = "unchanged"  # there was nothing to do
    RUNNING = "running"  # begun; what stays so was interrupted
    DONE = "done"
    DIFFERENT = "different"  # all was done, and yet the list is not as the file: see `problem`
    FAILED = "failed"


@dataclass(slots=True)
class Plan:
    target: Target
    wanted: Wanted
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
        """Additions and updates, which the service does not tell apart."""
        return len(self.change.additions) + len(self.change.updates)

    @property
    def uncertain(self) -> int:
        return self.applied.added.uncertain + self.applied.deleted.uncertain

    @property
    def left(self) -> int:
        """What is certainly not done."""
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
            "add": [one.to_dict() for one in self.change.additions],
            "update": [one.to_dict() for one in self.change.updates],
            "delete": self.change.deletions if self.prune else [],
        }

    def lines(self, limit: int | None = None) -> Iterator[str]:
        """The difference for people: `+` added, `~` another comment, `-` deleted; at most `limit` of each."""
        gone = self.change.deletions if self.prune else []
        for sign, names in (
            ("+", [one.entry for one in self.change.additions]),
            ("~", [one.entry for one in self.change.updates]),
            ("-", gone),
        ):
            for name in names[:limit]:
                yield f"{sign} {clean(name)}"
            if limit is not None and len(names) > limit:
                yield f"{sign} ... and {len(names) - limit:,} more"


async def available(client: ListClient, targets: Iterable[Target]) -> dict[Target, ListFileInfo]:
    """What the service says about each list. Raises ListNotFound with all that it does not have."""
    scopes: dict[str | None, dict[str, ListFileInfo]] = {}
    found, unknown = {}, []
    for target in targets:
        if target.tenant not in scopes:
            scopes[target.tenant] = {info.name: info for info in await client.lists(target.tenant)}
        info = scopes[target.tenant].get(target.name)
        if info is None:
            names = ", ".join(sorted(scopes[target.tenant])) or "none"
            unknown.append(f"there is no list {clean(str(target))}; the lists there are {clean(names)}")
        else:
            found[target] = info
    if unknown:
        raise ListNotFound("\n".join(unknown))
    return found


async def make(
    client: ListClient, target: Target, wanted: Wanted, max_size: int, *, prune: bool, progress: Progress | None = None
) -> Plan:
    """Raises ListsError, also when the list would be larger than it may be."""
    change = await difference(client, target.name, wanted, target.tenant, progress)
    change.check_fits(max_size, prune=prune)
    return Plan(target, wanted, change, prune)


async def carry_out(
    client: ListClient, plan: Plan, *, verify: bool, keep_going: bool = False, progress: Progress | None = None
) -> None:
    """Apply one plan and look at the result. Raises ListsError, with the plan saying how far it came."""
    if plan.is_empty:
        plan.state = State.UNCHANGED
        return
    plan.state = State.RUNNING
    name, tenant, applied = plan.target.name, plan.target.tenant, plan.applied
    how = {"prune": plan.prune, "keep_going": keep_going}
    try:
        await apply(client, name, plan.change, tenant, **how, applied=applied, progress=progress)
        refused = applied.added.refused
        wanted = (
            {one: comment for one, comment in plan.wanted.items() if one not in refused} if refused else plan.wanted
        )
        left = await difference(client, name, wanted, tenant) if verify else None
    except ListsError as exc:
        plan.state, plan.problem = State.FAILED, str(exc)
        raise
    plan.state = State.DONE
    if left is not None and not left.is_empty(prune=plan.prune):
        plan.state, plan.problem = State.DIFFERENT, _still_different(left, prune=plan.prune)
    elif refused:
        plan.state, plan.problem = State.DIFFERENT, f"{len(refused):,} entries were refused and left out"


def _still_different(left: Difference, *, prune: bool) -> str:
    names = [one.entry for one in [*left.additions, *left.updates]] + (left.deletions if prune else [])
    return (
        f"{len(names):,} entries still differ, for example {clean(names[0])!r}: the file has one entry in two "
        "spellings, or somebody else changed the list meanwhile"
    )
