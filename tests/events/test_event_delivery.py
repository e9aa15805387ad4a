"""Delivery to a real webhook that is away, slow, hangs, fails, closes or redirects: nothing is lost, order is kept."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from bridge.events.event import Event
from bridge.events.outbox import Entry, Outbox
from bridge.mail.action import Action
from bridge.runtime.database import Database
from bridge.testing import until
from tests.events.events_kit import (
    ROOMY,
    Lost,
    Receiver,
    delivering,
    entry,
    mail,
    put,
    recorder,
    waiting,
    webhook,
)


def record(place: Database, *actions: Action, times: int = 1) -> list[str]:
    """Write the events of these mails to the outbox. Returns the ids of the mails."""
    mails = [mail(action) for _ in range(times) for action in actions]
    one = recorder(place, Lost())
    one.start()
    for report in mails:
        one.put(report)
    one.close()
    return [report.tx.id for report in mails]


def check_complete(receiver: Receiver, mails: list[str], per_mail: list[str]) -> None:
    """Every event of every mail has arrived, and those of one mail in order, apart from repetitions."""
    seen: dict[str, dict[str, str]] = {}
    for event in receiver.events:
        seen.setdefault(event["data"]["id"], {}).setdefault(event["id"], event["type"])
    assert set(seen) == set(mails)
    assert {mail_id: list(types.values()) for mail_id, types in seen.items()} == dict.fromkeys(mails, per_mail)


def test_a_receiver_that_is_there_gets_everything_once(place: Database, receiver: Receiver) -> None:
    """With valid signatures; the receiver refuses others."""
    mails = record(place, Action.QUARANTINE, times=60)
    with delivering(place, webhook(receiver)):
        until(lambda: len(receiver.events) >= 120, "all events")
        until(lambda: waiting(place) == 0, "the outbox to be empty")
    check_complete(receiver, mails, ["mail.decided", "mail.quarantined"])
    assert max(Counter(receiver.ids()).values()) == 1


def test_a_receiver_that_is_away_loses_nothing(file: Database, receiver: Receiver) -> None:
    """It is tried less and less often, and gets everything when it is back."""
    receiver.stop()
    mails = record(file, Action.REJECT, times=20)
    failures: list[float] = []
    with delivering(file, webhook(receiver)) as delivery:
        delivery.on_failed = lambda sink: failures.append(time.monotonic())
        until(lambda: len(failures) >= 5, "five attempts")
        outbox = Outbox(file)
        (state,) = outbox.states()
        outbox.close()
        assert state.waiting == 40 and state.dead == 0 and state.failing_since and "127.0.0.1" in state.problem
        receiver.let_go.clear()
        receiver.start()
        mails += record(file, Action.REJECT)
        until(lambda: waiting(file) == 0, "the outbox to be empty")
    check_complete(receiver, mails, ["mail.decided", "mail.refused"])
    pauses = [after - before for before, after in pairwise(failures)]
    assert pauses[-1] > pauses[0]


@pytest.mark.parametrize("status", [500, 502, 503, 400, 401, 404, 408, 429, 307])
def test_a_receiver_that_answers_wrongly_loses_nothing(file: Database, receiver: Receiver, status: int) -> None:
    """Whatever it says to all of them: no event becomes a dead letter, because it takes no other."""
    receiver.answer = lambda receiver, event: status
    receiver.headers = {"location": "http://127.0.0.1:1/elsewhere"}
    mails = record(file, Action.QUARANTINE, times=2)
    with delivering(file, webhook(receiver), max_attempts=2):
        until(lambda: len(receiver.requests) >= 5, "some attempts")
        receiver.answer = lambda receiver, event: 200
        until(lambda: waiting(file) == 0, "the outbox to be empty")
    check_complete(receiver, mails, ["mail.decided", "mail.quarantined"])


def test_a_redirect_is_not_followed(file: Database, receiver: Receiver) -> None:
    """Events must not go to somebody whom the operator did not name."""
    elsewhere = Receiver()
    elsewhere.start()
    receiver.answer, receiver.headers = (lambda receiver, event: 302), {"location": elsewhere.url}
    record(file, Action.RELAY)
    with delivering(file, webhook(receiver)):
        until(lambda: len(receiver.requests) >= 2, "two attempts")
    elsewhere.stop()
    assert not elsewhere.requests and waiting(file) == 1


def test_a_receiver_that_hangs_or_closes_loses_nothing(file: Database, receiver: Receiver) -> None:
    """The connection ends without an answer: nobody knows whether the event arrived, so it is sent again."""
    turn = iter(range(1000))

    def misbehave(receiver: Receiver, event: dict[str, Any]) -> int | None:
        match next(turn) % 3:
            case 0:
                receiver.let_go.wait(5)
                return None
            case 1:
                return None
        return 200

    receiver.answer = misbehave
    mails = record(file, Action.QUARANTINE, times=3)
    with delivering(file, webhook(receiver, timeout_s=0.2)):
        until(lambda: len(receiver.requests) >= 6, "some attempts")
        receiver.answer = lambda receiver, event: 200
        until(lambda: waiting(file) == 0, "the outbox to be empty")
    check_complete(receiver, mails, ["mail.decided", "mail.quarantined"])


def test_a_slow_receiver_does_not_slow_mail(file: Database, receiver: Receiver) -> None:
    """All reports are written while it has not answered the first; in the end it has everything."""

    def slowly(receiver: Receiver, event: dict[str, Any]) -> int:
        assert receiver.let_go.wait(60)
        return 200

    receiver.answer = slowly
    lost = Lost()
    one = recorder(file, lost)
    with delivering(file, webhook(receiver, timeout_s=60.0)) as delivery:
        one.on_written = delivery.wake
        one.start()
        one.put(mail(Action.RELAY))
        until(lambda: receiver.requests, "the first event to be sent")
        for _ in range(199):
            one.put(mail(Action.RELAY))
        one.close()
        assert waiting(file) == 200 and not lost and not receiver.events
        receiver.let_go.set()
        until(lambda: len(receiver.events) == 200, "all events")


def test_410_is_asked_once_an_hour(file: Database, receiver: Receiver) -> None:
    """Until the operator says that it may be asked again: nothing is lost."""
    receiver.answer = lambda receiver, event: 410
    record(file, Action.RELAY)
    with delivering(file, webhook(receiver)):
        until(lambda: receiver.requests, "the first attempt")
        outbox = Outbox(file)
        until(lambda: "410" in outbox.states()[0].problem, "the answer to be recorded")
        record(file, Action.RELAY)  # news do not change that
        with pytest.raises(AssertionError, match="waited"):
            until(lambda: len(receiver.requests) > 1, "another attempt", 1.5)  # three times the longest pause
        receiver.answer = lambda receiver, event: 200
        outbox.retry(None, [])
        until(lambda: len(receiver.events) == 2, "both events")
        outbox.close()


def test_the_receiver_says_how_long_to_wait(file: Database, receiver: Receiver) -> None:
    """Retry-After with 429 or 503."""
    receiver.answer, receiver.headers = (lambda receiver, event: 429), {"retry-after": "2"}
    record(file, Action.RELAY)
    with delivering(file, webhook(receiver)):
        until(lambda: len(receiver.requests) >= 2, "two attempts")
    (first, _), (second, _) = receiver.requests[:2]
    assert second - first >= 2


def test_an_event_that_is_refused_while_others_pass_becomes_a_dead_letter(file: Database, receiver: Receiver) -> None:
    """The others do not wait for it, and it can be sent again."""
    mails = record(file, Action.QUARANTINE, times=10)
    poison = mails[0]
    receiver.answer = lambda receiver, event: 500 if event["data"]["id"] == poison else 200
    outbox = Outbox(file)
    with delivering(file, webhook(receiver), max_attempts=2):
        until(lambda: len(outbox.dead()) >= 1, "the dead letter")
        until(lambda: len({event["data"]["id"] for event in receiver.events}) == 9, "the others")
        receiver.answer = lambda receiver, event: 200
        until(lambda: waiting(file) == 0, "the outbox to be empty")
        dead = outbox.dead()
        assert dead[-1].about == poison and dead[-1].attempts == 2 and "500" in dead[-1].problem
        outbox.retry(None, None)
        until(lambda: waiting(file) == 0, "the dead letter to be delivered")
    outbox.close()
    assert {event["data"]["id"] for event in receiver.events} == set(mails)
    assert len(set(receiver.ids())) == 20


def test_a_sink_is_not_failing_because_of_a_dead_letter(file: Database, receiver: Receiver) -> None:
    """Nothing waits any more, so there is nothing that an operator could wait for."""
    poison = record(file, Action.QUARANTINE)[0]
    receiver.answer = lambda receiver, event: 500 if event["data"]["id"] == poison else 200
    outbox = Outbox(file)
    with delivering(file, webhook(receiver), max_attempts=1):
        until(lambda: outbox.states()[0].failing_since, "the first refusal")
        record(file, Action.QUARANTINE)
        until(outbox.dead, "the dead letter")
        until(lambda: waiting(file) == 0, "the outbox to be empty")
        (state,) = outbox.states()
    outbox.close()
    assert (state.dead, state.problem, state.failing_since) == (2, "", 0.0)  # its end, and that it was quarantined


def test_an_outbox_that_cannot_be_written_repeats_nothing(file: Database, receiver: Receiver) -> None:
    """What was delivered is remembered until the outbox can be told."""
    record(file, Action.RELAY, times=5)
    assert file.path is not None
    locked = threading.Event()
    holder = sqlite3.connect(file.path, isolation_level=None, check_same_thread=False)

    def lock(receiver: Receiver, event: dict[str, Any]) -> int:
        if not locked.is_set():
            locked.set()
            holder.execute("BEGIN IMMEDIATE")
        return 200

    receiver.answer = lock
    with delivering(file, webhook(receiver)) as delivery:
        delivery.outbox.wait_s = 0.1
        until(lambda: delivery.problem, "the lock to be noticed")
        until(lambda: len(receiver.events) == 5, "all events")
        holder.execute("COMMIT")
        until(lambda: waiting(file) == 0, "the outbox to be empty")
    holder.close()
    assert max(Counter(receiver.ids()).values()) == 1


def test_one_of_two_processes_delivers_and_the_other_takes_over(place: Database, receiver: Receiver) -> None:
    """With PostgreSQL, on another machine."""
    outbox = Outbox(place)
    with delivering(place, webhook(receiver)) as first:
        put(place, entry(event_id="e1", body=_body("e1")))
        until(lambda: len(receiver.events) == 1, "the first event")
        with delivering(place, webhook(receiver)) as second:
            for number in range(2, 30):
                put(place, entry(event_id=f"e{number}", body=_body(f"e{number}")))
            until(lambda: len(receiver.events) == 29, "all events")
            assert outbox.states()[0].owner == first.owner
            first.close()
            put(place, entry(event_id="e30", body=_body("e30")))
            until(lambda: len(receiver.events) == 30, "the last event")
            assert outbox.states()[0].owner == second.owner
    outbox.close()
    assert receiver.ids() == [f"e{number}" for number in range(1, 31)]  # all about one mail: in order


def _body(event_id: str) -> bytes:
    return Event("mail.decided", {"id": "m1"}, 0.0, event_id, "m1").to_json("h")


def test_a_receiver_may_ask_for_ocsf(file: Database, receiver: Receiver) -> None:
    """The signature is that of what is sent."""
    record(file, Action.RELAY)
    with delivering(file, webhook(receiver), is_ocsf=True):
        until(lambda: receiver.events, "the event")
    assert receiver.events[0]["class_uid"] == 4009


def test_an_event_of_a_newer_version_stopped_all_others(file: Database, receiver: Receiver) -> None:
    """During an upgrade, two versions share an outbox. A type that the older one did not know ended each round of its
    sink with an unexpected error, and nothing was delivered any more."""
    outbox = Outbox(file)
    unknown = Entry("s", "new", "mail.recalled", "m1", time.time(), b'{"type": "mail.recalled", "data": {"id": "m1"}}')
    outbox.add([unknown], {"s": ROOMY})
    outbox.close()
    mails = record(file, Action.RELAY, times=3)
    with delivering(file, webhook(receiver), is_ocsf=True):
        until(lambda: len(receiver.events) >= 3, "the other events")
    assert {event["metadata"]["correlation_uid"] for event in receiver.events} == set(mails)
    outbox = Outbox(file)
    (left,) = outbox.find("new")
    outbox.close()
    assert "cannot convert events of type mail.recalled" in left.problem
