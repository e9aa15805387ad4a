"""The tests do not depend on how and where they are started. `make test-fresh` runs them all on empty machines."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HANDLER = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_a_program_that_a_test_starts_can_be_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", HANDLER], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n"


def test_a_run_in_the_background_ignored_ctrl_c_in_every_program() -> None:
    """`make test &` in a script, or nohup: tests that interrupt a command waited until their deadline."""
    inner = f"{Path(__file__).name}::{test_a_program_that_a_test_starts_can_be_interrupted.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{inner}"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
