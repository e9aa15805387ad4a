"""Memory of freed content is returned to the system, even if something behind it is still in use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bridge
from bridge.daemon.malloc_trim import MallocTrim
from tests.daemon.burst import BLOCK, COUNT, KEPT

MiB = 1024 * 1024
ROOT = Path(bridge.__file__).parents[1]


def test_memory_of_finished_mail_is_returned_to_the_system() -> None:
    """After a burst the process is as large as before it, not as large as at its peak."""
    program = [
        sys.executable,
        str(Path(__file__).with_name("burst.py")),
    ]  # not in this process, which has free memory of other tests
    done = subprocess.run(
        program, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, timeout=60, check=True, text=True
    )
    in_use, gone, kept = json.loads(done.stdout)
    assert in_use > 40 * MiB, "memory in use is kept"
    assert gone < 15 * MiB and kept == KEPT * COUNT


def test_a_little_unused_memory_is_kept() -> None:
    """It will be needed again soon, and each page that is returned would cost a page fault then."""
    trim = MallocTrim()
    calls: list[int] = []
    assert trim.heap is not None
    trim.heap.trim = lambda: calls.append(0)
    content = [bytes([number]) * BLOCK for number in range(20)]
    content.clear()
    trim.look()
    assert calls == []


FORBIDDEN = """
class Finder:
    def find_spec(self, name, *_):
        if name == "ctypes":
            raise MemoryError
sys.meta_path.insert(0, Finder())
"""
NO_PROC = """
import builtins
opened = builtins.open
def refuse(name, *rest):
    if str(name).startswith("/proc/self/statm"):
        raise FileNotFoundError(2, "No such file or directory", name)
    return opened(name, *rest)
builtins.open = refuse
"""
MUSL = "import ctypes; ctypes.CDLL = lambda _: object()"
NO_CTYPES = "sys.modules['ctypes'] = None"
WATCH = """
import asyncio
from bridge.daemon.malloc_trim import MallocTrim
async def watch():
    try:
        async with asyncio.timeout(60):
            await MallocTrim().watch()
    except TimeoutError:
        print("it goes on")
asyncio.run(watch())
print("done")
"""


@pytest.mark.parametrize("obstacle", [FORBIDDEN, NO_CTYPES, NO_PROC, MUSL], ids=["sandbox", "ctypes", "proc", "musl"])
def test_a_machine_on_which_memory_cannot_be_returned_kept_the_daemon_from_starting(obstacle: str) -> None:
    """Without /proc, without ctypes or where a sandbox forbids what that does, the start ended with a traceback."""
    program = f"import sys\n{obstacle}\n{WATCH}"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=60, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
