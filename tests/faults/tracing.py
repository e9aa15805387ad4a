"""strace on running processes: system calls that fail, or kill, from now on."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.requirements import find


def tracer_of(
    pids: list[int], how: str, *, threads: bool = True, output: Path = Path("/dev/null")
) -> subprocess.Popen[bytes]:  # fmt: skip
    """`how`: calls to write down, or as in strace's `inject=`: `fsync:error=EIO`. It counts for each thread apart."""
    calls, _, trouble = how.partition(":")
    options = ["-qq", "-s", "64", "-o", str(output), "-e", f"trace={calls}"]
    options += ["-f"] if threads else []
    options += ["-e", f"inject={how}"] if trouble else []
    which = [word for pid in pids for word in ("-p", str(pid))]
    return subprocess.Popen(
        [str(find("strace")), *options, *which], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def is_traced(pid: int) -> bool:
    """Also when it is no more: there is nothing to wait for."""
    try:
        return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def end_tracer(tracer: subprocess.Popen[bytes]) -> None:
    """strace may wait for ever for a process that was killed; killed itself, it lets go of all."""
    tracer.terminate()
    try:
        tracer.wait(2)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.wait(10)
