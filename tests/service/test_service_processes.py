"""Several real service processes on one database, on SQLite and on PostgreSQL."""

from __future__ import annotations

import http.client
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.service.service_kit import (
    CONFIG,
    DEADLINE_S,
    Lists,
    ServiceProcess,
    command,
    fresh_database,
    mail,
    make_key,
    service_processes,
    wait_for,
)

SMALL = "lists: [{name: small, category: sender, maxSize: 150}, {name: shared, category: sender}]\n"
PROCESSES = 4


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def processes(request, tmp_path_factory):
    """Processes that were started at the same time on a database without tables."""
    directory = tmp_path_factory.mktemp("service")
    url = "sqlite:///service.sqlite"
    if request.param == "postgresql":
        url = fresh_database(request.getfixturevalue("postgresql"))
    (directory / "service.yml").write_text(CONFIG.replace("sqlite:///service.sqlite", url) + SMALL)
    with service_processes(directory, PROCESSES) as started:
        yield started


@pytest.fixture(scope="module")
def clients(processes):
    """One client per process, with one key that was created while they ran."""
    key = make_key(processes[0].config)
    found = [Lists(process, key) for process in processes]
    _wait_for_all(found, lambda client: client.call("getLists", {}).status == 200)
    return found


def _wait_for_all(items, condition) -> None:
    for item in items:
        wait_for(lambda item=item: condition(item))


def _together(work, items):
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


def test_processes_that_start_together_on_an_empty_database_all_serve(processes):
    """One of them creates the tables, the others wait for it, and none logs an error."""
    for process in processes:
        assert process.submit(mail()).json["decision"] == "deliver"
        assert process.request("GET", "/readyz").status == 200
        assert " ERROR " not in process.log()


def test_concurrent_additions_and_deletions_are_counted_once(clients):
    """Each deleted entry is counted by exactly one process, and all processes list the remaining ones."""
    names = [f"u{i}@example.org" for i in range(200)]

    def add(client: Lists) -> int:
        return sum(client.add("shared", *names[i : i + 50]).json["modifiedEntries"] for i in range(0, 200, 50))

    def delete(client: Lists) -> int:
        return sum(client.delete("shared", *names[i : i + 20]).json["modifiedEntries"] for i in range(0, 120, 20))

    assert _together(add, clients * 2) == [200] * len(clients) * 2  # an entry that exists is updated, which counts
    assert sum(_together(delete, clients * 2)) == 120
    for client in clients:
        assert sorted(entry["entry"] for entry in client.entries("shared")) == sorted(names[120:])


def test_the_maximum_size_applies_across_all_processes(clients):
    """Together they never exceed a list's maximum size, and a deletion makes room for as many entries."""

    def fill(numbered: tuple[int, Lists]) -> int:
        number, client = numbered
        answers = [client.add("small", *(f"p{number}-{i}-{k}@x.org" for k in range(5))) for i in range(12)]
        assert {answer.status for answer in answers} <= {200, 409}
        return sum(answer.json.get("modifiedEntries", 0) for answer in answers)

    assert sum(_together(fill, list(enumerate(clients)))) == 150
    entries = [entry["entry"] for entry in clients[0].entries("small")]
    assert len(entries) == 150
    assert clients[1].delete("small", *entries[:5]).json == {"modifiedEntries": 5}
    statuses = _together(lambda client: client.add("small", *entries[:5]).status, clients)
    assert sorted(statuses) == [200] * PROCESSES
    assert clients[2].add("small", "one-more@x.org").json["error"] == "list_full"


def test_an_entry_added_by_one_process_is_matched_by_all_within_a_second(processes, clients):
    """A sender blocked through one process is bounced by all; unblocked through another, delivered by all."""
    took = []
    for i in range(5):  # on a busy machine it may take longer occasionally, but not every time
        sender = f"evil{i}@bad.example"
        clients[0].add("blocked-senders", sender)
        took.append(_until_all_decide(processes, sender, "bounce"))
        clients[1].delete("blocked-senders", sender)
        took.append(_until_all_decide(processes, sender, "deliver"))
        if min(took[0::2]) < 1.0 and min(took[1::2]) < 1.0:
            break
    assert min(took[0::2]) < 1.0, took
    assert min(took[1::2]) < 1.0, took


def _until_all_decide(processes, sender: str, decision: str) -> float:
    start = time.monotonic()
    _wait_for_all(processes, lambda process: process.submit(mail(), sender=sender).json["decision"] == decision)
    return time.monotonic() - start


def test_a_key_from_the_command_line_works_in_all_until_it_is_revoked(processes):
    """Each process notices by itself that the command line has created or revoked a key."""
    directory = processes[0].directory
    key = command(directory, "apikey", "create", "automation").stdout.strip()
    clients = [Lists(process, key) for process in processes]
    _wait_for_all(clients, lambda client: client.call("getLists", {}).status == 200)
    assert command(directory, "apikey", "revoke", "automation").returncode == 0
    _wait_for_all(clients, lambda client: client.call("getLists", {}).status == 401)


def test_a_killed_process_does_not_damage_the_lists(tmp_path, database):
    """If a process is killed while writing, every confirmed entry is stored, and other processes can still write."""
    (tmp_path / "service.yml").write_text(CONFIG.replace("sqlite:///service.sqlite", database) + SMALL)
    dies = ServiceProcess(tmp_path)
    key = make_key(dies.config)
    answered: list[str] = []
    with service_processes(tmp_path, 1) as [stays], ThreadPoolExecutor(1) as pool:
        try:
            dies.wait()
            writing = pool.submit(_write_until_it_fails, Lists(dies, key), answered)
            wait_for(lambda: len(answered) >= 5)
        finally:
            assert dies.end(signal.SIGKILL) == -signal.SIGKILL
        writing.result(DEADLINE_S)
        lists = Lists(stays, key)
        assert {entry["entry"] for entry in lists.entries("shared")} >= set(answered)
        assert lists.add("shared", "after@x.org").json == {"modifiedEntries": 1}


def _write_until_it_fails(lists: Lists, answered: list[str]) -> None:
    with suppress(OSError, http.client.HTTPException):
        for i in range(100_000):
            assert lists.add("shared", f"u{i}@x.org").json == {"modifiedEntries": 1}
            answered.append(f"u{i}@x.org")
