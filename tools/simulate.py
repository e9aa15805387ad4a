"""Computes the resources that large volumes of mail need: the tables in docs/understand/scale.md.

`python -m tools.simulate` prints the tables, and `--write` writes them to the page. Costs per mail are read from
docs/evidence; every value that was not measured is an option with a default, and is printed. A small simulation of
queueing with a fixed seed first reproduces what was measured on one machine, to show how reliable its results are for
several.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tools.queueing import Cell
from tools.queueing_points import EVIDENCE, bench, cell_of, points

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/understand/scale.md"
BEGIN, END = "<!-- written by tools/simulate.py -->", "<!-- end -->"
KIB, DAY_S, MONTH_H = 1024, 86_400, 730
SIZES = {"4 KiB": 4 * KIB, "100 KiB": 100 * KIB, "10 MiB": 10 * KIB * KIB}
MILLIONS = (10, 100, 1000)
WAYS = 8  # client, HAProxy, bridge, API node, NATS, two replicas, worker; and from the bridge to the next hop
BRIDGE_BYTES, CONNECTION_BYTES, MAIL_BYTES = 71_000_000, 24 * KIB, 2 * KIB**2  # docs/evidence/memory.md: the bounds
LISTINGS_PER_S = 3 / 3600  # by one bridge for all: bridge.daemon.quarantine_upkeep, without counting
BATCHES_PER_S = 1 / 0.3  # bridge.history.recorder.BATCH_S

OPTIONS = {
    "seed": (1, "seed of the simulation"),
    "peak": (3.0, "the busiest hour, as a multiple of the day's mean (at most 3.2)"),
    "use": (0.6, "share of the cores that are busy in the busiest hour"),
    "large": (0.005, "share of mails of 10 MiB"),
    "medium": (0.245, "share of mails of 100 KiB; all others are 4 KiB in size"),
    "before": (0.9, "share of a bridge's CPU time for a mail that is used before the scan; fitted"),
    "worker_cores": (8, "cores of a worker"),
    "worker_limit": (80, "mails that each worker processes at a time; more are refused"),
    "worker_memory": (1.0, "GiB of memory for each core of a worker"),
    "open_s": (2.0, "seconds that a client's connection stays open"),
    "database_ms": (0.37, "CPU ms of PostgreSQL for each mail, with an event for every mail; measured, see below"),
    "quarantined": (0.01, "share of mails that go into the quarantine"),
    "late": (0.001, "share of mails whose scan takes longer than their deadline"),
    "days": (30, "retention of the history and the quarantine"),
    "core_price": (0.05, "for a core with its memory, per hour"),
    "disk_price": (0.12, "for a GB of the database, per month"),
    "s3_price": (0.023, "for a GB in S3, per month"),
    "put_price": (5.0, "for a million PUT or LIST requests"),
    "network_price": (0.01, "for a GB on a path that is charged for"),
    "priced_ways": (
        3.3,
        "paths, of 8, that are charged for: to NATS' replicas, and two thirds of those to and from its leader "
        "(three sites)",
    ),
}  # fmt: skip


# What a mail costs, and what a day needs


class Model:
    """The measured cost of the average mail, and what follows from it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.shares = dict(zip(SIZES, (1 - given.medium - given.large, given.medium, given.large), strict=True))
        self.mean_bytes = sum(share * SIZES[size] for size, share in self.shares.items())
        kept = {size: bench(name)[0] for size, name in zip(SIZES, ("kept", "100k", "10m"), strict=True)}
        relaying = cell_of("benchmarks/results-2026-11-15.md", "CPU, relaying : not relaying", 2)
        connection_s = bench("each")[0] - kept["4 KiB"]
        history_s = float(re.search(r"our CPU time per mail: (\d+) us", _text("history.md"))[1]) / 1e6  # type: ignore[index]
        self.bridge_s = sum(share * kept[size] for size, share in self.shares.items()) * relaying
        self.bridge_s += connection_s + history_s
        self.scans_s = {size: cell_of("queue.md", f"{size} | queue, 1 worker", 6) / 1000 for size in SIZES}
        self.scan_s = sum(share * self.scans_s[size] for size, share in self.shares.items())
        self.row_gb = float(re.search(r"([\d.]+) GB for a million", _text("history.md").split("## postgresql")[1])[1])  # type: ignore[index]

    @property
    def worker_rate(self) -> float:
        """Mails a second of one worker whose cores are all busy."""
        return float(self.given.worker_cores / self.scan_s)

    def sentence(self) -> str:
        return (
            f"The average size of a mail is {self.mean_bytes / KIB:.0f} KiB.\n"
            f"It takes {self.bridge_s * 1000:.2f} ms of CPU time in a bridge and {self.scan_s * 1000:.1f} ms in the "
            f"analysis, so one worker of {self.given.worker_cores} cores can process at most {self.worker_rate:.0f} "
            "mails/s."
        )

    def hour(self, use: float, seconds: float = 20.0) -> Cell:
        """One worker with its share of a bridge, at a load of `use` of its cores; mails arrive at random."""
        dice = random.Random(self.given.seed)  # noqa: S311 - not a secret
        drawn = iter(lambda: self.scans_s[dice.choices(list(SIZES), list(self.shares.values()))[0]], None)
        rate = use * self.worker_rate
        gaps = iter(lambda: dice.expovariate(rate), None)
        run = Cell(self.bridge_s, drawn, self.given.worker_cores, self.given.worker_limit, before=self.given.before)
        return run.open_loop(gaps, seconds)

    def seen(self, use: float, run: Cell) -> str:
        refused = run.refused / (run.refused + len(run.waits))
        waits = f"{run.percentile_ms(0.5):.0f} | {run.percentile_ms(0.99):.0f}"
        return f"{use * self.worker_rate:.0f} | {waits} | {run.most} | {refused:.1%}"

    def day(self, millions: int, most: int) -> dict[str, str]:
        """What one day's mail needs; `most` are the mails in processing of one worker in the busiest hour."""
        given, mails = self.given, millions * 1e6
        mean, peak = mails / DAY_S, mails / DAY_S * given.peak
        workers = max(2, math.ceil(peak / (self.worker_rate * given.use)))
        bridges = max(2, math.ceil(peak * self.bridge_s / given.use))
        database = max(2, math.ceil(peak * given.database_ms / 1000 / given.use))  # cores
        inside = workers * most
        bridge_bytes = bridges * BRIDGE_BYTES + peak * given.open_s * CONNECTION_BYTES + inside * MAIL_BYTES
        kept, kept_gb = mails * given.quarantined, mails * given.quarantined * self.mean_bytes / 1e9
        lists = kept * given.days * 2 / 1000 * LISTINGS_PER_S  # requests a second, for 1,000 objects each
        rows_gb = millions * self.row_gb
        prices = {
            "cores": (workers * given.worker_cores + bridges + database) * given.core_price * MONTH_H,
            "disks of the database": rows_gb * given.days * given.disk_price,
            "S3, LIST": lists * 30 * DAY_S / 1e6 * given.put_price,
            "S3, everything else": kept_gb * given.days * given.s3_price + 30 * 2 * kept / 1e6 * given.put_price,
            "network": 30 * mails * self.mean_bytes / 1e9 * given.priced_ways * given.network_price,
        }
        return {
            "mails/s, mean and busiest hour": f"{mean:,.0f} and {peak:,.0f}",
            "bridges: processes, one core each": f"{bridges:,}",
            "bridges: memory at most, GiB": f"{bridge_bytes / KIB**3:,.1f}",
            "analysis (API nodes, workers, NATS): cores": f"{workers * given.worker_cores:,}",
            "analysis: memory, GiB": f"{workers * given.worker_cores * given.worker_memory:,.0f}",
            "network into the bridges, busiest hour, Gbit/s": f"{peak * self.mean_bytes * 8 / 1e9:,.1f}",
            "network on all paths, busiest hour, Gbit/s": f"{peak * self.mean_bytes * 8 * WAYS / 1e9:,.1f}",
            "NATS: jobs/s, busiest hour": f"{peak:,.0f}",
            "NATS: in and out, Gbit/s, without replicas": f"{peak * self.mean_bytes * 8 * 2 / 1e9:,.1f}",
            "NATS: mail in memory, three replicas, GiB": f"{inside * self.mean_bytes * 3 / KIB**3:,.2f}",
            "PostgreSQL: cores": f"{database:,}",
            "PostgreSQL: rows/s, busiest hour": f"{peak:,.0f}",
            "PostgreSQL: batches/s at most": f"{max(bridges * BATCHES_PER_S, peak / 2000):,.0f}",
            "PostgreSQL: late decisions, writes/s": f"{peak * given.late * 2:,.1f}",
            f"PostgreSQL: data stored in {given.days} days, GB": f"{rows_gb * given.days:,.0f}",
            "S3: PUT/s, busiest hour": f"{peak * given.quarantined * 2:,.1f}",
            "S3: LIST/s": f"{lists:,.1f}",
            f"S3: objects in {given.days} days, millions": f"{kept * given.days * 2 / 1e6:,.0f}",
            f"S3: data stored in {given.days} days, GB": f"{kept_gb * given.days:,.0f}",
            **{f"cost a month: {name}": f"{price:,.0f}" for name, price in prices.items()},
            "**cost a month**": f"**{sum(prices.values()):,.0f}**",
            "cost of a million mails": f"{sum(prices.values()) / 30 / millions:,.2f}",
        }


def _text(page: str) -> str:
    return (EVIDENCE / page).read_text()


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(head: str, rows: Iterator[str] | list[str]) -> str:
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|---" * columns + "|", *(f"| {row} |" for row in rows)])


def tables(given: argparse.Namespace) -> str:
    model = Model(given)
    night = (1 - given.peak * 5 / 16) * 16 / 11 / given.peak  # the curve is night + (peak - night) * ((1 + cos) / 2)^3
    hours = {
        "the quietest hour": given.use * night,
        "the day's mean": given.use / given.peak,
        "the busiest hour": given.use,
        "... with one of three sites down": given.use * 1.5,
        "... with two of three sites down": given.use * 3,
    }
    runs = {name: model.hour(use) for name, use in hours.items()}
    needs = [model.day(millions, runs["the busiest hour"].most) for millions in MILLIONS]
    costs = [f"{size} | {share:.1%} | {model.scans_s[size] * 1000:.1f}" for size, share in model.shares.items()]
    return "\n\n".join(
        (
            "### Measured and simulated",
            table(
                "point | measured | simulated | difference",
                [
                    f"{p.what} | {p.measured:,.4g} | {p.simulated:,.4g} | {p.difference:+.1%}"
                    for p in points(given.before)
                ],
            ),
            "### Assumptions",
            table(
                "option | value | meaning",
                [f"`--{name}` | {getattr(given, name)} | {what}" for name, (_, what) in OPTIONS.items()],
            ),
            "### The cost of a mail",
            table("size | share of mails | analysis through the queue, CPU ms", costs),
            model.sentence(),
            "### One worker in the course of a day",
            table(
                "hour | load of its cores | mails/s | p50, ms | p99, ms | in processing at most | refused",
                [f"{name} | {hours[name]:.0%} | {model.seen(hours[name], run)}" for name, run in runs.items()],
            ),
            "### What a day needs",
            table(
                " | ".join(("", *(f"{millions:,} million mails a day" for millions in MILLIONS))),
                [" | ".join((name, *(need[name] for need in needs))) for name in needs[0]],
            ),
        )
    )


def options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the tables to {PAGE.relative_to(ROOT)}")
    for name, (default, what) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{what} (default: {default})")
    given = parser.parse_args(words)
    if not 1 <= given.peak <= 3.2:
        parser.error("--peak must be between 1 and 3.2")
    return given


def page_with(text: str, page: str) -> str:
    """The page with these tables between its markers."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:begin]}\n\n{text}\n\n{page[end:]}"


def main() -> None:
    given = options()
    text = tables(given)
    if given.write:
        PAGE.write_text(page_with(text, PAGE.read_text()))
    else:
        print(text)


if __name__ == "__main__":
    main()
