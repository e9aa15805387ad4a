"""The recorder: beside the mail's path, in bounded memory, and every mail that is not recorded is counted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import ScanUnavailable
from bridge.filter.outcome import Outcome, Record
from bridge.history.entry import Kind, Row
from bridge.history.query import HistoryQuery
from bridge.history.recorder import MAX_REFUSALS_PER_S, MAX_SUMS, Recorder, RecorderSettings
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryError
from bridge.intake.refused_client import RefusedClient
from bridge.mail.action import Action
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction, new_id
from bridge.observe.redaction import Redaction
from bridge.relay.relay import Mixed
from bridge.testing import until

DELIVERED = Outcome(
    Action.RELAY, Reply(250, "2.0.0", "Ok"), AnalysisResult(Decision.DELIVER, "GGRID", "clean", ("a:b", "c,d"))
)
DEFERRED = Outcome(Action.TEMPFAIL, Reply(451, "4.3.0", "later"))


def record(outcome: Outcome | None = DELIVERED, content: bytes = b"Subject: x\r\n\r\nx\r\n", **values: Any) -> Record:
    message = Message(Spool(10_000_000))
    message.write(content)
    session = Session("SESSION", "mx", "127.0.0.1", Client(address="192.0.2.7", helo="mx.example", ident="QUEUED"))
    envelope = Envelope("a@sender.example", (Recipient("b@example.org"), Recipient("c@example.org")))
    tx = Transaction(new_id(), session, envelope, message, 0.0, 1.0)
    return Record(tx, len(content), outcome=outcome, **{"message_id": "<1@x>", "subject": b" hello", **values})


def saturated(client: str, sender: str) -> RefusedClient:
    return RefusedClient("mail", client, sender, "saturated", "policy.saturated", Reply(451, "4.3.2", "busy"))


class Trouble(SqliteHistory):
    """A database that fails as long as `fails` is set, and waits as long as `waits` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.fails = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        self.goes_on.wait(30)
        if self.fails.is_set():
            raise HistoryError("disk full")
        super().append(rows)


class Kept(SqliteHistory):
    """A database that notes the time before which it is to delete entries."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.before: list[float] = []

    def maintain(self, before: float, max_size: int | None) -> tuple[int, int]:
        self.before.append(before)
        return 0, 0


def test_a_clock_that_jumps_ahead_deleted_the_whole_history(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As for the quarantine, a day passes before anything is deleted by such a clock."""
    now, store = [1e9], Kept(tmp_path)
    recorder = Recorder(store, RecorderSettings(30 * 86400.0, clock=lambda: now[0]))
    recorder._keep_house()
    now[0] += 60 * 86400
    recorder._upkeep_at = 0.0
    recorder._keep_house()
    assert store.before == [1e9 - 30 * 86400, 0.0]
    assert "history: the clock has moved ahead by" in caplog.text
    assert "old entries of the history will be deleted in 24 hours" in caplog.text


class Picky(Trouble):
    """A database that refuses one mail."""

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        if any(row.message_id == "<bad@x>" for _, row in rows):
            raise HistoryError("value too long")
        super().append(rows)


class Astonished(Trouble):
    """A database whose library raises what nobody expects at one mail."""

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        if any(row.message_id == "<bad@x>" for _, row in rows):
            raise ValueError("nobody thought of this")
        super().append(rows)


class Running:
    def __init__(self, directory: Path, store: type[Trouble] = Trouble, **settings: Any) -> None:
        self.store = store(directory)
        self.counts: Counter[str] = Counter()
        self.recorder = Recorder(
            self.store, RecorderSettings(86400.0, **{"batch_s": 0.02, "retry_s": 0.05, **settings}), self._count
        )
        self.recorder.start()

    def _count(self, result: str, number: int) -> None:
        self.counts[result] += number

    def rows(self) -> list[dict[str, Any]]:
        return [entry.to_dict() for entry in self.store.find(HistoryQuery(limit=0))]

    def wait_for(self, number: int) -> list[dict[str, Any]]:
        until(lambda: self.counts["written"] >= number, f"{number} rows")
        return self.rows()


@contextmanager
def recording(directory: Path, **settings: Any) -> Iterator[Running]:
    running = Running(directory, **settings)
    try:
        yield running
    finally:
        running.store.goes_on.set()
        running.recorder.close()
        running.store.close()


def test_a_mail_has_all_its_facts(tmp_path: Path) -> None:
    """A comma in a tag does not make two of it."""
    with recording(tmp_path) as running:
        running.recorder.note(record(rule="policy.deliver", scanner="http://s", next_id="N1", scan_s=0.5))
        (row,) = running.wait_for(1)
    expected = {
        "listener": "mx", "action": "relay", "decision": "deliver", "verdict": "clean", "tags": ["a:b", "c d"],
        "rule": "policy.deliver", "scanner": "http://s", "session": "SESSION", "client": "192.0.2.7",
        "helo": "mx.example", "sender": "a@sender.example", "recipients": ["b@example.org", "c@example.org"],
        "message_id": "<1@x>", "subject": "hello", "reply": "250 2.0.0 Ok", "ggrid": "GGRID", "scan_ms": 500.0,
        "queue_id": "QUEUED", "next_id": "N1",
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_what_few_mails_have_is_kept_too(tmp_path: Path) -> None:
    """The error and its text, and the replies to recipients who got different ones."""
    replies = (Reply(250, "2.0.0", "Ok"), Reply(550, "5.1.1", "no such user"))
    mixed = Outcome(Action.RELAY, replies[0], None, replies=replies)
    with recording(tmp_path) as running:
        running.recorder.note(record(mixed, error=ScanUnavailable("http://s: refused"), is_mixed=True))
        running.recorder.note(record(None))
        cancelled, row = sorted(running.wait_for(2), key=lambda row: row["action"])
    assert cancelled["action"] == "cancelled" and "reply" not in cancelled
    assert row["error"] == "unavailable" and row["why"] == "http://s: refused"
    assert row["replies"] == {"b@example.org": "250 2.0.0 Ok", "c@example.org": "550 5.1.1 no such user"}


def test_a_long_reply_was_recorded_whole_for_each_recipient(tmp_path: Path) -> None:
    """A next hop's replies may have 64 KiB, and a mail 1,000 recipients: one row had megabytes."""
    long = Reply(550, "5.1.1", "x" * 60_000)
    mixed = Outcome(Action.RELAY, Reply(250, "2.0.0", "Ok"), None, replies=(Reply(250, "2.0.0", "Ok"), long))
    with recording(tmp_path) as running:
        running.recorder.note(record(mixed, error=ScanUnavailable("http://s: refused"), is_mixed=True))
        running.recorder.note_late_answer("ID", ["b@example.org"], long)
        [row] = running.wait_for(1)
        [event] = until(lambda: running.store.later(["ID"]), "the late answer")
    assert row["replies"] == {"b@example.org": "250 2.0.0 Ok", "c@example.org": str(long)[:1000]}
    assert event.text == f"to b@example.org: {str(long)[:1000]}"


def test_addresses_are_hidden_as_in_the_log(tmp_path: Path) -> None:
    """In every value that may have one."""
    outcome = Outcome(Action.REJECT, Reply(550, "5.1.1", "<b@example.org> unknown"), None)
    with recording(tmp_path, redaction=Redaction("domain")) as running:
        running.recorder.note(
            record(
                outcome, subject=b" for a@sender.example", error=ScanUnavailable("a@sender.example"), message_id="<m@x>"
            )
        )
        running.recorder.note_refusal("mx", saturated("192.0.2.7", "a@sender.example"))
        rows = running.wait_for(2)
    text = json.dumps(rows)
    assert "a@sender" not in text and "b@example" not in text and "m@x" not in text and "subject" not in text
    assert text.count("*@sender.example") == 3 and text.count("*@example.org") == 3


def test_attempts_with_one_mail_are_joined(tmp_path: Path) -> None:
    """By sender and content, whatever Received field is on top; another mail with the same Message-ID is another."""
    first = b"Received: by mx\r\n\tid 1\r\nSubject: x\r\n\r\nx\r\n"
    again = b"Received: by mx\r\n\tid 2\r\nSubject: x\r\n\r\nx\r\n"
    other = b"Received: by mx\r\n\tid 3\r\nSubject: x\r\n\r\ny\r\n"
    with recording(tmp_path) as running:
        for outcome, content in ((DEFERRED, first), (None, again), (DELIVERED, again), (DELIVERED, other)):
            running.recorder.note(record(outcome, content))
        running.recorder.note(record(DELIVERED, first, message_id="<2@x>"))
        rows = sorted(running.wait_for(5), key=lambda row: row["id"])
    keys = [row.get("attempt", "") for row in rows]
    assert keys[0] and keys[0] == keys[1] == keys[2] and keys[3] not in ("", keys[0]) and keys[4] == ""


def test_the_attempt_before_a_restart_is_remembered(tmp_path: Path) -> None:
    """Another process may get the mail when it comes again."""
    with recording(tmp_path) as running:
        running.recorder.note(record(DEFERRED))
        running.wait_for(1)
    with recording(tmp_path) as running:
        until(lambda: running.recorder.is_expecting_mail, "the deferred mail")
        running.recorder.note(record(DELIVERED))
        rows = running.wait_for(1)
    assert rows[0]["attempt"] == rows[1]["attempt"]


def test_a_failing_database_costs_no_mail_that_fits_in_memory(tmp_path: Path) -> None:
    """Rows wait, and those beyond the limit are counted exactly."""
    with recording(tmp_path, max_waiting=100) as running:
        running.store.fails.set()
        for _ in range(130):
            running.recorder.note(record())
        until(lambda: running.recorder.problem == "disk full", "the problem")
        assert running.counts["overflow"] == 30 and running.counts["written"] == 0
        running.store.fails.clear()
        assert len(running.wait_for(100)) == 100
        until(lambda: running.recorder.problem == "", "the end of the problem")


def test_a_database_that_hangs_does_not_stop_the_caller(tmp_path: Path) -> None:
    """`note` only puts the mail into a queue."""
    with recording(tmp_path, max_waiting=50) as running:
        running.store.goes_on.clear()
        for _ in range(500):
            running.recorder.note(record())
        assert running.counts["overflow"] >= 400
        running.store.goes_on.set()
        written = len(running.wait_for(50))
        assert written + running.counts["overflow"] == 500


def test_the_rest_is_written_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be written then is counted and logged."""
    with recording(tmp_path) as running:
        running.recorder.note(record())
    assert len(running.rows()) == 1
    with recording(tmp_path) as running:
        running.store.fails.set()
        for _ in range(3):
            running.recorder.note(record())
    assert running.counts["failed"] == 3
    assert "3 mails could not be recorded before shutdown: disk full" in caplog.text


def test_refusals_share_rows_when_there_are_too_many(tmp_path: Path) -> None:
    """Every refusal is counted, by client; the number of rows is bounded, whatever clients and senders there are."""
    with recording(tmp_path) as running:
        for number in range(20_000):
            client, sender = f"192.0.2.{number % 200}", f"{number}@sender.example"
            running.recorder.note_refusal("mx", saturated(client, sender))
        until(lambda: running.counts["written"] + running.counts["summed"] >= 20_000, "all refusals")
        sums = running.store.count("action", HistoryQuery())
        assert [(line.label, line.mails) for line in sums] == [("tempfail", 20_000)]
        assert 0 < running.counts["written"] < 20_000 / 10
        with_sender = running.store.count("sender", HistoryQuery())
    assert any(line.label.endswith("@sender.example") for line in with_sender), "the first ones have their own row"


def test_a_refusal_that_shares_its_row_with_none_has_its_sender(tmp_path: Path) -> None:
    """In a storm of many clients, a refusal that was the only one of its client was shown with the null sender."""
    with recording(tmp_path) as running:
        for number in range(MAX_REFUSALS_PER_S):
            running.recorder.note_refusal("mx", saturated("192.0.2.1", f"{number}@sender.example"))
        until(lambda: running.counts["written"] >= MAX_REFUSALS_PER_S, "the first refusals")
        for number in range(20):
            running.recorder.note_refusal("mx", saturated(f"198.51.100.{number}", f"{number}@sender.example"))
        rows = running.wait_for(MAX_REFUSALS_PER_S + 20)
    assert all(row["sender"].endswith("@sender.example") and "mails" not in row for row in rows)


def test_refusals_that_share_a_row_have_no_sender(tmp_path: Path) -> None:
    """Nor a client, if they are of several; the first of each second have both, also beside a null sender."""
    with recording(tmp_path, batch_s=1.0) as running:
        for sender in ("", "a@sender.example", "b@sender.example"):
            running.recorder.note_refusal("mx", saturated("192.0.2.1", sender))
        for number in range(5_000):
            running.recorder.note_refusal("mx", saturated(f"198.51.100.{number % 250}", f"{number}@sender.example"))
        until(lambda: running.counts["written"] + running.counts["summed"] >= 5_003, "all refusals")
        rows = running.rows()
    first = [row for row in rows if row.get("client") == "192.0.2.1"]
    assert sorted(row.get("sender", "") for row in first) == ["", "a@sender.example", "b@sender.example"]
    shared = [row for row in rows if row.get("mails", 1) > 1]
    assert shared and not any("sender" in row or "client" in row for row in shared)
    assert sum(row.get("mails", 1) for row in rows) == 5_003


def test_refusals_at_rcpt_share_rows_only_in_a_storm(tmp_path: Path) -> None:
    """The first of each second are recorded with their recipient."""
    refused = Outcome(Action.REJECT, Reply(550, "5.7.1", "listed"))
    with recording(tmp_path) as running:
        for _ in range(MAX_REFUSALS_PER_S * 4):
            running.recorder.note(record(refused, at="rcpt", rule="lists.bad"))
        until(
            lambda: running.counts["written"] + running.counts["summed"] >= MAX_REFUSALS_PER_S * 4, "all refusals", 20.0
        )
        rows = running.rows()
    assert sum(row.get("mails", 1) for row in rows) == MAX_REFUSALS_PER_S * 4
    assert MAX_REFUSALS_PER_S < len(rows) <= 4 * (MAX_REFUSALS_PER_S + MAX_SUMS)
    assert sum(row.get("recipients") == ["b@example.org", "c@example.org"] for row in rows) >= MAX_REFUSALS_PER_S


@pytest.mark.parametrize("store", [Picky, Astonished])
def test_one_mail_that_the_database_refuses_does_not_stop_the_others(tmp_path: Path, store: type[Trouble]) -> None:
    """It is left out and counted. After an unexpected error, it was tried forever, and no later mail was recorded."""
    with recording(tmp_path, store=store) as running:
        for number in range(10):
            running.recorder.note(record(message_id="<bad@x>" if number == 4 else f"<{number}@x>"))
        rows = running.wait_for(9)
        assert len(rows) == 9
        until(lambda: running.counts["failed"] == 1, "the last try with the bad mail")
        running.recorder.note(record(message_id="<last@x>"))
        running.wait_for(10)


class ComesBack(Trouble):
    """A database that is gone at first, and back after the first of the rows that are tried one by one."""

    calls = 0

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        self.goes_on.wait(30)
        self.calls += 1
        if self.calls <= 2:
            raise HistoryError("the database system is starting up")
        super().append(rows)


def test_a_database_that_comes_back_between_two_rows_loses_neither(tmp_path: Path) -> None:
    """The first row was refused and the second was not, but not because of the mail."""
    with recording(tmp_path, store=ComesBack) as running:
        running.store.goes_on.clear()
        for number in range(5):
            running.recorder.note(record(message_id=f"<{number}@x>"))
        running.store.goes_on.set()
        rows = running.wait_for(5)
        assert {row["message_id"] for row in rows} == {f"<{number}@x>" for number in range(5)}
        assert running.counts["failed"] == 0


def test_a_storm_while_the_database_is_gone_is_bounded(tmp_path: Path) -> None:
    """Refusals that find no room are counted, each of them."""
    with recording(tmp_path, max_waiting=20) as running:
        running.store.fails.set()
        for number in range(5_000):
            running.recorder.note_refusal("mx", saturated(f"192.0.2.{number % 250}", ""))
            if number % 100 == 0:
                until(lambda: not running.recorder.has_sums, "the sums")
        until(lambda: not running.recorder.has_sums, "the sums")
        running.store.fails.clear()
        until(lambda: running.recorder.problem == "", "the end of the problem")
        counts = running.counts
        assert counts["failed"] > 0 and counts["written"] <= 20
        assert counts["written"] + counts["summed"] + counts["failed"] == 5_000


def test_mails_with_many_recipients_weigh_more(tmp_path: Path) -> None:
    """Memory is limited, not only the number of rows."""
    with recording(tmp_path, max_waiting=100) as running:
        running.store.fails.set()
        many = tuple(Recipient(f"{number}@example.org") for number in range(1000))
        for _ in range(10):
            mail = record()
            mail.tx = replace(mail.tx, envelope=Envelope("a@sender.example", many))
            running.recorder.note(mail)
        assert running.counts["overflow"] == 8


def test_replies_of_summed_refusals_showed_hidden_addresses(tmp_path: Path) -> None:
    """In a storm, refusals share entries; the text of a list's refusal may name somebody to write to."""
    refused = Outcome(Action.REJECT, Reply(550, "5.7.1", "blocked, write to <b@example.org>"))
    with recording(tmp_path, redaction=Redaction("domain")) as running:
        for _ in range(MAX_REFUSALS_PER_S * 4):
            running.recorder.note(record(refused, at="rcpt", rule="lists.bad"))
        until(lambda: running.counts["written"] + running.counts["summed"] >= MAX_REFUSALS_PER_S * 4, "all refusals")
        rows = running.rows()
    assert any(row.get("mails", 1) > 1 for row in rows)
    assert {row["reply"] for row in rows} == {"550 5.7.1 blocked, write to <*@example.org>"}


@pytest.mark.parametrize("is_lmtp", [True, False])
def test_who_has_a_partly_refused_mail_is_recorded(tmp_path: Path, is_lmtp: bool) -> None:
    """Hidden recipients of one domain had only one of their replies; an SMTP client receives one for all."""
    replies = (Reply(250, "2.0.0", "Ok"), Reply(550, "5.1.1", "no such user"))
    outcome = Outcome(Action.REJECT, replies[1], None, replies=replies if is_lmtp else ())
    with recording(tmp_path, redaction=Redaction("domain")) as running:
        running.recorder.note(record(outcome, error=Mixed(replies), is_mixed=True))
        [row] = running.wait_for(1)
    assert row["accepted"] == ["*@example.org"]
    assert row.get("replies") == ({"*@example.org": "250 2.0.0 Ok; 550 5.1.1 no such user"} if is_lmtp else None)
