"""`scanbridge events`: what operators see and do, with an outbox that has dead letters."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bridge.events.event import EventType, of_mail
from bridge.events.outbox import Entry, Failed, Outbox
from bridge.history.sqlite import SqliteHistory
from bridge.observe.redaction import FULL
from bridge.runtime.database import Database
from tests.daemon.process_kit import scanbridge, write_config
from tests.events.events_kit import ROOMY, SECRET, Receiver, lines, mail
from tests.history.history_kit import mail as old_mail
from tests.postgresql import fresh_database

UNPRINTABLE = "evil\x1b[31m"


@pytest.fixture
def config(tmp_path: Path, receiver: Receiver) -> Path:
    """Two sinks; the webhook has one event that waits and two dead letters."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "state").mkdir()
    events: list[dict[str, Any]] = [
        {"name": "hook", "type": "webhook", "url": receiver.url, "secret_file": "secret"},
        {"name": "log", "type": "file", "path": "events.jsonl", "format": "ocsf"},
    ]
    path, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", events=events)
    outbox = Outbox(Database.file(tmp_path / "state" / "events.sqlite"))
    outbox.add([_entry(f"M{number}") for number in range(3)], {"hook": ROOMY, "log": ROOMY})
    dead = [Failed(one.seq, f"{UNPRINTABLE} it answered 500", is_dead=True) for one in outbox.due("hook", 9)[1:]]
    outbox.settle("hook", [], dead, f"{UNPRINTABLE} it answered 500")
    outbox.close()
    return path


def _entry(mail_id: str) -> Entry:
    (event,) = of_mail(mail(mail_id=mail_id), [EventType.DECIDED], FULL, 1_700_000_000.0)
    return Entry("hook", event.id, event.type, event.about, event.time, event.to_json("h"))


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return scanbridge("events", *arguments)


def test_status_says_what_waits_and_why(config: Path) -> None:
    """For people and as JSON; exit code 1 because a sink needs attention."""
    done = run("status", "-c", config)
    assert done.returncode == 1 and "\x1b" not in done.stdout
    assert "hook (webhook): 1 waiting, the oldest for" in done.stdout and "2 dead, 0 lost; failing for" in done.stdout
    assert "log (file): 0 waiting, 0 dead, 0 lost" in done.stdout
    rows = {row["name"]: row for row in json.loads(run("status", "-c", config, "--json").stdout)}
    assert (rows["hook"]["waiting"], rows["hook"]["dead"], rows["log"]["problem"]) == (1, 2, "")


def test_dead_letters_are_looked_at_sent_again_and_dropped(config: Path) -> None:
    """One by one, and all of them; what is dropped is gone, after confirmation."""
    listed = run("dead", "-c", config).stdout
    assert listed.count("it answered 500") == 2 and "\x1b" not in listed and "mail.decided" in listed
    found = [json.loads(line) for line in run("dead", "-c", config, "--json").stdout.splitlines()]
    newest, oldest = (one["event"]["id"] for one in found)
    assert [one["event"]["data"]["id"] for one in found] == ["M2", "M1"] and found[0]["attempts"] == 1
    assert json.loads(run("dead", "-c", config, newest).stdout)["data"]["id"] == "M2"
    assert run("dead", "-c", config, "nonsense").returncode == 3
    assert run("dead", "-c", config, "--sink", "log").stdout == ""
    assert run("retry", "-c", config, newest).stdout == "1 dead letter will be sent again\n"
    assert run("retry", "-c", config, newest).returncode == 3  # it is not dead any more
    refused = run("drop", "-c", config, "--all")
    assert refused.returncode == 2 and "add --yes to confirm; nothing was deleted" in refused.stderr
    assert run("drop", "-c", config, oldest, "--yes").stdout == "1 deleted\n"
    done = run("drop", "-c", config, "--all", "--waiting", "--sink", "hook", "--yes")
    assert done.stdout == "2 deleted\n"
    assert run("dead", "-c", config).stderr == "no dead letters\n"


@pytest.mark.parametrize(
    "arguments", [("retry",), ("drop",), ("retry", "--all", "x"), ("drop", "--all", "--waiting", "--yes")]
)
def test_a_choice_must_be_made(config: Path, arguments: tuple[str, ...]) -> None:
    """Nothing is retried or dropped by accident."""
    assert run(arguments[0], "-c", config, *arguments[1:]).returncode == 2
    assert len(run("dead", "-c", config, "--json").stdout.splitlines()) == 2


def test_a_test_event_shows_whether_a_sink_works(config: Path, receiver: Receiver, tmp_path: Path) -> None:
    """Each sink gets one in its own format, whatever types it has; a failure has its reason and an exit code."""
    done = run("test", "-c", config)
    assert done.returncode == 0 and done.stdout.count(": ok, event ") == 2
    assert [event["type"] for event in receiver.events] == ["test"]
    assert lines(tmp_path / "state" / "events.jsonl")[0]["class_uid"] == 0
    receiver.answer = lambda receiver, event: 500
    failed = run("test", "-c", config, "hook")
    assert failed.returncode == 1 and "hook: FAILED: 127.0.0.1" in failed.stderr and "500" in failed.stderr
    unknown = run("test", "-c", config, "hok")
    assert unknown.returncode == 3 and "did you mean hook?" in unknown.stderr


def test_an_outbox_that_cannot_be_read_is_reported(config: Path, tmp_path: Path) -> None:
    """One line, no traceback."""
    for path in (tmp_path / "state").glob("events.sqlite*"):
        path.unlink()
    (tmp_path / "state" / "events.sqlite").write_bytes(b"not a database" * 100)
    done = run("status", "-c", config)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "cannot be used" in done.stderr


@pytest.mark.parametrize("command", [("status",), ("dead",), ("retry", "--all"), ("test",)])
def test_without_sinks_no_outbox_is_created(tmp_path: Path, command: tuple[str, ...]) -> None:
    """The command says what to set."""
    path, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2")
    done = run(command[0], "-c", path, *command[1:])
    assert done.returncode == 1 and done.stderr == "no sinks are configured: set events\n"
    assert not (tmp_path / "state" / "events.sqlite").exists()


def test_another_database_left_waiting_events_and_the_history_behind(config: Path, postgresql: Any) -> None:
    """They stay in the state directory, where nobody looks any more: `check` and `explain` say so."""
    state = config.parent / "state"
    history = SqliteHistory(state / "history")
    history.append([old_mail(1)])
    history.close()
    text = config.read_text()
    config.write_text(f"{text}\nstate_database: {fresh_database(postgresql)}\n")
    assert f"1 event is waiting in {state / 'events.sqlite'} from before state_database was set" in _check(config)
    told = scanbridge("explain", "-c", config, "nobody@example.org")
    assert told.returncode == 3 and f"see {state / 'history'}" in told.stdout
    run("drop", "-c", _with_text(config, text), "--all", "--waiting", "--sink", "hook", "--yes")
    noted = _check(_with_text(config, f"{text}\nstate_database: {fresh_database(postgresql)}\n"))
    assert "events.sqlite" not in noted and f"remains in {state / 'history'} and is not searched" in noted


def _check(config: Path) -> str:
    found: str = scanbridge("check", "-c", config).stdout
    return found


def _with_text(config: Path, text: str) -> Path:
    config.write_text(text)
    return config


@pytest.mark.parametrize("command", [("dead",), ("retry", "--all"), ("drop", "--all", "--waiting", "--yes")])
def test_a_misspelled_sink_looked_like_one_without_events(config: Path, command: tuple[str, ...]) -> None:
    """`events drop --all --waiting --sink NAME` said `0 deleted`, with exit code 0."""
    done = run(*command, "-c", config, "--sink", "hok")
    assert done.returncode == 3 and "did you mean hook?" in done.stderr and done.stdout == ""
    assert run("dead", "-c", config, "--sink", "hook").returncode == 0
