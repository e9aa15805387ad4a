"""One run of one peer under one load: CPU time per mail, memory, latency.

The peer has one core to itself; scanner, next hop and load share the other. The CPU time is that of the peer's whole
process tree, so it hardly depends on the speed of the load. On a machine with other work it still grows, so peers take
turns, and are compared by the ratio within each turn; `others` says how much of a core other work took.
"""

# ruff: noqa: S311, S603, S607 - it starts its own programs
from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from peers import BUILD, Peer, Ports

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Work:
    """A load: total mails, concurrent sessions, mails per connection (0: all), bytes per mail."""

    mails: int
    sessions: int = 50
    per_connection: int = 0
    size: int = 4096
    recipients: int = 1
    scanner_ms: int = 0
    warm: bool = True
    cores: int = 1  # of the peer; 2: all of them, shared with the load
    rate: int = 0  # mails that arrive per second, whatever the peer does; 0: each session sends one after another
    is_overload: bool = False  # the peer is to refuse most of it
    is_different: bool = False  # no two mails have an address or a domain in common (SMTP)


@dataclass
class Run:
    """The result. Times in milliseconds, memory in MB."""

    load: dict[str, Any]
    cpu_ms: float  # per mail
    idle_mb: float
    peak_mb: float
    others: float  # share of a core that other work took
    costs: list[float]  # CPU time per mail in each round: peers are compared within a round

    @property
    def rate(self) -> float:
        return float(self.load["mails"] / self.load["seconds"])

    @property
    def errors(self) -> int:
        return int(self.load["errors"] + self.load["refused"])


Latency = tuple[float, float]  # p50 and p99 in milliseconds


def latency(result: dict[str, Any]) -> Latency:
    """The latency in the result of a load."""
    return result["total_p50_ms"], result["total_p99_ms"]


@dataclass
class Sampler:
    """The highest resident memory of a process tree."""

    root: int
    peak: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self._over.wait(0.05):
            self.peak = max(self.peak, memory_mb(self.root))

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self.watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents.setdefault(int(_stat(entry)[1]), []).append(int(entry.name))
            except OSError:  # it has just exited
                continue
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _stat(entry: Path) -> list[str]:
    """The fields after the name."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def cpu_s(root: int) -> float:
    """User and system time so far, including children that have exited."""
    ticks = 0
    for pid in tree(root):
        try:
            ticks += sum(map(int, _stat(Path(f"/proc/{pid}"))[11:15]))
        except OSError:
            continue
    return ticks / _TICK


def memory_mb(root: int) -> float:
    pages = 0
    for pid in tree(root):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return pages * _PAGE / 1e6


def _busy_s() -> float:
    """CPU time of the whole machine."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICK


def free_ports(count: int) -> list[int]:
    """Ports below the kernel's range for outgoing connections, of which there will be very many."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


@contextmanager
def process(command: list[str], core: int, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    cores = [str(_CORES[core % len(_CORES)])] if core >= 0 else [",".join(map(str, _CORES))]
    with log.open("ab") as out:
        started = subprocess.Popen(
            ["taskset", "-c", *cores, *command],
            stdout=out,
            stderr=out,
            env=os.environ | environment,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(started.pid, number)
                started.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def wait_port(port: int, started: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    for _ in range(int(seconds * 20)):
        if started.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"port {port}: nothing listens: {log.read_text(errors='replace')[-500:]}")


@contextmanager
def running(peer: Peer, scanner_ms: int = 0, cores: int = 1) -> Iterator[tuple[Ports, int]]:
    """The peer with a scanner and a next hop; yields its ports and process ID."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        scratch = Path(name)
        ports = Ports(*free_ports(5))
        for command, port in (
            ([str(BUILD / "scanner"), str(ports.scanner), str(scanner_ms)], ports.scanner),
            ([str(BUILD / "sink"), str(ports.sink)], ports.sink),
        ):
            started = stack.enter_context(process(command, 1, {}, scratch / "log"))
            wait_port(port, started, scratch / "log")
        arguments, environment = peer.command(ports, scratch)
        started = stack.enter_context(process(arguments, 0 if cores == 1 else -1, environment, scratch / "log"))
        wait_port(ports.peer, started, scratch / "log")
        yield ports, started.pid


def load(protocol: str, port: int, work: Work, seconds: float = 0.0) -> dict[str, Any]:
    command = [str(BUILD / "load"), protocol, str(port), "-s", str(work.sessions), "-n", str(work.per_connection)]
    command += ["-m", str(work.mails), "-l", str(work.size), "-r", str(work.recipients)]
    command += ["-t", str(seconds)] if seconds else []
    command += ["-d"] if work.is_different else []
    cores = str(_CORES[1 % len(_CORES)])
    done = subprocess.run(["taskset", "-c", cores, *command], stdout=subprocess.PIPE, timeout=180, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_alone(peer: Peer, work: Work) -> Run:
    with running(peer, work.scanner_ms, work.cores) as (ports, pid):
        _warm_up(peer, ports, work)
        return _part(peer, ports, pid, work)


def alone(peers: list[Peer], work: Work) -> dict[str, Run]:
    """Each of them once, as far as they start."""
    found: dict[str, Run] = {}
    for peer in peers:
        try:
            found[peer.name] = run_alone(peer, work)
        except (OSError, RuntimeError, subprocess.SubprocessError) as exc:
            print(f"{peer.name} failed: {exc}", file=sys.stderr)
    return found


def alternate(works: dict[Peer, Work], rounds: int) -> dict[str, Run]:
    """All peers at once, loaded in turn with the mails of one round: what slows the machine down slows all of them."""
    with ExitStack() as stack:
        places: dict[Peer, tuple[Ports, int]] = {}
        for peer, work in works.items():
            try:
                places[peer] = stack.enter_context(running(peer, work.scanner_ms, work.cores))
            except (OSError, RuntimeError) as exc:
                print(f"{peer.name} did not start: {exc}", file=sys.stderr)
        for peer, (ports, _) in places.items():
            _warm_up(peer, ports, works[peer])
        parts: dict[Peer, list[Run]] = {peer: [] for peer in places}
        for _ in range(rounds):
            for peer, (ports, pid) in places.items():
                parts[peer].append(_part(peer, ports, pid, works[peer]))
    return {peer.name: _whole(found) for peer, found in parts.items()}


def _warm_up(peer: Peer, ports: Ports, work: Work) -> None:
    if work.warm and not work.rate:  # the load at a rate warms the peer up itself
        load(peer.protocol, ports.peer, replace(work, mails=100_000), peer.warm_up_s)
    time.sleep(0.2)


def _part(peer: Peer, ports: Ports, pid: int, work: Work) -> Run:
    if work.rate:
        return _run_at_rate(ports, pid, work)
    idle, began, before, busy = memory_mb(pid), time.monotonic(), cpu_s(pid), _busy_s()
    with Sampler(pid) as sampler:
        result = load(peer.protocol, ports.peer, work)
    used = cpu_s(pid) - before
    others = (_busy_s() - busy - used) / (time.monotonic() - began) - 1.0  # the load takes most of one core
    return _result(result, used, idle, sampler, others)


def _result(result: dict[str, Any], used: float, idle: float, sampler: Sampler, others: float) -> Run:
    cpu_ms = used / max(result["mails"], 1) * 1e3
    return Run(result, cpu_ms, idle, max(sampler.peak, idle), max(others, 0.0), [cpu_ms])


def _run_at_rate(ports: Ports, pid: int, work: Work) -> Run:
    """SMTP only. The load generator warms the peer up itself."""
    seconds = work.mails / work.rate
    command = [str(BUILD / "openload"), str(ports.peer), str(work.rate), str(seconds), "kept"]
    cores = str(_CORES[1 % len(_CORES)])
    with subprocess.Popen(["taskset", "-c", cores, *command], stdout=subprocess.PIPE, text=True) as generator:
        assert generator.stdout is not None
        assert generator.stdout.readline() == "measuring\n"
        idle, before, busy = memory_mb(pid), cpu_s(pid), _busy_s()
        with Sampler(pid) as sampler:
            time.sleep(seconds)
        used = cpu_s(pid) - before
        others = (_busy_s() - busy - used) / seconds - 1.0
        found = json.loads(generator.stdout.readline())
    result = {"mails": found["offered"], "seconds": seconds, "bytes": work.size, "refused": 0}
    refused = 0 if work.is_overload else sum(stage["n"] for stage in found["refused"].values())
    result |= {"errors": sum(found["errors"].values()) + refused}
    result |= {f"total_{part}_ms": found["accepted"][part] for part in ("p50", "p99")}
    return _result(result, used, idle, sampler, others)


def _whole(parts: list[Run]) -> Run:
    """Sums, and the medians of what cannot be added."""
    sums = {key: sum(part.load[key] for part in parts) for key in ("mails", "seconds", "errors", "refused")}
    times = {key: median(part.load[key] for part in parts) for key in ("total_p50_ms", "total_p99_ms")}
    costs = [part.cpu_ms for part in parts]
    return Run(
        {"bytes": parts[0].load["bytes"], **sums, **times},
        median(costs),
        parts[0].idle_mb,
        max(part.peak_mb for part in parts),
        median(part.others for part in parts),
        costs,
    )
