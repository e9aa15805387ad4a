"""Releases whose result is unknown: killed, or without storage, right after the next hop's 250."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bridge.cli.quarantine.exit_codes import exit_code
from bridge.cli.quarantine.releasing import release_one
from bridge.cli.quarantine.session import Session
from bridge.daemon import wiring
from bridge.mail.envelope import Envelope, Recipient
from bridge.quarantine import record
from bridge.quarantine.quarantine import QuarantineSettings
from bridge.quarantine.record import MAX_ATTEMPTS, MailRecord, ReleaseAttempt
from bridge.quarantine.release import NotRecorded, ReleaseRequest, ReleaseUncertain, release
from bridge.quarantine.s3_store import probe
from bridge.quarantine.store import RecordChanged
from tests.quarantine.quarantine_kit import HEAD, SOON_S, Desk, Overtaken, Taker, desk, make_tx
from tests.quarantine.s3_kit import FaultyServer, ObjectServer, faulty_server, s3_config, s3_settings, write_keys

B, C = "b@example.org", "c@example.org"
BEGUN = ReleaseAttempt("2026-01-01T00:00:00.000+00:00", "me", (B,))
DONE = ReleaseAttempt("2026-01-01T00:00:00.000+00:00", "me", (B,), "250 2.0.0 Ok", (B,))


@pytest.fixture
def storage() -> Iterator[FaultyServer]:
    with faulty_server() as server:
        yield server


@pytest.fixture
def here(tmp_path: Path, storage: FaultyServer) -> Iterator[Desk]:
    write_keys(tmp_path)
    with desk(tmp_path, {"quarantine": s3_config(storage.port)}) as made:
        yield made


def states(storage: FaultyServer) -> list[tuple[str, list[str]]]:
    """The replies in the record, and who has the mail."""
    (name,) = [name for name in storage.objects if name.endswith(".releases")]
    return [(attempt["reply"][:3], attempt["delivered"]) for attempt in json.loads(storage.objects[name])]


def answers_fail(storage: FaultyServer, fault: int | str, count: int = 1_000_000) -> threading.Event:
    """The attempt is recorded, and these many tries to record the answer fail; the event is set at the first."""
    failed, writes = threading.Event(), [0]

    def decide(method: str, name: str) -> int | str:
        if method != "PUT" or not name.endswith(".releases"):
            return 0
        writes[0] += 1
        if not 1 < writes[0] <= 1 + count:
            return 0
        failed.set()
        return fault

    storage.fault = decide
    return failed


def test_a_release_killed_after_the_250_was_sent_twice(here: Desk, storage: FaultyServer) -> None:
    """The next hop had accepted the mail, and that was not recorded yet."""
    mail_id = here.send()
    recording = answers_fail(storage, "hang")
    process = here.start("release", mail_id)
    assert recording.wait(SOON_S)
    process.kill()
    process.communicate(timeout=SOON_S)
    storage.fault = lambda method, name: 0
    storage.go_on.set()
    assert states(storage) == [("", [])]
    refused = here.call("release", mail_id)
    assert refused.exit_code == 75 and "it may have been delivered" in refused.stderr
    assert len(here.bridge.next_hop.mails) == 1
    assert here.call("release", "--again", mail_id).exit_code == 0
    assert here.call("release", mail_id).exit_code == 4


def test_an_answer_waits_for_storage_that_is_away_for_a_moment(here: Desk, storage: FaultyServer) -> None:
    """One failed request left the mail as interrupted, although its command knew better."""
    mail_id = here.send()
    answers_fail(storage, 403, count=3)
    done = here.call("release", mail_id)
    assert done.exit_code == 0, done.stderr
    assert states(storage) == [("250", [B])]
    assert here.call("release", mail_id).exit_code == 4 and len(here.bridge.next_hop.mails) == 1


@pytest.mark.parametrize(
    ("reply", "says", "action"),
    [
        (b"250 2.0.0 Ok", "it was delivered (250 2.0.0 Ok)", "released"),
        (b"550 5.7.1 Never", "it was not accepted (550 5.7.1 Never)", "release failed"),
        (b"", "it was sent (451 4.4.2", "release unsure"),
    ],
)
async def test_an_answer_that_cannot_be_recorded_is_in_the_audit_trail(
    here: Desk, storage: FaultyServer, reply: bytes, says: str, action: str
) -> None:
    """A user was told to try again, and nothing but the next hop's log knew of the release."""
    mail_id = here.send()
    answers_fail(storage, 403)
    here.bridge.next_hop.replies[b"."] = reply
    session = Session.open(here.config)
    relay = wiring.relay(session.config)
    assert relay is not None
    order = ReleaseRequest("me", record_s=0.0)
    done = await release_one(session, session.quarantine.read(mail_id), relay, order)
    await relay.close()
    assert done.is_unsure == (action != "release failed") and says in done.text
    assert isinstance(done.problem, NotRecorded) and exit_code(done.problem) == 75
    (line,) = map(json.loads, (here.directory / "actions.log").read_text().splitlines())
    assert line["action"] == action
    assert states(storage) == [("", [])]
    storage.fault = lambda method, name: 0
    with pytest.raises(ReleaseUncertain):
        await release(session.quarantine, mail_id, relay, order)
    await session.quarantine.close()


def opened(tmp_path: Path, storage: FaultyServer) -> Overtaken:
    return Overtaken(QuarantineSettings(tmp_path, s3=s3_settings(storage.port, "x")))


@pytest.mark.parametrize("there", [(), (DONE,)], ids=["the first", "one more"])
async def test_a_record_that_another_process_changed_is_not_overwritten(
    tmp_path: Path, storage: FaultyServer, there: tuple[ReleaseAttempt, ...]
) -> None:
    """Two held the lock; the record of the second erased that of the first, and both sent the mail."""
    quarantine, tx, hop = opened(tmp_path, storage), make_tx(recipients=(B, C)), Taker()
    await quarantine.keep(tx, HEAD, {})
    if there:
        quarantine.write_releases(tx.id, there, "")
    theirs = (*there, ReleaseAttempt("2026-01-02T00:00:00.000+00:00", "other", (C,), "250 Ok", (C,)))
    quarantine.meanwhile = lambda: quarantine.write_releases(tx.id, theirs)
    with pytest.raises(RecordChanged, match="nothing was sent"):
        await release(quarantine, tx.id, hop, ReleaseRequest("me"))
    assert not hop.taken and quarantine.read(tx.id).releases == theirs
    await quarantine.close()


async def test_an_answer_erased_what_another_process_had_recorded(tmp_path: Path, storage: FaultyServer) -> None:
    """The lock was lost during the transfer, and somebody else released the mail to another recipient."""
    quarantine, tx, hop = opened(tmp_path, storage), make_tx(recipients=(B, C)), Taker()
    await quarantine.keep(tx, HEAD, {})
    theirs = ReleaseAttempt("2026-01-02T00:00:00.000+00:00", "other", (C,), "250 Ok", (C,))

    def other() -> None:
        quarantine.write_releases(tx.id, (*quarantine.read(tx.id).releases, theirs))

    hop.before.append(other)
    await release(quarantine, tx.id, hop, ReleaseRequest("me", to=(B,)))
    mail = quarantine.read(tx.id)
    assert mail.delivered == {B, C} and mail.state == "released" and theirs in mail.releases
    await quarantine.close()


@pytest.mark.parametrize("status", [400, 501])
async def test_storage_without_conditional_writes_can_be_used(
    tmp_path: Path, storage: FaultyServer, status: int
) -> None:
    """Some servers refuse the header; no mail could be released."""
    quarantine, tx, hop = opened(tmp_path, storage), make_tx(), Taker()
    await quarantine.keep(tx, HEAD, {})
    storage.refuses_conditions = status
    await release(quarantine, tx.id, hop, ReleaseRequest("me"))
    assert len(hop.taken) == 1 and quarantine.read(tx.id).state == "released"
    await quarantine.close()


def test_the_check_says_whether_storage_compares_versions(storage: FaultyServer, object_server: ObjectServer) -> None:
    """Without it, two primaries would let two machines release the same mail."""
    assert probe(s3_settings(storage.port, "x")) and storage.objects == {}
    storage.refuses_conditions = 501
    assert not probe(s3_settings(storage.port, "x")) and storage.objects == {}
    assert not probe(s3_settings(object_server.port, "x"))


async def test_a_write_whose_answer_was_lost_is_recognised(tmp_path: Path, storage: FaultyServer) -> None:
    """obstore tries again, and the server then has the record already: our own."""
    quarantine, tx, hop = opened(tmp_path, storage), make_tx(), Taker()
    await quarantine.keep(tx, HEAD, {})
    storage.loses_answers = 1
    await release(quarantine, tx.id, hop, ReleaseRequest("me"))
    assert len(hop.taken) == 1 and quarantine.read(tx.id).state == "released"
    await quarantine.close()


def mail_with(*releases: ReleaseAttempt) -> MailRecord:
    envelope = Envelope("", (Recipient(B), Recipient(C)))
    return MailRecord("1", datetime.now(UTC), envelope, releases=releases)


def test_a_damaged_record_of_releases_may_have_been_for_anyone() -> None:
    """There was an attempt, but nobody knows whom it was for."""
    mail = mail_with(*record.read_releases(b"[{"))
    assert mail.state == "interrupted" and mail.uncertain([C]) is not None


def test_an_attempt_without_a_result_was_forgotten_behind_others() -> None:
    """After a hundred attempts that failed, the mail was `kept`, and went to its recipient once more."""
    releases: tuple[ReleaseAttempt, ...] = (BEGUN, ReleaseAttempt("x", "me", (C,), "250 Ok", (C,)))
    for number in range(3 * MAX_ATTEMPTS):
        failed = ReleaseAttempt(f"{number}", "me", ("d@example.org",))
        releases = record.answered(record.begun(releases, failed), failed, ReleaseAttempt("", "", (), "450 Later"))
        assert len(releases) <= MAX_ATTEMPTS
    mail = mail_with(*releases)
    assert mail.uncertain([B]) is BEGUN and mail.delivered == {C} and mail.state == "interrupted"


def test_a_result_is_kept_even_if_its_attempt_was_overwritten() -> None:
    """By a version of the program, or on storage, that does not compare."""
    other = ReleaseAttempt("2026-01-02T00:00:00.000+00:00", "other", (C,))
    assert record.answered((other,), BEGUN, DONE) == (other, DONE)
    assert mail_with(other, DONE).state == "interrupted"
