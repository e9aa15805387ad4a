"""What content needed is given back to the system when it is gone, though something behind it is still in use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import bridge
from bridge.daemon.malloc_trim import Heap
from tests.daemon.burst import BLOCK, COUNT, KEPT

MiB = 1024 * 1024
ROOT = Path(bridge.__file__).parents[1]


def test_memory_of_mail_that_is_over_goes_back() -> None:
    """A burst leaves the process as large as before it, not as large as at its peak."""
    program = [sys.executable, str(Path(__file__).with_name("burst.py"))]  # this process has room of other tests
    done = subprocess.run(
        program, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, timeout=60, check=True, text=True
    )
    in_use, gone, kept = json.loads(done.stdout)
    assert in_use > 40 * MiB, "what is in use stays"
    assert gone < 15 * MiB and kept == KEPT * COUNT


def test_a_little_is_not_worth_the_work() -> None:
    """What is soon needed again stays: each page that is given back has to be asked for anew."""
    heap = Heap()
    trimmed: list[int] = []
    assert heap._libc is not None
    heap._libc.malloc_trim = trimmed.append
    content = [bytes([number]) * BLOCK for number in range(20)]
    content.clear()
    heap.look()
    assert trimmed == []
