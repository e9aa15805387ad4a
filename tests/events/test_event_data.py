"""What events say: the schema, the OCSF mapping, hidden addresses."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config.events import EventTypeName, Facility
from bridge.errors import ScanUnavailable
from bridge.events import event as made
from bridge.events.event import Event, EventType, Release, Report, ScannerState, of_mail, types_of
from bridge.events.ocsf import CLASSES, DISPOSITIONS, EMAIL, convert
from bridge.events.schema import MAIL, TYPES, json_schema
from bridge.events.sinks.syslog import FACILITIES
from bridge.filter.late.decisions import LateStatus
from bridge.filter.outcome import Outcome, Record
from bridge.mail.action import Action
from bridge.mail.list_match import ListAction, ListMatch
from bridge.mail.reply import Reply
from bridge.observe.redaction import FULL, Redaction
from tests.events.events_kit import mail
from tests.events.ocsf_kit import problems_of

VALIDATOR = jsonschema_rs.Draft202012Validator(json_schema(), validate_formats=True)


def read(event: Event) -> dict[str, Any]:
    """As a receiver sees it, after the schema has accepted it."""
    found: dict[str, Any] = json.loads(event.to_json("bridge.example"))
    VALIDATOR.validate(found)
    return found


def full_record(text: str = "jane@example.org") -> Record:
    record = mail(Action.REJECT, recipients=[text, "b@example.org"])
    replies = (Reply(250, "2.0.0", "ok"), Reply(550, "5.1.1", f"no {text} here"))
    assert record.outcome is not None
    record.outcome = Outcome(Action.REJECT, replies[1], record.outcome.result, (), replies)
    record.error = ScanUnavailable(f"of {text}")
    record.listed = ListMatch("blocked", text, ListAction.REFUSED)
    record.would, record.late, record.unscanned, record.next_id = Action.RELAY, LateStatus.HIT, "list", "N1"
    record.tenant, record.message_id = "11111111-2222-4333-8444-555555555555", f"<{text}>"
    return record


@pytest.mark.parametrize(
    ("record", "types"),
    [
        (mail(Action.RELAY), ["mail.decided"]),
        (mail(Action.DISCARD), ["mail.decided"]),
        (mail(Action.REJECT), ["mail.decided", "mail.refused"]),
        (mail(Action.TEMPFAIL), ["mail.decided", "mail.refused"]),
        (mail(Action.QUARANTINE), ["mail.decided", "mail.quarantined"]),
        (mail(Action.HOLD), ["mail.decided", "mail.quarantined"]),
    ],
    ids=lambda value: str(value.outcome.action) if isinstance(value, Record) else None,
)
def test_each_action_has_its_events(record: Record, types: list[str]) -> None:
    """One `mail.decided` for every mail, then what else is true of it."""
    assert types_of(record) == types


def test_a_copy_a_door_and_a_lost_client_have_their_events() -> None:
    """A copy in the quarantine, a refusal at RCPT, a client that disconnected."""
    copy = mail(Action.RELAY)
    copy.is_kept = True
    assert types_of(copy) == ["mail.decided", "mail.quarantined"]
    door = mail(Action.REJECT)
    door.at = "rcpt"
    assert types_of(door) == ["mail.refused"]
    gone = mail()
    gone.outcome = None
    assert types_of(gone) == ["mail.decided"]
    (event,) = of_mail(gone, EventType, FULL, 0.0)
    assert read(event)["data"]["action"] == "cancelled"


def test_every_field_of_the_schema_can_occur() -> None:
    """The schema describes no field that no event has, and no event has a field that it does not describe."""
    record = full_record()
    client = record.tx.session.client
    object.__setattr__(client, "login", "jane@example.org")
    (decided, refused) = of_mail(record, EventType, FULL, 1_700_000_000.25)
    found = read(decided)
    assert set(found["data"]) == set(MAIL)
    assert found["time"] == "2023-11-14T22:13:20.250Z" and found["source"] == "bridge.example"
    assert read(refused)["data"] == found["data"] and refused.id != decided.id
    others = {
        EventType.RELEASED: made.released(Release("I", "", ("b@x.org",), "root", "250 ok", "mx", "t"), FULL, 0.0),
        EventType.LIST_CHANGED: made.list_changed("blocked", "t", 2, 1, 0.0),
        EventType.SCANNER_STATE: made.scanner_state("http://s", ScannerState.DOWN, ScannerState.UP, "why", 0.0),
        made.TEST: made.trial("s", "root", 0.0),
    }
    for type_, event in others.items():
        assert set(read(event)["data"]) == set(TYPES[type_][1])


def test_the_state_of_the_scanner_showed_addresses_that_the_log_hides() -> None:
    """A scanner that answers with text is down, and the problem quotes the text."""
    problem = "the answer cannot be read: 'text/plain', 'mail from jane@example.org'"
    event = made.scanner_state("http://s", ScannerState.DOWN, None, problem, 0.0, Redaction("domain"))
    assert event.data["problem"] == "the answer cannot be read: 'text/plain', 'mail from *@example.org'"


def test_the_schema_refuses_what_is_not_an_event() -> None:
    """It can fail."""
    found = read(next(of_mail(mail(), EventType, FULL, 0.0)))
    assert not VALIDATOR.is_valid({**found, "type": "mail.lost"})
    assert not VALIDATOR.is_valid({**found, "data": {**found["data"], "action": "eaten"}})
    assert not VALIDATOR.is_valid({**found, "data": {}})


@pytest.mark.parametrize("mode", ["domain", "hashed"])
def test_no_event_shows_an_address_that_the_log_hides(mode: Any) -> None:
    """Whatever field it is in, and in a release, too: people who release their own mail were named by their address."""
    redaction = Redaction(mode, b"k" * 32)
    record = full_record("jane.doe@example.org")
    object.__setattr__(record.tx.session.client, "login", "jane.doe@example.org")
    texts = [event.to_json("s") for event in of_mail(record, EventType, redaction, 0.0)]
    release = Release(
        *("I", "jane.doe@example.org", ("jane.doe@example.org",)),
        *("user jane.doe@example.org", "250 <jane.doe@example.org> ok"),
    )
    texts.append(made.released(release, redaction, 0.0).to_json("s"))
    assert len(texts) == 3 and not [text for text in texts if b"jane" in text]
    assert all(b"example.org" in text for text in texts) == (mode == "domain")


@given(st.text(), st.integers(0, 300))
def test_any_text_gives_a_valid_event(text: str, recipients: int) -> None:
    """Lone surrogates, control characters, thousands of recipients: strict JSON that fits the schema."""
    record = full_record(text + "\udcff\x00\u2028")
    object.__setattr__(record.tx.envelope, "recipients", record.tx.envelope.recipients[:1] * recipients)
    assert record.outcome is not None
    record.outcome = Outcome(Action.REJECT, record.outcome.reply, record.outcome.result)
    for event in of_mail(record, EventType, FULL, 0.0):
        body = event.to_json("bridge.example")
        body.decode("utf-8")
        assert b"\n" not in body and len(body) < 400_000
        assert read(event)["data"]["recipient_count"] == recipients


# OCSF


@pytest.mark.parametrize("action", [*Action, None])
def test_mail_becomes_email_activity(action: Action | None) -> None:
    """With the ids that OCSF requires, and nothing lost: what it has no word for is in `unmapped`."""
    record = mail(action or Action.RELAY)
    if action is None:
        record.outcome = None
    for event in of_mail(record, EventType, FULL, 1_700_000_000.25):
        ours = json.loads(event.to_json("bridge.example"))
        ocsf = convert(ours)
        assert (ocsf["class_uid"], ocsf["category_uid"], ocsf["type_uid"]) == (4009, 4, 400903)
        assert ocsf["activity_id"] == 3 and ocsf["time"] == 1_700_000_000_250 and ocsf["severity_id"] in (1, 2)
        assert ocsf["metadata"]["uid"] == event.id and ocsf["metadata"]["correlation_uid"] == record.tx.id
        assert ocsf["metadata"]["version"] and ocsf["metadata"]["product"]["name"] == "scanbridge"
        assert ocsf["direction_id"] == 0 and ocsf["email"]["to"] == ["b@example.org"]
        assert ocsf["disposition_id"] == DISPOSITIONS[action or "cancelled"][1]
        assert set(ours["data"]) <= set(ocsf["unmapped"]) | set(EMAIL)


def test_other_events_have_their_classes() -> None:
    """A release is mail; a list is an entity; a scanner host is an application."""
    release = made.released(Release("I", "", ("b@x.org",), "root", "250 ok"), FULL, 0.0)
    converted = convert(read(release))
    assert converted["disposition"] == "Restored" and converted["class_uid"] == 4009
    assert "from" not in converted["email"]  # the null sender is no address
    changed = convert(read(made.list_changed("blocked", None, 2, 1, 0.0)))
    assert (changed["class_uid"], changed["type_uid"], changed["entity"]["name"]) == (3004, 300403, "blocked")
    down = convert(read(made.scanner_state("http://s", ScannerState.DOWN, None, "why", 0.0)))
    assert (down["class_uid"], down["type_uid"], down["status_detail"]) == (6002, 600204, "why")
    full = convert(read(made.scanner_state("http://s", ScannerState.SATURATED, None, "", 0.0)))
    assert full["activity_id"] == 99
    assert convert(read(made.trial("s", "root", 0.0)))["class_uid"] == 0
    assert set(CLASSES) == set(TYPES)


def test_the_configuration_knows_all_types_and_facilities() -> None:
    """They are written twice, because the configuration imports nothing of the events."""
    assert list(get_args(EventTypeName)) == [str(type_) for type_ in EventType]
    assert set(get_args(Facility)) == set(FACILITIES)


@pytest.mark.parametrize("action", [*Action, None])
def test_ocsf_itself_accepts_events_about_mail(action: Action | None) -> None:
    """An event with a number for "other" did not say what it was."""
    records = [mail(action or Action.RELAY), full_record()]
    for record in records:
        record.outcome = record.outcome if action else None
        for event in of_mail(record, EventType, FULL, 1_700_000_000.25):
            assert problems_of(convert(read(event))) == []


@pytest.mark.parametrize("address", [None, "192.0.2.7", "2001:db8::1"])
def test_ocsf_itself_accepts_a_client_with_any_address(address: str | None) -> None:
    record = mail()
    object.__setattr__(record.tx.session.client, "address", address)
    (event,) = of_mail(record, EventType, FULL, 0.0)
    assert problems_of(convert(read(event))) == []


def test_ocsf_itself_accepts_all_other_events() -> None:
    """Every state of a scanner; a report, which was called a failure; and the test."""
    states = [made.scanner_state("http://s", state, None, "", 0.0) for state in ScannerState]
    report = made.reported(Report("I", "", (), "ann", "spam", "learned"), FULL, 0.0)
    release = made.released(Release("I", "", ("b@x.org",), "root", "250 ok"), FULL, 0.0)
    changes = [made.list_changed("blocked", tenant, 2, before, 0.0) for tenant, before in ((None, None), ("t", 1))]
    for event in (*states, report, release, *changes, made.trial("s", "root", 0.0)):
        assert problems_of(convert(read(event))) == [], event.type
    assert convert(read(report))["status_id"] == 1
