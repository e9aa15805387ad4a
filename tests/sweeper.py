"""Nothing outlives a test run: not its programs, mounts and directories, however the run ends.

A run has a directory, TMPDIR for everything in it. This program waits until the run is over, or was killed,
and then ends what still has to do with that directory: Postfix and PostgreSQL leave the process that started
them, and a run that is killed tears down no fixture. `tests/conftest.py` starts it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 10.0


class Sweeper:
    """The directory of this run, and who sweeps it in the end."""

    def __init__(self) -> None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # failed tests' own directories stay
        self.directory = Path(tempfile.mkdtemp(prefix="scanbridge-tests-"))
        self.directory.chmod(0o755)  # the users of Postfix and PostgreSQL must get in
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.directory)
        command = [sys.executable, "-I", __file__, str(self.directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def sweep(self) -> None:
        self._process.communicate(timeout=3 * LIMIT_S)


def sweep(directory: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (found := _processes(directory)) and time.monotonic() < deadline:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # gone
        time.sleep(0.05)
    for mounted in _mounts(directory):
        subprocess.run(["umount", "-l", mounted], check=False)
    shutil.rmtree(directory, ignore_errors=True)


def _processes(directory: str) -> list[int]:
    """Who runs in the directory, has it for its TMPDIR or is told of it."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
    return [pid for pid in pids if _is_about(directory, Path(f"/proc/{pid}"))]


def _is_about(directory: str, process: Path) -> bool:
    try:
        words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        return directory.encode() in words or os.readlink(process / "cwd").startswith(directory)
    except OSError:  # gone, or somebody else's
        return False


def _mounts(directory: str) -> list[str]:
    """A small disk of ours has the directory for its name."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [place for name, place, *_ in lines if directory in (name, place) or place.startswith(f"{directory}/")]


if __name__ == "__main__":
    sys.stdin.read()  # ends with the run
    sweep(sys.argv[1])
