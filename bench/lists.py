"""Measures entries per second through the List API, and the cost of one lookup at MAIL in ten to a million entries.

Runs the real service (with SQLite, or with --database) in a separate process and the real client in this one, on
loopback. Prints one line per operation, with this process's peak memory. The measurement for MAIL (`door`) needs no
service: it searches local copies as the daemon does. Its times are CPU times, the best of many rounds, and matter only
in relation to those for the smallest list.

    python bench/lists.py [--entries 200000] [--parallel 4] [--database postgresql://...] [--only door|api]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bridge.filter.envelope_lists import EnvelopeLists, EnvelopeListsSettings
from bridge.lists import ListClient, ListEntry, ListSettings, apply, difference
from bridge.lists.copies import Copies, Wanted
from bridge.mail.session import Client, Session
from bridge.matching import table
from bridge.matching.table import TableMaker

CONFIG = """listen: 127.0.0.1:{port}
database: {database}
lists: [{{name: bench, category: sender, maxSize: 10000000}}]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=200_000, help="number of entries (default: 200000)")
    parser.add_argument("--parallel", type=int, default=4, help="number of concurrent requests (default: 4)")
    parser.add_argument("--port", type=int, default=19081, help="port of the service (default: 19081)")
    parser.add_argument("--database", default="sqlite:///bench.sqlite", help="URL of the service's database")
    parser.add_argument(
        "--only", choices=["door", "api"], help="measure only the lookups at MAIL, or only the List API"
    )
    given = parser.parse_args()
    if given.only != "api":
        for kind in ("sender", "network"):
            measure_door(kind)
    if given.only == "door":
        return
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "service.yml"
        config.write_text(CONFIG.format(port=given.port, database=given.database))
        program = [sys.executable, "-m", "bridge", "service", "-c", str(config)]
        made = subprocess.run([*program, "apikey", "create", "bench"], capture_output=True, check=True)  # noqa: S603
        service = subprocess.Popen(program, stdout=subprocess.PIPE)  # noqa: S603
        try:
            assert service.stdout is not None
            service.stdout.readline()  # it prints its address once it listens
            settings = ListSettings(
                f"http://127.0.0.1:{given.port}", made.stdout.decode().strip(), parallel=given.parallel
            )
            asyncio.run(measure(settings, given.entries))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()


async def measure(settings: ListSettings, count: int) -> None:
    async with ListClient(settings) as client:
        names = [f"user{i:07}@example.org" for i in range(count)]
        began = time.perf_counter()
        await client.add("bench", (ListEntry(name, "benchmark") for name in names))
        report("add", count, began)
        began = time.perf_counter()
        await client.add("bench", (ListEntry(name, "again") for name in names))
        report("update", count, began)
        began = time.perf_counter()
        assert sum([len(chunk) async for chunk in client.entry_chunks("bench")]) == count
        report("stream", count, began)
        began = time.perf_counter()
        wanted: dict[str, str | None] = dict.fromkeys(names[count // 10 :])
        wanted |= {f"new{i:07}@example.org": "new" for i in range(count // 10)}
        change = await difference(client, "bench", wanted)
        report("difference", count, began)
        began = time.perf_counter()
        await apply(client, "bench", change, prune=True)
        report("apply 20%", len(change.additions) + len(change.deletions), began)
        began = time.perf_counter()
        await client.delete("bench", list(wanted))
        report("delete", count, began)


SIZES = (10, 10_000, 1_000_000)
ROUNDS, QUESTIONS = 30, 1000


def measure_door(kind: str) -> None:
    """Build and load a copy of each size, and look up clients or senders that are not on it: the usual case."""
    print(f"at MAIL, a list of {kind}s:")
    smallest = 0.0
    for size in SIZES:
        with tempfile.TemporaryDirectory() as place:
            made_s = make_copy(Path(place), "bench", kind, size)
            program = [sys.executable, __file__, "--ask", place, kind]
            answer = subprocess.run(program, capture_output=True, check=True, text=True).stdout  # noqa: S603
            loaded_ms, lag_ms, asked_us, grown_mib = map(float, answer.split())
            smallest = smallest or asked_us
            print(
                f"  {size:>9,} entries: one MAIL {asked_us:5.1f} us, ratio {asked_us / smallest:4.2f}; "
                f"loaded in {loaded_ms:5.1f} ms (event loop {lag_ms:.1f} ms late), {grown_mib:4.0f} MiB, shared; "
                f"built in {made_s:4.1f} s of CPU time",
                flush=True,
            )


def make_copy(place: Path, name: str, kind: str, size: int) -> float:
    """Build a copy and return the CPU time in seconds."""
    began = time.process_time()
    maker = TableMaker(kind)
    for i in range(size):
        maker.add(entry(kind, i))
    about, body = maker.finish(name, None)
    made_s = time.process_time() - began
    (place / Wanted(name).file_name).write_bytes(table.head(about) + b"".join(body))
    return made_s


def entry(kind: str, i: int) -> str:
    return f"user{i:07}@example{i % 5000}.org" if kind == "sender" else f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"


def ask(place: str, kind: str) -> None:
    """Load the copy as the daemon does and look up; in a separate process, to measure its memory."""
    before = resident_mib()
    runs = []
    for _ in range(10):
        copies = Copies(Path(place))
        copies.want([Wanted("bench")])
        runs.append(asyncio.run(load(copies)))
    loaded_s, lag_s = map(min, zip(*runs, strict=True))  # other work on the machine only adds time
    lists = EnvelopeLists(EnvelopeListsSettings(block=("bench",)), copies.get)
    sessions = [Session("s", "mx", "127.0.0.1", Client(f"192.0.2.{i % 250}")) for i in range(QUESTIONS)]
    senders = [f"someone{i}@host{i}.example.net" for i in range(QUESTIONS)]
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for session, sender in zip(sessions, senders, strict=True):
            assert lists.blocked(session, sender, None) is None
        best = min(best, time.process_time() - began)
    print(loaded_s * 1000, lag_s * 1000, best / QUESTIONS * 1e6, resident_mib() - before)


async def load(copies: Copies) -> tuple[float, float]:
    """Seconds to load, and the maximum lag of the event loop meanwhile."""
    began = seen = time.perf_counter()
    loading, lag_s = asyncio.create_task(asyncio.to_thread(copies.look)), 0.0
    while not loading.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        lag_s, seen = max(lag_s, now - seen - 0.001), now
    return time.perf_counter() - began, lag_s


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def report(what: str, count: int, began: float) -> None:
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what:10} {count:>9,} entries {took:7.2f} s {count / took:>10,.0f} entries/s   peak {peak} MiB", flush=True)


if __name__ == "__main__":
    ask(*sys.argv[2:]) if sys.argv[1:2] == ["--ask"] else main()
