"""Several service processes on one database, as real processes, on SQLite and on PostgreSQL."""

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
    """Processes that were started at the same moment on a database without tables."""
    directory = tmp_path_factory.mktemp("service")
    url = "sqlite:///service.sqlite"
    if request.param == "postgresql":
        url = fresh_database(request.getfixturevalue("postgresql"))
    (directory / "service.yml").write_text(CONFIG.replace("sqlite:///service.sqlite", url) + SMALL)
    with service_processes(directory, PROCESSES) as started:
        yield started


@pytest.fixture(scope="module")
def clients(processes):
    """A client of each process, with one key that was made while they ran."""
    key = make_key(processes[0].config)
    found = [Lists(one, key) for one in processes]
    _soon(found, lambda one: one.call("getLists", {}).status == 200)
    return found


def _soon(items, condition) -> None:
    for item in items:
        wait_for(lambda item=item: condition(item))


def _together(work, items):
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


def test_processes_that_start_together_on_an_empty_database_all_serve(processes):
    """One of them makes the tables, the others wait for it, and nobody complains."""
    for one in processes:
        assert one.submit(mail()).json["decision"] == "deliver"
        assert one.request("GET", "/readyz").status == 200
        assert " ERROR " not in one.log()


def test_concurrent_additions_and_deletions_are_counted_once(clients):
    """Each entry that went is counted by one process only, and all processes list what is left."""
    names = [f"u{i}@example.org" for i in range(200)]

    def add(one: Lists) -> int:
        return sum(one.add("shared", *names[i : i + 50]).json["modifiedEntries"] for i in range(0, 200, 50))

    def delete(one: Lists) -> int:
        return sum(one.delete("shared", *names[i : i + 20]).json["modifiedEntries"] for i in range(0, 120, 20))

    assert _together(add, clients * 2) == [200] * len(clients) * 2  # an entry that exists is updated, which counts
    assert sum(_together(delete, clients * 2)) == 120
    for one in clients:
        assert sorted(entry["entry"] for entry in one.entries("shared")) == sorted(names[120:])


def test_a_lists_size_holds_over_all_processes(clients):
    """Together they never put more into a list than it may have, and a deletion makes room for as many."""

    def fill(numbered: tuple[int, Lists]) -> int:
        number, one = numbered
        answers = [one.add("small", *(f"p{number}-{i}-{k}@x.org" for k in range(5))) for i in range(12)]
        assert {answer.status for answer in answers} <= {200, 409}
        return sum(answer.json.get("modifiedEntries", 0) for answer in answers)

    assert sum(_together(fill, list(enumerate(clients)))) == 150
    entries = [entry["entry"] for entry in clients[0].entries("small")]
    assert len(entries) == 150
    assert clients[1].delete("small", *entries[:5]).json == {"modifiedEntries": 5}
    assert sorted(_together(lambda one: one.add("small", *entries[:5]).status, clients)) == [200] * PROCESSES
    assert clients[2].add("small", "one-more@x.org").json["error"] == "list_full"


def test_an_entry_of_one_process_is_matched_by_all_within_a_second(processes, clients):
    """Blocked through one, bounced by the others; released through another, delivered by all."""
    took = []
    for i in range(5):  # on a busy machine it may take longer now and then, but not each time
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
    _soon(processes, lambda one: one.submit(mail(), sender=sender).json["decision"] == decision)
    return time.monotonic() - start


def test_a_key_of_the_command_line_works_in_all_until_it_is_revoked(processes):
    """Made and revoked by the command line; each process notices by itself."""
    directory = processes[0].directory
    key = command(directory, "apikey", "create", "automation").stdout.strip()
    clients = [Lists(one, key) for one in processes]
    _soon(clients, lambda one: one.call("getLists", {}).status == 200)
    assert command(directory, "apikey", "revoke", "automation").returncode == 0
    _soon(clients, lambda one: one.call("getLists", {}).status == 401)


def test_a_killed_process_leaves_the_others_their_lists(tmp_path, database):
    """Killed in the middle of its writes: what it had answered is there, and the others can write on."""
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
