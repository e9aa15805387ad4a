"""`scanbridge lists sync`: afterwards the list equals the file, whatever happens in between."""

from __future__ import annotations

import http.client
import json
import os
import pty
import signal
import subprocess
import threading
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from bridge.api.lists import MAX_ENTRIES_PER_REQUEST
from tests.lists.lists_kit import DEADLINE_S, OTHER, TENANT, Seen, misbehaving, process
from tests.lists.lists_kit import http as whole_answer
from tests.long_cases import few

LIST = "large"
ENTRIES = int(os.environ.get("LISTS_SYNC_ENTRIES", "8000"))  # 200000 has the same result and takes half a minute


def write(path, entries) -> str:
    path.write_text(
        "".join(f"{entry} # {comment}\n" if comment else f"{entry}\n" for entry, comment in entries.items())
    )
    return str(path)


@pytest.fixture
def file(tmp_path) -> str:
    return write(tmp_path / "file.txt", {"same@x.org": "", "new@x.org": "is new", "changed@x.org": "after"})


@pytest.fixture
def filled(service):
    service.add(LIST, {"same@x.org": "kept", "changed@x.org": "before", "old@x.org": ""})
    return service


def test_without_prune_nothing_is_deleted(filled, file):
    """Entries are added and comments updated; entries that are not in the file stay and are mentioned."""
    done = filled.run("sync", LIST, file)
    assert done.exit_code == 0
    assert (
        done.output
        == "large: added or updated 2, deleted 0; 1 that are not in the file are kept (--prune deletes them)\n"
    )
    assert filled.entries(LIST) == {
        "same@x.org": "kept", "changed@x.org": "after", "new@x.org": "is new", "old@x.org": "",
    }  # fmt: skip


def test_with_prune_the_list_equals_the_file(filled, file):
    """Comments come from the file; an entry without one keeps its comment in the list."""
    done = filled.run("sync", LIST, file, "--prune", "--max-delete", "50%")
    assert (done.exit_code, done.output) == (0, "large: added or updated 2, deleted 1\n")
    assert filled.entries(LIST) == {"same@x.org": "kept", "changed@x.org": "after", "new@x.org": "is new"}
    again = filled.run("sync", LIST, file, "--prune")
    assert (again.exit_code, again.output) == (0, "large: up to date\n")


def test_a_dry_run_shows_exactly_what_would_be_done(filled, file):
    """It prints the difference as lines or JSON, exits with 3, and changes nothing."""
    before = filled.entries(LIST)
    shown = filled.run("sync", LIST, file, "--prune", "--dry-run")
    assert shown.exit_code == 3
    assert shown.output == ("+ new@x.org\n~ changed@x.org\n- old@x.org\nlarge: to add 1, to update 1, to delete 1\n")
    data = json.loads(filled.run("sync", LIST, file, "--prune", "--dry-run", "--json").stdout)
    (plan,) = data["lists"]
    assert plan["add"] == [{"entry": "new@x.org", "comment": "is new"}]
    assert plan["update"] == [{"entry": "changed@x.org", "comment": "after"}]
    assert plan["delete"] == ["old@x.org"]
    assert (plan["state"], data["exit_code"], filled.entries(LIST)) == ("planned", 3, before)


def test_a_dry_run_without_a_difference_exits_with_0(service, file):
    """A script can tell whether there is anything to do."""
    assert service.run("sync", LIST, file).exit_code == 0
    assert service.run("sync", LIST, file, "--prune", "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    ("limit", "code"), [("33%", 4), ("34%", 0), ("0", 4), ("1", 0), ("0%", 4), ("100%", 0), ("x", 2), ("-1", 2)]
)
def test_too_many_deletions_need_a_confirmation(filled, file, limit, code):
    """One entry of three is a third; above the given share or number nothing is changed."""
    before = filled.entries(LIST)
    done = filled.run("sync", LIST, file, "--prune", "--max-delete", limit)
    assert done.exit_code == code
    if code == 4:
        assert "1 of 3 entries would be deleted" in done.output and "nothing was changed" in done.output
        assert filled.entries(LIST) == before
        assert filled.run("sync", LIST, file, "--prune", "--max-delete", limit, "--yes").exit_code == 0


def test_an_empty_file_does_not_empty_a_list_without_confirmation(filled, tmp_path):
    """A failed export is a common accident."""
    empty = write(tmp_path / "empty.txt", {})
    assert filled.run("sync", LIST, empty, "--prune").exit_code == 4
    assert len(filled.entries(LIST)) == 3
    assert filled.run("sync", LIST, empty, "--prune", "--yes").exit_code == 0
    assert filled.entries(LIST) == {}


@pytest.mark.parametrize(("word", "code", "left"), [("y", 0, 0), ("n", 4, 3)])
def test_a_terminal_gets_a_prompt(filled, tmp_path, word, code, left):
    """On a terminal the deletions are shown, and the user's answer decides."""
    empty = write(tmp_path / "empty.txt", {})
    master, slave = pty.openpty()
    sync = ("sync", LIST, empty, "--prune")
    with process(filled.url, filled.key_file, *sync, stdin=slave, stderr=slave, stdout=subprocess.PIPE) as running:
        os.close(slave)
        seen = b""
        while b"Continue?" not in seen:
            seen += os.read(master, 65536)
        os.write(master, f"{word}\n".encode())
        running.communicate(timeout=DEADLINE_S)
        os.close(master)
    assert b"- old@x.org" in seen and b"3 of 3 entries would be deleted" in seen
    assert (running.returncode, len(filled.entries(LIST))) == (code, left)


def test_standard_input_can_be_the_file(service):
    """A feed can be piped in."""
    done = service.run("sync", LIST, "-", stdin="a@x.org # piped\n")
    assert (done.exit_code, service.entries(LIST)) == (0, {"a@x.org": "piped"})


def test_a_changed_spelling_replaces_the_old_one(service, tmp_path):
    """Both spellings are the same entry to the service; it must not be lost when one replaces the other."""
    service.add(LIST, {"User@X.org": ""})
    file = write(tmp_path / "f.txt", {"user@x.org": ""})
    assert service.run("sync", LIST, file, "--prune", "--yes").exit_code == 0
    assert service.entries(LIST) == {"user@x.org": ""}


def test_one_entry_in_two_spellings_is_reported(service, tmp_path):
    """The list can then never equal the file, and the message says why."""
    file = write(tmp_path / "f.txt", {"User@x.org": "", "user@x.org": ""})
    done = service.run("sync", LIST, file)
    assert done.exit_code == 1 and "two forms" in done.output
    assert service.run("sync", LIST, file, "--no-verify").exit_code == 0


def test_a_list_that_would_be_too_large_is_not_changed(service, tmp_path):
    """maxSize is known in advance, so nothing is done halfway."""
    service.add("partners", {"a@x.org": "", "b@x.org": ""})
    file = write(tmp_path / "f.txt", {f"{c}@x.org": "" for c in "cdef"})
    done = service.run("sync", "partners", file)
    assert done.exit_code == 1
    assert "would have 6 entries, but its maxSize is 3\nnothing was changed" in done.output
    assert len(service.entries("partners")) == 2
    write(tmp_path / "f.txt", {f"{c}@x.org": "" for c in "cde"})
    assert service.run("sync", "partners", file, "--prune", "--yes").exit_code == 0
    assert list(service.entries("partners")) == ["c@x.org", "d@x.org", "e@x.org"]


def test_a_refused_entry_stops_its_list_and_is_named(service, tmp_path):
    """The wrong entry in a file of thousands is named with its line, and what was done is counted."""
    entries = {f"u{i:04}@x.org": "" for i in range(1200)} | {"not an address": ""}
    done = service.run("sync", LIST, write(tmp_path / "f.txt", entries))
    assert done.exit_code == 1
    assert f"{tmp_path}/f.txt:1201: the entry 'not an address' was refused" in done.output
    step = "correct this, then run the command again to continue"
    assert f"done: 1,000 of 1,201; not done: 201; {step}" in done.output
    assert len(service.entries(LIST)) == 1000


def test_a_feed_with_refused_entries_can_be_synced_without_them(service, tmp_path):
    """--keep-going does all that can be done, names the other entries, and exits with 1."""
    entries = {f"u{i:04}@x.org": "" for i in range(600)} | {f"bad {i}": "" for i in range(25)}
    done = service.run("sync", LIST, write(tmp_path / "f.txt", entries), "--keep-going")
    assert done.exit_code == 1
    assert (
        "refused and skipped: 25 entries" in done.stderr
        and f"{tmp_path}/f.txt:601: the entry 'bad 0' was refused" in done.stderr
    )
    assert "and 5 more entries were refused" in done.stderr
    assert len(service.entries(LIST)) == 600


@pytest.fixture
def directory(tmp_path):
    place = tmp_path / "lists"
    for name in (TENANT, OTHER, ".git"):
        (place / name).mkdir(parents=True)
    write(place / "blocked-senders.txt", {"all@x.org": ""})
    (place / TENANT / "blocked-senders.csv").write_text("entry,comment\none@x.org,of one tenant\n")
    (place / TENANT / "blocked-networks.yml").write_text("- 192.0.2.0/24\n- {entry: '10.0.0.1', comment: a host}\n")
    (place / OTHER / "allowed-domains.jsonl").write_text('{"entry": "other.example"}\n')
    (place / "README.md").write_text("our lists")
    return place


def test_a_directory_syncs_many_lists_and_tenants(service, directory):
    """Every list equals its file; a second run has nothing to do."""
    done = service.run("sync", str(directory), "--prune", "--json")
    data = json.loads(done.stdout)
    assert (done.exit_code, [plan["state"] for plan in data["lists"]]) == (0, ["done"] * 4)
    assert "README.md: skipped" in done.stderr
    assert service.entries("blocked-senders") == {"all@x.org": ""}
    assert service.entries("blocked-senders", TENANT) == {"one@x.org": "of one tenant"}
    assert service.entries("blocked-networks", TENANT) == {"192.0.2.0/24": "", "10.0.0.1": "a host"}
    assert service.entries("allowed-domains", OTHER) == {"other.example": ""}
    again = service.run("sync", str(directory), "--prune", "--dry-run")
    assert again.exit_code == 0


def test_a_mistake_in_one_file_of_a_directory_changes_nothing(service, directory):
    """All files are read and all lists are checked before the first change."""
    (directory / "no-such-list.txt").write_text("a@x.org\n")
    done = service.run("sync", str(directory))
    assert done.exit_code == 1 and "there is no list no-such-list; available lists: " in done.output
    assert "nothing was changed" in done.output
    (directory / "no-such-list.txt").write_text("{\n")
    assert service.run("sync", str(directory)).exit_code == 65
    assert service.entries("blocked-senders") == {}


def test_one_list_that_is_refused_does_not_stop_the_others(service, directory):
    """The other lists are synced, and the exit code says that there was a failure."""
    write(directory / "blocked-domains.txt", {"not a domain": ""})
    done = service.run("sync", str(directory))
    assert done.exit_code == 1 and "'not a domain' was refused" in done.output
    assert service.entries("allowed-domains", OTHER) == {"other.example": ""}


@pytest.mark.parametrize("places", [["x"], ["a", "b", "c"], [str(os.devnull)]])
def test_wrong_arguments_are_a_usage_error(service, places):
    """The arguments are neither a list with its file nor a directory."""
    assert service.run("sync", *places).exit_code == 2


def test_tenant_cannot_be_combined_with_a_directory(service, directory):
    """The subdirectories name the tenants."""
    assert service.run("sync", str(directory), "--tenant", TENANT).exit_code == 2


class Gate:
    """A proxy for the service that blocks after `additions` additions until it is opened."""

    def __init__(self, service, additions: int) -> None:
        self._service, self._left = service, additions
        self._lock = threading.Lock()
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, seen: Seen) -> bytes:
        if seen.operation == "addEntries":
            with self._lock:
                self._left -= 1
                wait = self._left < 0
            if wait:
                self.reached.set()
                self.open.wait(DEADLINE_S)
        connection = http.client.HTTPConnection(urlsplit(self._service.url).netloc, timeout=DEADLINE_S)
        with closing(connection):
            head = {"Authorization": f"apikey {self._service.key}", "Content-Type": "application/json"}
            connection.request("POST", f"/api/public/lists/v1/{seen.operation}", json.dumps(seen.body), head)
            answer = connection.getresponse()
            return whole_answer(answer.status, answer.read())


def interrupted(service, file: str, tmp_path, additions: int, ending: signal.Signals) -> tuple[int, str]:
    """Start a sync and end it with a signal after `additions` additions; its exit code and output."""
    gate = Gate(service, additions)
    with misbehaving(tmp_path, gate) as server:
        sync = (server.url, server.key_file, "sync", LIST, file, "--prune", "--yes")
        with process(*sync, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
            assert gate.reached.wait(DEADLINE_S)
            running.send_signal(ending)
            output = running.communicate(timeout=DEADLINE_S)[0]
        gate.open.set()  # requests in flight may still arrive late
    return running.returncode, output


@pytest.mark.parametrize("on_each_database", few(["sqlite", "postgresql"], 1), indirect=True)
def test_a_sync_that_is_killed_and_run_again_completes(on_each_database, tmp_path):
    """After kill -9 in the middle, the second run does the rest and nothing twice."""
    service = on_each_database
    service.clear()
    entries = {f"user{i:06}@example.org": f"number {i}" for i in range(ENTRIES)}
    file = write(tmp_path / "large.txt", entries)
    service.add(LIST, {f"old{i}@example.org": "" for i in range(700)})
    half = ENTRIES // MAX_ENTRIES_PER_REQUEST // 2
    assert interrupted(service, file, tmp_path, half, signal.SIGKILL)[0] == -signal.SIGKILL
    middle = len(service.entries(LIST))
    assert 0 < middle < ENTRIES
    again = service.run("sync", LIST, file, "--prune", "--yes", "--json")
    (plan,) = json.loads(again.stdout)["lists"]
    assert (again.exit_code, plan["state"]) == (0, "done")
    assert plan["done"]["added_or_updated"] == ENTRIES - middle
    assert service.entries(LIST) == entries


def test_an_interrupted_sync_reports_how_far_it_got(service, tmp_path):
    """After Ctrl-C it prints the counts and exits with 130."""
    file = write(tmp_path / "large.txt", {f"user{i:06}@example.org": "" for i in range(5000)})
    code, output = interrupted(service, file, tmp_path, 3, signal.SIGINT)
    assert code == 130
    assert "interrupted" in output and "of 5,000" in output and "not done: " in output
