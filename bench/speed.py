"""Measures what a mail costs, in our bridge and in comparable programs, in a single run: `make bench`.

    python bench/speed.py [--rounds 9] [--works kept each] [--peers scanbridge C] [--out docs/evidence/benchmarks]
    python bench/speed.py --compare COMMIT COMMIT

Writes `results.md`, `results.json` and the plots. The exit code says whether all runs completed, not whether every goal
was met; the page names missed goals. `--compare` alternates between two of our commits and compares them.
"""

# ruff: noqa: S603, S607 - it starts its own programs
from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import behind_postfix
import growth
from measure import Latency, Run, Work, alone, alternate, latency, load, running
from peers import HERE, MISSING, PEERS, Peer, build, ours

KiB, MiB = 1024, 1024 * 1024
SMTP = ("scanbridge", "naive", "Haraka", "nodemailer", "C")
FEATURES = ("scanbridge, no history", "scanbridge, events")  # what each of them costs
FULL = ("scanbridge, 20 at once", "scanbridge, 20 at once, no history")  # refuse most mails of an overload at MAIL
RSPAMD = ("scanbridge milter to rspamd", "scanbridge milter to rspamd, which closes")  # rspamd 3.4 does close
MILTER = ("scanbridge milter", *RSPAMD, "rspamd proxy", "pymilter")

# By name: description, load, peers. Slow peers get fewer mails, because CPU time per mail is what counts.
WORKS: dict[str, tuple[str, Work, tuple[str, ...]]] = {
    "kept": ("4 KiB, persistent connections", Work(6_000), (*SMTP, "scanbridge, relaying", *FEATURES)),
    "each": ("4 KiB, one mail per connection", Work(4_000, per_connection=1), (*SMTP, *FEATURES)),
    "different": (
        "4 KiB, persistent connections, all addresses different",
        Work(6_000, is_different=True),
        ("scanbridge", FEATURES[0]),
    ),
    "100k": ("100 KiB, persistent connections", Work(1_500, size=100 * KiB), SMTP),
    "10m": ("10 MiB", Work(24, sessions=4, size=10 * MiB), SMTP),
    "milter": ("milter, 4 KiB, persistent connections", Work(6_000), MILTER),
    "milter each": ("milter, 4 KiB, one mail per connection", Work(4_000, per_connection=1), MILTER),
    "500": (
        "500 mails of 100 KiB in flight, the scanner takes 2 s",
        Work(500, sessions=500, per_connection=1, size=100 * KiB, scanner_ms=2000, warm=False),
        (*SMTP, "scanbridge, spooling"),
    ),
    "2000": (
        "2,000 mails of 100 KiB in flight, the scanner takes 2 s",
        Work(2000, sessions=2000, per_connection=1, size=100 * KiB, scanner_ms=2000, warm=False),
        ("scanbridge", "scanbridge, spooling", "C"),
    ),
    "workers": (
        "4 KiB, persistent connections, all cores",
        Work(6_000, cores=2),
        ("scanbridge", "scanbridge, 2 workers"),
    ),
    "workers, many": (
        "4 KiB, persistent connections, all cores, 200 sessions",
        Work(12_000, sessions=200, cores=2),
        ("scanbridge", "scanbridge, 2 workers"),
    ),
    "workers, rate": (
        "4 KiB, persistent connections, all cores, 2,000 mails per second",
        Work(8_000, cores=2, rate=2_000),
        ("scanbridge", "scanbridge, 2 workers"),
    ),
    "overload": (
        "4 KiB, persistent connections, ten times more mail than the scanner can handle",
        Work(48_000, rate=4_000, scanner_ms=50, is_overload=True),
        FULL,
    ),
    "single": ("4 KiB, one mail after another", Work(1_000, sessions=1), ("scanbridge", "scanbridge, relaying")),
}
PARTS = 3  # a round is this part of the work
SLOW = {"naive": 15, "Haraka": 8, "nodemailer": 2, "pymilter": 6}

Results = dict[str, dict[str, Run]]  # work, peer


def measure_all(works: list[str], names: list[str], rounds: int) -> Results:
    found: Results = {}
    for key, (text, work, peer_names) in WORKS.items():
        if works and key not in works:
            continue
        chosen = [PEERS[name] for name in peer_names if not names or name in names]
        present = [peer for peer in chosen if not any(need in MISSING for need in peer.needs)]
        print(f"{text}: {', '.join(peer.name for peer in present)}", file=sys.stderr, flush=True)
        try:
            if work.warm:
                found[key] = alternate({peer: _part_of(work, peer.name) for peer in present}, rounds)
            else:
                found[key] = alone(present, work)
        except (OSError, RuntimeError, subprocess.SubprocessError) as exc:
            print(f"  failed: {exc}", file=sys.stderr)
    return found


def _part_of(work: Work, name: str) -> Work:
    """What one peer gets in one round."""
    return replace(work, mails=max(work.mails // SLOW.get(name, 1) // PARTS, work.sessions * 2))


def direct_latency() -> Latency:
    """The latency of a direct HTTP request with the same mail, to which the bridge adds its own."""
    with running(PEERS["C"]) as (ports, _):
        return latency(load("http", ports.scanner, Work(1_000, sessions=1)))


def _behind_postfix() -> dict[str, Latency]:
    try:
        return behind_postfix.measure_all()
    except (OSError, RuntimeError, subprocess.SubprocessError) as exc:  # the rest of the page is worth having
        print(f"Postfix: {exc}", file=sys.stderr)
        return {}


# --- the goals ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    text: str
    values: list[float]  # one for each round, or none if it could not be measured
    limit: float

    def row(self) -> str:
        if not self.values:
            return f"| {self.text} | not measured | | {self.limit:g} | |"
        value = median(self.values)
        spread = f"{min(self.values):.2f} to {max(self.values):.2f}" if len(self.values) > 1 else ""
        verdict = "met" if value <= self.limit else "**missed**"
        return f"| {self.text} | {value:.2f} | {spread} | {self.limit:g} | {verdict} |"


def goals(found: Results, direct: Latency, postfix: dict[str, Latency]) -> list[Goal]:
    def cpu(text: str, work: str, name: str, peer: str, limit: float) -> Goal:
        return Goal(f"CPU, {text}", _ratios(found.get(work, {}), name, peer), limit)

    our = "scanbridge"
    rows = [
        cpu("4 KiB, persistent : C", "kept", our, "C", 2.2),
        cpu("4 KiB, persistent : nodemailer", "kept", our, "nodemailer", 1.0),
        cpu("4 KiB, persistent : Haraka", "kept", our, "Haraka", 0.25),
        cpu("4 KiB, persistent : naive", "kept", our, "naive", 0.05),
        cpu("4 KiB, one per connection : C", "each", our, "C", 2.2),
        cpu("4 KiB, one per connection : nodemailer", "each", our, "nodemailer", 0.33),
        cpu("100 KiB : C", "100k", our, "C", 1.6),
        cpu("100 KiB : nodemailer", "100k", our, "nodemailer", 0.5),
        cpu("10 MiB : C", "10m", our, "C", 1.15),
        cpu("10 MiB : nodemailer", "10m", our, "nodemailer", 0.7),
        cpu("milter, 4 KiB : rspamd's proxy", "milter", "scanbridge milter", "rspamd proxy", 1.5),
        cpu("milter, 4 KiB, rspamd's dialect : the default", "milter", RSPAMD[0], "scanbridge milter", 1.2),
        cpu("milter, 4 KiB, rspamd's dialect : rspamd's proxy", "milter", RSPAMD[0], "rspamd proxy", 2.0),
        cpu("milter, 4 KiB : pymilter", "milter", "scanbridge milter", "pymilter", 0.5),
        cpu("relaying : not relaying", "kept", "scanbridge, relaying", our, 1.25),
    ]
    kept, each = ("kept", "4 KiB, persistent"), ("each", "4 KiB, one per connection")
    for work, text in (kept, each, ("different", "4 KiB, persistent, all addresses different")):
        rows.append(cpu(f"{text}, with history : without", work, our, FEATURES[0], 1.05))
    rows.append(cpu("ten times too much mail, with history : without", "overload", *FULL, 1.05))
    for work, text in (kept, each):
        rows.append(cpu(f"{text}, with a file of events : without", work, FEATURES[1], our, 1.05))
    for work, text, limit in (
        ("workers, rate", "at the same rate", 1.05),
        ("workers, many", "as fast as they can, 200 sessions", 1.1),
        ("workers", "as fast as they can, 50 sessions", 1.1),
    ):
        rows.append(cpu(f"2 workers : one, {text}", work, "scanbridge, 2 workers", our, limit))
    rows += _memory_goals(found)
    for name, limit in ((our, 1.5), ("scanbridge, relaying", 3.0)):
        run = found.get("single", {}).get(name)
        added = [] if run is None else [latency(run.load)[0] - direct[0]]
        rows.append(Goal(f"ms added to a single mail (p50), {name}", added, limit))
    for name, limit in ((behind_postfix.MILTER, 2.0), (behind_postfix.PROXY, 5.0)):
        added = [postfix[name][0] - postfix[behind_postfix.ALONE][0]] if name in postfix else []
        rows.append(Goal(f"ms added to Postfix (p50), {name}", added, limit))
    return rows


def _memory_goals(found: Results) -> Iterator[Goal]:
    for work in ("500", "2000"):
        runs = found.get(work, {})
        if (run := runs.get("scanbridge")) is not None:
            flight = run.load["bytes"] * int(work) / 1e6
            above = (run.peak_mb - run.idle_mb) / flight
            yield Goal(f"memory above idle : bytes in flight, {work} x 100 KiB", [above], 1.3)
            yield Goal(f"errors with {work} in flight", [float(run.errors)], 0.0)
        if (run := runs.get("scanbridge, spooling")) is not None:
            yield Goal(f"MB above idle, {work} x 100 KiB in flight, spooled", [run.peak_mb - run.idle_mb], 20.0)
            yield Goal(f"errors with {work} in flight, spooled", [float(run.errors)], 0.0)


def _ratios(runs: dict[str, Run], name: str, peer: str) -> list[float]:
    if name not in runs or peer not in runs:
        return []
    pairs = zip(runs[name].costs, runs[peer].costs, strict=True)
    return [mine / theirs for mine, theirs in pairs if theirs]


# --- the page ----------------------------------------------------------------------------------------------------


def page(found: Results, direct: Latency, postfix: dict[str, Latency], growing: dict[str, list[growth.Point]]) -> str:
    lines = [
        "<!-- written by make bench -->",
        "# What a mail costs",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}; the peer has one core, load and scanner "
        "share another. In each round, every peer gets the same load, one after another. A value is the median of the "
        "rounds' ratios of CPU time, with the lowest and the highest beside it. Absolute times depend on the machine "
        "and the day.",
        "",
        "| goal | value | rounds | at most | |",
        "|---|---|---|---|---|",
        *(goal.row() for goal in goals(found, direct, postfix)),
    ]
    for key, (text, _, _) in WORKS.items():
        if key in found:
            lines += ["", f"## {text}", "", *_table(found[key])]
    lines += ["", "![](peers.svg)", "", "## Added latency, 4 KiB, one mail after another", ""]
    single = {name: latency(run.load) for name, run in found.get("single", {}).items()}
    lines += _latencies("a direct HTTP request", direct, single)
    if postfix:
        alone = postfix[behind_postfix.ALONE]
        rest = {name: value for name, value in postfix.items() if name != behind_postfix.ALONE}
        lines += ["", *_latencies(behind_postfix.ALONE, alone, rest)]
    for text, points in growing.items():
        lines += [
            "",
            f"## CPU time per mail against {text}",
            "",
            f"![]({growth.file_name(text)})",
            "",
            *growth.table(text, points),
        ]
    if MISSING:
        lines += ["", "Not measured here: " + "; ".join(MISSING.values()) + "."]
    return "\n".join(lines) + "\n"


def _table(runs: dict[str, Run]) -> list[str]:
    first = next(iter(runs.values()))
    lines = ["| | CPU ms/mail | ours : theirs | mails/s | MB/s | p50 ms | p99 ms | memory idle, peak MB | errors |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name, run in runs.items():
        ratio = f"{first.cpu_ms / run.cpu_ms:.2f}" if run.cpu_ms else ""
        cells = [name, f"{run.cpu_ms:.3f}", ratio, f"{run.rate:.0f}", f"{run.rate * run.load['bytes'] / 1e6:.1f}"]
        cells += [f"{run.load['total_p50_ms']:.2f}", f"{run.load['total_p99_ms']:.2f}"]
        cells += [f"{run.idle_mb:.0f}, {run.peak_mb:.0f}", str(run.errors)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _latencies(text: str, bare: Latency, others: dict[str, Latency]) -> list[str]:
    """The latency of each, and how much it adds to `bare`."""
    lines = ["| | p50 ms | p99 ms | added, p50 | added, p99 |", "|---|---|---|---|---|"]
    lines.append(f"| {text} | {bare[0]:.2f} | {bare[1]:.2f} | | |")
    for name, (p50, p99) in others.items():
        lines.append(f"| {name} | {p50:.2f} | {p99:.2f} | {p50 - bare[0]:.2f} | {p99 - bare[1]:.2f} |")
    return lines


# The rows of `--compare`: the work, and what is done with the mail (as in `peers.ours`).
COMPARED = (
    *(("kept", "discard"), ("kept", "relay"), ("each", "discard"), ("100k", "discard"), ("10m", "discard")),
    *(("milter", "discard"), ("milter each", "discard")),
)


def compare(before: str, after: str, rounds: int) -> str:
    """Measure two commits alternately, so that changes in the machine's speed affect both."""
    lines = ["| | CPU ms/mail, before | after | after : before |", "|---|---|---|---|"]
    with ExitStack() as stack:
        roots = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        for root, commit in zip(roots, (before, after), strict=True):
            archive = subprocess.run(["git", "archive", commit], cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
            subprocess.run(["tar", "x", "-C", root], input=archive.stdout, check=True)
        for key, deliver in COMPARED:
            text, work, _ = WORKS[key]
            protocol = "milter" if key.startswith("milter") else "smtp"
            both = [
                Peer(commit, protocol, ours(protocol, Path(root), deliver=deliver))
                for commit, root in zip((before, after), roots, strict=True)
            ]
            runs = alternate({peer: _part_of(work, peer.name) for peer in both}, rounds)
            ratio = median(_ratios(runs, after, before))
            name = f"{text}, relayed" if deliver == "relay" else text
            lines.append(f"| {name} | {runs[before].cpu_ms:.3f} | {runs[after].cpu_ms:.3f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=9, help="number of rounds; in each, all programs get the same load (default: 9)"
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, default=[], help="measure only these loads")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[], help="measure only these programs")
    parser.add_argument("--no-growth", action="store_true", help="do not measure how the cost grows with size")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "evidence" / "benchmarks")
    parser.add_argument("--compare", nargs=2, metavar="COMMIT")
    arguments = parser.parse_args()
    build()
    if arguments.compare:
        print(compare(*arguments.compare, arguments.rounds))
        return
    found = measure_all(arguments.works, arguments.peers, arguments.rounds)
    growing = {} if arguments.no_growth else growth.measure_all()
    direct = direct_latency()
    postfix = _behind_postfix()
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = page(found, direct, postfix, growing)
    (arguments.out / "results.md").write_text(text)
    numbers = {work: {name: asdict(run) for name, run in runs.items()} for work, runs in found.items()}
    (arguments.out / "results.json").write_text(json.dumps(numbers, indent=1) + "\n")
    growth.plot_all(growing, arguments.out)
    growth.plot_peers({text: found[key] for key, (text, _, _) in WORKS.items() if key in found}, arguments.out)
    print(text)


if __name__ == "__main__":
    main()
