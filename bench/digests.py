"""Measures digests for 100,000 people with a million held mails: time, memory, and duplicates after kill -9.

    .venv/bin/python bench/digests.py --out docs/evidence/digests.md

Creates the index of a quarantine, runs `scanbridge digest send --now` against a next hop that counts recipients, kills
the command several times, and then lets it finish. No one may get the same digest twice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bridge.digests.database import FILE, DigestStore  # noqa: E402
from bridge.digests.items import UNSURE_S, Items  # noqa: E402
from bridge.runtime.database import Database  # noqa: E402
from tests.digests.held_mail_maker import fill  # noqa: E402

_RECIPIENT = re.compile(rb"RCPT TO:<([^>]*)>", re.IGNORECASE)
_DAYS_S = 20 * 86400.0
_PROCESSES = 2  # at the same time
_CONFIG = """\
scanner: {{urls: ["http://127.0.0.1:1"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:0"}}]
relay: {{next_hop: "127.0.0.1:{port}"}}
state_directory: {state}
digests: {{schedule: daily, from: "Quarantine <quarantine@a.example>", domains: [a.example]}}
"""


@dataclass
class Sink:
    """A next hop that remembers recipients, and nothing else."""

    got: Counter[str] = field(default_factory=Counter)
    size: int = 0
    port: int = 0

    def start(self) -> None:
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True).start()
        ready.wait(10)

    async def _run(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 sink\r\n")
        recipient = ""
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                verb = line[:4].upper()
                if verb == b"EHLO":
                    writer.write(b"250-sink\r\n250-PIPELINING\r\n250 8BITMIME\r\n")
                elif verb == b"DATA":
                    writer.write(b"354 go\r\n")
                    content = await reader.readuntil(b"\r\n.\r\n")
                    self.size += len(content)
                    self.got[recipient] += 1
                    writer.write(b"250 ok\r\n")
                elif verb == b"QUIT":
                    writer.write(b"221 bye\r\n")
                    return
                else:
                    found = _RECIPIENT.match(line)
                    recipient = found[1].decode() if found else recipient
                    writer.write(b"250 ok\r\n")


def memory_of(pid: int) -> int:
    """The most memory that the process has had, in bytes."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def send(config: Path, sink: Sink, kill_at: int | None) -> tuple[float, int]:
    """Seconds and peak memory of one process; all are killed once the sink has received that many."""
    command = [sys.executable, "-m", "bridge", "digest", "send", "--now", "-c", str(config)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    began, peak = time.monotonic(), 0
    running = [subprocess.Popen(command, env=env) for _ in range(_PROCESSES)]  # noqa: S603
    while any(each.poll() is None for each in running):
        peak = max(peak, *(memory_of(each.pid) for each in running))
        if kill_at is not None and len(sink.got) >= kill_at:
            for each in running:
                each.send_signal(signal.SIGKILL)
        time.sleep(0.05)
    if kill_at is None:
        assert [each.returncode for each in running] == [0] * _PROCESSES
    return time.monotonic() - began, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--people", type=int, default=100_000, help="number of recipients (default: 100000)")
    parser.add_argument("--mails", type=int, default=1_000_000, help="number of held mails (default: 1000000)")
    parser.add_argument("--out", type=Path, help="write the result to this page")
    parser.add_argument("--filled", type=Path, help="use this index, which an earlier run filled")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="digests-") as name:
        directory, sink = Path(name), Sink()
        (directory / "state").mkdir(mode=0o700)
        (directory / "token").write_text("x\n")
        sink.start()
        config = directory / "bridge.yml"
        config.write_text(_CONFIG.format(port=sink.port, state=directory / "state"))
        began = time.monotonic()
        if options.filled is not None:
            shutil.copy(options.filled, directory / "state" / "state.sqlite")
        else:
            fill(directory / "state", options.mails, options.people, age_s=_DAYS_S, every_s=_DAYS_S / options.mails)
        sys.stderr.write(f"filled in {time.monotonic() - began:.0f} s\n")
        runs = []
        for share in (0.2, 0.5, 0.8, None):
            kill_at = None if share is None else int(options.people * share)
            before = len(sink.got)
            seconds, peak = send(config, sink, kill_at)
            runs.append((seconds, peak, len(sink.got) - before, kill_at is not None))
        with closing(DigestStore(Database.file(directory / "state" / FILE))) as store:
            later = Items(store, "").waiting_count(time.time() + UNSURE_S + 60)
        text = page(options, sink, runs, later)
    if options.out is not None:
        options.out.write_text(text)
    sys.stdout.write(text)
    if max(sink.got.values()) > 1:
        sys.exit("somebody got two")


def page(options: argparse.Namespace, sink: Sink, runs: list[tuple[float, int, int, bool]], later: int) -> str:
    rows = "".join(
        f"| {number} | {'`kill -9`' if killed else 'finished'} | {count:,} | {seconds:,.0f} s "
        f"| {peak / 1e6:,.0f} MB |\n"
        for number, (seconds, peak, count, killed) in enumerate(runs, 1)
    )
    twice = sum(count > 1 for count in sink.got.values())
    missing = options.people - len(sink.got)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    return f"""\
# Digests, measured

`make bench-digests` creates {options.mails:,} held mails for {options.people:,} people.
It sends the digests to a next hop that counts recipients.
Two processes send at the same time, as two machines would.
Both are killed with `kill -9` three times; the fourth time, they finish.

| run | end | digests | time | peak memory of a process |
|---|---|---|---|---|
{rows}
- People who got a digest: {len(sink.got):,} of {options.people:,}.
- People who got two: {twice:,}.
- People whose digest did not arrive, because it was being sent when a process was killed: {missing:,}.
- People whose next digest, a day later at the earliest, lists the same mail again: {later:,}.
  Because of the kill, it is unknown whether their first digest arrived.
- Sent: {sink.size / 1e9:,.2f} GB.

The first run also reads the quarantine's index once.
Measured on {day} with {platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores.
"""


if __name__ == "__main__":
    main()
