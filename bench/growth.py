"""How cost grows: the bridge's CPU time per mail against size, recipients and sessions, as tables and plots."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Run, Work, latency, run_alone
from peers import PEERS, Peer, ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KiB, MiB = 1024, 1024 * 1024
Point = tuple[float, Run]

SIZES = (KiB, 4 * KiB, 16 * KiB, 100 * KiB, MiB, 10 * MiB, 50 * MiB - 4 * KiB)
RECIPIENTS = (1, 10, 100, 1000)
SESSIONS = (1, 10, 100, 1000, 5000)
ENTRIES = (10, 1000, 100_000, 1_000_000)
LIST_ENTRIES = "list entries at the door"  # in each of two lists (the name of the plot's file comes from this)


def measure_all() -> dict[str, list[Point]]:
    plain = PEERS["scanbridge"]
    works: dict[str, list[tuple[float, Peer, Work]]] = {
        "size": [(size, plain, Work(_mails(size), sessions=4 if size > MiB else 20, size=size)) for size in SIZES],
        "recipients": [(count, plain, Work(max(200, 4000 // count), recipients=count)) for count in RECIPIENTS],
        "sessions": [(count, plain, Work(max(4000, 2 * count), sessions=count)) for count in SESSIONS],
        LIST_ENTRIES: [(count, _with_lists(count), Work(6000)) for count in ENTRIES],
    }
    found: dict[str, list[Point]] = {}
    for text, points in works.items():
        for value, peer, work in points:
            print(f"cost against {text}: {value:g}", file=sys.stderr, flush=True)
            found.setdefault(text, []).append((value, run_alone(peer, work)))
    return found


def _with_lists(count: int) -> Peer:
    return Peer("scanbridge, lists", "smtp", ours("smtp", entries=count))


def _mails(size: int) -> int:
    return max(12, min(4000, 400 * MiB // size))


def file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") + ".svg"


def table(text: str, points: list[Point]) -> list[str]:
    scale, unit = _UNITS.get(text, (0.0, ""))
    heads = [text, "CPU ms/mail", *([f"per {unit}"] if scale else []), "memory peak MB", "errors"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for value, result in points:
        each = [f"{result.cpu_ms / value * scale:.4f}"] if scale else []
        cells = [f"{value:,.0f}", f"{result.cpu_ms:.3f}", *each, f"{result.peak_mb:.0f}", str(result.errors)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


_UNITS = {"size": (float(MiB), "MiB"), "recipients": (1.0, "recipient")}  # where a larger value means more work


def plot_all(growing: dict[str, list[Point]], out: Path) -> None:
    from matplotlib import pyplot

    for text, points in growing.items():
        figure, axes = pyplot.subplots(figsize=(6, 3.5))
        axes.plot([value for value, _ in points], [result.cpu_ms for _, result in points], marker="o")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(text)
        _finish(axes, "CPU ms per mail")
        figure.tight_layout()
        figure.savefig(out / file_name(text), metadata={"Date": None})
        pyplot.close(figure)


def plot_peers(works: dict[str, dict[str, Run]], out: Path) -> None:
    from matplotlib import pyplot

    if not works:
        return
    figure, grid = pyplot.subplots(len(works), 4, figsize=(14, 1.9 * len(works)), squeeze=False, sharey="row")
    for (text, runs), (cost, speed, memory, wait) in zip(works.items(), grid, strict=True):
        names, values = list(runs), list(runs.values())
        cost.barh(names, [result.cpu_ms for result in values])
        speed.barh(names, [result.rate for result in values], color="tab:green")
        memory.barh(names, [result.peak_mb for result in values], color="tab:gray")
        wait.barh(names, [latency(result.load)[1] for result in values], color="moccasin")
        wait.barh(names, [latency(result.load)[0] for result in values], color="tab:orange")
        titles = (f"{text}: CPU ms per mail", "mails/s", "memory, peak MB", "latency ms, p50 and p99 (light)")
        for axes, title in zip((cost, speed, memory, wait), titles, strict=True):
            axes.set_title(title, fontsize=8)
            axes.tick_params(labelsize=7)
        cost.invert_yaxis()
    figure.tight_layout()
    figure.savefig(out / "peers.svg", metadata={"Date": None})
    pyplot.close(figure)


def _finish(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.grid(True, which="both", alpha=0.3)
