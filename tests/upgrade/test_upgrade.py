"""From version 0.1.0 to this one and back, while mail arrives: nothing is refused, lost or doubled, and state is kept.

The old version is installed from this repository's history into an environment of its own. `make test-upgrade`.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from bridge.testing import SmtpClient, answer, free_port, result, until
from tests.daemon.process_kit import ROOT, environment, get
from tests.faults.restart_kit import CLIENTS, Load, Manager, managed
from tests.postgresql import fresh_database
from tests.requirements import need, need_package_index, unavailable

pytestmark = pytest.mark.long
UV = Path(sys.executable).parent / "uv"
# Without a tag, the last commit before history, events and console, whose databases have the first schemas.
OLD = ("v0.1.0", "eababa06")
DEADLINE_S = 15.0
LATE = b"Subject: late\r\n\r\nhello\r\n"
HELD = b"Subject: held\r\n\r\nhello\r\n"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with version 0.1.0."""
    need("git", "tar")
    need_package_index()
    place = tmp_path_factory.mktemp("old")
    found = (_archive(name) for name in OLD)
    archive = next((content for content in found if content), b"")
    if not archive:
        unavailable("version 0.1.0 is not in this repository's history")
    (place / "source").mkdir()
    subprocess.run(["tar", "-x", "-C", place / "source"], input=archive, check=True)
    python = place / "env" / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, place / "env"], check=True)
    source = f"{place / 'source'}[postgresql]"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, source], check=True, timeout=300)
    return python


def _archive(name: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, "archive", name], capture_output=True).stdout


def run(python: Path | None, *words: str | Path, code: int = 0) -> str:
    """The output of a command of the version that `python` has; None: of this one."""
    command = [str(python or sys.executable), "-m", "bridge", *map(str, words)]
    env = environment() if python else environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, cwd="/")
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def send(manager: Manager, content: bytes) -> bytes:
    with SmtpClient(manager.port, timeout_s=60.0) as client:
        client.open()
        return client.mail(content)


def scans(manager: Manager, content: bytes) -> int:
    subject = content.partition(b"\r\n")[0]
    return sum(subject in submission.email for submission in manager.scanner.submissions)


def held(manager: Manager, python: Path | None) -> list[str]:
    """The ids of the mails in the quarantine."""
    lines = run(python, "quarantine", "list", "-c", manager.config, "--json").splitlines()
    return [str(json.loads(line)["id"]) for line in lines if line.startswith("{")]


def _late_scans(manager: Manager) -> int:
    text = get(manager.bridge.admin, "/metrics")[1]
    found = re.search(r'^scanbridge_late_scans_total\{end="kept"\} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


async def _after_the_deadline(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(DEADLINE_S + 1.0)
    writer.write(answer(200, result("deliver")))


@pytest.mark.parametrize("place", ["sqlite", "postgresql"])
def test_an_upgrade_under_load_loses_nothing(
    old: Path, tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    """Quarantined mail can still be found and released, a late decision is used, and so it is after going back."""
    more: dict[str, Any] = {}
    if place == "postgresql":
        more["state_database"] = fresh_database(request.getfixturevalue("postgresql"))
    listeners = [{"name": "mx", "address": "systemd:smtp", "deadline": f"{DEADLINE_S}s"}]
    with managed(tmp_path, 1, old, listeners=listeners, **more) as (manager, arrived):
        assert "0.1.0" in run(old, "--version")
        manager.scanner.reply_to = {b"Subject: held": answer(200, result("quarantine"))}
        manager.scanner.reply_to[b"Subject: late"] = _after_the_deadline
        load = Load(manager.port)
        assert send(manager, HELD).startswith(b"250")
        assert send(manager, LATE).startswith(b"451")
        until(lambda: _late_scans(manager) == 1, "the late decision to be stored")
        (first,) = held(manager, old)

        manager.restart()
        load.more()
        assert held(manager, None) == [first]
        assert send(manager, LATE).startswith(b"250"), "the late decision is lost"
        assert scans(manager, LATE) == 1
        assert send(manager, HELD).startswith(b"250")
        both = held(manager, None)
        assert first in both and len(both) == 2

        manager.restart(old)
        load.more()
        assert sorted(held(manager, old)) == sorted(both)
        run(old, "quarantine", "release", "-c", manager.config, both[0])
        manager.restart()
        load.more()
        run(None, "quarantine", "release", "-c", manager.config, both[1])
        load.end()
    assert not load.errors
    assert load.cut >= CLIENTS
    assert arrived.pop("late") == 1 and arrived.pop("held") == 2
    assert load.accepted.keys() <= arrived.keys(), "accepted and not arrived"
    assert set(arrived.values()) == {1} == set(load.accepted.values())


def test_two_versions_work_side_by_side(old: Path, tmp_path: Path, postgresql: Any) -> None:
    """They share the database and the quarantine: each uses what the other has decided, held and released."""
    shared: dict[str, Any] = {
        "state_database": fresh_database(postgresql),
        "quarantine": {"directory": str(tmp_path / "quarantine")},
        "listeners": [{"name": "mx", "address": "systemd:smtp", "deadline": f"{DEADLINE_S}s"}],
    }
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with (
        managed(tmp_path / "old", 1, old, **shared) as (before, arrived_before),
        managed(tmp_path / "new", 1, **shared) as (after, arrived_after),
    ):
        versions = ((before, old), (after, None))
        loads = [Load(manager.port) for manager, _ in versions]
        for (manager, _), (other, _) in permutations(versions):
            late = b"Subject: late-%d\r\n\r\nhello\r\n" % manager.port
            for each in (manager, other):
                each.scanner.reply_to[b"Subject: held"] = answer(200, result("quarantine"))
                each.scanner.reply_to[late.splitlines()[0]] = _after_the_deadline
            assert send(manager, late).startswith(b"451")
            until(lambda manager=manager: _late_scans(manager) == 1, "the late decision")
            until(lambda other=other, late=late: send(other, late).startswith(b"250"), "the other version to use it")
            assert scans(other, late) == 0
            assert send(manager, HELD).startswith(b"250")
        ids = held(before, old)
        assert len(ids) == 2 and sorted(ids) == sorted(held(after, None))
        for (manager, python), number in zip(versions, ids, strict=True):
            run(python, "quarantine", "release", "-c", manager.config, number)
        before.restart(old)  # the database has the newer schema now
        for load in loads:
            load.more()
            load.end()
    for load, arrived, (manager, _) in zip(loads, (arrived_before, arrived_after), versions, strict=True):
        assert not load.errors
        assert arrived.pop("held") == 1, manager
        assert sum(arrived.pop(f"late-{each.port}", 0) for each, _ in versions) == 1
        assert load.accepted.keys() <= arrived.keys(), "accepted and not arrived"
        assert set(arrived.values()) == {1} == set(load.accepted.values())


@contextmanager
def service(python: Path | None, config: Path, port: int) -> Iterator[None]:
    """A running scanning service."""
    command = [str(python or sys.executable), "-m", "bridge", "service", "-c", str(config)]
    env = environment() if python else environment(PYTHONPATH=str(ROOT))
    with (config.parent / "service.log").open("w") as log:
        process = subprocess.Popen(command, env=env, cwd="/", stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or _answers(port), "the service")
        assert process.poll() is None, (config.parent / "service.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(60)


def _answers(port: int) -> bool:
    done = subprocess.run(["curl", "-fs", f"http://127.0.0.1:{port}/livez"], capture_output=True)
    return done.returncode == 0


def test_lists_and_keys_of_the_service_are_kept(old: Path, tmp_path: Path) -> None:
    """The upgraded service has them, and so has the old one again: tables that are new have a version of their own."""
    need("curl")
    port = free_port()
    config, bridge = tmp_path / "service.yml", tmp_path / "bridge.yml"
    config.write_text(
        f"listen: 127.0.0.1:{port}\ndatabase: sqlite:///{tmp_path}/service.sqlite\n"
        "guard: {scanSources: {restApi: {}}}\nabby: {serviceProviders: {core: {hosts: []}}}\n"
    )
    key = run(old, "service", "-c", config, "apikey", "create", "test").split()[-1]
    (tmp_path / "api-key").write_text(key)
    bridge.write_text(
        f"scanner: {{urls: ['http://127.0.0.1:{port}'], token_file: api-key}}\n"
        "listeners: [{name: milter, protocol: milter, address: '127.0.0.1:0'}]\n"
        f"lists: {{url: 'http://127.0.0.1:{port}', api_key_file: api-key}}\n"
    )
    with service(old, config, port):
        run(old, "lists", "add", "-c", bridge, "blocked-senders", "bad@example.org")
    with service(None, config, port):
        assert "bad@example.org" in run(None, "lists", "entries", "-c", bridge, "blocked-senders")
        run(None, "lists", "add", "-c", bridge, "blocked-senders", "worse@example.org")
    with service(old, config, port):
        assert "worse@example.org" in run(old, "lists", "entries", "-c", bridge, "blocked-senders")
        run(old, "lists", "add", "-c", bridge, "blocked-senders", "worst@example.org")
    with service(None, config, port):
        entries = run(None, "lists", "entries", "-c", bridge, "blocked-senders")
        assert all(f"{word}@example.org" in entries for word in ("bad", "worse", "worst"))
