"""Stalwart sends a mail's fields once more with its body; the scanner gets the original mail."""

from __future__ import annotations

import pytest

from bridge.intake.milter.mail import Limits
from bridge.intake.milter.stalwart import UNCLEAR, WholeMail
from bridge.mail.action import Action
from bridge.mail.message import HEAD_LIMIT, Spool
from bridge.mail.reply import Reply
from tests.intake.milter.milter_kit import ScriptedFilter, connect_frame, frame, listening

LIMITS = Limits(max_message_size=4_000_000, max_recipients=3, prefix=b"x-scan-")
RAW = b"Received: from a\r\n\tby b;\r\n now\r\nSubject :  odd \r\nX-Eight: \xe4\r\nX-Scan-Decision: deliver\r\n\r\n"
FIELDS = (
    (b"Received", b"from a\r\n\tby b;\r\n now"),
    (b"Subject", b"odd"),
    (b"X-Eight", b""),  # Stalwart drops what is not UTF-8
    (b"X-Scan-Decision", b"deliver"),
)
BODY = b"Hello\r\n\r\nSubject: no field\r\n"


def sent(body: bytes, fields: tuple[tuple[bytes, bytes], ...], size: int) -> WholeMail:
    mail = WholeMail("a@example.org", (), Spool(8_000_000), LIMITS, leading_space=False)
    mail.add_recipient(b"<b@example.net>\0")
    for name, value in fields:
        mail.add_fields([name + b"\0" + value + b"\0"])
    mail.end_headers()
    for at in range(0, len(body), size):
        mail.add_body(body[at : at + size])
    mail.end(b"")
    return mail


def refused(body: bytes, fields: tuple[tuple[bytes, bytes], ...] = FIELDS, size: int = 65535) -> Reply:
    mail = sent(body, fields, size)
    assert mail.refusal is not None
    mail.close()
    return mail.refusal


def taken(body: bytes, fields: tuple[tuple[bytes, bytes], ...] = FIELDS, size: int = 65535) -> bytes:
    mail = sent(body, fields, size)
    assert mail.refusal is None
    content = b"".join(mail.message.chunks())
    assert mail.size == len(content)
    mail.close()
    return content


@pytest.mark.parametrize("size", [1, 7, 65535])
@pytest.mark.parametrize("body", [BODY, b""])
def test_the_body_contains_the_whole_mail(body: bytes, size: int) -> None:
    """Byte for byte, with the spaces, 8-bit bytes and folding that the fields lack, however it is split."""
    assert taken(RAW + body, size=size) == RAW + body


def test_a_head_without_a_body() -> None:
    """There is no blank line at all."""
    assert taken(RAW[:-2]) == RAW[:-2]


def test_lines_that_are_not_fields_make_no_difference() -> None:
    """Stalwart skips them when it splits the header section into fields."""
    odd = b"\xff no field\r\n" + RAW.replace(b"Subject", b": nothing\r\nSubject") + BODY
    assert taken(odd) == odd


def test_bare_line_feeds() -> None:
    """The blank line may consist of them."""
    assert taken((RAW + BODY).replace(b"\r\n", b"\n")) == (RAW + BODY).replace(b"\r\n", b"\n")


@pytest.mark.parametrize("size", [1, 65535])
@pytest.mark.parametrize("body", [BODY, b"", b"x" * 100_000, b"Received: from a\r\nSubject: y\r\n\r\nx"])
def test_a_body_without_the_header_was_put_together_by_a_guess(body: bytes, size: int) -> None:
    """A future version of Stalwart may send it that way; or the sender wants us to believe so."""
    assert refused(body[:1000] if size == 1 else body, size=size) == UNCLEAR


ODD = [b"\xc2\xa0", b"\x0b", b"\x0c", b"\xc2\x85", b"\xe2\x80\x83", b"\xe3\x80\x80"]


@pytest.mark.parametrize("space", ODD)
def test_a_field_name_with_odd_space_had_the_scanner_read_another_mail(space: bytes) -> None:
    """Stalwart removes all white space that Unicode knows around a name: the field is in the body all the same."""
    raw = RAW.replace(b"Subject", b"X-Odd%b: y\r\n%bX-Other: z\r\nSubject" % (space, space))
    fields = (FIELDS[0], (b"X-Odd", b"y"), (b"X-Other", b"z"), *FIELDS[1:])
    assert taken(raw + BODY, fields) == raw + BODY


def test_a_long_header_had_the_scanner_read_another_mail() -> None:
    """More than a mebibyte is not held; it was then written in front of the whole mail."""
    fields = ((b"X-Long", b"x" * 60_000),) * (HEAD_LIMIT // 60_000 + 2)
    head = b"".join(b"%b: %b\r\n" % field for field in fields)
    assert refused(head + b"\r\n" + BODY, fields).code == 554


def test_a_mail_without_any_field_is_not_clear() -> None:
    assert refused(BODY, ()) == UNCLEAR


def test_fields_of_ours_are_still_found() -> None:
    """The mail server can then be told to remove them."""
    mail = WholeMail("", (), Spool(10_000), LIMITS, leading_space=False)
    for name, value in FIELDS:
        mail.add_fields([name + b"\0" + value + b"\0"])
    mail.add_body(RAW + BODY)
    assert dict(mail.forged) == {b"x-scan-decision": [1]}
    mail.close()


@pytest.mark.parametrize(("answer", "said"), [(Action.RELAY, "c"), (Action.DISCARD, "d"), (Action.REJECT, "y")])
@pytest.mark.usefixtures("strict_loop")
async def test_a_whole_dialogue_as_stalwart_conducts_it(answer: Action, said: str) -> None:
    """One connection for each mail, all of it at the end of data, an answer awaited after every step; any answer
    but CONTINUE before the end would end the mail."""
    filter_ = ScriptedFilter(answer)
    async with listening(filter_, body_is_whole=True) as listener:
        mta = await listener.mta()
        version, actions, steps, _ = await mta.negotiate(version=6, actions=0xFF, steps=0x42)
        assert (version, actions & ~0xFF, steps) == (6, 0, 0)
        for step in (
            frame("D", b"C{daemon_name}\0Stalwart\0") + connect_frame(),
            frame("D", b"H") + frame("H", b"client.example\0"),
            frame("D", b"M{mail_addr}\0a@example.org\0") + frame("M", b"<a@example.org>\0"),
            frame("D", b"R{rcpt_addr}\0b@example.net\0") + frame("R", b"<b@example.net>\0"),
            frame("T"),
            *(frame("L", name + b"\0" + value + b"\0") for name, value in FIELDS),
            frame("N"),
            frame("B", RAW + BODY),
        ):
            assert await mta.ask(step) == ("c", b"")
        mta.send(frame("E"))
        responses = await mta.until_final()
        mta.send(frame("Q"))
        assert await mta.closed()
    assert filter_.seen[0].content == RAW + BODY
    assert responses[-1][0] == said
    assert (b"\0\0\0\1x-scan-decision\0\0" in responses[0][1].lower()) == (answer is Action.RELAY)
