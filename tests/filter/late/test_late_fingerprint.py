"""When is a mail the same mail?"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bridge.filter.late.fingerprint import IN_A_THREAD_FROM, TRACE, fingerprint, mark
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool

MAIL = b"Subject: hello\r\nX-A: 1\r\n\r\nhello\r\n"
ENVELOPE = Envelope("a@example.org", (Recipient("b@example.org"), Recipient("c@example.org")))


def message(content: bytes, step: int = 0, memory: int = 1 << 20) -> Message:
    one = Message(Spool(1 << 30, memory))
    for start in range(0, len(content), step or len(content) or 1):
        one.write(content[start : start + (step or len(content))])
    return one


def key(content: bytes = MAIL, envelope: Envelope = ENVELOPE, tenant: str | None = None, **options: int) -> bytes:
    one = message(content, **options)
    try:
        return asyncio.run(fingerprint(tenant, envelope, one))
    finally:
        one.close()


@pytest.mark.parametrize("name", sorted(TRACE))
def test_trace_fields_make_no_difference(name: bytes) -> None:
    """Whatever servers write on the way, in front or in the middle, folded or not."""
    field = name.title() + b": by x\r\n\tfor y;\r\n z\r\n"
    assert key(field + MAIL) == key()
    assert key(MAIL.replace(b"X-A", name.upper() + b" :1\r\nX-A")) == key()


@pytest.mark.parametrize(
    "content",
    [
        MAIL.replace(b"hello\r\n", b"hallo\r\n"),
        MAIL.replace(b"X-A: 1", b"X-A: 2"),
        MAIL + b"\r\n",
        MAIL.replace(b"X-A: 1\r\n", b""),
        MAIL.replace(b"\r\n\r\nhello", b"\r\nhello"),
        b"\r\n" + MAIL,
        b"X-Received-By: z\r\n" + MAIL,
        MAIL.replace(b"\r\n\r\n", b"\r\n\r\nReceived: by x\r\n"),  # in the body it is content
        b"",
    ],
)
def test_other_content_is_another_mail(content: bytes) -> None:
    """Every byte that the sender chose counts."""
    assert key(content) != key()


@pytest.mark.parametrize(
    ("envelope", "tenant"),
    [
        (replace(ENVELOPE, sender=""), None),
        (replace(ENVELOPE, sender="A@example.org"), None),
        (replace(ENVELOPE, recipients=ENVELOPE.recipients[:1]), None),
        (Envelope("a@example.orgb@example.org", (Recipient("c@example.org"),)), None),
        (ENVELOPE, "123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_another_envelope_is_another_mail(envelope: Envelope, tenant: str | None) -> None:
    """Sender, each recipient and tenant count, and none can pose as a part of another."""
    assert key(envelope=envelope, tenant=tenant) != key()
    assert mark(tenant, envelope) != mark(None, ENVELOPE)


def test_order_and_parameters_of_recipients_make_no_difference() -> None:
    """A mail server may name them in another order the second time."""
    other = Envelope(ENVELOPE.sender, (Recipient("c@example.org", ("NOTIFY=NEVER",)), Recipient("b@example.org")))
    assert key(envelope=other) == key() and mark(None, other) == mark(None, ENVELOPE)


@pytest.mark.parametrize("size", [0, 100, IN_A_THREAD_FROM - 1, IN_A_THREAD_FROM, 1 << 20])
def test_the_way_the_mail_came_makes_no_difference(size: int) -> None:
    """In one piece or in many, in memory or in a file, hashed here or in a thread."""
    content = MAIL + b"x" * size
    assert key(content) == key(content, step=997) == key(content, step=100_000, memory=0)


def test_our_own_fields_are_stripped_before() -> None:
    """The head that stands for what came is the one that is hashed."""
    one = message(b"X-Scan-Id: forged\r\n" + MAIL)
    one.replace_head(MAIL.partition(b"\r\n\r\n")[0] + b"\r\n")
    assert asyncio.run(fingerprint(None, ENVELOPE, one)) == key()


def test_bytes_that_are_no_text_are_hashed_too() -> None:
    """Lone surrogates cannot stop the hash."""
    assert len(mark(None, Envelope("\udcff@example.org", (Recipient("b@example.org"),)))) == 8
