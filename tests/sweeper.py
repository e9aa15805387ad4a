"""Cleans up after a test run, however it ends: processes, mounts and directories.

Each run has a directory that is TMPDIR for everything in it, in memory if there is enough: databases and mail servers
wait for the disk hundreds of thousands of times. TMPDIR=/tmp uses the disk. This program waits until the run has ended
or was killed, then kills every process that still uses the directory. Fixtures are not enough: Postfix and
PostgreSQL detach from the process that started them, and a killed run tears down no fixture.
`tests/conftest.py` starts it.
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

LIMIT_S = 60.0
MEMORY = "/dev/shm"
_GIB = 1 << 30
_NEEDED = max(4, (os.cpu_count() or 1) // 2) * _GIB  # the largest tests write some hundred megabytes each


class Sweeper:
    """The directory of this run, and the process that cleans it up."""

    def __init__(self) -> None:
        if "TMPDIR" not in os.environ and has_room_in_memory():
            tempfile.tempdir = MEMORY
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # keep the directories of failed tests
        self.directory = Path(tempfile.mkdtemp(prefix="scanbridge-tests-"))
        self.directory.chmod(0o755)  # readable for the users that Postfix and PostgreSQL run as
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.directory)
        command = [sys.executable, "-I", __file__, str(self.directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def sweep(self) -> None:
        self._process.communicate(timeout=3 * LIMIT_S)


def has_room_in_memory() -> bool:
    """Whether files in memory cost nobody else theirs, and may be executed."""
    try:
        place = os.statvfs(MEMORY)
        if place.f_flag & os.ST_NOEXEC or place.f_bavail * place.f_frsize < _NEEDED or not os.access(MEMORY, os.W_OK):
            return False
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        return min([available, *_limits()]) >= 2 * _NEEDED
    except OSError:
        return False


_LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")


def _limits() -> list[int]:
    """Of the control groups of this process and their parents, in either version, as far as they are mounted here."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, group = line.split(":", 2)
        place = "/sys/fs/cgroup/memory" if "memory" in kinds.split(",") else "/sys/fs/cgroup"
        inner = Path(group.lstrip("/"))
        for file in (Path(place, each, name) for each in (inner, *inner.parents) for name in _LIMIT_FILES):
            text = file.read_text().strip() if file.exists() else ""
            found += [int(text)] if text.isdigit() else []
    return found


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
    """Processes that run in the directory, have it as TMPDIR, or name it on their command line."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
    return [pid for pid in pids if _uses(directory, Path(f"/proc/{pid}"))]


def _uses(directory: str, process: Path) -> bool:
    try:
        words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        return directory.encode() in words or os.readlink(process / "cwd").startswith(directory)
    except OSError:  # gone, or owned by another user
        return False


def _mounts(directory: str) -> list[str]:
    """Mounts in the directory, or named after it (the small disks of our tests)."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [place for name, place, *_ in lines if directory in (name, place) or place.startswith(f"{directory}/")]


if __name__ == "__main__":
    sys.stdin.read()  # returns when the run ends
    sweep(sys.argv[1])
