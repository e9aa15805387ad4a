"""Entries per second through the List API: add, stream, delete, and a whole sync.

Runs the real service (SQLite, or what --database names) in a process of its own and the real
client in this one, on loopback. Prints one line per operation, with this process's peak memory.

    python bench/lists.py [--entries 200000] [--parallel 4] [--database postgresql://...]
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

from bridge.lists import ListClient, ListEntry, ListSettings, apply, difference

CONFIG = """listen: 127.0.0.1:{port}
database: {database}
lists: [{{name: bench, category: sender, maxSize: 10000000}}]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--port", type=int, default=19081)
    parser.add_argument("--database", default="sqlite:///bench.sqlite")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "service.yml"
        config.write_text(CONFIG.format(port=given.port, database=given.database))
        program = [sys.executable, "-m", "bridge", "service", "-c", str(config)]
        made = subprocess.run([*program, "apikey", "create", "bench"], capture_output=True, check=True)  # noqa: S603
        service = subprocess.Popen(program, stdout=subprocess.PIPE)  # noqa: S603
        try:
            assert service.stdout is not None
            service.stdout.readline()  # it says where it listens when it does
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


def report(what: str, count: int, began: float) -> None:
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{what:10} {count:>9,} entries {took:7.2f} s {count / took:>10,.0f} entries/s   peak {peak} MiB", flush=True)


if __name__ == "__main__":
    main()
