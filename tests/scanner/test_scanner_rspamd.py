"""rspamd's dialect: what it is sent, what each answer means, and what a hostile answer cannot do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.api.changes import Changes
from bridge.api.scanning import AnalysisRequest, AnalysisResult, BorderMtaData, Decision, QueueStatus
from bridge.errors import ScanError, ScanMalformed, ScanRefused, ScanUnavailable
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client
from bridge.scanner.dialects.allowed_changes import KINDS
from bridge.scanner.dialects.rspamd import DECISIONS, Rspamd, RspamdSettings
from bridge.scanner.http import Answer
from tests.scanner import spoken
from tests.scanner.fault_server import MAIL, TOKEN, answer, faults, scanner_of, submit
from tests.scanner.spoken import SPOKEN

URL = "http://127.0.0.1:11333"
EVERYTHING = RspamdSettings(allowed=frozenset(KINDS))


@pytest.fixture(autouse=True)
def rspamd() -> Iterator[None]:
    spoken.choose(SPOKEN[1])
    yield
    spoken.choose(SPOKEN[0])


def reading(made: RspamdSettings = EVERYTHING, **found: Any) -> AnalysisResult:
    """What an answer with these members means."""
    body = json.dumps({"action": "no action", "score": 0.0, "symbols": {}, **found}).encode()
    return Rspamd(URL, TOKEN, made).result(Answer(200, {}, body))


def changes(**found: Any) -> Changes:
    return reading(**found).changes or Changes()


# The request


def request_bytes(request: AnalysisRequest, made: RspamdSettings = EVERYTHING, password: str = "") -> bytes:
    message = Message(Spool(1 << 20))
    message.write(MAIL)
    return b"".join(Rspamd(URL, password, made).submission(request, message, b"traceparent: x\r\n", b"id"))


def test_the_envelope_is_in_header_fields() -> None:
    """All that is known about the client, and the mail as the body."""
    border = BorderMtaData("a@example.org", ("b@example.org", "c@example.org"), "192.0.2.1", "client.example")
    request = AnalysisRequest(border, None, "ours", Client(ident="4X1Y", name="mx.client.example", login="alice"))
    head, _, body = request_bytes(request, RspamdSettings("mine"), "secret").partition(b"\r\n\r\n")
    assert body == MAIL
    assert head.decode().split("\r\n") == [
        "POST /checkv2 HTTP/1.1", "Host: 127.0.0.1:11333", "Password: secret", "Settings-ID: mine", "Milter: yes",
        "traceparent: x", "From: <a@example.org>", "Rcpt: <b@example.org>", "Rcpt: <c@example.org>", "IP: 192.0.2.1",
        "Helo: client.example", "Hostname: mx.client.example", "User: alice", "Queue-ID: 4X1Y",
        f"Content-Length: {len(MAIL)}",
    ]  # fmt: skip


def test_unknown_facts_are_left_out() -> None:
    """Without a password there is no field for one; the null sender is `<>`."""
    head = request_bytes(AnalysisRequest(BorderMtaData("", ("b@example.org",)))).partition(b"\r\n\r\n")[0]
    fields = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert fields == [b"Host", b"Milter", b"traceparent", b"From", b"Rcpt", b"Content-Length"]
    assert b"From: <>\r\n" in head


@given(st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_client_can_add_a_field_to_the_request(said: str) -> None:
    """Whatever a client puts into HELO, its addresses or its host name."""
    plain = request_bytes(AnalysisRequest(BorderMtaData("a", ("b",), "c", "d"), None, "e", Client(name="f", login="g")))
    request = AnalysisRequest(
        BorderMtaData(said, (said,), said, said), None, said or "e", Client(name=said, login=said)
    )
    odd = request_bytes(request)
    heads = [sent.partition(b"\r\n\r\n")[0] for sent in (plain, odd)]
    names = [[line.partition(b":")[0] for line in head.split(b"\r\n")] for head in heads]
    assert names[0] == names[1] and b"\0" not in heads[1] and heads[1].count(b"\n") == heads[0].count(b"\n")
    assert odd.endswith(b"\r\n\r\n" + MAIL)


# The answer


@pytest.mark.parametrize(("action", "decision"), DECISIONS.items())
def test_each_action_is_a_decision(action: str, decision: Decision) -> None:
    """As the table in docs/operate/dialects.md says; the action is the verdict."""
    found = reading(action=action)
    assert (found.decision, found.verdict) == (decision, action)


@pytest.mark.parametrize("action", ["Reject", "no action ", "accept", "my own", "invalid max action", "x" * 5000])
def test_an_unknown_action_is_undecided(action: str) -> None:
    """It is neither delivered nor refused for good."""
    found = reading(action=action)
    assert found.decision is Decision.UNDECIDED and len(found.verdict) <= 100


def test_the_operators_own_table_comes_first() -> None:
    """For custom actions, and for greylist without a greylisting module."""
    made = RspamdSettings(decisions={"greylist": Decision.DELIVER, "my own": Decision.QUARANTINE})
    assert reading(made, action="greylist").decision is Decision.DELIVER
    assert reading(made, action="my own").decision is Decision.QUARANTINE
    assert reading(made, action="reject").decision is Decision.BOUNCE


@pytest.mark.parametrize(
    ("action", "milter", "decision"),
    [
        ("reject", {"reject": "discard"}, Decision.DROP),
        ("reject", {"reject": "quarantine"}, Decision.QUARANTINE),
        ("reject", {"reject": "other"}, Decision.BOUNCE),
        ("reject", {"reject": ["discard"]}, Decision.BOUNCE),
        ("add header", {"reject": "discard"}, Decision.DELIVER),
        ("reject", {"no_action": True}, Decision.DELIVER),
        ("reject", {"no_action": "yes"}, Decision.BOUNCE),
        ("reject", [], Decision.BOUNCE),
    ],
)
def test_the_milter_part_may_change_the_decision(action: str, milter: Any, decision: Decision) -> None:
    """As rspamd's own proxy does."""
    assert reading(action=action, milter=milter).decision is decision


def test_symbols_are_tags() -> None:
    """After the score."""
    found = reading(score=6.5, required_score=15.0, symbols={"BAYES_SPAM": {"score": 5.1}, "R_SPF_ALLOW": {}})
    assert found.tags == ("score:6.50/15.00", "BAYES_SPAM", "R_SPF_ALLOW")
    assert reading(score=-1, required_score=None, is_skipped=True).tags == ("score:-1.00", "skipped")


def test_of_ten_thousand_symbols_those_that_weigh_most_are_kept() -> None:
    """A log line and a header field have room for some."""
    symbols = {f"S{number}": {"score": number if number % 2 else -number} for number in range(10_000)}
    tags = reading(symbols=symbols).tags
    assert len(tags) == 257 and tags[1:4] == ("S9999", "S9998", "S9997")
    tags = reading(symbols=symbols | {"CLAM_VIRUS": {"score": 0.0}, "PHISHED": {}}).tags
    assert len(tags) == 257 and tags[1:4] == ("CLAM_VIRUS", "PHISHED", "S9999")


def test_symbols_cannot_write_lines() -> None:
    """A tag is one printable word of at most 100 characters."""
    tags = reading(symbols={"A\r\nX: y": {}, "b\0\x1b[31m": {}, "c" * 1000: {}, "\u00e4": {}, "": {}}).tags[1:]
    assert tags == ("A??X: y", "b??[31m", "c" * 100, "?")


MALFORMED = {
    "empty": b"",
    "html": b"<html>",
    "list": b'[{"action": "no action"}]',
    "no action": b'{"score": 1}',
    "action null": b'{"action": null}',
    "action empty": b'{"action": ""}',
    "action a list": b'{"action": ["no action"]}',
    "action a number": b'{"action": 1}',
    "cut": b'{"action": "no action", "symbols": {"A":',
    "NaN": b'{"action": "no action", "score": NaN}',
    "nan": b'{"action": "no action", "score": nan}',
    "infinite": b'{"action": "no action", "score": Infinity}',
    "minus infinite": b'{"action": "no action", "score": -1e999}',
    "score a word": b'{"action": "no action", "score": "5"}',
    "score true": b'{"action": "no action", "score": true}',
    "two actions": b'{"action": "reject", "score": 1, "action": "no action"}',
    "digits": b'{"action": "no action", "score": ' + b"9" * 10_000 + b"}",
    "deep": b'{"action": "no action", "symbols": ' + b"[" * 200_000,
    "deep and closed": b'{"action": "no action", "symbols": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_an_answer_without_a_decision_is_malformed(body: bytes) -> None:
    """Status 200 alone does not deliver a mail."""
    async with faults(answer(200, body)) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanError):
            await submit(scanner)


def test_bytes_of_the_mail_that_are_not_utf8_do_not_matter() -> None:
    """rspamd repeats them in the options of symbols."""
    body = b'{"action": "reject", "symbols": {"A\xff": {"options": ["\xe4\xf6"]}}}'
    found = Rspamd(URL, "", EVERYTHING).result(Answer(200, {}, body))
    assert found.decision is Decision.BOUNCE and found.tags[1] == "A?"


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "deflate"])
async def test_a_compressed_answer_is_refused(encoding: str) -> None:
    """None was asked for, and none is unpacked."""
    body = gzip.compress(b'{"action": "no action"}')
    async with faults(answer(200, body, f"Content-Encoding: {encoding}")) as server, scanner_of(server) as scanner:
        with pytest.raises((ScanMalformed, ScanError)):
            await submit(scanner)


async def test_the_password_is_in_no_error() -> None:
    """A server that repeats it does not bring it into our log; without one, texts are unchanged."""
    for status, body in ((500, b'{"error": "%b"}' % TOKEN.encode()), (200, TOKEN.encode())):
        async with faults(answer(status, body)) as server, scanner_of(server) as scanner:
            with pytest.raises(ScanError) as caught:
                await submit(scanner)
            assert TOKEN not in str(caught.value) and "***" in str(caught.value)
    async with faults(answer(500, b'{"error": "oops"}')) as server, scanner_of(server, token="") as scanner:
        with pytest.raises(ScanError) as caught:
            await submit(scanner)
        assert str(caught.value).endswith(": 500 oops")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (answer(200, b"PONG?"), ScanMalformed),
        (answer(200, b""), ScanMalformed),
        (answer(200, b"<html>"), ScanMalformed),
        (answer(401, b""), ScanRefused),
        (answer(403, b""), ScanRefused),
        (answer(404, b""), ScanUnavailable),
        (answer(500, b""), ScanUnavailable),
    ],
)
async def test_what_is_not_pong_is_no_status(said: bytes, error: type[ScanError]) -> None:
    """Another web server is not taken for rspamd."""
    async with faults(said) as server, scanner_of(server) as scanner:
        with pytest.raises(error):
            await scanner.status(scanner.hosts[0], 5)


async def test_the_status_is_asked_with_ping() -> None:
    """`GET /ping`, with the password if there is one."""
    async with faults(answer(200, b"pong\r\n")) as server, scanner_of(server) as scanner:
        assert await scanner.status(scanner.hosts[0], 5) is QueueStatus.GREEN
        (request,) = server.requests
        assert request.line == "GET /ping HTTP/1.1" and request.fields["password"] == TOKEN


# Changes


def test_header_fields_are_added_in_their_order() -> None:
    """In all the forms that rspamd has."""
    found = changes(
        milter={
            "add_headers": {
                "X-B": {"value": "b", "order": 2},
                "X-A": [{"value": "1", "order": 1}, {"value": "2", "order": 1}, "3"],
                "X-Plain": "plain",
            }
        },
        **{"dkim-signature": "v=1; a=rsa-sha256;\r\n\tb=abc"},
    )
    assert found.add == (
        ("X-A", "3"), ("X-Plain", "plain"), ("DKIM-Signature", "v=1; a=rsa-sha256;\r\n\tb=abc"), ("X-A", "1"),
        ("X-A", "2"), ("X-B", "b"),
    )  # fmt: skip


HOSTILE_VALUES = [
    "a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\r\n\r\nbody", "a\n\nbody", "\r\n", "", " ", "a\r\n \r\n b",
    "x" * 9000, "x" * 950, None, 1, True, {"value": {"value": "a"}}, "a\n\tb\nX-Evil: 1",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE_VALUES, ids=lambda value: repr(value)[:20])
def test_a_value_that_could_be_more_than_a_value_is_left_out(value: Any) -> None:
    """The decision stands."""
    for given_ in (value, {"value": value, "order": 1}):
        found = reading(action="reject", milter={"add_headers": {"X-A": given_, "X-Good": "yes"}})
        assert found.decision is Decision.BOUNCE and found.changes
        assert found.changes.add == (("X-Good", "yes"),)


@pytest.mark.parametrize(
    "name",
    ["", "X Y", "X:", "X\r\nY", "X\n", "\u00e4", "x" * 100, "Content-Type", "content-transfer-encoding", "MIME-Version",
     "Received", "X-Scan-Decision", "x-scan-anything", "Bcc", "Return-Path"],
)  # fmt: skip
def test_some_fields_cannot_be_touched(name: str) -> None:
    """Names that are none, fields that say how the body is read, and our own."""
    found = changes(milter={"add_headers": {name: "a"}, "remove_headers": {name: 0}, "spam_header": {name: "a"}})
    assert not found.add and not found.remove


@given(st.text(max_size=80), st.text(max_size=200))
@settings(max_examples=500, deadline=None)
def test_a_field_is_always_one_field(name: str, value: str) -> None:
    """Whatever is in the JSON, what is added parses as one header field."""
    for one_name, one_value in changes(milter={"add_headers": {name: value}}).add:
        assert one_name.isascii() and ":" not in one_name
        lines = one_value.split("\r\n")
        assert all(line[0] in " \t" and line.strip() for line in lines[1:])
        assert all(line.isascii() and line.replace("\t", " ").isprintable() for line in lines)


@given(st.text(max_size=300) | st.integers(1, 5000).map(lambda size: "x" * size))
@settings(max_examples=500, deadline=None)
def test_a_subject_is_always_one_field(subject: str) -> None:
    """The same for the subject, which is encoded if it is not ASCII."""
    found = changes(action="rewrite subject", subject=subject).subject
    assert found is not None and found.isascii()
    lines = found.split("\r\n")
    assert all(line[0] in " \t" and line.strip() for line in lines[1:])
    assert all(line.replace("\t", " ").isprintable() and len(line) < 998 for line in lines)


def test_only_the_action_rewrite_subject_changes_it() -> None:
    """rspamd may send a subject with other actions."""
    assert changes(action="rewrite subject", subject="*** SPAM *** hi").subject == "*** SPAM *** hi"
    assert changes(action="add header", subject="*** SPAM *** hi").subject is None


@given(st.text(max_size=400))
@settings(max_examples=300, deadline=None)
def test_a_reply_is_always_one_line(text: str) -> None:
    """`messages.smtp_message` cannot write a second line, and is short."""
    found = changes(action="reject", messages={"smtp_message": text}).reply_text
    assert found.isascii() and found.isprintable() and len(found) <= 200


def test_fields_to_remove() -> None:
    """By number or all of them; nonsense is left out."""
    found = changes(
        milter={"remove_headers": {"X-A": 0, "X-B": [1, -1], "X-C": "1", "X-D": 1e9, "X-E": True, "X-F": 10**30}}
    )
    assert found.remove == (("x-a", 0), ("x-b", 1), ("x-b", -1))


def test_there_are_never_many_changes() -> None:
    """A hostile answer cannot make the mail server work."""
    many = {f"X-{number}": [{"value": "a"}] * 50 for number in range(1000)}
    numbers = {f"X-{number}": list(range(1000)) for number in range(1000)}
    found = changes(
        action="add header",
        milter={"add_headers": many, "remove_headers": numbers, "spam_header": dict.fromkeys(many, "a")},
    )
    assert len(found.add) <= 100 and len(found.remove) <= 200


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_change_needs_its_permission(kind: str) -> None:
    """Nothing else is changed."""
    made = RspamdSettings(allowed=frozenset([kind]))
    milter = {"add_headers": {"X-A": "a"}, "remove_headers": {"X-B": 0}}
    found = reading(made, action="rewrite subject", subject="s", messages={"smtp_message": "m"}, milter=milter).changes
    assert found is not None
    named = {
        "add_headers": found.add,
        "remove_headers": found.remove,
        "subject": found.subject,
        "reply_text": found.reply_text,
    }
    assert [name for name, wish in named.items() if wish] == [kind]
    assert reading(RspamdSettings(), action="rewrite subject", subject="s", milter=milter).changes is None


def test_changes_survive_the_store_of_late_decisions() -> None:
    """A decision that comes late changes the mail in the same way."""
    from bridge.filter.late.store import _from_json, _to_json

    found = reading(
        action="rewrite subject", subject="s", messages={"smtp_message": "m"},
        milter={"add_headers": {"X-A": "a"}, "remove_headers": {"X-B": [1, 2]}}, symbols={"changes": {}},
    )  # fmt: skip
    assert _from_json(_to_json(found)) == found
    without = reading(RspamdSettings(), symbols={"changes": {}})
    assert _from_json(_to_json(without)) == without


def test_settings_make_no_dialect_without_a_url() -> None:
    """The bytes of the head are made once, for IPv6 as well."""
    made = partial(Rspamd, settings=EVERYTHING)
    assert b"Host: [::1]:11333\r\n" in b"".join(made("http://[::1]:11333/base", "").status(b""))
