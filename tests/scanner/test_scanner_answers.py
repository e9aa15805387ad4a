"""What the service may answer, and what each answer means for the mail."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import tracemalloc

import pytest

from bridge.api.scanning import Decision
from bridge.errors import (
    BridgeError,
    MessageTooLarge,
    Saturated,
    ScanMalformed,
    ScanRefused,
    ScanUnavailable,
)
from bridge.matching.dangerous_tags import has_danger
from tests.scanner.fault_server import (
    GGRID,
    TOKEN,
    Call,
    answer,
    ends_late_by_s,
    faults,
    result,
    scanner_of,
    submit,
    submit_to,
)
from tests.scanner.spoken import current


def failure(error: str, message: str = "") -> bytes:
    return json.dumps({"error": error, "message": message}).encode()


each_dialect = pytest.mark.usefixtures("each_dialect")

DEEP = b"[" * 200_000


@pytest.mark.parametrize("decision", list(Decision))
async def test_each_decision_is_read(decision: Decision) -> None:
    """All five decisions are read, with their details."""
    found = await submit_to(answer(200, result(str(decision))))
    assert (found.decision, found.ggrid, found.verdict, found.tags) == (decision, GGRID, "clean", ("a:b",))


@pytest.mark.parametrize("word", ["DELIVER", "Deliver", "deliver ", "accept", "none"])
async def test_an_unknown_decision_is_undecided(word: str) -> None:
    """A word that is not exactly one of the five, in lower case, does not deliver the mail."""
    assert (await submit_to(answer(200, result(word)))).decision is Decision.UNDECIDED


async def test_created_after_completed_is_tolerated() -> None:
    """The service's clock does not matter."""
    body = result(created="2026-01-01T00:00:01Z", completed="2026-01-01T00:00:00Z")
    assert (await submit_to(answer(200, body))).decision is Decision.DELIVER


MALFORMED = {
    "html": b"<html><body>200 OK</body></html>",
    "empty": b"",
    "list": b'[{"decision": "deliver"}]',
    "decision missing": b'{"verdict": "clean"}',
    "decision null": result(None),
    "decision empty": result(""),
    "decision a number": result(1),
    "decision a list": result(["deliver"]),
    "cut JSON": result()[:-5],
    "not UTF-8": b'{"decision": "\xff\xfe"}',
    "a bare word": b"deliver",
    "nested without end": DEEP,
    "a number without end": b'{"decision": ' + b"9" * 10_000 + b"}",
    "two decisions": b'{"decision": "bounce", "decision": "deliver"}',
    "two decisions, one with escapes": b'{"decision": "bounce", "\\u0064ecision": "deliver"}',
    "two decisions with escapes": b'{"\\u0064ecision": "bounce", "\\u0064ecision": "deliver"}',
    "two decisions in UTF-16": '{"decision": "bounce", "decision": "deliver"}'.encode("utf-16"),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_an_answer_without_a_decision_is_malformed(body: bytes) -> None:
    """Status 200 alone does not deliver a mail."""
    with pytest.raises(ScanMalformed):
        await submit_to(answer(200, body))


async def test_the_log_shows_what_was_received_instead_of_a_decision() -> None:
    """Most likely a proxy's page; a token in it is masked, and the text is shortened."""
    page = f"<html>Request {TOKEN} rejected".encode() + b"x" * 1000
    with pytest.raises(ScanMalformed) as caught:
        await submit_to(answer(200, page, "Content-Type: text/html"))
    assert "'text/html', '<html>Request *** rejectedx" in str(caught.value)
    assert TOKEN[:8] not in str(caught.value) and len(str(caught.value)) < 300


@each_dialect
async def test_a_compressed_answer_is_refused() -> None:
    """We never request compression, so there is no decompression bomb."""
    body = gzip.compress(result())
    with pytest.raises(ScanMalformed):
        await submit_to(answer(200, body, "Content-Encoding: gzip"))
    with pytest.raises(ScanMalformed):
        await submit_to(answer(200, gzip.compress(b"0" * 10_000_000)))


STATUSES = [
    (400, ScanRefused),
    (401, ScanRefused),
    (403, ScanRefused),
    (404, ScanRefused),
    (413, MessageTooLarge),
    (429, Saturated),
    (500, ScanUnavailable),
    (502, ScanUnavailable),
    (503, ScanUnavailable),
    (201, ScanMalformed),
    (301, ScanMalformed),
    (307, ScanMalformed),
]


@each_dialect
@pytest.mark.parametrize(("status", "error"), STATUSES)
@pytest.mark.parametrize(
    "body", [failure("code_word", "for people"), b"<html>", b"", DEEP], ids=["error", "html", "empty", "deep"]
)
async def test_each_status_is_one_named_error(status: int, error: type[BridgeError], body: bytes) -> None:
    """The status decides, whatever the body contains; the body only adds text for the log."""
    with pytest.raises(error) as raised:
        await submit_to(answer(status, body))
    if body.startswith(b'{"error"'):
        assert "code_word for people" in str(raised.value)
    assert TOKEN not in str(raised.value) and len(str(raised.value)) < 400


@each_dialect
async def test_no_content_is_a_decision_only_in_mta_hooks() -> None:
    """There it means that nothing is to be changed."""
    if current().name == "mta-hooks":
        assert (await submit_to(answer(204, b""))).decision is Decision.DELIVER
    else:
        with pytest.raises(ScanMalformed):
            await submit_to(answer(204, b""))


@each_dialect
async def test_the_text_of_an_error_body_is_shortened() -> None:
    """A service that puts a stack trace into `message` cannot fill our log."""
    with pytest.raises(ScanUnavailable) as raised:
        await submit_to(answer(500, failure("x", "y" * 100_000)))
    assert len(str(raised.value)) <= 300


@each_dialect
async def test_a_redirect_is_never_followed() -> None:
    """A 307 would send the mail and the token to another server."""
    async with faults() as other:
        moved = answer(307, b"", f"Location: {other.url}/v1/messageQueue/submitEmail")
        async with faults(moved) as server, scanner_of(server) as scanner:
            with pytest.raises(ScanMalformed):
                await submit(scanner)
            assert other.connections + server.connections == 1


@each_dialect
@pytest.mark.parametrize(
    ("status", "lines", "error", "wait"),
    [
        (429, (), Saturated, 0),
        (429, ("Retry-After: 7",), Saturated, 7),
        (429, ("Retry-After: 99999",), Saturated, 60),
        (429, ("Retry-After: -3",), Saturated, 1),
        (503, ("Retry-After: 7",), Saturated, 7),
        (503, ("Retry-After: Fri, 31 Dec 1999 23:59:59 GMT",), Saturated, 1),
        (503, (), ScanUnavailable, None),
        (503, ("Retry-After: \u00b2",), Saturated, 1),
    ],
)
async def test_retry_after_is_honoured(status: int, lines: tuple[str, ...], error: type, wait: float | None) -> None:
    """No mail is sent during Retry-After, which is limited to a minute."""
    async with faults(answer(status, b"", *lines)) as server, scanner_of(server) as scanner:
        with pytest.raises(error) as raised:
            await submit(scanner)
        host, now = scanner.hosts[0], asyncio.get_running_loop().time()
        assert getattr(raised.value, "retry_after_s", None) == wait
        assert scanner.is_saturated() is bool(wait)
        assert host.saturated_until <= now + (wait or 0)


@each_dialect
async def test_a_200_mb_answer_costs_little_memory() -> None:
    """Reading stops at the limit, a mebibyte."""

    async def pour(call: Call) -> None:
        call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")
        for _ in range(200):
            call.say(b" " * 1_000_000)
            await call.writer.drain()

    async with faults(pour) as server, scanner_of(server) as scanner:
        tracemalloc.start()
        try:
            with pytest.raises(ScanMalformed, match="too large"):
                await submit(scanner)
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


@each_dialect
async def test_a_head_without_end_is_cut_off() -> None:
    """Header fields count towards the limit."""

    async def pour(call: Call) -> None:
        call.say(b"HTTP/1.1 200 OK\r\n")
        for number in range(100_000):
            call.say(b"X-%d: %s\r\n" % (number, b"y" * 1000))
            await call.writer.drain()

    with pytest.raises((ScanMalformed, ScanUnavailable)):
        await submit_to(pour)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@each_dialect
@pytest.mark.parametrize("size", [1, 10, 10_000])
async def test_a_chunked_answer_is_read(size: int) -> None:
    """Proxies often send chunks."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await submit_to(head + chunked(result("drop"), size))).decision is Decision.DROP


@each_dialect
async def test_a_trailer_replaced_a_header_field() -> None:
    """RFC 9110 6.5.1: only fields that allow it may be in a trailer, and none that we read does."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = chunked(result("drop"), 10).removesuffix(b"\r\n") + b"Content-Encoding: gzip\r\n\r\n"
    assert (await submit_to(head + body)).decision is Decision.DROP


async def test_a_word_that_occurs_twice_is_not_two_decisions() -> None:
    found = await submit_to(answer(200, result("drop", verdict="decision", extra={"decision": "deliver"})))
    assert (found.decision, found.verdict) == (Decision.DROP, "decision")


async def test_the_index_took_seconds_for_a_hundred_thousand_tags() -> None:
    found = await submit_to(answer(200, result("drop", tags=[f"tag:{number}" for number in range(50_000)])))
    assert found.tags == ("limit:tags", *(f"tag:{number}" for number in range(999)))


async def test_a_danger_behind_the_thousandth_tag_was_dropped() -> None:
    """It comes first, so that nobody who shows only some of the tags leaves it out."""
    many = [f"tag:{number}" for number in range(2000)]
    found = await submit_to(answer(200, result("quarantine", tags=[*many, "malware:late", *many])))
    assert found.tags[:3] == ("limit:tags", "malware:late", "tag:0") and len(found.tags) == 1000
    assert has_danger(found.tags[1:])
    some = [f"tag:{number}" for number in range(101)]
    assert (await submit_to(answer(200, result("drop", tags=[*some, "Virus"])))).tags == ("Virus", *some)


async def test_a_danger_at_the_end_of_a_long_tag_is_not_lost() -> None:
    """The tag is cut, so the mail counts as dangerous, whatever the rest of the tag said."""
    found = await submit_to(answer(200, result("quarantine", tags=["x" * 500 + "virus", "b"])))
    assert found.tags == ("limit:tags", "x" * 200, "b")


async def test_tags_verdict_and_ggrid_are_bounded() -> None:
    """Each tag, all of them together, and the words; a megabyte of them was logged for each mail."""
    found = await submit_to(answer(200, result("drop", tags=["y" * 200] * 3 + [f"{n:0200}" for n in range(300)])))
    assert sum(map(len, found.tags)) <= 20_000 and len(found.tags) == 100
    long = await submit_to(answer(200, result("drop", verdict="v" * 5000, ggrid="g" * 5000, tags=["t" * 200])))
    assert (long.verdict, long.ggrid, long.tags) == ("v" * 300, "g" * 300, ("t" * 200,))


async def test_tags_verdict_and_ggrid_are_printable() -> None:
    """Whoever shows them shows text: no escapes, no lines, no reversed reading direction, no half characters."""
    odd = "a\x1b[31m\r\nb\u202e\x00\x9b"
    found = await submit_to(answer(200, result("drop", verdict=odd, ggrid=odd, tags=[odd, "\u00e4\u00a0b"])))
    clean = "a?[31m??b???"
    assert (found.verdict, found.ggrid, found.tags) == (clean, clean, (clean, "\u00e4 b"))
    body = result("drop", tags=["x"]).replace(b'"x"', b'"\\ud800x"')
    assert (await submit_to(answer(200, body))).tags == ("?x",)


@each_dialect
async def test_100_continue_is_passed_over() -> None:
    """An interim answer is skipped, even if both arrive together."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nRetry-After: 3\r\n\r\n"
    assert (await submit_to(interim + answer(200, result("bounce")))).decision is Decision.BOUNCE


@each_dialect
async def test_an_answer_may_end_with_the_connection() -> None:
    """HTTP/1.0 and simple servers send no length; the answer ends with the connection."""

    async def close_after(call: Call) -> None:
        call.say(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + result("drop"))
        call.writer.close()

    assert (await submit_to(close_after)).decision is Decision.DROP


@each_dialect
async def test_a_cut_answer_without_length_is_no_decision() -> None:
    """If the JSON is incomplete, the mail is deferred."""

    async def cut(call: Call) -> None:
        call.say(b"HTTP/1.0 200 OK\r\n\r\n" + result("deliver")[:-10])
        call.writer.close()

    with pytest.raises((ScanMalformed, ScanUnavailable)):
        await submit_to(cut)


@each_dialect
@pytest.mark.parametrize("keep", [0, 5, 20, 60, 150])
async def test_a_cut_answer_is_no_decision(keep: int) -> None:
    """An incomplete answer is no decision, wherever it was cut."""

    async def cut(call: Call) -> None:
        call.say(answer()[:keep])
        call.writer.close()

    with pytest.raises(ScanUnavailable):
        await submit_to(cut)


@each_dialect
@pytest.mark.parametrize("junk", [b"220 smtp.example ESMTP\r\n", b"\x16\x03\x01", b"\0" * 100, b"HTTP/9.9 x\r\n\r\n"])
async def test_something_that_is_not_http_is_no_decision(junk: bytes) -> None:
    """Another kind of server on that port counts as unavailable."""

    async def one(call: Call) -> None:
        call.say(junk)
        await call.until_gone()

    with pytest.raises((ScanUnavailable, ScanMalformed)):
        await submit_to(one)


@each_dialect
@pytest.mark.parametrize("part", ["head", "body", "chunked"])
async def test_the_deadline_is_total_for_a_dripping_answer(part: str) -> None:
    """Single bytes do not restart the deadline."""
    data = {
        "head": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        "body": b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b" " * 9000,
        "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 9000,
    }[part]

    async def drip(call: Call) -> None:
        for byte in data:
            call.say(bytes([byte]))
            await call.pause(0.01)
            if call.server.gone.is_set():
                return

    async with faults(drip) as server, scanner_of(server) as scanner:
        assert await ends_late_by_s(scanner, 0.3) < 0.5
        server.gone.set()


async def test_the_token_is_in_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """The alarm about a refused token names the host, never the token."""
    caplog.set_level(logging.DEBUG)
    async with faults(answer(401, failure("unauthorized"))) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanRefused):
            await submit(scanner)
        with pytest.raises(ScanRefused):
            await scanner.status(scanner.hosts[0], 5)
    assert TOKEN not in caplog.text
