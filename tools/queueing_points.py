"""What was measured on one machine, and what the simulation of queueing says about the same load."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from tools.queueing import Cell

EVIDENCE = Path(__file__).parents[1] / "docs/evidence"
RATES, MEDIANS, SLOWEST = 0.05, 0.2, 0.3  # tolerances; nothing interrupts a simulated core, so the p99 is too low
INSTANT_S = 0.00003  # the benchmark's scanner: p50 of a direct HTTP request


def cell_of(page: str, row: str, column: int) -> float:
    """A number from a table of the evidence; `row` is how its line begins."""
    line = next(line for line in (EVIDENCE / page).read_text().splitlines() if line.startswith(f"| {row} |"))
    return float(re.sub(r"[,*%]", "", line.split("|")[column].split("/")[-1]))


def bench(name: str) -> tuple[float, dict[str, float]]:
    """CPU seconds for a mail, and what its clients saw, on the machine that the rest of the evidence is from."""
    found = json.loads((EVIDENCE / "benchmarks/results-2026-11-15.json").read_text())[name]["scanbridge"]
    return found["cpu_ms"] / 1000, found["load"]


@dataclass(frozen=True)
class Point:
    """One number of one run; the simulation must be as close to it as `tolerance` says."""

    what: str
    measured: float
    simulated: float
    tolerance: float

    @property
    def difference(self) -> float:
        return self.simulated / self.measured - 1


def points(before: float) -> Iterator[Point]:
    yield from _closed("kept", "50 sessions, 4 KiB", 50, INSTANT_S, before)
    yield from _closed("100k", "50 sessions, 100 KiB", 50, INSTANT_S, before)
    yield from _closed("10m", "4 sessions, 10 MiB", 4, INSTANT_S, before)
    yield from _closed("500", "500 mails at once, the scanner takes 2 s", 500, 2.0, before)
    yield from _closed("2000", "2,000 mails at once, the scanner takes 2 s", 2000, 2.0, before)
    cpu_s, load = bench("workers, rate")
    run = Cell(cpu_s, repeat(INSTANT_S), 1000, before=before).open_loop(repeat(1 / 2000), load["seconds"])
    yield Point("2,000 mails/s: p50, ms", load["total_p50_ms"], run.percentile_ms(0.5), MEDIANS)
    yield from _overload("kept", "connections kept", 2, before)
    yield from _overload("each", "a connection for each mail", 3, before)


def _closed(name: str, what: str, sessions: int, scan_s: float, before: float) -> Iterator[Point]:
    cpu_s, load = bench(name)
    run = Cell(cpu_s, repeat(scan_s), 10_000, before=before).closed_loop(sessions, int(load["mails"]))
    yield Point(f"{what}: mails/s", load["mails"] / load["seconds"], load["mails"] / run.clock.now, RATES)
    yield Point(f"{what}: p50, ms", load["total_p50_ms"], run.percentile_ms(0.5), MEDIANS)
    yield Point(f"{what}: p99, ms", load["total_p99_ms"], run.percentile_ms(0.99), SLOWEST)


def _overload(name: str, what: str, column: int, before: float) -> Iterator[Point]:
    """4,000 mails/s for 10 s, a scanner for 400 (50 ms, 20 at once). Refusals take the CPU time that is left."""
    cpu_s, page = bench(name)[0], "benchmarks/overload.md"
    accepted, offered = cell_of(page, "accepted", column), cell_of(page, "mails offered", column)
    refusal_s = (cell_of(page, "CPU, share of its core", column) / 10 - accepted * cpu_s) / (offered - accepted)
    run = Cell(cpu_s, repeat(0.05), 20, 20, refusal_s, before).open_loop(repeat(1 / 4000), 10.0)
    what = f"ten times too much, {what}"
    yield Point(f"{what}: accepted", accepted, len(run.waits), RATES)
    yield Point(f"{what}: refused", offered - accepted, run.refused, RATES)
    yield Point(f"{what}: p99, ms", cell_of(page, "accepted, p50 / p99", column), run.percentile_ms(0.99), SLOWEST)
