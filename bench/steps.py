"""Counts the bytecode instructions and calls that the daemon's main thread executes for a mail.

    python bench/steps.py [--works kept each milter relaying] [--functions 40] [COMMIT ...]

On a busy machine, these counts vary by 1%, whereas times vary by half, so the counts show the effect of a change. An
instruction takes about 31 ns, including the C functions that it calls. Functions that are called for fewer than half
of the mails (timers, and work done once per connection) are left out. If no commit is given, the working tree is
measured.
"""

# ruff: noqa: S603, S607 - it starts its own programs
from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from measure import Work, load, running
from peers import HERE, Peer, Ports, build_tools, ours

WORKS = {  # by name: protocol, load, what is done with the mail
    "kept": ("smtp", Work(200, sessions=10), "discard"),
    "each": ("smtp", Work(200, sessions=10, per_connection=1), "discard"),
    "milter": ("milter", Work(200, sessions=10), "discard"),
    "relaying": ("smtp", Work(200, sessions=10), "relay"),
}
_WAIT_S = 30.0
_TOGGLE = signal.SIGWINCH  # no one else uses it


def count(work: str, root: Path) -> tuple[Counter[str], Counter[str]]:
    """Instructions and calls, by function, for all mails of the load."""
    protocol, mails, deliver = WORKS[work]
    run = ours(protocol, root, deliver=deliver)
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result"

        def command(ports: Ports, directory: Path) -> tuple[list[str], dict[str, str]]:
            arguments, environment = run(ports, directory)
            bridge = arguments[arguments.index("bridge") + 1 :]
            return [sys.executable, __file__, "--traced", str(result), *bridge], environment

        with running(Peer("scanbridge", protocol, command, warm_up_s=1.0)) as (ports, pid):
            load(protocol, ports.peer, replace(mails, mails=2_000))
            _toggle(pid, result, '"on"')
            load(protocol, ports.peer, mails)
            _toggle(pid, result, "{")
            found = json.loads(result.read_text())
    return Counter(found["instructions"]), Counter(found["calls"])


def _toggle(pid: int, result: Path, expected: str) -> None:
    os.kill(pid, _TOGGLE)
    until = time.monotonic() + _WAIT_S
    while not (result.exists() and result.read_text().startswith(expected)):
        if time.monotonic() > until:
            raise RuntimeError("the daemon did not respond to the signal")
        time.sleep(0.05)


# --- in the daemon ---------------------------------------------------------------------------------------------------


class Tracer:
    """Counts in the main thread between two signals."""

    def __init__(self, result: Path) -> None:
        self._result = result
        self._instructions: Counter[CodeType] = Counter()
        self._calls: Counter[CodeType] = Counter()
        self._is_on = False

    def toggle(self, *_: object) -> None:
        self._is_on = not self._is_on
        if self._is_on:
            sys.settrace(self._call)
            self._put('"on"')
            return
        sys.settrace(None)
        counts = {"instructions": _by_name(self._instructions), "calls": _by_name(self._calls)}
        self._put(json.dumps(counts))

    def _put(self, text: str) -> None:
        new = self._result.with_suffix(".new")
        new.write_text(text)
        new.rename(self._result)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self._calls[frame.f_code] += 1
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self._instructions[frame.f_code] += 1
        return self._step


def _by_name(counts: Counter[CodeType]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for code, number in counts.items():
        path = code.co_filename
        start = path.rfind("/bridge/")
        found[f"{path[start + 1 :] if start >= 0 else path} {code.co_qualname}"] += number
    return found


def run_traced(result: str, arguments: list[str]) -> None:
    tracer = Tracer(Path(result))
    signal.signal(_TOGGLE, tracer.toggle)
    sys.argv = ["bridge", *arguments]
    import runpy

    runpy.run_module("bridge", run_name="__main__", alter_sys=True)


# --- the tables ------------------------------------------------------------------------------------------------------


def main() -> None:
    if sys.argv[1:2] == ["--traced"]:
        return run_traced(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="also show the N largest functions")
    parser.add_argument("commits", nargs="*")
    arguments = parser.parse_args()
    build_tools()
    for commit in arguments.commits or [""]:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory) if commit else HERE.parent
            if commit:
                git = ["git", "archive", commit]
                archive = subprocess.run(git, cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
                subprocess.run(["tar", "x", "-C", root], input=archive.stdout, check=True)
            for work in arguments.works:
                _show(commit or "working tree", work, *count(work, root), arguments.functions)
    return None


def _show(version: str, work: str, instructions: Counter[str], calls: Counter[str], functions: int) -> None:
    mails = WORKS[work][1].mails
    regular = [name for name in calls if calls[name] >= mails / 2]
    total, called = sum(instructions[name] for name in regular) / mails, sum(calls[name] for name in regular) / mails
    print(f"{version}, {work}: {total:,.0f} instructions, {called:,.0f} calls per mail")
    for name, number in instructions.most_common(functions):
        print(f"{number / mails:8.1f} {calls[name] / mails:6.2f} {name}")


if __name__ == "__main__":
    main()
