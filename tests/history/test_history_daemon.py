"""A running bridge records every fate of a mail, and a history in trouble delays no mail."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import QueueStatus
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.runtime import yaml_file
from bridge.testing import RunningBridge, answer, configuration, result, running_bridge, until
from tests.daemon.process_kit import scanbridge
from tests.filter.smtp_kit import Client, Gate, say, send
from tests.postgresql import fresh_database

DEFER = answer(200, result("undecided"))


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path) as running:
        yield running


def history(bridge: RunningBridge, number: int = 1, **query: Any) -> list[dict[str, Any]]:
    """So many entries, as soon as they are written; the newest first."""
    store = SqliteHistory(bridge.directory / "state" / "history")
    until(lambda: len(store.find(HistoryQuery(**query))) >= number, f"{number} entries")
    return [entry.to_dict() for entry in store.find(HistoryQuery(**query))]


FATES = {
    "deliver": ("relay", "policy.deliver"),
    "quarantine": ("quarantine", "policy.quarantine"),
    "bounce": ("reject", "policy.bounce"),
    "drop": ("discard", "policy.drop"),
    "undecided": ("tempfail", "policy.undecided"),
}


@pytest.mark.parametrize("decision", FATES)
def test_every_decision_is_recorded(bridge: RunningBridge, decision: str) -> None:
    """With what the client received, and which rule decided."""
    bridge.scanner.reply = answer(200, result(decision))
    content = b"Message-ID: <1@x>\r\nSubject: =?utf-8?q?h=C3=A9llo?=\r\n\r\nx\r\n"
    reply = send(bridge, content, sender="s@sender.example")
    (entry,) = history(bridge)
    assert (entry["action"], entry["rule"]) == FATES[decision]
    assert entry["decision"] == decision and entry["reply"] == reply
    assert (entry["sender"], entry["recipients"]) == ("s@sender.example", ["b@example.org"])
    assert (entry["subject"], entry["message_id"]) == ("héllo", "<1@x>")
    assert entry["scanner"] == bridge.scanner.url


def test_a_deferred_mail_is_joined_to_its_next_attempt(bridge: RunningBridge) -> None:
    """A mail that comes again is one story."""
    content = b"Message-ID: <1@x>\r\nSubject: x\r\n\r\nx\r\n"
    bridge.scanner.reply = DEFER
    assert send(bridge, content).startswith("451")
    bridge.scanner.reply = answer(200, result("deliver"))
    assert send(bridge, content).startswith("250")
    second, first = history(bridge, 2)
    assert first["attempt"] == second["attempt"] and first["action"] == "tempfail" and second["action"] == "relay"


def test_a_cancelled_mail_is_recorded(bridge: RunningBridge) -> None:
    """The client went away while the scanner worked."""
    gate = Gate(bridge, answer(200, result("deliver")))
    with Client(bridge) as client:
        client.begin()
        client.say("DATA")
        client.content()
        until(lambda: bridge.scanner.arrived.acquire(blocking=False), "the mail at the scanner")
    (entry,) = history(bridge)
    assert entry["action"] == "cancelled"
    gate.open()


def test_a_client_that_goes_away_during_the_content_is_recorded(bridge: RunningBridge) -> None:
    """There is no mail, but somebody will ask for it."""
    with Client(bridge) as client:
        client.begin(sender="s@sender.example")
        client.say("DATA")
    (entry,) = history(bridge)
    assert (entry["stage"], entry["action"], entry["rule"]) == ("data", "cancelled", "client_gone")
    assert entry["sender"] == "s@sender.example"


def test_a_mail_refused_because_of_saturation_is_recorded_with_its_sender(bridge: RunningBridge) -> None:
    """At MAIL, before anything else is known."""
    say(bridge, QueueStatus.RED)
    with Client(bridge) as client:
        client.say("EHLO x")
        assert client.say("MAIL FROM:<s@sender.example>").startswith("451")
    (entry,) = history(bridge)
    assert (entry["stage"], entry["action"], entry["rule"]) == ("mail", "tempfail", "policy.saturated")
    assert (entry["sender"], entry["client"]) == ("s@sender.example", "127.0.0.1")


def test_an_untrusted_client_is_recorded(tmp_path: Path) -> None:
    """So that an operator finds out why a mail server's mail never arrived."""
    with running_bridge(tmp_path, trusted_clients=["192.0.2.0/24"]) as bridge:
        with Client(bridge) as client:
            client.say("EHLO x")
            assert client.say("MAIL FROM:<s@sender.example>").startswith("5")
        (entry,) = history(bridge)
        assert (entry["stage"], entry["rule"]) == ("mail", "listeners.trusted_clients")
        assert (entry["sender"], entry["client"]) == ("s@sender.example", "127.0.0.1")


def test_a_mail_that_is_too_large_is_recorded(tmp_path: Path) -> None:
    """By its announced size, and by its real one."""
    with running_bridge(tmp_path, {"limits": {"max_message_size": "100KiB"}}) as bridge:
        with Client(bridge) as client:
            client.say("EHLO x")
            assert client.say("MAIL FROM:<s@sender.example> SIZE=200000").startswith("552")
        send(bridge, b"Subject: x\r\n\r\n" + b"x\r\n" * 50_000)
        entries = history(bridge, 2)
    assert {entry["rule"] for entry in entries} == {"limits.max_message_size"}


def test_an_announced_size_of_more_than_64_bits_stopped_the_history(bridge: RunningBridge) -> None:
    """Neither its own entry nor those behind it could be written; with a little less, no sum could be made."""
    with Client(bridge) as client:
        client.say("EHLO x")
        for size in (99999999999999999999, 2**63 - 1, 2**63 - 1):
            assert client.say(f"MAIL FROM:<s@sender.example> SIZE={size}").startswith("552")
    send(bridge)
    assert sorted(entry["size"] for entry in history(bridge, 4))[1:] == [2**40] * 3
    assert bridge.daemon.history is not None and bridge.daemon.history.problem == ""


def test_without_a_history_nothing_is_written(tmp_path: Path) -> None:
    """`history.enabled: false`."""
    with running_bridge(tmp_path, {"history": {"enabled": False}}) as bridge:
        assert send(bridge).startswith("250")
    assert not (tmp_path / "state" / "history").exists()


def test_a_locked_history_delays_no_mail_and_loses_none(bridge: RunningBridge) -> None:
    """Mails wait in memory until the lock is gone."""
    send(bridge)
    history(bridge)
    (live,) = (bridge.directory / "state" / "history").glob("*.live")
    with closing(sqlite3.connect(live, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(20):
            assert send(bridge).startswith("250")
        other.execute("COMMIT")
    assert len(history(bridge, 21, limit=0)) == 21
    assert bridge.daemon.metrics.history.values["overflow",] == 0


def test_a_history_that_cannot_be_written_is_reported_and_mail_continues(tmp_path: Path) -> None:
    """Its directory is a file."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "history").write_text("in the way")
    with running_bridge(tmp_path) as bridge:
        assert send(bridge).startswith("250")
        until(lambda: bridge.daemon.history is not None and bridge.daemon.history.problem, "the problem")


def test_postgresql_that_goes_away_delays_no_mail(tmp_path: Path, fragile_postgresql: Any) -> None:
    """While it is away mails wait in memory, and are written when it is back."""
    database = fragile_postgresql.url.format(name="postgres")
    with running_bridge(tmp_path, {"state_database": database}) as bridge:
        recorder = bridge.daemon.history
        assert recorder is not None
        assert send(bridge).startswith("250")
        until(lambda: bridge.daemon.metrics.history.values["written",] == 1, "the first row")
        fragile_postgresql.stop()
        try:
            for _ in range(5):
                assert send(bridge).startswith("250")
            until(lambda: recorder.problem, "the problem")
        finally:
            fragile_postgresql.start()
        until(lambda: bridge.daemon.metrics.history.values["written",] == 6, "all rows")
        assert bridge.daemon.metrics.history.values["overflow",] == 0


def test_the_commands_read_a_history_in_postgresql(tmp_path: Path, postgresql: str) -> None:
    """As they read one in files: `explain` tells what happened to a mail, and `history` finds it."""
    config = {"state_database": fresh_database(postgresql)}
    with running_bridge(tmp_path, config) as bridge:
        file = tmp_path / "bridge.yml"
        file.write_text(yaml_file.dump(configuration(tmp_path, bridge.scanner, bridge.next_hop, config)))
        reply = send(bridge, sender="s@sender.example")
        until(lambda: bridge.daemon.metrics.history.values["written",] == 1, "the row")
        told = scanbridge("explain", "s@sender.example", "-c", file).stdout
        assert told.startswith("Mail from <s@sender.example> to <b@example.org> was delivered to the next hop.")
        assert f"The client received: {reply}" in told
        found = scanbridge("history", "--sender", "s@sender.example", "--json", "-c", file).stdout
        assert json.loads(found)["reply"] == reply
        assert scanbridge("explain", "nobody@sender.example", "-c", file).returncode == 3


def test_a_scanner_that_fails_is_named(bridge: RunningBridge) -> None:
    """The host that was asked, and its answer."""
    bridge.scanner.reply = answer(503, b"busy")
    assert send(bridge).startswith("451")
    (entry,) = history(bridge)
    assert entry["error"] == "unavailable" and bridge.scanner.url in entry["why"]
    assert (entry["scanner"], entry["rule"]) == (bridge.scanner.url, "policy.unavailable")
