"""Statistics as people read them: labels for what has none, hours in their time zone, the rest in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from bridge.history.query import Sum

Line = tuple[str, int, int]  # label, mails, bytes

TIMES = ("hour", "day")
_NOTHING = {
    "decision": "(no decision)",
    "rule": "(no rule)",
    "sender": "<>",
    "client": "(unknown)",
    "tenant": "(no tenant)",
    "listener": "(unknown)",
}
_MAX_FILLED = 10_000  # hours without mail that are shown
_HOUR = "%Y-%m-%d %H:00"


def lines_of(by: str, found: Sequence[Sum], zone: tzinfo | None = None) -> list[Line]:
    """For `hour` and `day`, `found` has UTC hours; `zone`: the reader's, otherwise the local one."""
    if by in TIMES:
        return _local_times(by, found, zone)
    return [(total.label or _NOTHING.get(by, "(none)"), total.mails, total.size) for total in found]


def cut(by: str, lines: list[Line], limit: int) -> tuple[list[Line], list[Line]]:
    """The lines to show, and one that sums up the rest, if there is one."""
    if not limit or len(lines) <= limit:
        return lines, []
    if by in TIMES:
        return lines[-limit:], []
    rest = lines[limit:]
    name = f"({len(rest):,} others)"
    return lines[:limit], [(name, sum(mails for _, mails, _ in rest), sum(size for _, _, size in rest))]


def _local_times(by: str, found: Sequence[Sum], zone: tzinfo | None) -> list[Line]:
    """UTC hours as hours or days of the time zone, including those without mail.

    When summer time ends, one hour occurs twice: each of the two is labelled with its zone.
    """
    form = "%Y-%m-%d %H:%M|%Z" if by == "hour" else "%Y-%m-%d|"
    lines: dict[tuple[str, str], tuple[int, int]] = {}
    for total in _filled(found):
        shown = datetime.strptime(total.label, _HOUR).replace(tzinfo=UTC).astimezone(zone).strftime(form)
        label, _, name = shown.partition("|")
        mails, size = lines.get((label, name), (0, 0))
        lines[label, name] = (mails + total.mails, size + total.size)
    times = Counter(label for label, _ in lines)
    return [
        (f"{label} {name}" if times[label] > 1 else label, mails, size)
        for (label, name), (mails, size) in lines.items()
    ]


def _filled(found: Sequence[Sum]) -> list[Sum]:
    if not found:
        return []
    known = {total.label: total for total in found}
    first, last = (datetime.strptime(found[place].label, _HOUR) for place in (0, -1))
    hours = int((last - first).total_seconds() // 3600) + 1
    if hours > _MAX_FILLED:
        return list(found)
    labels = [(first + timedelta(hours=number)).strftime(_HOUR) for number in range(hours)]
    return [known.get(label) or Sum(label, 0, 0) for label in labels]
