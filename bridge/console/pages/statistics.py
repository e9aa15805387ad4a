"""Statistics: how much mail, what was done with it, and whose; for a day, a week or a month, also as files.

Counting a month of a busy server takes seconds, so it is done in the background, and results are kept for a minute or
more, for each set of tenants. A page that comes first shows what was counted so far, and loads itself again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any

from starlette.responses import Response

from bridge.console.call import Call, Refused
from bridge.console.roles import Tenants
from bridge.console.search import reader_zone
from bridge.console.tenant_history import TenantHistory
from bridge.history.lines import TIMES, Line, cut, lines_of
from bridge.history.query import BY, By, HistoryQuery, Sum, Top
from bridge.history.store import HistoryError
from bridge.runtime import svg
from bridge.runtime.csv_row import csv_row

log = logging.getLogger(__name__)

_DAY = 86400.0
PERIODS = {"day": _DAY, "week": 7 * _DAY, "month": 30 * _DAY}
_COUNTED: tuple[By, ...] = ("action", "decision", "hour")
_LISTED: dict[By, str] = {"sender": "Senders", "recipient": "Recipients", "tag": "Tags", "client": "Clients"}
_WAIT_S = 0.05  # for what was not counted before
_FRESH = {"day": 60.0, "week": 120.0, "month": 300.0}  # seconds
_MAX_KEPT = 60
_TOP = 10
_EXPORTED = 10_000  # lines of one file
_HOURS_SHOWN = 48  # with more hours, days are marked
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 180, 44, 22
FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json", "svg": "image/svg+xml"}


@dataclass(slots=True)
class Counted:
    """Grows while it is counted."""

    at: float = field(default_factory=time.time)  # Unix time
    took_s: float = 0.0
    sums: dict[str, list[Sum]] = field(default_factory=lambda: {by: [] for by in _COUNTED})
    tops: dict[str, Top] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def mails(self) -> int:
        return sum(one.mails for one in self.sums["action"])

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.sums["action"])


@dataclass(frozen=True, slots=True)
class Column:
    x: float
    y: float
    width: float
    height: float
    label: str
    mails: int
    mark: str  # written below; "" if there is no room
    parity: str  # every second mark is left out on narrow screens


class Counter:
    """Counts once for all who ask, and again in the background when the result is old."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Tenants, str], Counted] = {}
        self._running: dict[tuple[Tenants, str], asyncio.Task[None]] = {}
        self._growing: dict[tuple[Tenants, str], Counted] = {}
        self._one_at_a_time = asyncio.Semaphore(1)

    async def count(self, call: Call, period: str) -> Counted:
        key = (call.tenants, period)
        known = self._kept.get(key)
        fresh_s = max(_FRESH[period], 20 * known.took_s) if known else 0.0
        if known is not None and time.time() - known.at < fresh_s:
            return known
        is_new = key not in self._running
        if is_new:
            self._growing[key] = Counted()
            self._running[key] = asyncio.create_task(self._work(key, call.history))
        if known is not None:
            return known
        running, counted = self._running[key], self._growing[key]
        if is_new:
            await asyncio.wait([running], timeout=_WAIT_S)
        if running.done():
            running.result()  # raises what went wrong
        return counted

    async def _work(self, key: tuple[Tenants, str], history: TenantHistory) -> None:
        counted = self._growing[key]
        try:
            async with self._one_at_a_time:
                await asyncio.to_thread(_count, counted, history, key[1])
            while len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = counted
        except HistoryError as exc:
            log.warning("console: %s", exc)
            raise
        finally:
            del self._running[key], self._growing[key]


_counter = Counter()


async def statistics(call: Call) -> Response:
    period, zone = _period(call), _zone(call)
    counted = await _counter.count(call, period)
    by = "day" if period == "month" else "hour"
    times = lines_of(by, counted.sums["hour"], zone)
    tops = [(word, title, *_top_lines(word, top)) for word, title in _LISTED.items() if (top := counted.tops.get(word))]
    return call.page(
        "statistics.html",
        period=period,
        periods=tuple(PERIODS),
        zone=call.request.query_params.get("zone", "") if zone is not UTC else "",
        zone_name=str(zone),
        counted=counted,
        actions=lines_of("action", counted.sums["action"]),
        decisions=lines_of("decision", counted.sums["decision"]),
        columns=columns(times),
        peak=max((mails for _, mails, _ in times), default=0),
        by=by,
        tops=tops,
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        bottom=_BOTTOM,
        formats=tuple(FORMATS),
    )


async def export(call: Call) -> Response:
    given = call.request.query_params
    by, kind, period, zone = given.get("by", ""), given.get("as", ""), _period(call), _zone(call)
    if by not in BY or kind not in FORMATS:
        raise Refused(400, "No such file", f"Choose one of {', '.join(BY)}, as {', '.join(FORMATS)}.")
    call.audit_detail = f"by {by}, {period}, {kind}"
    query = _query(period)
    if by in TIMES:
        rows, rest = cut(by, lines_of(by, await call.run(call.history.count, "hour", query), zone), _EXPORTED)
    else:
        rows, rest = _top_lines(by, await call.run(call.history.top, by, query, 20 if kind == "svg" else _EXPORTED))
    content = _as_file(kind, by, period, rows, rest)
    headers = {"Content-Disposition": f'attachment; filename="mails-by-{by}-{period}.{kind}"'}
    return Response(content, media_type=FORMATS[kind], headers=headers)


def columns(lines: list[Line]) -> list[Column]:
    """Where the bars of the plot are."""
    most = max((mails for _, mails, _ in lines), default=0) or 1
    step = (_WIDTH - _LEFT) / max(len(lines), 1)
    marks = _marks([label for label, _, _ in lines])
    room = _HEIGHT - _BOTTOM - 8
    return [
        Column(
            x=round(_LEFT + number * step + step * 0.1, 2),
            y=round(8 + room * (1 - mails / most), 2),
            width=round(step * 0.8, 2),
            height=round(room * mails / most, 2),
            label=label,
            mails=mails,
            mark=marks.get(number, ("", ""))[0] if _LEFT + number * step < _WIDTH - 40 else "",
            parity=marks.get(number, ("", ""))[1],
        )
        for number, (label, mails, _) in enumerate(lines)
    ]


def _marks(labels: list[str]) -> dict[int, tuple[str, str]]:
    """What is written below which column: hours of a day, the first hour of each day of a week, some days of a month.

    With `odd` or `even`: every second one is left out on narrow screens.
    """
    if not labels or " " not in labels[0]:  # days
        chosen, form = list(range(0, len(labels), -(-len(labels) // 8) or 1)), "%d %b"
    elif len(labels) <= _HOURS_SHOWN:
        chosen, form = list(range(0, len(labels), -(-len(labels) // 8))), "%a %H:%M"
    else:
        chosen, form = [number for number, label in enumerate(labels) if label.endswith(" 00:00")], "%a %d"
    return {
        number: (datetime.fromisoformat(labels[number]).strftime(form), "even" if place % 2 else "odd")
        for place, number in enumerate(chosen)
    }


def _count(counted: Counted, history: TenantHistory, period: str) -> None:
    began, query = time.monotonic(), _query(period)
    for by in _COUNTED:
        found = history.count(by, query)
        counted.sums[by] = _whole(found, query) if by == "hour" else found
    for by in _LISTED:
        counted.tops[by] = history.top(by, query, _TOP)
    counted.at, counted.took_s, counted.is_complete = time.time(), time.monotonic() - began, True


def _top_lines(by: str, top: Top) -> tuple[list[Line], list[Line]]:
    """The lines to show, and one that sums up the rest, if there is one."""
    rest = [(f"({top.others:,} others)", top.rest.mails, top.rest.size)] if top.others else []
    return lines_of(by, top.sums), rest


def _whole(hours: list[Sum], query: HistoryQuery) -> list[Sum]:
    """With the first and the last hour of the period, so that the plot shows all of it."""
    known = {one.label: one for one in hours}
    for moment in (query.since or 0.0, time.time()):
        label = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:00")
        known.setdefault(label, Sum(label, 0, 0))
    return [known[label] for label in sorted(known)]


def _query(period: str) -> HistoryQuery:
    """From the beginning of an hour, whose sums are kept."""
    return HistoryQuery(since=(time.time() - PERIODS[period]) // 3600 * 3600, limit=0)


def _as_file(kind: str, by: str, period: str, rows: list[Line], rest: list[Line]) -> str:
    every = [*rows, *rest]
    match kind:
        case "csv":
            return csv_row(by, "mails", "bytes") + "".join(
                csv_row(label, str(mails), str(size)) for label, mails, size in every
            )
        case "json":
            listed: list[dict[str, Any]] = [{by: label, "mails": mails, "bytes": size} for label, mails, size in every]
            made = datetime.now(UTC).isoformat(timespec="seconds")
            return json.dumps({"by": by, "period": period, "made": made, "rows": listed}, indent=1)
        case _:
            draw = svg.columns if by in TIMES else svg.bars
            return draw(f"Mails by {by}", [(label, mails) for label, mails, _ in rows], f"in the last {period}")


def _period(call: Call) -> str:
    period = call.request.query_params.get("period", "day")
    return period if period in PERIODS else "day"


def _zone(call: Call) -> tzinfo:
    return reader_zone(call.request.query_params.get("zone", ""))
