"""Draws docs/operate/dashboard.png: the panels of deploy/mixin/dashboard.json, with the numbers of a real run.

`make dashboard-picture` runs it (about three minutes; it needs Debian's prometheus, and installs matplotlib). A real
Prometheus scrapes a bridge with two workers while its scanner becomes slow, dies and returns. This program then draws
Prometheus' answers to the dashboard's own queries. Grafana itself is not available from our package registries, so
colours and fonts differ; the lines do not.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates
import matplotlib.pyplot as plt

from tests.observe.observe_kit import Scene, decide_by_subject, watched_bridge

ROOT = Path(__file__).parents[1]

COLUMNS = 4
UNITS = {"ops": "1/s", "s": "s", "bytes": "bytes", "Bps": "bytes/s", "percentunit": "", "none": ""}


def run(scene: Scene) -> tuple[float, float]:
    """Runs the load for two and a half minutes; returns its start and end times."""
    began = time.time()
    quick = scene.scanner.reply

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.5)
        assert callable(quick)
        await quick(reader, writer)

    with ExitStack() as stack:
        stack.enter_context(scene.load(4, 0.1))
        time.sleep(40)
        scene.scanner.reply = slow
        with scene.load(40, 0.05):
            time.sleep(30)
        decide_by_subject(scene.scanner)
        time.sleep(20)
        scene.kill_scanner()
        time.sleep(25)
        scene.revive_scanner()
        time.sleep(35)
    return began, time.time()


def draw(scene: Scene, began: float, ended: float, file: Path) -> None:
    whole = json.loads((ROOT / "deploy/mixin/dashboard.json").read_text())
    panels = [panel for panel in whole["panels"] if panel["type"] != "row"]
    rows = -(-len(panels) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(20, rows * 2.1), layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, panel in zip(axes.flat, panels, strict=False):
        draw_panel(scene, axis, panel, began, ended)
    figure.savefig(file, dpi=60)


def draw_panel(scene: Scene, axis: Any, panel: dict[str, Any], began: float, ended: float) -> None:
    axis.set_title(panel["title"], fontsize=9)
    axis.tick_params(labelsize=7)
    axis.set_ylabel(UNITS[panel["fieldConfig"]["defaults"]["unit"]], fontsize=7)
    lines = 0
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", "15s").replace("$instance", ".+")
        answer = scene.prometheus.ask("query_range", query=query, start=str(began), end=str(ended), step="1")
        for series in answer["result"]:
            legend = target["legendFormat"]
            for name, value in series["metric"].items():
                legend = legend.replace(f"{{{{{name}}}}}", value)
            times = [datetime.fromtimestamp(at, UTC) for at, _ in series["values"]]
            axis.plot(
                times, [float(value) for _, value in series["values"]], linewidth=1, label=legend or panel["title"]
            )
            lines += 1
    axis.set_ylim(bottom=None if "-1" in panel["title"] else 0)
    axis.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    axis.xaxis.set_major_locator(matplotlib.dates.SecondLocator(bysecond=(0, 30)))
    axis.grid(alpha=0.3)
    if 1 < lines <= 10:
        axis.legend(fontsize=6, loc="upper left", framealpha=0.5)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, watched_bridge(Path(directory), scrape="2s") as scene:
        scene.every_kind_of_mail()
        draw(scene, *run(scene), ROOT / "docs" / "operate" / "dashboard.png")
