"""strace on running processes: makes system calls fail, or kill the process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.requirements import find


def tracer_of(
    pids: list[int], how: str, *, threads: bool = True, output: Path = Path("/dev/null"), file: Path | None = None
) -> subprocess.Popen[bytes]:  # fmt: skip
    """`how`: calls to record, or a value of strace's `inject=` such as `fsync:error=EIO`. Counted per thread.

    `file`: only calls for this file.
    """
    calls, _, trouble = how.partition(":")
    options = ["-qq", "-s", "64", "-o", str(output), "-e", f"trace={calls}"]
    options += ["-f"] if threads else []
    options += ["-P", str(file)] if file else []
    options += ["-e", f"inject={how}"] if trouble else []
    which = [word for pid in pids for word in ("-p", str(pid))]
    return subprocess.Popen(
        [str(find("strace")), *options, *which], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def is_traced(pid: int) -> bool:
    """Works for an ended process too."""
    try:
        return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def end_tracer(tracer: subprocess.Popen[bytes]) -> None:
    """strace may wait forever for a killed process; killing strace detaches it from all."""
    tracer.terminate()
    try:
        tracer.wait(2)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.wait(10)
