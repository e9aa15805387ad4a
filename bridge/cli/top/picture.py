"""The picture of `scanbridge top`: turns the data of `sample` into lines for a terminal of any width."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bridge.cli.terminal import visible_data
from bridge.runtime.counted import spoken

_BARS = {False: "▁▂▃▄▅▆▇█", True: "_.-:=+*#"}  # True: for terminals with ASCII only
_NARROW = 60  # columns; narrower terminals get no sparklines
_STATUS = {"GREEN": "green", "YELLOW": "yellow", "RED": "red", "closed": "green", "half_open": "yellow", "open": "red"}
_LOUD = {"undecided", "none", "bounce", "drop", "quarantine", "4xx", "5xx"}
_FIRST_BUCKET_S = 0.01  # smallest bucket of the histograms: shorter times are unknown
HISTORY = 120


class Picture:
    """Keeps the latest intervals for the sparklines."""

    def __init__(self, *, waits: bool = True) -> None:
        self._waits = waits  # for a daemon that does not answer
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._times: dict[str, deque[float]] = {}

    def draw(self, seen: dict[str, Any], width: int, *, ascii_only: bool = False) -> RenderableType:
        seen = visible_data(seen)
        if not seen["up"]:
            return Text.assemble(("no daemon", "bold red"), f"  {seen['problem']}{'; waiting' if self._waits else ''}")
        self._note(seen)
        spark = 0 if width < _NARROW else min(width - 45, HISTORY)
        parts: list[RenderableType] = [Text(line, "bold red") for line in seen["problems"]]
        parts += [_head(seen), _since_start(seen), *(Text(line, "bold yellow") for line in seen["warnings"])]
        parts += [_fill(seen, width, ascii_only), self._flow(seen, spark, ascii_only)]
        parts += [_hosts(seen["scanner"]), _next_hops(seen["next_hops"])]
        if len(seen["workers"]) > 1:
            parts.append(_workers(seen["workers"]))
        return Group(*parts, *_stores(seen))

    def _note(self, seen: dict[str, Any]) -> None:
        self._rates.append(seen["mails_per_s"])
        for what in ("scan", "relay", "wait"):
            median = seen[f"{what}_s"]["p50"] or 0.0
            known = median if median >= _FIRST_BUCKET_S else 0.0
            self._times.setdefault(what, deque(maxlen=HISTORY)).append(known)

    def _flow(self, seen: dict[str, Any], spark: int, ascii_only: bool) -> RenderableType:
        table = _grid(4)
        line = sparkline(self._rates, spark, ascii_only)
        table.add_row("mail", f"{_number(seen['mails_per_s'])}/s", f"{_size(seen['bytes_per_s'])}/s", line)
        for what in ("scan", "relay", "wait"):
            times = seen[f"{what}_s"]
            line = sparkline(self._times[what], spark, ascii_only)
            table.add_row(what, f"p50 {_seconds(times['p50'])}", f"p99 {_seconds(times['p99'])}", line)
        early = sum(seen["saturated_replies_per_s"].values())
        refused = sum(seen["refused_connections_per_s"].values())
        ends = [
            _pairs("decisions", seen["decisions_per_s"]),
            _pairs("replies", seen["replies_per_s"], {"refused early": early}),
            _pairs("connections", {"open": seen["connections"], "refused": refused}),
        ]
        if failures := {name: rate for name, rate in seen["failures_per_s"].items() if rate}:
            ends.append(_pairs("failures", failures, style="red"))
        return Group(table, *ends)


def _head(seen: dict[str, Any]) -> Text:
    ready = ("ready", "green") if seen["ready"] else ("not ready", "bold red")
    workers = f"  {len(seen['workers'])} workers" if len(seen["workers"]) > 1 else ""
    words = (f"scanbridge {seen['version']}", "bold"), f"  up {spoken(seen['uptime_s'])}  ", ready, workers
    return Text.assemble(*words, no_wrap=True, overflow="ellipsis")


def _since_start(seen: dict[str, Any]) -> Text:
    return Text(f"total          {seen['mails'].get('summary', 'unknown')}")


def _fill(seen: dict[str, Any], width: int, ascii_only: bool) -> Text:
    count, limit = seen["in_processing"], seen["max_in_processing"]
    share = min(count / limit, 1.0) if limit else 0.0
    cells = min(20, max(width - 50, 0))
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    style = "red" if share >= 1 else "yellow" if share >= 0.8 else "green"
    line = Text.assemble("in processing  ", no_wrap=True, overflow="ellipsis")
    line.append(full * round(share * cells), style)
    line.append(empty * (cells - round(share * cells)) + (" " if cells else ""))
    line.append(f"{count} of {limit}", style)
    line.append(f"  {_size(seen['bytes_in_processing'])} of {_size(seen['bytes_limit'])}")
    if seen["throttle_delay_s"]:
        line.append(f"  throttle delay {_seconds(seen['throttle_delay_s'])}", "yellow")
    for cause in seen["saturated_by"]:
        line.append(f"  saturated: {cause}", "bold red")
    return line


def _hosts(hosts: list[dict[str, Any]]) -> Table:
    table = _table("scanner", "status", "circuit", "in flight")
    for host in hosts:
        states = [Text(str(host[key]), _STATUS.get(str(host[key]), "")) for key in ("status", "circuit")]
        table.add_row(host["url"], *states, str(host["in_flight"]))
    return table


def _next_hops(hops: list[dict[str, Any]]) -> Table:
    table = _table("next hop", "", "taken/s", "failed/s", "connections")
    for hop in hops:
        taken = hop["mails_per_s"].get("taken", 0.0)
        rest = sum(hop["mails_per_s"].values()) - taken
        up = Text("up", "green") if hop["up"] else Text("down", "red") if hop["up"] is False else Text("not tried yet")
        connections = ", ".join(f"{count} {state}" for state, count in hop["connections"].items())
        table.add_row(hop["name"], up, _number(taken), Text(_number(rest), "red" if rest else ""), connections)
    return table


def _workers(workers: list[dict[str, Any]]) -> Table:
    table = _table("worker", "", "connections", "up")
    for worker in workers:
        ready = Text("ready", "green") if worker["ready"] else Text("not ready", "red")
        table.add_row(str(worker["pid"]), ready, str(worker["connections"]), spoken(worker["uptime_s"]))
    return table


def _stores(seen: dict[str, Any]) -> list[Text]:
    """The quarantine and the lists, if there is anything to show."""
    found = []
    if (store := seen["quarantine"]) is not None:
        free = (
            f", {store['disk_free_bytes'] / store['disk_size_bytes']:.0%} of the disk free"
            if store["disk_size_bytes"]
            else ""
        )
        oldest = f", oldest {spoken(store['oldest_age_s'])}" if store["mails"] else ""
        mails = f"{store['mails']} {'mail' if store['mails'] == 1 else 'mails'}"
        found.append(f"quarantine     {mails}, {_size(store['bytes'])}{oldest}{free}")
    if lists := seen["lists"]:
        found.append("lists          " + ", ".join(f"{name} {count}" for name, count in lists.items()))
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in found]


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=13, no_wrap=True)
    for _ in range(columns - 1):
        table.add_column(no_wrap=True)
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(names[0], min_width=13, overflow="ellipsis", no_wrap=True, ratio=None)
    for name in names[1:]:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    return table


def _pairs(name: str, *groups: Mapping[str, float], style: str = "") -> Text:
    line = Text(f"{name:<13}  ", no_wrap=True, overflow="ellipsis")
    for key, value in (pair for group in groups for pair in group.items()):
        shown = style or ("yellow" if key in _LOUD and value else "")
        line.append(f"{key} {_number(value)}  ", shown)
    return line


def sparkline(values: deque[float], width: int, ascii_only: bool = False) -> str:
    """The latest values as bars, relative to the highest."""
    shown = list(values)[-width:] if width > 0 else []
    top, bars = max(shown, default=0.0), _BARS[ascii_only]
    return "".join(bars[min(int(value / top * len(bars)), len(bars) - 1)] if top else bars[0] for value in shown)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) or value >= 100 else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < _FIRST_BUCKET_S:
        return f"<{_FIRST_BUCKET_S * 1000:.0f} ms"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{_number(round(count, 1))} {unit}"
        count /= 1024
    return f"{_number(round(count, 1))} GiB"
