"""A private PostgreSQL cluster for tests, on a unix socket in its own directory.

`tests/conftest.py` gives the fixtures to all tests, so that each test process starts one cluster for all folders.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.requirements import find, need

_databases = itertools.count(1)


class PostgreSql:
    """A private cluster in a temporary directory, which can be stopped and started."""

    def __init__(self, copy_of: PostgreSql | None = None) -> None:
        """`copy_of`: a running cluster that this one follows, until it is promoted."""
        need("initdb", "pg_ctl")
        self._programs = Path(find("initdb") or "").resolve().parent  # which has programs that are not on PATH
        self._directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self._directory, "postgres", "postgres")
            self._as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self._data = str(self._directory / "data")
        if copy_of is None:
            self._run("initdb", "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        else:
            source = ("-h", str(copy_of._directory), "-U", "tester")
            self._run("pg_basebackup", *source, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self.url = f"postgresql://tester@/{{name}}?host={self._directory}"

    @property
    def socket(self) -> str:
        return str(self._directory / ".s.PGSQL.5432")

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self._directory} -c fsync=off"
        self._run("pg_ctl", "-w", "-l", str(self._directory / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop")

    @contextmanager
    def frozen(self):
        """Its connections stay open, but nobody answers: the machine has no memory, or its disk hangs."""
        main = int((Path(self._data) / "postmaster.pid").read_text().split()[0])
        pids = [main, *map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split())]
        for pid in pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @contextmanager
    def needs_password(self, role: str):
        """This role must name its password; all others are trusted."""
        rules = Path(self._data) / "pg_hba.conf"
        trusting = rules.read_text()
        rules.write_text(f"local all {role} scram-sha-256\n{trusting}")
        self._run("pg_ctl", "reload")
        try:
            yield
        finally:
            rules.write_text(trusting)
            self._run("pg_ctl", "reload")

    def promote(self) -> None:
        """It follows nobody any more, and takes writes."""
        self._run("pg_ctl", "-w", "promote")

    def remove(self) -> None:
        shutil.rmtree(self._directory)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), "-D", self._data, *arguments],
            cwd=self._directory, capture_output=True, text=True, timeout=600, check=False, stdin=subprocess.DEVNULL,
            **self._as_user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@contextmanager
def cluster():
    server = PostgreSql()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


@pytest.fixture(scope="session")
def postgresql():
    """The URL of a private PostgreSQL server, without a database name."""
    with cluster() as server:
        yield server.url


@pytest.fixture(scope="module")
def fragile_postgresql():
    """A cluster that a test may stop, and must start again."""
    with cluster() as server:
        yield server


def fresh_database(url: str) -> str:
    """A new, empty database on the server at `url`."""
    name = f"test{next(_databases)}"
    admin = create_engine(
        url.format(name="postgres").replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return url.format(name=name)
