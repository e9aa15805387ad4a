"""Mail servers whose Debian packages conflict: each is installed in its own small root directory.

A root is built once with mmdebstrap and kept in the user's cache. Programs run in it with their own mount and
process namespaces, so several runs can share the root, nothing stays mounted, and no process outlives its `Room`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from bridge.testing import until
from tests.requirements import need, unavailable

SOURCES = "/etc/apt/sources.list.d/debian.sources"
PACKAGES = {
    "exim": "exim4-daemon-light",
    "lintian": "lintian",
    # For tests/fresh. On Debian testing, libraries without a wheel for its Python are compiled.
    "machine": "ca-certificates,make,mount,python3,python3-venv",
    "machine-testing": "ca-certificates,curl,gcc,libarchive13t64,libc6-dev,make,mount,openssl,postgresql,"
    "python3,python3-dev,python3-venv",
    "opensmtpd": "opensmtpd",
    # For our own package: only what it depends on.
    "package-bookworm": "python3.11,systemd-standalone-sysusers,systemd-standalone-tmpfiles",
    "package-trixie": "python3.13,systemd-standalone-sysusers,systemd-standalone-tmpfiles",
    "sendmail": "sendmail-bin,sendmail-base,sensible-mda,m4,make",
}
_DEADLINE_S = 120.0


def cached_root(name: str, suite: str = "bookworm") -> Path:
    """The root with these packages of this Debian release; building it on first use takes half a minute."""
    need("mmdebstrap", "unshare", "nsenter", root=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scanbridge-tests"
    root = cache / f"{name}-{suite}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{root.name}.lock").open("w") as lock:  # only one process builds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _build(root, PACKAGES.get(root.name) or PACKAGES[name], suite)
    return root


def _build(root: Path, packages: str, suite: str) -> None:
    building = Path(tempfile.mkdtemp(dir=root.parent, prefix="building-"))
    building.chmod(0o755)  # servers drop root privileges
    command = ["mmdebstrap", "--mode=root", "--variant=apt", f"--include={packages}"]
    command += ['--aptopt=Acquire::Check-Valid-Until "false"', suite, str(building)]  # a mirror may be weeks old
    # This machine's mirrors, with the suites of that release.
    sources = Path(SOURCES).read_text().replace("bookworm", suite) if Path(SOURCES).exists() else ""
    command += ["-"] if sources else []
    done = subprocess.run(command, input=sources, capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        shutil.rmtree(building, ignore_errors=True)
        unavailable(f"cannot build the root {root.name}: {done.stderr[-400:]}")
    building.rename(root)


class Room:
    """One run in this root. `directory` is mounted at /mnt; the `temporary` directories are private to the run."""

    def __init__(self, name: str, *temporary: str) -> None:
        self._root, self._temporary = cached_root(name), temporary
        self.directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self.directory.chmod(0o755)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()  # ends everything that runs inside; SIGTERM would be ignored
            self._process.wait(_DEADLINE_S)
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, script: str, is_up: Callable[[], bool]) -> None:
        """Start a server, which runs until the room is left, and wait until it is up. `output()` has what it prints."""
        with (self.directory / "output").open("w") as output:
            self._process = subprocess.Popen(self._command(script), stdout=output, stderr=output, text=True)
        until(lambda: self._process is None or self._process.poll() is not None or is_up(), f"{script} to be up")
        if self._process.poll() is not None and re.search("^(mount|unshare|chroot):", self.output()):
            unavailable(f"cannot enter {self._root.name}: {self.output()[-400:]}")
        assert self._process.poll() is None, self.output()

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")

    def run(self, *command: str) -> str:
        """Run a program next to the server and return its output."""
        assert self._process is not None
        inside = ["nsenter", "-t", str(self._process.pid), "-m", "chroot", str(self._root), *command]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=_DEADLINE_S)
        return done.stdout + done.stderr

    def once(self, script: str, text: str) -> subprocess.CompletedProcess[str]:
        """Run a script to completion with this input."""
        return subprocess.run(
            self._command(script), input=text, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )

    def _command(self, script: str) -> list[str]:
        root = self._root
        mounts = [f"mount --rbind /dev {root}/dev", f"mount -t proc proc {root}/proc"]
        mounts += [f"mkdir -p {root}{path}; mount -t tmpfs -o mode=755 tmpfs {root}{path}" for path in self._temporary]
        mounts += [f"mount --bind {self.directory} {root}/mnt"]
        lines = ["set -e", *mounts, f"chroot {root} sh -c '{script}'", "exit $?"]  # the shell stays to reap children
        namespaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        return ["unshare", *namespaces, "sh", "-c", "\n".join(lines)]
