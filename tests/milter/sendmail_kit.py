"""A Sendmail of our own, in a root of its own.

Debian's mail servers exclude one another, so Sendmail lives in a small Debian root, built once with
mmdebstrap and kept in the user's cache. It runs in a mount namespace whose queue and run
directories are temporary: several test runs can share the root, and nothing is left mounted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from mta_kit import DEADLINE_S, Sink
from requirements import need, unavailable

from bridge.testing import free_port, until

PACKAGES = "sendmail-bin,sendmail-base,sensible-mda,m4,make"
SOURCES = "/etc/apt/sources.list.d/debian.sources"


def cached_root() -> Path:
    """The Debian root with Sendmail in it; built on first use, which takes half a minute."""
    need("mmdebstrap", "unshare", "nsenter", root=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scanbridge-tests"
    root = cache / "sendmail-bookworm"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:  # one of several processes builds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _build(root)
    return root


def _build(root: Path) -> None:
    building = Path(tempfile.mkdtemp(dir=root.parent, prefix="building-"))
    command = ["mmdebstrap", "--mode=root", "--variant=apt", f"--include={PACKAGES}", "bookworm", str(building)]
    sources = [SOURCES] if Path(SOURCES).exists() else []
    done = subprocess.run([*command, *sources], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        shutil.rmtree(building, ignore_errors=True)
        unavailable(f"the root for Sendmail cannot be built: {done.stderr[-400:]}")
    building.rename(root)


class Sendmail:
    """One daemon with a listener per filter."""

    def __init__(self, filters: dict[str, str], sink: Sink) -> None:
        """`filters`: the equates of each milter, by name; the port of its listener is `port(name)`."""
        self._root = cached_root()
        self._ports = {name: free_port() for name in filters}
        self.directory = Path(tempfile.mkdtemp(prefix="milter-sendmail-"))
        listeners = "".join(
            f"MAIL_FILTER(`{name}', `{equates}')dnl\n"
            f"DAEMON_OPTIONS(`Port={self._ports[name]}, Addr=127.0.0.1, Name={name}, Listen=250, "
            f"InputMailFilters={name}')dnl\n"
            for name, equates in filters.items()
        )
        (self.directory / "sendmail.mc").write_text(SENDMAIL_MC.format(sink=sink.port, listeners=listeners))

    def port(self, name: str) -> int:
        return self._ports[name]

    def __enter__(self) -> Sendmail:
        script = START.format(root=self._root, work=self.directory)
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until(self._is_up, "Sendmail")
        return self

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            assert self._process.stdout is not None
            unavailable(f"Sendmail does not start: {self._process.stdout.read()[-400:]}")
        for port in self._ports.values():
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) != 0:
                    return False
        return True

    def run(self, *arguments: str) -> str:
        """Sendmail's own program in the daemon's place."""
        inside = ["nsenter", "-t", str(self._process.pid), "-m", "chroot", str(self._root)]
        command = [*inside, "sendmail", "-C", "/mnt/sendmail.cf", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)


# The packaged owner of the queue makes "collect: Cannot write" here; a queue owned by root works. Now and
# then Sendmail puts a first delivery off, hence the short interval of queue runs.
START = """\
set -e
mount --bind /dev {root}/dev
mount -t proc proc {root}/proc
mount -t tmpfs tmpfs {root}/run
mount -t tmpfs -o mode=700 tmpfs {root}/var/spool/mqueue
mount --bind {work} {root}/mnt
mkdir -p {root}/var/lib/sendmail/host_status
chroot {root} sh -c 'm4 /mnt/sendmail.mc > /mnt/sendmail.cf 2>/mnt/m4.log'
exec chroot {root} sendmail -C /mnt/sendmail.cf -bD -q2s
"""

SENDMAIL_MC = """\
divert(-1)
include(`/usr/share/sendmail/cf/m4/cf.m4')
OSTYPE(`debian')dnl
DOMAIN(`generic')dnl
define(`confDOMAIN_NAME', `front.example')dnl
define(`confPID_FILE', `/run/sendmail.pid')dnl
define(`confDONT_PROBE_INTERFACES', `True')dnl
define(`confTO_IDENT', `0')dnl
define(`confQUEUE_LA', `64')dnl
define(`confREFUSE_LA', `80')dnl
define(`confCONNECTION_RATE_THROTTLE', `0')dnl
FEATURE(`no_default_msa')dnl
FEATURE(`nocanonify')dnl
FEATURE(`accept_unresolvable_domains')dnl
FEATURE(`accept_unqualified_senders')dnl
FEATURE(`promiscuous_relay')dnl
define(`RELAY_MAILER_ARGS', `TCP $h {sink}')dnl
define(`SMART_HOST', `relay:[127.0.0.1]')dnl
define(`QUEUE_DIR', `/var/spool/mqueue')dnl
{listeners}MAILER_DEFINITIONS
MAILER(`local')dnl
MAILER(`smtp')dnl
"""
