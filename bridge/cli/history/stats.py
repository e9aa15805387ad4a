"""`scanbridge stats`: how many mails, by what was done with them, by tag, sender, hour and so on.

The numbers come from the history, so they survive restarts and include all workers, and with PostgreSQL all machines.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.config_option import config_option
from bridge.cli.history.filters import with_filters
from bridge.cli.parameters import Limit
from bridge.cli.single_values import Command
from bridge.cli.terminal import say, say_cells, say_csv, say_json, width
from bridge.history.lines import Line, cut, lines_of
from bridge.history.query import BY
from bridge.runtime.counted import counted
from bridge.runtime.moments import parse
from bridge.runtime.visible_text import visible

if TYPE_CHECKING:
    from bridge.cli.history.session import HistorySession
    from bridge.history.query import Sum

_TIMES = ("hour", "day")
_DEFAULT_LIMIT = 20
_BLOCKS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"  # eighths of a bar
_FULL = "\u2588"


@click.command(cls=Command)
@config_option
@click.option("--by", type=click.Choice(BY), default="action", show_default=True, help="What to count by.")
@with_filters
@click.option(
    "--limit",
    type=Limit(),
    default=None,
    help="Maximum number of lines (0 = no limit); the rest is combined into one line. "
    "Default: 20, but no limit for hours and days.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for a spreadsheet.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="Also write a bar chart (SVG)."
)
def stats(
    path: Path | None,
    by: str,
    wanted: dict[str, Any],
    limit: int | None,
    as_csv: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Count mails by action, tag, sender, hour or another property.

    Covers the last seven days unless --since is given. A mail with several tags or recipients is counted once for each
    of them. Hours and days are in the local time zone.
    """
    from bridge.cli.history.session import HistorySession

    if as_csv and as_json:
        raise click.UsageError("choose one of --csv and --json")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise click.UsageError(f"--plot writes SVG: use the file name {plot.with_suffix('.svg').name}")
    session = HistorySession.open(path)
    wanted.setdefault("since", parse("7d"))
    sums = _sums(session, by, wanted)
    total = _total(session, by, wanted, sums)
    rows, rest = cut(by, sums, (0 if by in _TIMES else _DEFAULT_LIMIT) if limit is None else limit)
    if plot is not None:
        _write_plot(plot, by, rows, rest, wanted, total)
    if as_json:
        say_json(_as_json(by, wanted, [*rows, *rest], total), indent=2)
    elif as_csv:
        say_csv(by, "mails", "bytes")
        for label, mails, size in [*rows, *rest]:
            say_csv(label, str(mails), str(size))
    else:
        _say_table(by, rows, rest, total)


def _sums(session: HistorySession, by: str, wanted: dict[str, Any]) -> list[Line]:
    query = session.query(wanted)
    what: Any = "hour" if by == "day" else by  # the store's days are UTC days
    found: list[Sum] = session.read(lambda: session.store.count(what, query))
    return lines_of(by, found)


def _total(session: HistorySession, by: str, wanted: dict[str, Any], sums: list[Line]) -> int:
    """The number of mails: those with several tags or recipients are counted once."""
    if by not in ("tag", "recipient"):
        return sum(mails for _, mails, _ in sums)
    query = session.query(wanted)
    return sum(total.mails for total in session.read(lambda: session.store.count("action", query)))


def _as_json(by: str, wanted: dict[str, Any], rows: list[Line], total: int) -> dict[str, Any]:
    now = time.time()
    return {
        "by": by,
        "since": datetime.fromtimestamp(wanted["since"], UTC).isoformat(timespec="seconds"),
        "until": datetime.fromtimestamp(wanted.get("until", now), UTC).isoformat(timespec="seconds"),
        "mails": total,
        "rows": [{by: label, "mails": mails, "bytes": size} for label, mails, size in rows],
    }


# Text and picture


def _say_table(by: str, rows: list[Line], rest: list[Line], total: int) -> None:
    columns = width()
    if columns is None:
        say_cells(by.upper(), "MAILS", "SHARE", "BYTES")
        for label, mails, size in [*rows, *rest]:
            say_cells(label, str(mails), _share(mails, total), str(size))
        return
    for line in _lines(by, rows, rest, total, columns):
        say(line)
    say(counted(total, "mail") if rows else "no recorded mail matches")


def _lines(by: str, rows: list[Line], rest: list[Line], total: int, columns: int) -> list[str]:
    from bridge.cli.table import aligned

    if not rows:
        return []
    widest = max(columns // 3, 12)
    cells = [(visible(label), f"{mails:,}", _share(mails, total)) for label, mails, _ in [*rows, *rest]]
    most = max(mails for _, mails, _ in rows) or 1
    texts = aligned([(by.upper(), "MAILS", "SHARE"), *cells], (widest, 12, 6))
    room = columns - len(texts[0]) - 2
    bars = ["", *(_bar(mails / most, room) for _, mails, _ in rows), *("" for _ in rest)]
    return [f"{text}  {bar}".rstrip() for text, bar in zip(texts, bars, strict=True)]


def _bar(share: float, room: int) -> str:
    eighths = round(share * max(room, 0) * 8)
    return _FULL * (eighths // 8) + _BLOCKS[eighths % 8].strip()


def _share(mails: int, total: int) -> str:
    return f"{100 * mails / total:.1f} %" if total else ""


def _write_plot(file: Path, by: str, rows: list[Line], rest: list[Line], wanted: dict[str, Any], total: int) -> None:
    from bridge.runtime import svg

    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(wanted["since"]))
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(wanted.get("until", time.time())))
    others = "".join(f"; not shown: {label.strip('()')} with {mails:,}" for label, mails, _ in rest)
    labels = [label for label, _, _ in rows]
    if by in _TIMES and len({label[:4] for label in labels}) == 1:
        labels = [label[5:] for label in labels]  # without the year
    draw = svg.columns if by in _TIMES else svg.bars
    pairs = [(label, mails) for label, (_, mails, _) in zip(labels, rows, strict=True)]
    picture = draw(f"Mails by {by}", pairs, f"{since} to {until}, {counted(total, 'mail')}{others}")
    try:
        svg.write(file, picture)
    except OSError as exc:
        raise click.ClickException(f"{file} cannot be written: {exc.strerror}") from exc
