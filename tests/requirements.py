"""What a test needs from the machine, and what happens if it is missing.

Call `need("postfix", "swaks")` at the top of a fixture or test. If a program is missing, the test is
skipped with the reason; with `CI=true` it fails, so that no test is silently left out.
`deploy/test-servers.sh` installs the programs.
"""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

# The Debian package of each program, where its name differs.
PACKAGES = {
    "7z": "p7zip-full",
    "clamd": "clamav-daemon",
    "dnsmasq": "dnsmasq-base",
    "go": "golang-go",
    "initdb": "postgresql",
    "ip": "iproute2",
    "javac": "openjdk-17-jdk-headless",
    "man": "man-db",
    "node": "nodejs",
    "nsenter": "util-linux",
    "pg_ctl": "postgresql",
    "postconf": "postfix",
    "promtool": "prometheus",
    "rsyslogd": "rsyslog rsyslog-gnutls",
    "smtp-sink": "postfix",
    "smtp-source": "postfix",
    "systemd-analyze": "systemd",
    "systemd-sysusers": "systemd",
    "systemd-tmpfiles": "systemd",
    "unshare": "util-linux",
}
_DIRECTORIES = ["/usr/local/sbin", "/usr/sbin", "/sbin", *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]


def find(program: str) -> str | None:
    """The program's path, also in the directories for daemons, which may not be on PATH."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *_DIRECTORIES]))


def need(*programs: str, root: bool = False) -> None:
    """Skip or fail unless all these programs are installed (and, with `root`, we are root).

    `unshare` must also be able to create namespaces and to mount there: root in a container usually is not.
    """
    missing = [program for program in programs if find(program) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES.get(program, program) for program in missing}))
        unavailable(f"{', '.join(missing)} not installed (Debian: apt-get install {packages})")
    if root and os.geteuid() != 0:
        unavailable("this test must run as root")
    if "unshare" in programs and (error := _error_of_namespaces()):
        unavailable(f"namespaces are not available here (in a container: use --privileged): {error}")


@cache
def _error_of_namespaces() -> str:
    command = [str(find("unshare")), "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stderr.strip()[-400:] if done.returncode else ""


def library(name: str, extra: str) -> Any:
    """This module of one of our extras; skip, or fail if CI=true, if it or the library that it loads is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        unavailable(f"{name} is not installed (pip install 'scanbridge[{extra}]')")
    except (AttributeError, OSError, TypeError) as error:  # libarchive-c finds no libarchive
        unavailable(f"{name} cannot load its library: {error}")


def need_ipv6() -> None:
    """Skip or fail unless this machine has the IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        unavailable(f"no IPv6 on the loopback interface: {error.strerror}")


def need_python_for_all() -> None:
    """Skip or fail unless root can start our program as any user: root's home directory is closed to others."""
    need("setpriv", root=True)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    command = [*as_nobody, sys.executable, "-c", "import bridge"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        unavailable(f"other users cannot import bridge with {sys.executable}: {done.stderr.strip()[-400:]}")


def need_package_index() -> None:
    """Skip or fail unless uv can fetch packages; it does not read the settings of pip."""
    if error := _error_of_package_index():
        unavailable(f"uv cannot fetch packages from its index: {error}")


@cache
def _error_of_package_index() -> str:
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory() as empty:
        command = [uv, "pip", "install", "--dry-run", "--quiet", "--refresh", "--target", empty, "hatchling"]
        done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=120)
    return done.stderr.strip()[-400:] if done.returncode else ""


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason, or fail if CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
