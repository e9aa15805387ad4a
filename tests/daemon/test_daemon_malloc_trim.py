"""Memory of freed content is returned to the system, even if something behind it is still in use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    assert trim._libc is not None
    trim._libc.malloc_trim = calls.append
    content = [bytes([number]) * BLOCK for number in range(20)]
    content.clear()
    trim.look()
    assert calls == []
