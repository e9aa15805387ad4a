"""Servers the tests talk to: a private PostgreSQL cluster, on a unix socket in its own directory."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text


def cannot(reason: str) -> None:
    """Skip, but where everything must be there (CI=true) fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgresql():
    """The URL of a PostgreSQL server that is ours alone, without a database name."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        cannot("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    programs_dir = programs[-1].parent
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    as_user = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(directory, user, user)
        as_user = {"user": user, "group": user, "extra_groups": []}

    def run(*command: str) -> None:
        done = subprocess.run(
            [str(programs_dir / command[0]), *command[1:]],
            cwd=directory, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL, **as_user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    data = str(directory / "data")
    run("initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
    options = f"-c listen_addresses= -c unix_socket_directories={directory} -c fsync=off -c log_statement=none"
    run("pg_ctl", "-D", data, "-w", "-l", str(directory / "log"), "-o", options, "start")
    try:
        yield f"postgresql://tester@/{{name}}?host={directory}"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(directory)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """The URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        return "sqlite:///lists.sqlite"
    return fresh_database(request.getfixturevalue("postgresql"))


_count = iter(range(10_000))


def fresh_database(url: str) -> str:
    name = f"test{next(_count)}"
    admin = create_engine(
        url.format(name="postgres").replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return url.format(name=name)
