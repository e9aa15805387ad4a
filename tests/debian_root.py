"""Mail servers that exclude one another in Debian: each lives in a small root of its own.

A root is built once with mmdebstrap and kept in the user's cache. What runs in it has a namespace of its own for
mounts and processes: several runs can share the root, nothing is left mounted, and nothing outlives its `Room`.
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
    "opensmtpd": "opensmtpd",
    "package": "python3.11,systemd-standalone-sysusers,systemd-standalone-tmpfiles",  # for our own
    "sendmail": "sendmail-bin,sendmail-base,sensible-mda,m4,make",
}
_DEADLINE_S = 60.0


def cached_root(name: str) -> Path:
    """The root with this mail server in it; built on first use, which takes half a minute."""
    need("mmdebstrap", "unshare", "nsenter", root=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scanbridge-tests"
    root = cache / f"{name}-bookworm"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:  # one of several processes builds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _build(root, PACKAGES[name])
    return root


def _build(root: Path, packages: str) -> None:
    building = Path(tempfile.mkdtemp(dir=root.parent, prefix="building-"))
    building.chmod(0o755)  # servers leave root behind
    command = ["mmdebstrap", "--mode=root", "--variant=apt", f"--include={packages}", "bookworm", str(building)]
    sources = [SOURCES] if Path(SOURCES).exists() else []
    done = subprocess.run([*command, *sources], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        shutil.rmtree(building, ignore_errors=True)
        unavailable(f"the root {root.name} cannot be built: {done.stderr[-400:]}")
    building.rename(root)


class Room:
    """One run in the root of this name. `directory` is /mnt inside; `temporary` are directories of this run alone."""

    def __init__(self, name: str, *temporary: str) -> None:
        self._root, self._temporary = cached_root(name), temporary
        self.directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self.directory.chmod(0o755)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()  # and with it everything that runs inside; it does not hear SIGTERM
            self._process.wait(_DEADLINE_S)
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, script: str, is_up: Callable[[], bool]) -> None:
        """Runs a server until the end, and waits until it is up; what it says is in `output`."""
        with (self.directory / "output").open("w") as output:
            self._process = subprocess.Popen(self._command(script), stdout=output, stderr=output, text=True)
        until(lambda: self._process is None or self._process.poll() is not None or is_up(), f"{script} to be up")
        if self._process.poll() is not None and re.search("^(mount|unshare|chroot):", self.output()):
            unavailable(f"{self._root.name} has no room here: {self.output()[-400:]}")
        assert self._process.poll() is None, self.output()

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")

    def run(self, *command: str) -> str:
        """A program beside the server."""
        assert self._process is not None
        inside = ["nsenter", "-t", str(self._process.pid), "-m", "chroot", str(self._root), *command]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=_DEADLINE_S)
        return done.stdout + done.stderr

    def once(self, script: str, text: str) -> subprocess.CompletedProcess[str]:
        """Runs a script to its end, with this input."""
        return subprocess.run(
            self._command(script), input=text, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )

    def _command(self, script: str) -> list[str]:
        root = self._root
        mounts = [f"mount --bind /dev {root}/dev", f"mount -t proc proc {root}/proc"]
        mounts += [f"mkdir -p {root}{one}; mount -t tmpfs -o mode=755 tmpfs {root}{one}" for one in self._temporary]
        mounts += [f"mount --bind {self.directory} {root}/mnt"]
        lines = ["set -e", *mounts, f"chroot {root} sh -c '{script}'", "exit $?"]  # the shell stays, to reap
        namespaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        return ["unshare", *namespaces, "sh", "-c", "\n".join(lines)]
