"""A disk that is full: a tiny tmpfs for root, a limit on the size of files for others."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(place: Path, size: int = 64 * 1024, inodes: int = 0) -> Iterator[Path]:
    """A directory that holds `size` bytes (or, for root, `inodes` files)."""
    place.mkdir(exist_ok=True)
    options = f"size={size},mode=0700" + (f",nr_inodes={inodes}" if inodes else "")
    if os.geteuid() == 0 and _run("mount", "-t", "tmpfs", "-o", options, tempfile.gettempdir(), str(place)):
        try:
            yield place
        finally:
            _run("umount", "-l", str(place))
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0 if inodes else size, hard))
    try:
        yield place
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _run(*command: str) -> bool:
    program = shutil.which(command[0])  # a minimal system has no `mount`
    return program is not None and subprocess.run(command, check=False, capture_output=True).returncode == 0


def files(place: Path) -> list[str]:
    """Every file below, by name."""
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
