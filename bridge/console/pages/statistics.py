"""Statistics: how much mail, what was done with it, and whose; for a day, a week or a month, also as files.

Counting a month of a busy server takes seconds, so it is done in the background, and results are kept for a minute or
more, for each set of tenants. The first page shows what has been counted so far, and reloads itself.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from starlette.responses import Response

from bridge.console.call import Call, Refused
from bridge.console.mail_counts import LISTED, PERIODS, query_of
from bridge.console.search import reader_zone
from bridge.history.lines import TIMES, Line, cut, lines_of
from bridge.history.query import BY, Top
from bridge.runtime import svg
from bridge.runtime.csv_row import csv_row

log = logging.getLogger(__name__)

_EXPORTED = 10_000  # lines of one file
_HOURS_SHOWN = 48  # with more hours, days are marked
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 180, 44, 22
FORMATS = {"csv": "text/csv; charset=utf-8", "json": "application/json", "svg": "image/svg+xml"}


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


async def statistics(call: Call) -> Response:
    period, zone = _period(call), _zone(call)
    counted = await call.console.mail_counter.count(call.history, call.tenants, period)
    by = "day" if period == "month" else "hour"
    times = lines_of(by, counted.sums["hour"], zone)
    tops = [(word, title, *_top_lines(word, top)) for word, title in LISTED.items() if (top := counted.tops.get(word))]
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
    query = query_of(period)
    if by in TIMES:
        sums = await call.run_among_few(call.queues.exports, call.history.count, "hour", query)
        rows, rest = cut(by, lines_of(by, sums, zone), _EXPORTED)
    else:
        most = 20 if kind == "svg" else _EXPORTED
        rows, rest = _top_lines(by, await call.run_among_few(call.queues.exports, call.history.top, by, query, most))
    content = await call.run(_as_file, kind, by, period, rows, rest)
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
    """What is written below the columns: hours of a day, the first hour of each day of a week, some days of a month.

    With `odd` or `even`: every second one is left out on narrow screens. An hour that comes twice shows its zone.
    """
    if not labels or " " not in labels[0]:  # days
        chosen, form = list(range(0, len(labels), -(-len(labels) // 8) or 1)), "%d %b"
    elif len(labels) <= _HOURS_SHOWN:
        chosen, form = list(range(0, len(labels), -(-len(labels) // 8))), "%a %H:%M"
    else:
        chosen, form = [number for number, label in enumerate(labels) if label[10:16] == " 00:00"], "%a %d"
    return {
        number: (datetime.fromisoformat(labels[number][:16]).strftime(form), "even" if place % 2 else "odd")
        for place, number in enumerate(chosen)
    }


def _top_lines(by: str, top: Top) -> tuple[list[Line], list[Line]]:
    """The lines to show, and one that sums up the rest, if there is one."""
    rest = [(f"({top.others:,} others)", top.rest.mails, top.rest.size)] if top.others else []
    return lines_of(by, top.sums), rest


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
