"""The second table of `make bench-memory`: mail that is designed to exhaust the memory of whatever inspects it.

Runs the scanning service with its defaults, as a process; what counts is the growth of it and its analysis processes
together. For comparison, a program reads the mail with the standard library's `email`, and every file in its archives
with `zipfile`.
"""

# ruff: noqa: S603 - it starts its own programs
from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.service.analyzer_settings import Analyzers
from tests.service.service_kit import CONFIG, ServiceProcess, attached, mail, zipped
from tests.service.test_service_inspection import MIB, many_members, many_parts, nested_multipart, nested_zips, zip_bomb

BOUND = Analyzers().process_memory  # of address space, for one analysis process
STOCK = """
import email, email.policy, io, resource, sys, zipfile
def look(data):
    if data[:2] == b"PK":
        archive = zipfile.ZipFile(io.BytesIO(data))
        for name in archive.namelist():
            look(archive.read(name))
def resident(field):
    return int(open("/proc/self/status").read().partition(field)[2].split()[0])
open("/proc/self/clear_refs", "w").write("5")
before = resident("VmRSS:")
resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, 1 << 31))
try:
    message = email.message_from_binary_file(sys.stdin.buffer, policy=email.policy.default)
    for part in message.walk():
        if not part.is_multipart():
            look(part.get_payload(decode=True) or b"")
except (RecursionError, MemoryError) as exc:
    print(type(exc).__name__, file=sys.stderr)
print(resident("VmHWM:") - before)
"""


@dataclass(frozen=True)
class Bomb:
    name: str
    make: Callable[[], bytes]


BOMBS = [
    Bomb("a zip that unpacks to 300 MiB", lambda: attached(zip_bomb(300 * MIB), "a.zip")),
    Bomb("zips in zips, 20 deep, 100 MiB in the last", lambda: attached(nested_zips(20, bytes(100 * MIB)), "a.zip")),
    Bomb("a zip of 50,000 files", lambda: attached(many_members(50_000), "a.zip")),
    Bomb("100,000 MIME parts", lambda: many_parts(100_000)),
    Bomb("multipart, 900 deep", lambda: nested_multipart(900)),
    Bomb("a header field of 40 MiB", lambda: b"X: " + b"a" * (40 * MIB) + b"\r\n\r\nx\r\n"),
    Bomb("a million header fields", lambda: b"X: y\r\n" * 1_000_000 + b"\r\nx\r\n"),
    Bomb("a text of 40 MiB full of links", lambda: mail(b"http://a.example/b " * (2 * MIB))),
]


@dataclass(frozen=True)
class BombRow:
    bomb: Bomb
    stock: int
    ours: int
    decision: str

    @property
    def good(self) -> bool:
        return self.ours <= BOUND


def measure(bomb: Bomb) -> BombRow:
    content = bomb.make()
    done = subprocess.run([sys.executable, "-c", STOCK], input=content, capture_output=True, check=False)
    stock = int(done.stdout or b"0") * 1024
    with tempfile.TemporaryDirectory(prefix="memory-") as directory:
        (Path(directory) / "service.yml").write_text(CONFIG)
        service = ServiceProcess(Path(directory), is_program=True)
        try:
            service.wait()
            service.submit(attached(zipped(("x", b"x")), "a.zip"))  # starts the analysis processes
            before = {pid: resident(pid, "VmRSS") for pid in family(service.process.pid)}
            for pid in before:
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            answer = service.submit(content)
            grown = sum(max(0, resident(pid, "VmHWM") - size) for pid, size in before.items())
        finally:
            service.end()
    decision = answer.json.get("decision", str(answer.status))
    row = BombRow(bomb, stock, grown, decision)
    print(
        f"{'ok ' if row.good else 'BAD'} {bomb.name:50} stock {stock / MIB:7.1f}  ours {grown / MIB:6.1f}"
        f"  bound {BOUND / MIB:6.1f} MiB  {decision}",
        flush=True,
    )
    return row


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(descendant for child in children for descendant in family(int(child)))]


def resident(pid: int, field: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition(f"{field}:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return 0  # it was killed at its bound


def table(rows: list[BombRow]) -> list[str]:
    lines = ["| mail | stock, MiB | ours, MiB | bound, MiB | decision |", "|---|---:|---:|---:|---|"]
    for row in rows:
        lines.append(
            f"| {row.bomb.name} | {row.stock / MIB:.0f} | {row.ours / MIB:.1f} | {BOUND / MIB:.0f} | {row.decision} |"
        )
    return lines
