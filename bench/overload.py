"""Measures the bridge under ten times as much mail as the scanner can handle: `make bench-overload`.

A scanner with a fixed service time handles 400 mails per second; 4,000 per second arrive (in an open loop), over
persistent connections and with one connection per mail. The bridge has one core to itself; the scanner and the load
share another. For comparison, the same load is sent to a simple implementation (`naive.py`). Prints a page of Markdown,
ratios first; exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from peers import BUILD, HERE, build_tools

LIMIT, SERVICE_MS = 20, 50
CAPACITY = LIMIT * 1000 // SERVICE_MS
RATE = 10 * CAPACITY
DEADLINE_S = 2.0
BRIDGE, NAIVE = "scanbridge", "aiosmtpd + httpx"
FORMS = {"kept": "persistent connections", "each": "one connection per mail"}
CONFIG = """
scanner: {{urls: ["http://127.0.0.1:{scanner}"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:{port}", deadline: {deadline}s}}]
admission: {{max_in_processing: {limit}, throttle_threshold: {limit}}}
relay: {{next_hop: "maildir:{directory}/maildir"}}
admin: {{address: "127.0.0.1:{admin}"}}
state_directory: {directory}/state
"""


@dataclass
class Run:
    """The result of one peer with one form of load."""

    peer: str
    form: str
    seconds: float
    load: dict[str, Any]  # the output of openload
    most_in_flight: int  # counted by the scanner
    rss: list[float]  # MB, ten times a second
    cpu_share: float  # of a core
    others_share: float  # of a core, used by neither the peer nor the harness

    @property
    def share(self) -> float:
        """Goodput as a share of the scanner's capacity."""
        return float(self.load["goodput"]) / CAPACITY

    @property
    def at_mail(self) -> dict[str, float]:
        found: dict[str, float] = self.load["refused"].get("mail", {"n": 0, "p50": 0.0, "p99": 0.0, "max": 0.0})
        return found

    @property
    def refused_later(self) -> int:
        return sum(int(found["n"]) for stage, found in self.load["refused"].items() if stage != "mail")

    @property
    def errors(self) -> int:
        """Neither accepted nor refused with a 451."""
        odd = [count for code, count in self.load["codes"].items() if code[:3] not in ("250", "451")]
        return sum(self.load["errors"].values()) + sum(odd)

    @property
    def past_deadline(self) -> int:
        """Mails that were admitted but got no decision in time."""
        return sum(count for code, count in self.load["codes"].items() if code.endswith("4.4.7"))

    def missed(self) -> list[str]:
        """The goals that do not hold."""
        slowest_ms = self.load["after_dot"]["max"]
        goals = [
            (self.share >= 0.95, f"goodput is {self.share:.1%} of the capacity; the goal is 95%"),
            (self.at_mail["n"] > 0, "nothing was refused at MAIL"),
            (
                self.at_mail["p99"] <= 50,
                f"p99 of the 451s at MAIL is {self.at_mail['p99']:.0f} ms; the goal is 50 ms",
            ),
            (self.past_deadline == 0, f"{self.past_deadline} admitted mails got no decision in time"),
            (slowest_ms <= DEADLINE_S * 1000, f"the slowest admitted mail took {slowest_ms:.0f} ms"),
            (
                self.most_in_flight <= LIMIT,
                f"the scanner had {self.most_in_flight} mails in flight; the limit is {LIMIT}",
            ),
            (max(self.rss) <= self.rss[0] * 1.1, f"memory grew from {self.rss[0]:.0f} to {max(self.rss):.0f} MB"),
            (self.errors == 0, f"{self.errors} mails were neither accepted nor refused: {self.load['errors']}"),
        ]
        return [text for holds, text in goals if not holds]


def measure(peer: str, form: str, seconds: float) -> Run:
    """One peer, one form of load, fresh processes."""
    with tempfile.TemporaryDirectory() as place, started(_scanner(), core=1) as scanner:
        assert scanner.stdout is not None
        scanner_port, port = int(scanner.stdout.readline()), quiet_port()
        command = _bridge(Path(place), port, scanner_port) if peer == BRIDGE else _naive(port, scanner_port)
        with open(Path(place) / "log", "w") as log, started(command, core=0, output=log) as process:
            _wait_for(port, process)
            with started(_load(port, form, seconds), core=1) as load:
                os.setpriority(os.PRIO_PROCESS, load.pid, 5)  # it must not delay the scanner on the same core
                assert load.stdout is not None
                assert load.stdout.readline() == "measuring\n"
                watch = Watch(process.pid, [scanner.pid, load.pid])
                found = json.loads(load.stdout.readline())
                watch.stop()
        seen = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{scanner_port}/stats").read())
    return Run(peer, form, seconds, found, seen["max_in_flight"], watch.rss, *watch.shares())


# Processes


@contextmanager
def started(command: list[str], core: int, output: IO[str] | int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """A process pinned to one core, if there are several."""
    errors = None if output == subprocess.PIPE else output
    with subprocess.Popen(command, stdout=output, stderr=errors, text=True) as process:  # noqa: S603 - our own programs
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, {cores[core % len(cores)]})
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _scanner() -> list[str]:
    return [sys.executable, str(HERE / "fixedscanner.py"), "--workers", str(LIMIT), "--service-ms", str(SERVICE_MS)]


def _naive(port: int, scanner: int) -> list[str]:
    return [sys.executable, str(HERE / "naive.py"), str(port), f"http://127.0.0.1:{scanner}"]


def _bridge(directory: Path, port: int, scanner: int) -> list[str]:
    values = {"port": port, "scanner": scanner, "admin": quiet_port(), "directory": directory, "limit": LIMIT}
    (directory / "token").write_text("0123456789abcdef" * 4)
    (directory / "bridge.yml").write_text(CONFIG.format(**values, deadline=DEADLINE_S))
    return [sys.executable, "-m", "bridge", "run", "-c", str(directory / "bridge.yml")]


def _load(port: int, form: str, seconds: float) -> list[str]:
    return [str(BUILD / "openload"), str(port), str(RATE), str(seconds), form]


def quiet_port() -> int:
    """A port below the kernel's range for clients: the load uses tens of thousands of those."""
    while True:
        port = random.randint(20000, 29999)  # noqa: S311 - not a secret
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _wait_for(port: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"the peer does not listen on port {port}")


class Watch(threading.Thread):
    """Watches the memory of a process, and which processes used the machine's CPU time."""

    def __init__(self, pid: int, harness: list[int]) -> None:
        super().__init__(daemon=True)
        self._pid, self._harness = pid, harness
        self._over = threading.Event()
        self._before = self._after = self._read()
        self.rss = [_rss(pid)]
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.rss.append(_rss(self._pid))

    def stop(self) -> None:
        self._after = self._read()
        self._over.set()
        self.join()

    def _read(self) -> tuple[float, float, float, float]:
        """Seconds of wall clock, and of CPU time of the peer, the harness and the whole machine."""
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), _cpu(self._pid), sum(map(_cpu, self._harness)) + time.process_time(), busy

    def shares(self) -> tuple[float, float]:
        """The shares of a core used by the peer and by other work on the machine."""
        wall, peer, harness, busy = (after - before for after, before in zip(self._after, self._before, strict=True))
        return peer / wall, max(busy - peer - harness, 0.0) / wall


def _rss(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The page

ROWS: dict[str, Callable[[Run], str]] = {
    "**goodput, of the scanner's capacity**": lambda run: f"**{run.share:.1%}**",
    "451 at MAIL, p50 / p99": lambda run: _times(run.at_mail),
    "accepted, p50 / p99": lambda run: _times(run.load["accepted"]),
    f"mails in flight at the scanner (limit {LIMIT})": lambda run: f"{run.most_in_flight:,}",
    "memory: start / peak / end, MB": lambda run: f"{run.rss[0]:.0f} / {max(run.rss):.0f} / {run.rss[-1]:.0f}",
    "mails offered": lambda run: f"{run.load['offered']:,}",
    "accepted": lambda run: f"{run.load['accepted']['n']:,}",
    "refused at MAIL": lambda run: f"{run.at_mail['n']:,}",
    "refused before 354 or at the dot": lambda run: f"{run.refused_later:,}",
    "errors (no answer, no connection, lost)": lambda run: f"{run.errors:,}",
    "admitted, but past its deadline": lambda run: f"{run.past_deadline}" if run.peer == BRIDGE else "no deadline",
    "concurrent connections": lambda run: f"{run.load['most_connections']:,}",
    "CPU, share of its core": lambda run: f"{run.cpu_share:.0%}",
}

PAGE = """# Ten times more mail than the scanner can handle

Generated by `make bench-overload` (`bench/overload.py`), which fails if a goal is missed.
A scanner with a fixed service time ({service} ms, {limit} mails in parallel) handles {capacity} mails per second.
{rate:,} mails of 4 KiB arrive per second for {seconds:.0f} s, open loop: a mail arrives whether or not the previous one
has been answered.
The bridge has one core to itself; scanner and load share another.
`{naive}` is a simple implementation (`bench/naive.py`): the same job, without a limit.

{table}

Times are in milliseconds, from the moment at which a mail was due to arrive: they include the connection, the greeting
and EHLO. The scanner itself counts the mails in flight.

The goals for the bridge: goodput of at least 95% of the capacity; 99% of the 451s at MAIL within 50 ms;
no admitted mail past its deadline ({deadline:.0f} s here); never more than {limit} mails at the scanner;
constant memory; no errors.

{outcome}

{notes}
"""


def page(best: dict[tuple[str, str], Run], runs: list[Run], missed: list[str]) -> str:
    head = ["", *(f"{peer}, {FORMS[form]}" for peer, form in best)]
    rows = [head, ["---"] * len(head), *([name, *map(cell, best.values())] for name, cell in ROWS.items())]
    return PAGE.format(
        service=SERVICE_MS,
        limit=LIMIT,
        capacity=CAPACITY,
        rate=RATE,
        naive=NAIVE,
        seconds=runs[0].seconds,
        deadline=DEADLINE_S,
        table="\n".join(f"| {' | '.join(row)} |" for row in rows),
        outcome="\n".join(f"- Missed, {text}." for text in missed) or "All goals are met.",
        notes=_notes(runs),
    )


def _notes(runs: list[Run]) -> str:
    """What a reader needs to judge the numbers: their spread, and other work on the machine."""
    lines = []
    for form in dict.fromkeys(run.form for run in runs):
        ours = [run for run in runs if (run.peer, run.form) == (BRIDGE, form)]
        spread = "; ".join(f"{run.share:.1%}, {run.at_mail['p99']:.1f} ms" for run in ours)
        lines.append(
            f"All runs, {FORMS[form]}: goodput and p99 of the 451s at MAIL {spread}. The table shows the best run."
        )
    behind = max(run.load["behind"]["p99"] for run in runs if run.peer == BRIDGE)
    lines.append(
        f"Other work on the machine took at most {max(run.others_share for run in runs):.0%} of a core; "
        f"99% of the load was at most {behind:.1f} ms late."
    )
    return "\n\n".join(lines)


def _times(found: dict[str, float]) -> str:
    return f"{found['p50']:,.1f} / {found['p99']:,.1f}" if found["n"] else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the load in each run")
    parser.add_argument(
        "--runs", type=int, default=2, help="number of runs of the bridge with each form of load; the best one counts"
    )
    parser.add_argument("--form", choices=[*FORMS], help="send only this form of load")
    parser.add_argument("--alone", action="store_true", help="do not run the simple implementation")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the page to this file")
    arguments = parser.parse_args()
    build_tools()
    runs: list[Run] = []
    for form in [arguments.form] if arguments.form else [*FORMS]:
        for peer in [BRIDGE] * arguments.runs + [NAIVE] * (not arguments.alone):
            runs.append(measure(peer, form, arguments.seconds))
            progress = f"{peer}, {FORMS[form]}: {runs[-1].share:.1%} of the capacity"
            print(f"{progress}, 451 at MAIL p99 {runs[-1].at_mail['p99']:.1f} ms", file=sys.stderr, flush=True)
    best: dict[tuple[str, str], Run] = {}
    for run in sorted(runs, key=lambda run: (run.peer != BRIDGE, run.form != "kept", len(run.missed()), -run.share)):
        best.setdefault((run.peer, run.form), run)
    missed = [f"{FORMS[run.form]}: {goal}" for run in best.values() if run.peer == BRIDGE for goal in run.missed()]
    text = page(best, runs, missed)
    print(text)
    if arguments.write:
        arguments.write.parent.mkdir(exist_ok=True)
        arguments.write.write_text(text)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
