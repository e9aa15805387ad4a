"""Measures the memory that each attack costs, compared with a simple implementation and a bound: `make bench-memory`.

Every attack in tests/hostile/attacks.py runs against a new process of unmodified aiosmtpd (bench/stock.py) and against
a new bridge with its default limits. The result is the growth of the peak resident size (VmHWM in /proc) over the idle
size. The run fails if the bridge grows beyond a bound. The unmodified programs are limited to 2 GiB, so that they
cannot exhaust the machine's memory.
"""

# ruff: noqa: S603 - it starts its own programs
from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the test kits

import memory_service  # noqa: E402
import trustme  # noqa: E402

from bridge.testing import Background, FakeScanner, NextHop, free_port, until  # noqa: E402
from tests.hostile.attacks import ATTACKS, Attack, MiB, Target  # noqa: E402
from tests.hostile.hostile_kit import bridge_process, can_connect  # noqa: E402

PAGE = ROOT / "docs" / "evidence" / "memory.md"
MARK = "<!-- what follows is written by `make bench-memory` -->\n"
STOCK_LIMIT = 2048 * MiB


@dataclass(frozen=True)
class Row:
    attack: Attack
    stock: int | None  # None: it does not speak milter
    ours: int
    seconds: tuple[float, float]

    @property
    def good(self) -> bool:
        return self.ours <= self.attack.bound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", action="store_true", help="do not run the programs used for comparison")
    parser.add_argument("only", nargs="*", help="run only attacks whose names contain one of these words")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def chosen(name: str) -> bool:
        return not options.only or any(word in name for word in options.only)

    rows = [measure(attack, options.ours) for attack in ATTACKS if chosen(attack.name)]
    bomb_rows = [memory_service.measure(bomb) for bomb in memory_service.BOMBS if chosen(bomb.name)]
    if not options.only and not options.ours:
        write(rows, bomb_rows)
    bad = [row.attack.name for row in rows if not row.good] + [row.bomb.name for row in bomb_rows if not row.good]
    print(
        f"{len(rows) + len(bomb_rows) - len(bad)} within their bound"
        + (f", {len(bad)} not: {', '.join(bad)}" if bad else "")
    )
    return 1 if bad else 0


def measure(attack: Attack, ours_only: bool) -> Row:
    times, grown = [], []
    for start in (ours, stock):
        if start is stock and (ours_only or attack.milter):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="memory-") as directory, start(Path(directory)) as (pid, target):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak to the current size
            before = resident(pid, "VmRSS")
            attack.act(target)
            grown.append(max(0, resident(pid, "VmHWM") - before))
        times.append(time.monotonic() - began)
    stocks = grown[1] if len(grown) > 1 else None
    row = Row(attack, stocks, grown[0], (times[0], times[-1]))
    shown = "-" if stocks is None else f"{stocks / MiB:.1f}"
    print(
        f"{'ok ' if row.good else 'BAD'} {attack.name:50} stock {shown:>7}  ours {row.ours / MiB:6.1f}"
        f"  bound {attack.bound / MiB:6.1f} MiB  ({times[0]:.0f} s, {times[-1]:.0f} s)",
        flush=True,
    )
    return row


def resident(pid: int, field: str) -> int:
    """The resident size now (VmRSS) or at its peak (VmHWM). A process that has died counts with its limit."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition(f"{field}:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return STOCK_LIMIT


@contextmanager
def ours(directory: Path) -> Iterator[tuple[int, Target]]:
    certificate(directory)
    port, milter = free_port(), free_port()
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    listeners = [
        {"name": "smtp", "address": f"127.0.0.1:{port}", "tls": tls},
        {"name": "milter", "protocol": "milter", "address": f"127.0.0.1:{milter}"},
    ]
    with bridge_process(directory, {"listeners": listeners}) as bridge:
        yield bridge.pid, Target(port, milter, bridge.scanner, bridge.next_hop)


@contextmanager
def stock(directory: Path) -> Iterator[tuple[int, Target]]:
    certificate(directory)
    background, scanner, next_hop, port = Background(), FakeScanner(), NextHop(), free_port()
    background.run(scanner.start())
    background.run(next_hop.start())
    program = [sys.executable, str(ROOT / "bench" / "stock.py"), str(port), scanner.url, str(next_hop.port)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*program, "cert.pem", "key.pem"], cwd=directory, stdout=log, stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (STOCK_LIMIT, STOCK_LIMIT)),
        )  # fmt: skip
    try:
        until(lambda: can_connect(port), "stock parts to listen")
        yield process.pid, Target(port, 0, scanner, next_hop)
    finally:
        process.kill()
        process.wait()
        background.run(scanner.stop())
        background.run(next_hop.stop())
        background.close()


def certificate(directory: Path) -> None:
    issued = trustme.CA().issue_cert("bridge.example")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")


def write(rows: list[Row], bomb_rows: list[memory_service.BombRow]) -> None:
    """Rewrite the page below the mark; the prose above it stays."""
    prose = PAGE.read_text().partition(MARK)[0]
    lines = ["| attack | stock, MiB | ours, MiB | bound, MiB | which limit |", "|---|---:|---:|---:|---|"]
    for row in rows:
        stocks = "-" if row.stock is None else f"{row.stock / MiB:.0f}"
        mine = f"{row.ours / MiB:.1f}" if row.good else f"**{row.ours / MiB:.1f}**"
        lines.append(f"| {row.attack.name} | {stocks} | {mine} | {row.attack.bound / MiB:.1f} | {row.attack.why} |")
    lines += ["", "## Mail that the service inspects", "", *memory_service.table(bomb_rows)]
    PAGE.write_text(
        f"{prose}{MARK}\n## The bridge\n\nRun on {datetime.now(UTC):%Y-%m-%d}.\n\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
