"""MTA Hooks: wrong registrations, hostile JSON, and clients that misbehave on the way."""

from __future__ import annotations

import base64
import json
import socket
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.filter.changes import FieldEdit
from bridge.filter.outcome import Outcome
from bridge.filter.policy import FORGED_FIELDS, TOO_MANY_FORGED
from bridge.intake.hooks import draft, stalwart
from bridge.intake.hooks.json_body import BadJson, Base64Content, JsonBody, _plain
from bridge.intake.hooks.mail import HookMail
from bridge.intake.milter.mail import Limits
from bridge.mail.action import Action
from bridge.mail.authentication_results import OwnResults
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.testing import RunningBridge, answer, result, until
from tests.hostile.hostile_kit import Hanging, MiB, bridge_process
from tests.intake.hooks.hooks_kit import MAIL, TOKEN, MailServer, facts, hooks_bridge, raw
from tests.processor_time import fair_cpu_s


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    limits = {"max_message_size": "1MiB", "data_timeout": "60s", "max_recipients": 3}
    with hooks_bridge(tmp_path_factory.mktemp("hostile"), {"limits": limits}, deadline="60s") as running:
        yield running


# Who may ask


@pytest.mark.parametrize(
    "header", ["", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer ", f"Bearer {TOKEN[:-1]}", "Bearer \xff"]
)
def test_nobody_without_the_token(bridge: RunningBridge, header: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a registration nor a mail is read, and the token is not repeated anywhere."""
    count = len(bridge.scanner.submissions)
    for method, path in (
        ("POST", "/mta-hooks/registrations"),
        ("GET", "/mta-hooks/registrations/x"),
        ("POST", "/mta-hooks/hook"),
        ("POST", "/mta-hooks/stalwart"),
        ("GET", "/anything"),
    ):
        with MailServer(bridge.port, None) as server:
            status, found = server.send(method, path, facts(), Authorization=header)
        assert (status, found["error"]["code"]) == (401, "INVALID_CREDENTIALS")
    assert len(bridge.scanner.submissions) == count
    assert TOKEN[:-1] not in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"inbound": None},
        {"inbound": {"stages": ["rcpt"], "properties": ["/stage", "/rawMessage", "/envelope"]}},
        {"inbound": {"stages": ["data", "connect"], "properties": ["/stage", "/rawMessage", "/envelope"]}},
        {"inbound": {"stages": ["data", "data"], "properties": ["/stage", "/rawMessage", "/envelope"]}},
        {"inbound": {"stages": ["data"], "properties": ["/stage", "/envelope"]}},
        {"inbound": {"stages": "data", "properties": []}},
        {"inbound": {"stages": [{}], "properties": [1]}},
        {"outbound": {"stages": []}},
        {"serialization": "cbor"},
        {"timeoutMs": -1},
        {"timeoutMs": 10},
        {"timeoutMs": True},
        {"timeoutMs": "20000"},
        {"timeoutMs": 10**400},  # was an internal error: too large for a float
        {"name": ["x"]},
    ],
    ids=lambda changes: json.dumps(changes)[:60],
)
def test_wrong_registrations_are_refused(server: MailServer, changes: dict[str, Any]) -> None:
    """What we cannot do is not confirmed."""
    status, found = server.register(**changes)
    assert (status, found["error"]["code"]) == (400, "INVALID_REQUEST")


def test_a_registration_ends(bridge: RunningBridge, server: MailServer) -> None:
    """It can be looked at, and used until it is ended; a foreign or changed id was never registered."""
    _, made = server.register(inbound={"stages": ["data"], "properties": ["/stage", "/rawMessage", "/envelope", "/x"]})
    assert made["negotiated"]["inbound"] == {"stages": ["data"], "properties": ["/stage", "/rawMessage", "/envelope"]}
    place = made["endpoints"]["status"]
    assert server.send("GET", place) == (200, made)
    written, _, signature = server.registration.rpartition(":")
    for other in ("us:1", "", ":", f"{written}:{'A' * 32}", f"{written[:-2]}AA:{signature}", "x" * 300):
        status, found = server.ask(facts(), X_MTA_Hooks_Registration=other, **{"X-MTA-Hooks-Registration": other})
        assert (status, found["error"]["code"]) == (404, "REGISTRATION_NOT_FOUND")
    assert server.send("DELETE", place)[1]["status"] == "deregistered"
    for status, found in (server.ask(facts()), server.send("GET", place), server.send("DELETE", place)):
        assert (status, found["error"]["code"]) == (410, "REGISTRATION_DEREGISTERED")


# What is asked

_TO = '[{"address": "b@example.org"}]'
_FROM = '{"address": "a@example.com"}'
_RAW = base64.b64encode(MAIL).decode()


def _request(raw_message: str = f'"{_RAW}"', more: str = "", to: str = _TO) -> bytes:
    text = f'{{"stage": "data", "envelope": {{"from": {_FROM}, "to": {to}}}{more}, "rawMessage": {raw_message}}}'
    return text.encode("utf-8", "surrogateescape")


HOSTILE = {
    "empty": b"",
    "no object": b'["data"]',
    "a string": b'"rawMessage"',
    "cut": _request()[:-1],
    "cut in the mail": _request()[:-20],
    "cut in an escape": b'{"stage": "da\\u00',
    "something after it": _request() + b"{}",
    "a BOM": b"\xef\xbb\xbf" + _request(),
    "UTF-16": _request().decode().encode("utf-16"),
    "not UTF-8": _request(more=', "x": "\udcff"'),
    "not UTF-8 in a key": _request(more=', "\udcff": 1'),
    "a control character": _request(more=', "x": "a\nb"'),
    "a lone surrogate": _request(more=r', "x": "\ud800"'),
    "a bad escape": _request(more=r', "x": "\q12345678901234"'),
    "deep": _request(more=', "x": ' + "[" * 100_000),
    "deep and closed": _request(more=', "x": ' + "[" * 100 + "]" * 100),
    "a key twice": _request(more=', "stage": "data"'),
    "a key twice, once escaped": _request(more=r', "raw\u004dessage": "AAAA"'),
    "an inner key twice": _request(to='[{"address": "b@example.org", "address": "c@example.org"}]'),
    "NaN": _request(more=', "x": NaN'),
    "a huge number": _request(more=', "x": ' + "9" * 100_000),
    "a long fraction": _request(more=', "x": 0.' + "1" * 1000),
    "many values": _request(more=', "x": [' + "1," * 200_000 + "1]"),
    "no stage": _request().replace(b'"stage"', b'"stag"'),
    "nothing at all": b"{}",
    "neither a stage nor content": b'{"envelope": {"from": {"address": "a@example.com"}, "to": []}}',
    "an unknown stage": _request().replace(b'"data"', b'"queue"'),
    "no envelope": b'{"stage": "data", "rawMessage": "QQ=="}',
    "no content": _request("null"),
    "content that is a number": _request("12"),
    "content that is a list": _request('["QQ=="]'),
    "base64 with a space": _request('"QUJD REVG"'),
    "base64 with an escaped line end": _request(r'"QUJD\nREVG"'),
    "base64 without padding": _request('"QUI"'),
    "base64 after padding": _request('"QQ==QUJD"'),
    "base64 after padding, later": _request('"QQ==' + "QUJD" * 50_000 + '"'),
    "only padding": _request('"===="'),
    "base64 of another alphabet": _request('"QU-_"'),
    "recipients that are no list": _request(to='{"address": "b@example.org"}'),
    "a recipient that is a string": _request(to='["b@example.org"]'),
    "a recipient that is null": _request(to='[{"address": null}]'),
    "a NUL in a recipient": _request(to=r'[{"address": "b@example.org\u0000NOTIFY=x"}]'),
    "a bad parameter": _request(to='[{"address": "b@example.org", "parameters": {"A B": "c"}}]'),
    "a parameter that is a number": _request(to='[{"address": "b@example.org", "parameters": {"A": 1}}]'),
    "an ip that is none": _request(more=', "client": {"ip": "localhost"}'),
    "a client that is a list": _request(more=', "client": []'),
    "another version": _request(more=', "protocol": {"version": "2.0"}'),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_hostile_json_is_refused(bridge: RunningBridge, server: MailServer, body: bytes) -> None:
    """An HTTP error, so that the mail server defers the mail; nothing is scanned, and the next request is served."""
    count = len(bridge.scanner.submissions)
    status, found = server.ask(body)
    assert status in (400, 413) and found["error"]["code"] in ("INVALID_REQUEST", "REQUEST_TOO_LARGE")
    assert len(bridge.scanner.submissions) == count
    server.http.close()
    assert server.action(facts())[0] == "accept"
    assert bridge.daemon.servers[0].context.spool.in_use == 0  # type: ignore[union-attr]


def test_any_cut_of_a_request_is_the_same_request() -> None:
    """Blocks of every size, escapes and all: the mail and the rest are what they are in one piece."""
    body = _request(
        '"' + _RAW.replace("/", r"\/").replace("R", r"\u0052") + '"', more=r', "x": {"rawMessage": "A\ud83d\ude00\"\\"}'
    )
    for size in (1, 2, 3, 5, 7, 11, 13, 64, len(body)):
        blocks: list[bytes] = []
        reader = JsonBody(("rawMessage",), Base64Content(blocks.append))
        for start in range(0, len(body), size):
            reader.feed(body[start : start + size])
        assert reader.end() == {**json.loads(body), "rawMessage": ""}
        assert b"".join(blocks) == MAIL
    for cut in range(len(body)):
        reader = JsonBody(("rawMessage",), Base64Content(blocks.append))
        with pytest.raises(BadJson):
            reader.feed(body[:cut])
            reader.end()


def test_too_large_requests(server: MailServer) -> None:
    """Much too large, by its length or beside the mail: 413. Too many recipients: 452."""
    huge = b'{"rawMessage": "' + b"QUFB" * (1024 * 1024) + b'"}'
    assert server.ask(huge + b" " * MiB)[0] == 413
    server.http.close()
    assert server.ask(_request(more=', "x": "' + "y" * 3 * MiB + '"'))[0] == 413
    server.http.close()
    many = ",".join(['{"address": "b@example.org"}'] * 4)
    assert server.action(_request(to=f"[{many}]")) == ("reject", (452, "4.5.3"))


# On the way


def _head(server: MailServer, length: int, *more: str) -> bytes:
    lines = [
        "POST /mta-hooks/hook HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {TOKEN}",
        f"X-MTA-Hooks-Registration: {server.registration}",
        "X-MTA-Hooks-Request-Id: raw",
        f"Content-Length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_client_that_goes_away(bridge: RunningBridge, server: MailServer) -> None:
    """In the middle of the content, and during the scan: the mail is abandoned, and nothing of it is kept."""
    server.register()
    spool = bridge.daemon.servers[0].context.spool  # type: ignore[union-attr]
    body = _request('"' + "QUFB" * 100_000 + '"')
    with socket.create_connection(("127.0.0.1", bridge.port)) as sock:
        sock.sendall(_head(server, len(body)) + body[:-100])
        until(lambda: spool.in_use > 250_000, "the content to arrive")
    until(lambda: spool.in_use == 0, "the content to be given up")
    hanging = Hanging()
    bridge.scanner.reply = hanging
    count = len(bridge.scanner.submissions)
    with socket.create_connection(("127.0.0.1", bridge.port)) as sock:
        sock.sendall(_head(server, len(_request())) + _request())
        until(lambda: len(bridge.scanner.submissions) > count, "the scan")
    assert hanging.ended.wait(30)
    until(lambda: spool.in_use == 0, "the mail to be given up")
    bridge.scanner.reply = answer(200, result())
    assert server.action(facts())[0] == "accept"


def test_a_slow_body_is_cut(tmp_path: Path) -> None:
    """A client that stops in the middle is told so after `data_timeout`, and disconnected."""
    with hooks_bridge(tmp_path, {"limits": {"data_timeout": "1s"}}) as bridge, MailServer(bridge.port) as server:
        server.register()
        with socket.create_connection(("127.0.0.1", bridge.port), 60) as sock:
            sock.sendall(_head(server, 1000) + b'{"rawMessage": "')
            began = time.monotonic()
            assert b" 408 " in sock.recv(4096)
            assert 0.5 < time.monotonic() - began < 50
            while sock.recv(4096):
                pass


def test_requests_are_not_smuggled(bridge: RunningBridge, server: MailServer) -> None:
    """Two lengths, a length and chunks, a bad length, an obsolete fold: one answer, an error, and no second request."""
    server.register()
    hidden = b"DELETE /mta-hooks/registrations/" + server.registration.encode() + b" HTTP/1.1\r\nHost: x\r\n"
    hidden += f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    for more in (
        ("Transfer-Encoding: chunked",),
        ("Content-Length: 5",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding : chunked",),
        ("Content-Length: +5",),
        ("X: y\r\n Transfer-Encoding: chunked\x0b",),
    ):
        said = raw(bridge.port, _head(server, 0, *more) + b"0\r\n\r\n" + hidden)
        assert said.count(b"HTTP/1.1 ") <= 1 and b" 200 " not in said, more
        assert server.send("GET", f"/mta-hooks/registrations/{server.registration}")[0] == 200, more
    for line in (
        b"GARBAGE\r\n\r\n",
        b"EHLO x\r\nMAIL FROM:<a@b>\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01" + b"x" * 100,
    ):
        assert b" 200 " not in raw(bridge.port, line)


def test_chunks_are_read_like_a_length(bridge: RunningBridge, server: MailServer) -> None:
    """A client that does not know the length in advance."""
    server.register()
    ids = {"X-MTA-Hooks-Registration": server.registration, "X-MTA-Hooks-Request-Id": "chunks"}
    body = _request()
    server.http.request(
        "POST", "/mta-hooks/hook", iter([body[:50], body[50:60], body[60:]]),
        {**ids, "Authorization": f"Bearer {TOKEN}"}, encode_chunked=True,
    )  # fmt: skip
    found = server.http.getresponse()
    assert found.status == 200 and json.loads(found.read())["set"][0]["value"] == "accept"
    assert bridge.scanner.submissions[-1].email == MAIL


def test_other_methods_and_paths(server: MailServer) -> None:
    """Nothing is found by chance."""
    assert server.send("GET", "/mta-hooks/hook")[0] == 405
    assert server.send("PUT", "/mta-hooks/registrations", {})[0] == 405
    assert server.send("POST", "/.well-known/mta-hooks", {})[0] == 405
    assert server.send("GET", "/")[0] == server.send("GET", "/mta-hooks/hook/")[0] == 404


def test_fifty_mebibytes_cost_less_memory_than_that(tmp_path: Path) -> None:
    """70 MB of JSON are decoded into the spool; the scanner gets the mail byte for byte."""
    (tmp_path / "hooks-token").write_text(TOKEN)
    content = (b"Subject: large\r\n\r\n" + bytes(range(256)) * 4 * 1024 * 50)[: 50 * MiB]
    body = json.dumps(facts(content)).encode()
    options = {"protocol": "mta-hooks", "hooks": {"token_file": "hooks-token"}}
    with bridge_process(tmp_path, **options) as process, MailServer(process.port) as server:  # type: ignore[arg-type]
        assert server.action(facts())[0] == "accept"
        with process.growing_at_most(50 * MiB):
            assert server.action(body)[0] == "accept"
        assert process.scanner.submissions[-1].email == content
        assert server.action(facts(content + b"x")) == ("reject", (552, "5.3.4"))


def completed(content: bytes, own_results: OwnResults | None = None) -> HookMail:
    mail = HookMail(Spool(1 << 24), Limits(1 << 24, 10, b"x-scan-", own_results=own_results))
    mail.set_sender(b"a@example.org\0")
    mail.add_recipients((b"b@example.net\0",), None)
    mail.add_body(content)
    mail.complete(True)
    return mail


@pytest.mark.parametrize("field", [b"a:\r\n", b"Authentication-Results:x\r\n"])
def test_a_header_section_of_short_fields_stopped_the_event_loop(field: bytes) -> None:
    """For a second and more, with 95 MiB of memory; and the names of a quarter of a million fields stayed in it."""
    content = field * ((1 << 20) // len(field) - 1) + b"\r\nx\r\n"
    assert fair_cpu_s(lambda: completed(content, OwnResults("mx.example.org")), attempts=3) < 0.35
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        mail = completed(content)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(mail.fields or ()) == content.count(b":") and mail.refusal is None
    assert after - before < 2 * MiB and peak - before < 24 * MiB


def test_fields_that_only_we_may_write_are_found_by_their_places() -> None:
    """Also those behind a folded field, with white space before the colon, and in a last line without an end."""
    head = b"A: 1\r\n X-Scan-Id: 2\r\nAuthentication-Results : mx.example.org\r\nX-SCAN-Id\t: 1\r\nX-Scanner: 1\r\n"
    results = b"authentication-results: other.example\r\nAuthentication-Results:\r\n mx.example.org; none"
    for end in (b"", b"\r\n", b"\r\n\r\nbody\r\n"):
        mail = completed(head + results + end, OwnResults("mx.example.org"))
        assert mail.our_fields() == [1, 2, 5]
        assert mail.fields == [
            *(b"a", b"authentication-results", b"x-scan-id", b"x-scanner"),
            *(b"authentication-results", b"authentication-results"),
        ]
        assert completed(head + results + end).our_fields() == [2]
    assert completed(b"\r\nbody\r\n").fields == []
    assert completed(b"X-Scan-A: 1\r\n" * 501 + b"\r\n").refusal == TOO_MANY_FORGED
    assert completed(b"no field\r\nX-Scan-A: 1\r\n\r\n").refusal == FORGED_FIELDS


def test_removing_fields_from_a_large_header_section_took_eight_seconds() -> None:
    """Each of 500 changes went through all 170,000 fields again, and no other mail was answered meanwhile."""
    outcome = Outcome(
        Action.RELAY,
        Reply(250, "2.0.0", "ok"),
        edits=tuple(FieldEdit(b"x-spam", number, None) for number in range(1, 501)),
    )

    def changed(others: int) -> None:
        mail = HookMail(Spool(1 << 20), Limits(1 << 20, 10, b"x-scan-"))
        mail.fields = [b"x-spam"] * 500 + [b"a"] * others
        assert len(draft.field_edits(outcome, mail)) == 500
        answer = stalwart.answer(outcome, "id", mail, True)
        assert [change["index"] for change in answer["modifications"]] == list(range(500, 0, -1))

    assert fair_cpu_s(lambda: changed(170_000)) < 1


@pytest.mark.parametrize(
    ("escape", "meant"),
    [(rb"\u0001", b"\x01"), (rb"\b", b"\b"), (rb"\\", b"\\"), (rb"\ud83d\ude00", "\U0001f600".encode())],
)
def test_a_mail_of_escapes_took_a_hundred_seconds(escape: bytes, meant: bytes) -> None:
    """Each was decoded on its own; Stalwart writes every control character of a mail as one."""
    not_text = b"x\xff\xed\xa0\x80"
    assert _plain((escape + not_text) * 3) == (meant + not_text) * 3
    assert fair_cpu_s(lambda: _plain(escape * 100_000), attempts=3) < 0.1
