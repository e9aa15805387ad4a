"""Ten times more mail than the scanner can take, measured: `make bench-overload`.

A scanner of fixed service time does 400 mails a second; 4,000 arrive per second, open loop, over connections that are
kept and with one connection for each mail. The bridge has one core to itself, scanner and load share another. Beside it
the same for what one would write first (`naive.py`). Prints a page of Markdown, ratios first; exits with 1 when a goal
is missed.
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
FORMS = {"kept": "connections kept", "each": "a connection for each mail"}
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
    """What one peer did with one form of load."""

    peer: str
    form: str
    seconds: float
    load: dict[str, Any]  # what openload says
    most_in_flight: int  # what the scanner says
    rss: list[float]  # MB, ten times a second
    cpu_share: float  # of a core
    others_share: float  # of a core: neither the peer's nor the harness's

    @property
    def share(self) -> float:
        """Goodput, of the scanner's capacity."""
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
        """Mail that was admitted and had no decision in time."""
        return sum(count for code, count in self.load["codes"].items() if code.endswith("4.4.7"))

    def missed(self) -> list[str]:
        """The goals that do not hold."""
        slowest_ms = self.load["after_dot"]["max"]
        goals = [
            (self.share >= 0.95, f"goodput is {self.share:.1%} of the capacity, and should be 95%"),
            (self.at_mail["n"] > 0, "nothing was refused at MAIL"),
            (
                self.at_mail["p99"] <= 50,
                f"99% of the 451s at MAIL took {self.at_mail['p99']:.0f} ms, and should take 50",
            ),
            (self.past_deadline == 0, f"{self.past_deadline} admitted mails had no decision in time"),
            (slowest_ms <= DEADLINE_S * 1000, f"the slowest admitted mail took {slowest_ms:.0f} ms"),
            (
                self.most_in_flight <= LIMIT,
                f"the scanner had {self.most_in_flight} mails at once, and should have {LIMIT}",
            ),
            (max(self.rss) <= self.rss[0] * 1.1, f"memory grew from {self.rss[0]:.0f} to {max(self.rss):.0f} MB"),
            (self.errors == 0, f"{self.errors} mails were neither accepted nor refused: {self.load['errors']}"),
        ]
        return [said for holds, said in goals if not holds]


def measure(peer: str, form: str, seconds: float) -> Run:
    """One peer, one form of load, fresh processes."""
    with tempfile.TemporaryDirectory() as place, started(_scanner(), core=1) as scanner:
        assert scanner.stdout is not None
        scanner_port, port = int(scanner.stdout.readline()), quiet_port()
        command = _bridge(Path(place), port, scanner_port) if peer == BRIDGE else _naive(port, scanner_port)
        with open(Path(place) / "log", "w") as log, started(command, core=0, output=log) as process:
            _wait_for(port, process)
            with started(_load(port, form, seconds), core=1) as load:
                os.setpriority(os.PRIO_PROCESS, load.pid, 5)  # it must not keep the scanner, beside it, waiting
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
    """A process on one core, where there are several."""
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
    """Below those that the kernel gives to clients: the load takes tens of thousands of them."""
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
    raise SystemExit("the peer does not listen")


class Watch(threading.Thread):
    """Memory of a process, and who had the machine's time."""

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
        """Seconds: the clock's, the peer's CPU, the harness's, everybody's."""
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), _cpu(self._pid), sum(map(_cpu, self._harness)) + time.process_time(), busy

    def shares(self) -> tuple[float, float]:
        """Of a core: the peer's, and that of everybody else on this machine."""
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
    f"mails at the scanner at once (limit {LIMIT})": lambda run: f"{run.most_in_flight:,}",
    "memory: start / most / end, MB": lambda run: f"{run.rss[0]:.0f} / {max(run.rss):.0f} / {run.rss[-1]:.0f}",
    "mails offered": lambda run: f"{run.load['offered']:,}",
    "accepted": lambda run: f"{run.load['accepted']['n']:,}",
    "refused at MAIL": lambda run: f"{run.at_mail['n']:,}",
    "refused before 354 or at the dot": lambda run: f"{run.refused_later:,}",
    "errors (no answer, no connection, lost)": lambda run: f"{run.errors:,}",
    "admitted, but past its deadline": lambda run: f"{run.past_deadline}" if run.peer == BRIDGE else "no deadline",
    "connections at once": lambda run: f"{run.load['most_connections']:,}",
    "CPU, of its core": lambda run: f"{run.cpu_share:.0%}",
}

PAGE = """# Ten times more mail than the scanner can take

Made by `make bench-overload` (`bench/overload.py`), which fails when a goal is missed. A scanner of fixed service time
({service} ms, {limit} at once) does {capacity} mails a second; {rate:,} mails of 4 KiB arrive per second, open loop,
for {seconds:.0f} s: whether or not the last one has been answered. The bridge has one core to itself; scanner and load
have another one. `{naive}` is what one would write first (`bench/naive.py`): the same job, without a limit.

{table}

Times are in milliseconds, from the moment at which a mail was to arrive: connecting, the greeting and EHLO are part of
them. The count at the scanner is the scanner's own.

The goals, for the bridge: goodput at least 95% of the capacity; 99% of the 451s at MAIL within 50 ms; no admitted mail
past its deadline ({deadline:.0f} s here); never more than {limit} mails at the scanner; memory flat; no errors.

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
        outcome="\n".join(f"- Missed, {said}." for said in missed) or "All of them hold.",
        notes=_notes(runs),
    )


def _notes(runs: list[Run]) -> str:
    """What is needed to judge the numbers: their spread, and what else went on."""
    lines = []
    for form in dict.fromkeys(run.form for run in runs):
        ours = [run for run in runs if (run.peer, run.form) == (BRIDGE, form)]
        spread = "; ".join(f"{run.share:.1%}, {run.at_mail['p99']:.1f} ms" for run in ours)
        lines.append(
            f"All runs, {FORMS[form]}: goodput and p99 of the 451s at MAIL {spread}. The best is in the table."
        )
    behind = max(run.load["behind"]["p99"] for run in runs if run.peer == BRIDGE)
    lines.append(
        f"Other work on the machine took {max(run.others_share for run in runs):.0%} of a core at most; "
        f"99% of the load was at most {behind:.1f} ms late."
    )
    return "\n\n".join(lines)


def _times(found: dict[str, float]) -> str:
    return f"{found['p50']:,.1f} / {found['p99']:,.1f}" if found["n"] else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load in each run")
    parser.add_argument("--runs", type=int, default=2, help="of the bridge with each form of load; the best one counts")
    parser.add_argument("--form", choices=[*FORMS], help="only this form of load")
    parser.add_argument("--alone", action="store_true", help="without the naive peer")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the page there, too")
    arguments = parser.parse_args()
    build_tools()
    runs: list[Run] = []
    for form in [arguments.form] if arguments.form else [*FORMS]:
        for peer in [BRIDGE] * arguments.runs + [NAIVE] * (not arguments.alone):
            runs.append(measure(peer, form, arguments.seconds))
            said = f"{peer}, {FORMS[form]}: {runs[-1].share:.1%} of the capacity"
            print(f"{said}, 451 at MAIL p99 {runs[-1].at_mail['p99']:.1f} ms", file=sys.stderr, flush=True)
    best: dict[tuple[str, str], Run] = {}
    for run in sorted(runs, key=lambda run: (run.peer != BRIDGE, run.form != "kept", len(run.missed()), -run.share)):
        best.setdefault((run.peer, run.form), run)
    missed = [f"{FORMS[run.form]}: {said}" for run in best.values() if run.peer == BRIDGE for said in run.missed()]
    text = page(best, runs, missed)
    print(text)
    if arguments.write:
        arguments.write.parent.mkdir(exist_ok=True)
        arguments.write.write_text(text)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
