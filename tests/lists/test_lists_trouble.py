"""The command line against a misbehaving server: what was done, what was not, and the exit code."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time

import pytest

from bridge.lists import ListClient, ListSettings, ListsUnavailable, RetrySettings
from tests.lists.lists_kit import (
    INFOS,
    STREAM,
    Misbehaving,
    Seen,
    chunk,
    http,
    lines,
    misbehaving,
    process,
    scripted,
    whole,
)

MANY = "".join(f"u{i:05}@x.org\n" for i in range(2500))


def adding(then: bytes, after: int = 2):
    """A service that accepts `after` batches and then answers `then`."""
    count = [0]

    def answer(seen: Seen) -> bytes:
        if seen.operation == "getLists":
            return http(200, INFOS)
        if seen.operation == "listEntries":
            return whole()
        count[0] += 1
        return http(200, {"modifiedEntries": len(seen.body["entries"])}) if count[0] <= after else then

    return answer


@pytest.mark.parametrize(
    ("then", "code", "text"),
    [
        (http(429, {"error": "slow_down"}), 75, "429 (slow_down)"),
        (http(429, {"error": "slow_down"}, "Retry-After: 900"), 75, "429 (slow_down)"),
        (http(500, {"error": "internal", "message": "oh"}), 75, "500 (internal: oh)"),
        (http(503), 75, "503"),
        (Misbehaving.CUT, 75, "the connection was lost"),
        (Misbehaving.CUT + b"HTTP/1.1 200 X\r\nContent-Le", 75, "the connection was lost"),
        (Misbehaving.CUT + b"SSH-2.0-x\r\n", 75, "the connection was lost"),
        (http(401, {"error": "unauthorized"}), 77, "refuses the API key"),
        (http(404, {"error": "list_not_found"}), 1, "404 (list_not_found)"),
        (http(409, {"error": "list_full", "message": "no more than 1000"}), 1, "no more than 1000"),
        (http(200, b"<html>"), 75, "not JSON; the service may or may not have made the change"),
        (http(200, b""), 75, "not JSON"),
        (http(200, b'{"modifiedEnt'), 75, "not JSON"),
        (http(200, ["x"]), 75, "not an object"),
        (http(200, {}), 75, "does not say how many"),
        (http(200, {"modifiedEntries": "3"}), 75, "does not say how many"),
        (http(200, {"modifiedEntries": 1}, "Content-Encoding: gzip"), 75, "compressed"),
    ],
)
@pytest.mark.parametrize("command", ["add", "sync"])
def test_a_failure_in_the_middle_is_reported_with_what_was_done(tmp_path, command, then, code, text):
    """After two batches the service fails: the message has the reason and the counts."""
    (tmp_path / "many.txt").write_text(MANY)
    source = ("-f", str(tmp_path / "many.txt")) if command == "add" else (str(tmp_path / "many.txt"),)
    with misbehaving(tmp_path, adding(then)) as server:
        done = server.run(command, "large", *source, patience="30ms")
        assert done.exit_code == code, done.output
        assert text in done.stderr and "done: 1,000 of 2,500" in done.stderr
        is_permanent = "no more than 1000" in done.stderr or (command == "add" and "(list_not_found)" in done.stderr)
        remedy = (
            "correct this, then run the command again to continue" if is_permanent else "run the same command again"
        )
        assert remedy in done.stderr
        if code != 75:
            assert "not done: 1,500" in done.stderr
        machine = json.loads(server.run(command, "large", *source, "--json", patience="30ms").stdout)
        assert machine["exit_code"] == code
        counts = machine if command == "add" else machine["lists"][0]
        assert (counts["uncertain"] > 0) is (code == 75)


@pytest.mark.parametrize("command", ["add", "delete"])
@pytest.mark.parametrize(
    "unreadable", [http(200, b"<html>"), http(200, b""), Misbehaving.CUT + b"HTTP/1.1 200 X\r\n\r\n{"]
)
def test_an_unreadable_200_is_neither_success_nor_failure(tmp_path, command, unreadable):
    """The change may have been made: it is counted as uncertain, and the message says what to do."""
    with misbehaving(tmp_path, lambda _: unreadable) as server:
        done = server.run(command, "large", "a@x.org", "b@x.org", patience="0s")
        assert done.exit_code == 75
        assert done.stdout.startswith("large of the deployment: 0 entries ")
        assert "done: 0 of 2, 2 uncertain (no clear answer); not done: 0; run the same command again" in done.stderr
        assert "lists entries" in done.stderr
        assert len(server.seen) == 1
        machine = json.loads(server.run(command, "large", "a@x.org", "--json", patience="0s").stdout)
    assert (machine["confirmed"], machine["uncertain"], machine["not_done"]) == (0, 1, 0)


def test_short_failures_are_retried(tmp_path):
    """An occasional 429 or 500 does not reach the user."""
    good = http(200, {"modifiedEntries": 500})
    answers = (http(429, None, "Retry-After: 0"), good, http(500), Misbehaving.CUT, good)
    with misbehaving(tmp_path, scripted(*answers)) as server:
        done = server.run("add", "large", stdin=MANY, patience="20s")
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_stream_that_is_cut_off_is_an_error(tmp_path):
    """The entries printed so far are not the whole list, and the exit code says so."""
    cut = Misbehaving.CUT + STREAM + chunk(lines("a@x.org", "b@x.org"))
    with misbehaving(tmp_path, lambda _: cut) as server:
        done = server.run("entries", "large")
        assert (done.exit_code, done.stdout) == (75, "a@x.org\nb@x.org\n")
        assert "cut off after 2 entries" in done.stderr


def test_an_incomplete_stream_never_becomes_a_file(tmp_path):
    """With -o the stream is read again, and an old file stays until the new one is complete."""
    cut = Misbehaving.CUT + STREAM + chunk(lines("a@x.org"))
    target = tmp_path / "saved.txt"
    target.write_text("old\n")
    with misbehaving(tmp_path, lambda _: cut) as server:
        assert server.run("entries", "large", "-o", str(target)).exit_code == 75
        assert len(server.seen) == 3
    assert target.read_text() == "old\n"
    with misbehaving(tmp_path, scripted(cut, whole("a@x.org", "b@x.org"))) as server:
        assert server.run("entries", "large", "-o", str(target)).exit_code == 0
    assert target.read_text() == "a@x.org\nb@x.org\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["api-key", "saved.txt"]


def test_sync_rereads_an_incomplete_list_or_changes_nothing(tmp_path):
    """A difference is never computed from half a list."""
    cut = Misbehaving.CUT + STREAM + chunk(lines("a@x.org"))
    (tmp_path / "f.txt").write_text("a@x.org\nb@x.org\n")
    sync = ("sync", "large", str(tmp_path / "f.txt"), "--prune", "--yes")
    with misbehaving(tmp_path, scripted(http(200, INFOS), cut)) as server:
        done = server.run(*sync)
        assert done.exit_code == 75 and "cut off after 1 entries" in done.stderr
        assert "nothing was changed" in done.stderr
        assert server.operations() == ["getLists", *["listEntries"] * 3]
    answers = (http(200, INFOS), cut, whole("a@x.org", "b@x.org"))
    with misbehaving(tmp_path, scripted(*answers)) as server:
        assert server.run(*sync).stdout == "large: up to date\n"


def test_a_service_that_confirms_but_does_not_store_is_reported(tmp_path):
    """If every request succeeds and the list still differs, the exit code is 1."""
    with misbehaving(tmp_path, adding(b"", after=99)) as server:
        (tmp_path / "f.txt").write_text("a@x.org\n")
        done = server.run("sync", "large", str(tmp_path / "f.txt"))
    assert done.exit_code == 1 and "still different: 1 entry, for example 'a@x.org'" in done.stderr


@pytest.mark.parametrize("arguments", [["show"], ["entries", "large"], ["add", "large", "a@x.org"]])
def test_an_unreachable_service_exits_with_75(tmp_path, arguments):
    """A service that is down is a temporary failure."""
    with misbehaving(tmp_path, lambda _: b"") as server:
        pass
    done = server.run(*arguments, patience="20ms")
    assert done.exit_code == 75 and "cannot be reached" in done.output


def test_who_waits_for_an_unreachable_service_is_told_why(tmp_path):
    """One line on standard error after the first attempt, long before the command gives up; none for each attempt."""
    with misbehaving(tmp_path, lambda _: b"") as server:
        pass
    why = f"{server.url} cannot be reached: Connection refused"
    with process(server.url, server.key_file, "show", "--patience", "3s", stderr=subprocess.PIPE) as command:
        began = time.monotonic()
        assert command.stderr.readline() == f"{why}; trying again for up to 3s (--patience)\n"
        assert command.poll() is None
        rest = command.stderr.read()
    assert (command.returncode, rest) == (
        75,
        f"{why}; is the service running? check lists.url, or --url\n",
    ) and time.monotonic() - began < 30


def test_who_waits_because_the_service_asks_for_it_is_told_why(tmp_path):
    """A long Retry-After is reported, a short one is not worth a line."""
    ok = http(200, {"listFileInfos": []})
    with misbehaving(tmp_path, scripted(http(503, None, "Retry-After: 6"), ok)) as server:
        done = server.run("show", patience="20s")
    assert done.exit_code == 0
    assert done.stderr == "the service answered 503; trying again for up to 20s (--patience)\n"
    with misbehaving(tmp_path, scripted(http(503, None, "Retry-After: 1"), ok)) as server:
        assert server.run("show", patience="20s").stderr == ""


def test_only_the_command_line_reports_retries(capfd):
    """The daemon's client retries silently: its log reports the outcome."""
    settings = ListSettings("http://127.0.0.1:1", "k" * 54, retry=RetrySettings(0.05, 0.01, 0.01))

    async def ask():
        async with ListClient(settings) as client:
            await client.lists()

    with pytest.raises(ListsUnavailable, match="Connection refused"):
        asyncio.run(ask())
    assert capfd.readouterr() == ("", "")


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    """The names of lists and entries are shown without control characters."""
    infos = {"listFileInfos": [{"listName": "a\x1b[2J", "listInfo": {"description": "\r\n\x07"}}]}
    with misbehaving(tmp_path, scripted(http(200, infos), whole("\x1b]0;x\x07"))) as server:
        for arguments in (["show"], ["entries", "large"]):
            done = server.run(*arguments)
            assert done.exit_code == 0 and "\x1b" not in done.output and "\x07" not in done.output
