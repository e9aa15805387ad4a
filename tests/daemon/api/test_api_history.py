"""What is asked is found: every filter of `/api/v1/history`, whole pages, single mails, statistics, tenants.

A real daemon with real SMTP clients writes the history, in both databases.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bridge.daemon import wiring
from bridge.history.entry import LaterEvent
from bridge.testing import RunningBridge, SmtpClient, answer, until
from tests.daemon.api.api_kit import ALL, BOTH, ONLY_A, TENANT_A, TENANT_B, ask, bridge, mails, pages, send

in_both_databases = pytest.mark.parametrize("state_database", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def running(tmp_path: Path, state_database: str) -> Iterator[RunningBridge]:
    with bridge(tmp_path, {"state_database": state_database}) as found:
        yield found


def subjects(found: list[dict[str, Any]]) -> list[str]:
    return [mail["subject"] for mail in found]


@in_both_databases
def test_each_filter_finds_its_mails(running: RunningBridge) -> None:
    """By sender, recipient, either, client, subject, tag, action, decision, rule, listener, tenant, time and ids."""
    port = running.admin_port
    send(running, "jane@a.example", "john@client.example", "One apple", "<one@client.example>", tags=["fruit:apple"])
    send(running, "joe@b.example", "jane@a.example", "Two pears", "<two@client.example>", decision="quarantine",
         ggrid="99999999-2222-4333-8444-555555555555", tags=["fruit:pear", "big"])  # fmt: skip
    between = datetime.now(UTC)
    until(lambda: datetime.now(UTC) > between, "the clock")
    send(running, "joe@b.example", "", "Three plums", decision="bounce", tags=["odd"])
    three, two, one = mails(port, 3)
    later = (between + timedelta(hours=2)).isoformat().replace("+00:00", "-00:00")
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["Three plums", "Two pears", "One apple"]),
        ({"sender": "john@client.example"}, ["One apple"]),
        ({"sender": "JOHN@CLIENT.example"}, ["One apple"]),
        ({"sender": "john@CLIENT.example."}, ["One apple"]),
        ({"sender": "client.example"}, ["One apple"]),
        ({"sender": "@a.example"}, ["Two pears"]),
        ({"sender": "<>"}, ["Three plums"]),
        ({"recipient": "jane@a.example"}, ["One apple"]),
        ({"recipient": "b.example"}, ["Three plums", "Two pears"]),
        ({"address": "jane@a.example"}, ["Two pears", "One apple"]),
        ({"client": "127.0.0.1"}, ["Three plums", "Two pears", "One apple"]),
        ({"client": "127.0.0.0/8"}, ["Three plums", "Two pears", "One apple"]),
        ({"client": "::ffff:127.0.0.1", "limit": 1}, ["Three plums"]),
        ({"client": "192.0.2.1"}, []),
        ({"client": "192.0.2.0/24"}, []),
        ({"client": "2001:db8::/32"}, []),
        ({"subject": "pea*"}, ["Two pears"]),
        ({"subject": "PEARS two"}, ["Two pears"]),
        ({"subject": "ears"}, []),
        ({"tag": "fruit:apple"}, ["One apple"]),
        ({"tag": "fruit:*"}, ["Two pears", "One apple"]),
        ({"tag": "*dd"}, ["Three plums"]),
        ({"action": "reject"}, ["Three plums"]),
        ({"action": "cancelled"}, []),
        ({"decision": "quarantine"}, ["Two pears"]),
        ({"rule": "policy.bounce"}, ["Three plums"]),
        ({"listener": "test", "limit": 2}, ["Three plums", "Two pears"]),
        ({"listener": "other"}, []),
        ({"tenant": TENANT_B}, ["Three plums", "Two pears"]),
        ({"tenant": TENANT_A.upper()}, ["One apple"]),
        ({"tenant": "none"}, []),
        ({"stage": "rcpt"}, []),
        ({"since": between.isoformat()}, ["Three plums"]),
        ({"until": between.isoformat()}, ["Two pears", "One apple"]),
        ({"since": "1h", "until": later}, ["Three plums", "Two pears", "One apple"]),
        ({"until": "1h"}, []),
        ({"what": one["id"]}, ["One apple"]),
        ({"what": two["session"]}, ["Two pears"]),
        ({"what": "<two@client.example>"}, ["Two pears"]),
        ({"what": "two@client.example"}, ["Two pears"]),
        ({"what": "NEXT1"}, ["One apple"]),
        ({"what": two["ggrid"]}, ["Two pears"]),
        ({"what": "nothing"}, []),
        ({"attempt": "nothing"}, []),
        ({"sender": "@a.example", "tag": "big", "decision": "quarantine", "tenant": TENANT_B}, ["Two pears"]),
        ({"sender": "@a.example", "tag": "odd"}, []),
    ]  # fmt: skip
    for query, expected in cases:
        found = ask(port, "/api/v1/history", **query)
        assert found.status == 200, (query, found.body)
        assert subjects(found.json["mails"]) == expected, query
    assert {"time", "id", "reply", "size", "rule"} <= three.keys()
    assert datetime.fromisoformat(three["time"]).tzinfo is not None


def test_pages_have_no_gaps_and_no_repeats_while_mail_arrives(running: RunningBridge) -> None:
    """Whoever follows `next` sees every mail that was there at the first page exactly once."""
    port, stop = running.admin_port, threading.Event()
    with running.client() as client:
        client.open()
        for _ in range(60):
            client.mail()
    known = {mail["id"] for mail in mails(port, 60, limit=1000)}

    def keep_sending() -> None:
        while not stop.is_set():
            with SmtpClient(running.port) as client:
                client.open()
                for _ in range(50):
                    client.mail()

    sender = threading.Thread(target=keep_sending)
    sender.start()
    try:
        for limit in (1, 7, 59, 1000):
            seen = [mail["id"] for page in pages(port, limit, until=_newest(port, known)) for mail in page]
            assert len(seen) == len(set(seen)) and known <= set(seen)
            followed = [mail["id"] for page in pages(port, max(limit, 50)) for mail in page]
            assert len(followed) == len(set(followed)) and known <= set(followed)
    finally:
        stop.set()
        sender.join()
    sizes = [len(page) for page in pages(port, 50, until=_newest(port, known))]
    assert all(size == 50 for size in sizes[:-1])


def _newest(port: int, known: set[str]) -> str:
    """A time just after the last of these mails."""
    (found,) = (mail for page in pages(port, 1000) for mail in page if mail["id"] == max(known))
    return (datetime.fromisoformat(found["time"]) + timedelta(milliseconds=1)).isoformat()


def test_the_last_page_says_that_it_is_the_last(running: RunningBridge) -> None:
    """Also when it is full, and when there is none."""
    port = running.admin_port
    assert ask(port, "/api/v1/history").json == {"mails": [], "next": None}
    for _ in range(4):
        send(running)
    mails(port, 4)
    assert [len(page) for page in pages(port, 2)] == [2, 2]
    assert [len(page) for page in pages(port, 3)] == [3, 1]
    assert [len(page) for page in pages(port, 4)] == [4]


@in_both_databases
def test_a_mail_is_told_with_its_attempts_and_its_place_in_the_quarantine(running: RunningBridge) -> None:
    """Deferred, then quarantined: one question tells both."""
    port = running.admin_port
    for decision in ("undecided", "quarantine"):
        send(running, message_id="<again@client.example>", decision=decision)
    kept, deferred = mails(port, 2)
    assert (deferred["action"], kept["action"]) == ("tempfail", "quarantine")
    story = ask(port, f"/api/v1/mails/{kept['id']}").json
    assert [mail["id"] for mail in story["mails"]] == [kept["id"]]
    assert [mail["id"] for mail in story["attempts"]] == [deferred["id"]]
    assert [(held["id"], held["state"]) for held in story["quarantine"]] == [(kept["id"], "kept")]
    assert story["later"] == []
    other = ask(port, f"/api/v1/mails/{deferred['id']}").json
    assert [mail["id"] for mail in other["attempts"]] == [kept["id"]]
    assert other["quarantine"] == story["quarantine"]
    assert ask(port, "/api/v1/history", attempt=kept["attempt"]).json["mails"] == [kept, deferred]


@in_both_databases
def test_what_happened_later_is_told(running: RunningBridge) -> None:
    """Whatever notes it: a command, or the daemon; in order, and only to those who may see the mail."""
    port = running.admin_port
    send(running, decision="quarantine")
    send(running, "joe@b.example", decision="quarantine")
    of_b, of_a = mails(port, 2)
    store = wiring.history(running.daemon.config, running.directory / "state")
    store.note([
        LaterEvent(2.5, of_a["id"], "released", "me", "250 Ok"),
        LaterEvent(1.0, of_a["id"], "reported"),
        LaterEvent(1.0, of_b["id"], "deleted"),
    ])  # fmt: skip
    store.close()
    reported = {"time": "1970-01-01T00:00:01.000+00:00", "id": of_a["id"], "event": "reported"}
    released = {"time": "1970-01-01T00:00:02.500+00:00", "id": of_a["id"], "event": "released", "by": "me"}
    story = f"/api/v1/mails/{of_a['id']}"
    assert ask(port, story).json["later"] == [reported, released | {"text": "250 Ok"}]
    assert ask(port, story, ONLY_A).json["later"] == [reported, released]  # without the words of the next hop
    assert ask(port, f"/api/v1/mails/{of_b['id']}", ONLY_A).status == 404


def test_refusals_without_a_mail_are_found_by_their_stage(tmp_path: Path, state_database: str) -> None:
    """They have no id and no tenant, so only a token for all mail shows them."""
    with bridge(tmp_path, {"state_database": state_database}, trusted_clients=["127.0.0.1/32"]) as running:
        for _ in range(3):
            with running.client("127.0.0.2") as client:
                client.open()
                assert client.say(b"MAIL FROM:<eve@stranger.example>")[0].startswith(b"5")
        port = running.admin_port
        until(lambda: _refused(port) == 3, "the refusals")
        for mail in ask(port, "/api/v1/history", stage="mail").json["mails"]:
            assert mail["client"] == "127.0.0.2" and mail["action"] == "reject" and "tenant" not in mail
        assert ask(port, "/api/v1/history", BOTH).json["mails"] == []
        assert ask(port, "/api/v1/stats", BOTH, by="client").json["sums"] == []
        assert ask(port, "/api/v1/stats", by="client").json["sums"][0]["mails"] == 3
        assert ask(port, "/api/v1/history", stage="mail", tenant="none").json["mails"]


def _refused(port: int) -> int:
    return sum(mail.get("mails", 1) for mail in ask(port, "/api/v1/history", stage="mail").json.get("mails", ()))


def test_an_id_of_ours_is_not_confused_with_a_message_id(running: RunningBridge) -> None:
    """Anybody can send a mail whose Message-ID looks like an id of ours."""
    port = running.admin_port
    send(running, subject="the mail")
    (real,) = mails(port, 1)
    for _ in range(3):
        send(running, subject="an impostor", message_id=f"<{real['id']}>")
    mails(port, 4)
    story = ask(port, f"/api/v1/mails/{real['id']}").json
    assert subjects(story["mails"]) == ["the mail"] and story["attempts"] == []


@in_both_databases
def test_statistics_count_by_everything(running: RunningBridge) -> None:
    """The same numbers as a list of the mails gives."""
    port = running.admin_port
    for number in range(3):
        send(running, f"{number}@a.example", tags=["x", "y"])
    send(running, "1@b.example", "", decision="bounce", tags=[])
    found = mails(port, 4)
    hour = f"{found[0]['time'][:13]}:00:00Z"
    expected = {
        "action": {"relay": 3, "reject": 1},
        "decision": {"deliver": 3, "bounce": 1},
        "rule": {"policy.deliver": 3, "policy.bounce": 1},
        "tag": {"x": 3, "y": 3},
        "sender": {"john@client.example": 3, "": 1},
        "recipient": {"0@a.example": 1, "1@a.example": 1, "2@a.example": 1, "1@b.example": 1},
        "client": {"127.0.0.1": 4},
        "listener": {"test": 4},
        "tenant": {TENANT_A: 3, TENANT_B: 1},
        "hour": {hour: 4},
        "day": {hour[:10]: 4},
    }
    for by, sums in expected.items():
        counted = ask(port, "/api/v1/stats", by=by)
        assert counted.status == 200, counted.body
        if found[-1]["time"][:13] == found[0]["time"][:13]:  # all in one hour
            assert {each["label"]: each["mails"] for each in counted.json["sums"]} == sums, by
        assert counted.json["left_out"] == 0
    assert [each["label"] for each in ask(port, "/api/v1/stats", by="hour", limit=1).json["sums"]] == [hour]
    largest = ask(port, "/api/v1/stats", by="decision", limit=1).json
    assert [each["label"] for each in largest["sums"]] == ["deliver"] and largest["left_out"] == 1
    assert ask(port, "/api/v1/stats", by="decision", tenant=TENANT_B).json["sums"][0]["label"] == "bounce"
    assert ask(port, "/api/v1/stats", by="decision", until="1h").json["sums"] == []
    sizes = {each["label"]: each["size"] for each in ask(port, "/api/v1/stats", by="tenant").json["sums"]}
    assert sizes[TENANT_B] == sum(mail["size"] for mail in found if mail["tenant"] == TENANT_B)


@in_both_databases
def test_tenants_see_their_own_mail_only(running: RunningBridge) -> None:
    """In lists, by id, by every key, in statistics; and a mail of others looks like one that never came."""
    port = running.admin_port
    send(running, "jane@a.example", subject="for a", message_id="<a@x.example>", decision="undecided", tags=["ta"])
    send(running, "joe@b.example", subject="for b", message_id="<b@x.example>", decision="quarantine", tags=["tb"])
    send(running, "eve@c.example", subject="for nobody", message_id="<c@x.example>", tags=["tc"])
    nobodys, of_b, of_a = mails(port, 3)
    assert "tenant" not in nobodys
    assert subjects(mails(port, 1, ONLY_A)) == ["for a"]
    assert subjects(mails(port, 2, BOTH)) == ["for b", "for a"]
    assert [len(page) for page in pages(port, 1, BOTH)] == [1, 1]
    for mail in (of_b, nobodys):
        hidden = ask(port, f"/api/v1/mails/{mail['id']}", ONLY_A)
        never = ask(port, "/api/v1/mails/1A1E3F3139AF066FEF9", ONLY_A)
        assert hidden.status == never.status == 404
        assert hidden.body.replace(mail["id"].encode(), b"ID") == never.body.replace(b"1A1E3F3139AF066FEF9", b"ID")
        for query in (
            {"what": mail["id"]}, {"what": mail["session"]}, {"what": mail["message_id"]}, {"tag": mail["tags"][0]},
            {"recipient": mail["recipients"][0]}, {"subject": mail["subject"]}, {"attempt": mail.get("attempt", "x")},
        ):  # fmt: skip
            seen = ask(port, "/api/v1/history", ONLY_A, **query).json["mails"]
            assert mail["id"] not in [each["id"] for each in seen], query
        assert ask(port, f"/api/v1/mails/{mail['id']}", ALL).status == 200
    for tenant in (TENANT_B, "none", "33333333-3333-4333-8333-333333333333"):
        for path, query in (("history", {}), ("stats", {"by": "day"})):
            refused = ask(port, f"/api/v1/{path}", ONLY_A, tenant=tenant, **query)
            assert (refused.status, refused.json["error"]) == (403, "forbidden")
    assert ask(port, "/api/v1/history", BOTH, tenant=TENANT_B).json["mails"] == [without_machines(of_b)]
    for by, labels in (("tenant", [TENANT_A]), ("recipient", ["jane@a.example"]), ("tag", ["ta"])):
        assert [each["label"] for each in ask(port, "/api/v1/stats", ONLY_A, by=by).json["sums"]] == labels
    both = ask(port, "/api/v1/stats", BOTH, by="client").json["sums"]
    assert both == [{"label": "127.0.0.1", "mails": 2, "size": of_a["size"] + of_b["size"]}]
    assert ask(port, f"/api/v1/mails/{of_a['id']}", ONLY_A).json["mails"] == [without_machines(of_a)]


def without_machines(mail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mail.items() if name != "scanner"}


@in_both_databases
def test_tenants_were_shown_machines_and_entries_of_the_deployments_lists(running: RunningBridge) -> None:
    """The console hides them from people of named tenants; the API showed them to everyone with a token."""
    port = running.admin_port
    entries = [{"listName": "blocked-senders", "entry": "@client.example"}]
    send(running, "jane@a.example", decision="bounce", tags=["list:blocked-senders"], listMatches=entries)
    running.scanner.reply = answer(500, b'{"error": "x", "message": "on node-7.internal"}')
    with running.client() as client:
        client.open()
        client.begin(b"<john@client.example>", b"<jane@a.example>")
        assert client.say(b"Subject: y\r\n\r\nx\r\n.")[0].startswith(b"451")
    failed, blocked = mails(port, 2)
    assert blocked["entries"] == {"blocked-senders": "@client.example"} and blocked["scanner"]
    assert "node-7.internal" in failed["why"]
    for mail in (failed, blocked):
        found = [ask(port, "/api/v1/history", ONLY_A), ask(port, f"/api/v1/mails/{mail['id']}", ONLY_A)]
        for shown in found:
            assert shown.status == 200 and mail["id"].encode() in shown.body
            assert not [word for word in (b'"scanner"', b'client.example"}', b"node-7") if word in shown.body]


@in_both_databases
def test_hostile_values_find_nothing_and_break_nothing(running: RunningBridge) -> None:
    """Whatever looks like SQL, a pattern or another language is looked for as text, in both databases."""
    port = running.admin_port
    send(running, tags=["x_y"])
    mails(port, 1)
    texts = [
        "'; DROP TABLE mail; --", "' OR '1'='1", '" OR 1=1 --', "%", "_", "\\", "%%(what)s", ":what", "{}", "$1",
        "\u202e\u2066", "\ufffd", "\U0001f600" * 200, "a" * 1000, "[", "]*[", "?", "(" * 500, "~", "@", "@@", "<", ">",
        "<<>>", "null", "undefined", "x\u0301", "\u0130", "\uff21\uff22", "\u2603.example", "xn--", "xn--\u2603",
        "@[IPv6:::1]", "#", "&",
    ]  # fmt: skip
    for text in texts:
        for name in ("what", "attempt", "sender", "recipient", "address", "rule", "listener", "tag"):
            found = ask(port, "/api/v1/history", **{name: text})
            assert (found.status, found.json) == (200, {"mails": [], "next": None}), (name, text, found.body)
        assert ask(port, "/api/v1/history", subject=text).status in (200, 400), text
        assert ask(port, "/api/v1/stats", by="tag", sender=text).json["sums"] == []
    assert len(mails(port, 1)) == 1


def test_a_mistake_names_its_parameter(tmp_path: Path) -> None:
    """With what is expected, and with the name that was probably meant; and the status is never 500."""
    with bridge(tmp_path) as running:
        port = running.admin_port
        for query, parameter, said in MISTAKES:
            path = "stats?by=day&" if query.startswith("STATS&") else "history?"
            found = ask(port, f"/api/v1/{path}{query.removeprefix('STATS&')}")
            assert found.status == 400, (query, found.body)
            assert found.json["parameter"] == parameter, query
            assert said in found.json["message"], (query, found.json["message"])
        missing = ask(port, "/api/v1/stats").json
        assert missing["parameter"] == "by" and "required" in missing["message"]
        wrong = ask(port, "/api/v1/stats?by=dicision").json
        assert wrong["message"].endswith("did you mean decision?")
        assert ask(port, "/api/v1/mails/ABC?x=1").json["error"] == "unknown_parameter"
        assert ask(port, "/api/v1/openapi.json?x=1").status == 400


MISTAKES = [
    ("sendr=x", "sendr", "did you mean sender?"),
    ("Sender=x", "Sender", "did you mean sender?"),
    ("by=day", "by", "there is no parameter by"),
    ("STATS&before=1:A", "before", "there is no parameter before"),
    ("sender=a&sender=a", "sender", "twice"),
    ("sender=a&recipient=b&s%65nder=c", "sender", "twice"),
    ("sender=", "sender", "<> for the null sender"),
    ("sender", "sender", "empty"),
    ("what=%00", "what", "control"),
    ("what=a%0d%0ab", "what", "control"),
    ("what=%ff", "what", "UTF-8"),
    ("what=%ed%a0%80", "what", "UTF-8"),
    ("%ff=x", "%ff", "UTF-8"),
    (f"what={'x' * 1001}", "what", "1000 characters"),
    (f"what={'x' * 60000}", "what", "1000 characters"),
    (f"{'x' * 60000}=1", "x" * 50, "there is no parameter xxx"),
    ("%00=1", "this name", "there is no parameter"),
    ("=1", "this name", "there is no parameter"),
    ("+=1", "this name", "there is no parameter"),
    ("sender=a;recipient=b&x", "x", "there is no parameter x"),
    ("limit=0", "limit", "from 1 to 1000"),
    ("limit=1001", "limit", "from 1 to 1000"),
    ("limit=-1", "limit", "from 1 to 1000"),
    ("limit=1e2", "limit", "from 1 to 1000"),
    ("limit=%D9%A3", "limit", "from 1 to 1000"),
    ("limit=99999999999999999999", "limit", "from 1 to 1000"),
    ("before=x", "before", "`next`"),
    ("before=nan:A", "before", "`next`"),
    ("before=inf:", "before", "`next`"),
    ("before=-1:A", "before", "`next`"),
    ("before=1:A'", "before", "`next`"),
    ("client=host.example", "client", "IP address"),
    ("client=192.0.2.256", "client", "IP address"),
    ("client=fe80::1%25eth0", "client", "IP address"),
    ("client=192.0.2.0/33", "client", "IP address"),
    ("action=relayed", "action", "did you mean relay?"),
    ("decision=deliverd", "decision", "did you mean deliver?"),
    ("stage=rctp", "stage", "did you mean rcpt?"),
    ("tenant=x", "tenant", "UUID"),
    ("since=yesterday", "since", "RFC 3339"),
    ("since=2026-11-16", "since", "RFC 3339"),
    ("since=2026-11-16T10:00:00", "since", "RFC 3339"),
    ("since=2026-02-30T10:00:00Z", "since", "RFC 3339"),
    ("until=1", "until", "RFC 3339"),
    ("until=nan", "until", "RFC 3339"),
    ("subject=%21%21", "subject", "letter"),
    ("STATS&limit=0", "limit", "from 1 to 1000"),
]


def test_times_may_be_written_in_all_ways_of_rfc_3339(tmp_path: Path) -> None:
    """Also those that programs seldom write: small letters, many digits, a leap second, the year 0."""
    with bridge(tmp_path) as running:
        for written in (
            "2026-11-16t10:00:00z", "2026-11-16 10:00:00Z", "2026-11-16T10:00:00.123456789012Z", "0000-01-01T00:00:00Z",
            "2016-12-31T23:59:60Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "999999w", "0s",
        ):  # fmt: skip
            for by in ({}, {"by": "hour"}):
                path = "/api/v1/stats" if by else "/api/v1/history"
                for name in ("since", "until"):
                    found = ask(running.admin_port, path, **{name: written}, **by)
                    assert found.status == 200, (written, found.body)
        unescaped = ask(running.admin_port, "/api/v1/stats?by=hour&since=2026-11-16T10:00:00+01:00")
        assert unescaped.json["since"] == "2026-11-16T09:00:00.000+00:00"
