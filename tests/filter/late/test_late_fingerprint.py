"""The fingerprint: which mails count as the same mail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.filter.late.fingerprint import IN_A_THREAD_FROM, TRACE, envelope_hash, fingerprint
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool

MAIL = b"Subject: hello\r\nX-A: 1\r\n\r\nhello\r\n"
ENVELOPE = Envelope("a@example.org", (Recipient("b@example.org"), Recipient("c@example.org")))


def message(content: bytes, step: int = 0, memory: int = 1 << 20) -> Message:
    mail = Message(Spool(1 << 30, memory))
    for start in range(0, len(content), step or len(content) or 1):
        mail.write(content[start : start + (step or len(content))])
    return mail


async def key(content: bytes = MAIL, envelope: Envelope = ENVELOPE, tenant: str | None = None, **options: int) -> bytes:
    mail = message(content, **options)
    try:
        return await fingerprint(tenant, envelope, mail)
    finally:
        mail.close()


@pytest.mark.parametrize("name", sorted(TRACE))
async def test_trace_fields_make_no_difference(name: bytes) -> None:
    """Whatever servers add on the way, at the top or in the middle, folded or not."""
    field = name.title() + b": by x\r\n\tfor y;\r\n z\r\n"
    assert await key(field + MAIL) == await key()
    assert await key(MAIL.replace(b"X-A", name.upper() + b" :1\r\nX-A")) == await key()


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
        MAIL.replace(b"\r\n\r\n", b"\r\n\r\nReceived: by x\r\n"),  # in the body, this is content
        b"",
    ],
)
async def test_other_content_is_another_mail(content: bytes) -> None:
    """Every byte that the sender chose counts."""
    assert await key(content) != await key()


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
async def test_another_envelope_is_another_mail(envelope: Envelope, tenant: str | None) -> None:
    """Sender, each recipient and tenant count, and none can imitate part of another."""
    assert await key(envelope=envelope, tenant=tenant) != await key()
    assert envelope_hash(tenant, envelope) != envelope_hash(None, ENVELOPE)


async def test_order_and_parameters_of_recipients_make_no_difference() -> None:
    """A mail server may use another order the second time."""
    other = Envelope(ENVELOPE.sender, (Recipient("c@example.org", ("NOTIFY=NEVER",)), Recipient("b@example.org")))
    assert await key(envelope=other) == await key() and envelope_hash(None, other) == envelope_hash(None, ENVELOPE)


@pytest.mark.parametrize("size", [0, 100, IN_A_THREAD_FROM - 1, IN_A_THREAD_FROM, 1 << 20])
async def test_how_the_mail_was_received_makes_no_difference(size: int) -> None:
    """In one chunk or many, in memory or in a file, hashed directly or in a thread."""
    content = MAIL + b"x" * size
    assert await key(content) == await key(content, step=997) == await key(content, step=100_000, memory=0)


async def test_our_own_fields_are_stripped_before_hashing() -> None:
    """The replaced header section is the one that is hashed."""
    mail = message(b"X-Scan-Id: forged\r\n" + MAIL)
    mail.replace_head(MAIL.partition(b"\r\n\r\n")[0] + b"\r\n")
    assert await fingerprint(None, ENVELOPE, mail) == await key()


def test_undecodable_addresses_are_hashed() -> None:
    """Lone surrogates cause no exception."""
    assert len(envelope_hash(None, Envelope("\udcff@example.org", (Recipient("b@example.org"),)))) == 8
