"""Measures what the queue costs: `make bench-queue`.

The same mails are scanned in the service's own process, through a core node (`hosts`), and through NATS with 1, 2 and 4
workers, all on this machine. Measures the latency of one scan at a time, the scans per second with several clients, and
the CPU time of all processes involved. NATS is a single server with JetStream in memory.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.service import TOKEN
from bridge.testing import until
from tests.nats_kit import nats_server
from tests.service.service_kit import BOUNDARY, multipart, parameters_json

KIB = 1024
SIZES = {"4 KiB": 4 * KIB, "100 KiB": 100 * KIB, "10 MiB": 10 * KIB * KIB}
CLIENTS = 4
ENOUGH = 100  # scans for a p99
TICK = os.sysconf("SC_CLK_TCK")

CONFIG = """
listen: 127.0.0.1:0
guard: {{scanSources: {{restApi: {{}}}}, mainWorkerCount: 8}}
abby:
  serviceProviders: {{core: {core}}}
  staticApiTokens: [{{name: bench, token: {token}}}]
database: sqlite:///{directory}/service.sqlite
log_scans: false
"""


class Processes:
    """Services and workers, with the CPU time that they and their children have used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.all: list[subprocess.Popen[str]] = []

    def start(self, core: str, *command: str) -> int:
        """Returns the port of a service, 0 of a worker."""
        path = self.directory / f"{len(self.all)}.yml"
        path.write_text(CONFIG.format(core=core, token=TOKEN, directory=self.directory))
        words = [sys.executable, "-m", "bridge", "service", *command, "-c", str(path)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
        self.all.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        return int(line.rpartition(":")[2]) if "listening on" in line else 0

    def cpu_s(self, *others: int) -> float:
        return sum(cpu_of(pid) for pid in (*(process.pid for process in self.all), *others))

    def stop(self) -> None:
        for process in self.all:
            process.terminate()
        for process in self.all:
            process.wait(30)


def cpu_of(pid: int) -> float:
    """Of a process and its children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK + sum(cpu_of(int(child)) for child in children)


@dataclass(frozen=True)
class Way:
    """One way to a scan: the service's port, and whose CPU time counts."""

    name: str
    port: int
    processes: Processes
    nats: tuple[int, ...] = ()


@contextmanager
def way(kind: str, workers: int) -> Iterator[Way]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = Processes(directory)
        stack.callback(processes.stop)
        if kind == "in process":
            yield Way(kind, processes.start("{}"), processes)
        elif kind == "hosts":
            node = processes.start("{}")
            core = f"{{hosts: ['http://127.0.0.1:{node}']}}"
            yield Way("core node (`hosts`)", processes.start(core), processes)
        else:
            server = stack.enter_context(nats_server(directory, "-js", "-sd", str(directory / "store")))
            core = f"{{nats: {{servers: ['{server.url}']}}}}"
            for _ in range(workers):
                processes.start(core, "worker")
            port = processes.start(core)
            name = f"queue, {workers} worker{'s' if workers > 1 else ''}"
            yield Way(name, port, processes, (server.pid,))


def mail(size: int) -> bytes:
    line = b"All work and no play makes Jack a dull boy, and it is not over yet, is it now?\r\n"
    head = b"From: a@example.org\r\nTo: b@example.net\r\nSubject: hello\r\nMessage-ID: <1@example.org>\r\n\r\n"
    return head + line * ((size - len(head)) // len(line))


def scan(port: int, body: bytes) -> float:
    """Seconds until the answer."""
    fields = {"Authorization": f"Bearer {TOKEN}", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/messageQueue/submitEmail", body, fields)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"answer {answer.status}")
    finally:
        connection.close()
    return time.perf_counter() - began


@dataclass(frozen=True)
class Row:
    way: str
    size: str
    p50_ms: float
    p99_ms: float
    per_second: float
    cpu_ms: float  # of all processes, for one scan


def measure(found: Way, label: str, body: bytes, seconds: float) -> Row:
    scan(found.port, body)
    alone: list[float] = []
    end = time.monotonic() + seconds / 2
    while time.monotonic() < end or len(alone) < ENOUGH:
        alone.append(scan(found.port, body))
    before, began, end = found.processes.cpu_s(*found.nats), time.monotonic(), time.monotonic() + seconds / 2

    def client(_: int) -> int:
        count = 0
        while time.monotonic() < end or not count:
            scan(found.port, body)
            count += 1
        return count

    with ThreadPoolExecutor(CLIENTS) as clients:
        count = sum(clients.map(client, range(CLIENTS)))
    used, took = found.processes.cpu_s(*found.nats) - before, time.monotonic() - began
    p99_ms = statistics.quantiles(alone, n=100)[98] * 1e3
    return Row(found.name, label, statistics.median(alone) * 1e3, p99_ms, count / took, used / count * 1e3)


def run(seconds: float) -> list[Row]:
    rows = []
    for kind, workers in (("in process", 0), ("hosts", 0), ("queue", 1), ("queue", 2), ("queue", 4)):
        with way(kind, workers) as found:
            until(lambda port=found.port: _is_up(port), "the first scan")  # type: ignore[misc]
            for label, size in SIZES.items():
                body = multipart(parameters_json(), mail(size))
                rows.append(measure(found, label, body, seconds))
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _is_up(port: int) -> bool:
    try:
        scan(port, multipart(parameters_json(), mail(KIB)))
    except (RuntimeError, OSError):
        return False
    return True


def page(rows: list[Row], seconds: float) -> str:
    load = os.getloadavg()[1]
    lines = [
        "# The cost of the queue",
        "",
        "`make bench-queue` scans the same mails in process, through a core node (`hosts`), and through "
        "[NATS](../operate/cluster.md) with 1, 2 and 4 workers, all on one machine.",
        "Latency is measured with one client, throughput and CPU time with four clients at once.",
        "CPU time is the total of all processes: the service, the core node or the workers with their inspection "
        "processes, and NATS.",
        "",
        f"This run took at least {seconds:g} s for each line, on {os.cpu_count()} cores of a machine shared with other "
        f"work (load average {load:.0f}).",
        "All numbers, including CPU time, are therefore worse than on a dedicated machine, and vary from line to line "
        "with the other work.",
        "All processes share the same cores, so the lines with 2 and 4 workers show the cost of more processes, not "
        "the benefit of more machines.",
        f"In each line, the one client made at least {ENOUGH} scans; with so few, as in the lines with 10 MiB, p99 is "
        "close to the slowest of them.",
        "",
        "| mail | way | p50 (ms) | p99 (ms) | scans/s | CPU per scan (ms) |",
        "|---|---|---|---|---|---|",
    ]
    for label in SIZES:
        for row in (row for row in rows if row.size == label):
            rate = f"{row.per_second:.0f}" if row.per_second >= 10 else f"{row.per_second:.1f}"
            cells = (row.size, row.way, f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}", rate, f"{row.cpu_ms:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each measurement (default: 20)")
    parser.add_argument("--out", type=Path, help="write the result to this page")
    given = parser.parse_args()
    text = page(run(given.seconds), given.seconds)
    if given.out is not None:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
