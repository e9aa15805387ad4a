"""Servers that the tests connect to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.postgresql import fresh_database
from tests.requirements import find, need
from tests.server_program import ServerProgram
from tests.service.service_kit import EICAR, free_port


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """The URL of an empty database, once for each kind."""
    if request.param == "sqlite":
        return "sqlite:///lists.sqlite"
    return fresh_database(request.getfixturevalue("postgresql"))


@pytest.fixture(scope="module")
def clamd():
    """A local clamd for all tests of a module."""
    with running_clamd() as daemon:
        yield daemon


@pytest.fixture
def own_clamd():
    """A local clamd that the test may kill."""
    with running_clamd() as daemon:
        yield daemon


@contextmanager
def running_clamd() -> Iterator[ServerProgram]:
    """With a single signature: the EICAR test string."""
    need("clamd")
    program = find("clamd") or ""
    directory, port = Path(tempfile.mkdtemp(prefix="clamd-")), free_port()
    (directory / "lab.ndb").write_text(f"Lab.Eicar:0:*:{EICAR.hex()}\n")
    (directory / "clamd.conf").write_text(
        f"TCPSocket {port}\nTCPAddr 127.0.0.1\nDatabaseDirectory {directory}\n"
        f"Foreground yes\nTemporaryDirectory {directory}\n"
        "StreamMaxLength 60M\nMaxScanSize 20M\nMaxFileSize 10M\nAlertExceedsMax yes\n"
        + ("User clamav\n" if os.geteuid() == 0 else "")
    )
    if os.geteuid() == 0:
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, "clamav")
    daemon = ServerProgram([program, "-F", "-c", str(directory / "clamd.conf")], directory / "log", port)
    yield daemon
    daemon.kill()
    shutil.rmtree(directory, ignore_errors=True)


RSPAMD = {
    "worker-normal.inc": 'bind_socket = "127.0.0.1:PORT"; count = 1;',
    "worker-controller.inc": "enabled = false;",
    "worker-proxy.inc": "enabled = false;",
    "options.inc": 'dns { nameserver = ["127.0.0.1:1"]; timeout = 0.2s; retransmits = 1; }',
    "rbl.conf": "enabled = false;",
    "fuzzy_check.conf": "enabled = false;",
    "surbl.conf": "enabled = false;",
    "logging.inc": 'type = "console"; level = "notice";',
}


@pytest.fixture(scope="module")
def rspamd():
    """A local rspamd without DNS."""
    need("rspamd")
    program = find("rspamd") or ""
    directory, port = Path(tempfile.mkdtemp(prefix="rspamd-")), free_port()
    (directory / "local.d").mkdir()
    for name, settings in RSPAMD.items():
        (directory / "local.d" / name).write_text(settings.replace("PORT", str(port)))
    command = [program, "-f", *(f"--var={name}={directory}" for name in ("LOCAL_CONFDIR", "DBDIR", "RUNDIR"))]
    if os.geteuid() == 0:
        command += ["-u", "_rspamd", "-g", "_rspamd"]
        for path in (directory, *directory.rglob("*")):
            shutil.chown(path, "_rspamd")
    daemon = ServerProgram(command, directory / "log", port)
    yield daemon
    daemon.kill()
    shutil.rmtree(directory, ignore_errors=True)
