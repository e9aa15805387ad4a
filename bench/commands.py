"""Measures how long commands take to start: `make bench-commands`.

Each command runs as a new process of the installed program, as if started by a shell. In each round, the commands run
one after another, so that other work on the machine affects all of them, and each is compared with the start of Python
itself in the same round. The limits are checked here and not in a test, because times depend on the machine.
"""

# ruff: noqa: E501, S603 - it writes a document, and starts its own program
from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from bridge.cli import _COMMANDS
from tests.cli.test_cli_imports import STATE, admin, configured

PROGRAM = str(Path(sys.executable).with_name("scanbridge"))
PYTHON = "Python alone"
HELP_MS, STATUS_MS = 120, 60  # help and completion; how much more `status` may take
ROUNDS = 15


@dataclass
class Start:
    """One command, and what each of its starts took, in milliseconds."""

    name: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    limit_ms: float | None = None
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def once(self) -> None:
        began = time.perf_counter()
        process = subprocess.Popen(
            self.words, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(self.words)} failed")
        self.wall.append((time.perf_counter() - began) * 1000)
        self.cpu.append((used.ru_utime + used.ru_stime) * 1000)


def starts(status_file: str) -> list[Start]:
    typed = {"_SCANBRIDGE_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "scanbridge li"}
    deep = {**typed, "COMP_CWORD": "3", "COMP_WORDS": "scanbridge quarantine list --"}
    found = [
        Start(PYTHON, [sys.executable, "-c", "pass"]),
        Start("`scanbridge --help`", [PROGRAM, "--help"], limit_ms=HELP_MS),
        Start("completion of a command", [PROGRAM], typed, HELP_MS),
        Start("completion of an option", [PROGRAM], deep, HELP_MS),
        Start("`scanbridge status`", [PROGRAM, "status", "-c", status_file], limit_ms=HELP_MS + STATUS_MS),
    ]
    return found + [
        Start(f"`scanbridge {name} --help`", [PROGRAM, name, "--help"], limit_ms=HELP_MS) for name in _COMMANDS
    ]


def measure(rounds: int) -> list[Start]:
    with tempfile.TemporaryDirectory() as place, admin(json.dumps(STATE).encode()) as port:
        found = starts(configured(Path(place), port))
        for number in range(rounds + 1):
            for start in found:
                start.once()
                if number == 0:  # the first one compiles, and reads from the disk
                    start.wall.clear()
                    start.cpu.clear()
    return found


def table(found: list[Start]) -> str:
    alone = found[0].cpu
    lines = [
        "| command | CPU, lowest (ms) | CPU, median (ms) | elapsed, lowest (ms) | compared with Python | limit (ms) |",
        "|---|---|---|---|---|---|",
    ]
    for start in found:
        ratio = median(own / python for own, python in zip(start.cpu, alone, strict=True))
        numbers = f"{min(start.cpu):.0f} | {median(start.cpu):.0f} | {min(start.wall):.0f} | {ratio:.1f} x"
        lines.append(f"| {start.name} | {numbers} | {limit(start)} |")
    return "\n".join(lines)


def limit(start: Start) -> str:
    if start.limit_ms is None:
        return ""
    return f"{start.limit_ms:g}" if min(start.cpu) <= start.limit_ms else f"{start.limit_ms:g}, **missed**"


def page(found: list[Start], rounds: int, load: float) -> str:
    return f"""# How quickly commands start

`make bench-commands` starts each command {rounds} times as a new process, one command after another in each round, and compares it with the start of Python itself.
The limits are {HELP_MS} ms for help and completion, and {STATUS_MS} ms more for `status`.
A test counts the modules that each command imports (`tests/cli/test_cli_imports.py`, `tests/cli/test_cli_imports_of_each.py`): unlike these times, that number does not depend on the machine.

This run: Python {platform.python_version()}, {os.cpu_count()} cores, load average {load:.1f} from other work at its start.
Starting a command is pure computation, so on an idle machine it takes as long as its CPU time: compare the lowest CPU time with the limit.
The elapsed time also depends on the other work.

{table(found)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"number of rounds (default: {ROUNDS})")
    parser.add_argument("--out", type=Path, help="write the result to this page")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = measure(options.rounds)
    if options.out is None:
        print(table(found))
    else:
        options.out.write_text(page(found, options.rounds, load))


if __name__ == "__main__":
    main()
