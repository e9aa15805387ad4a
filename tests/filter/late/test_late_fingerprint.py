"""The fingerprint: which mails count as the same mail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.filter.late.fingerprint import ABOVE_RECEIVED, IN_A_THREAD_FROM, envelope_hash, fingerprint
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


RECEIVED = b"Received: from x (y [192.0.2.1])\r\n\tby z (Postfix) with ESMTP id 1A2B\r\n\tfor <b@example.org>; date\r\n"


@pytest.mark.parametrize(
    "top",
    [
        RECEIVED,
        RECEIVED.replace(b"1A2B", b"3C4D"),
        RECEIVED + RECEIVED,
        b"Received: by x\r\n",
        "Received: by x for <\u00fc@example.org>\r\n".encode(),
    ],
)
async def test_the_received_fields_on_top_make_no_difference(top: bytes) -> None:
    """The mail server in front writes a new one each time; there may be several such servers."""
    assert await key(top + MAIL) == await key()


@pytest.mark.parametrize("name", sorted(ABOVE_RECEIVED))
async def test_a_server_may_write_other_fields_above_its_received_field(name: bytes) -> None:
    """Postfix puts what a policy service prepends above its own Received field; these fields count."""
    field = name.title() + b": x\r\n"
    assert await key(field + RECEIVED + MAIL) == await key(field + RECEIVED.replace(b"1A2B", b"3C4D") + MAIL)
    assert await key(field + RECEIVED + MAIL) != await key(field.replace(b"x", b"y") + RECEIVED + MAIL)


@pytest.mark.parametrize(
    "head",
    [
        b"Received\r\n Visible text\r\n",
        b"Received\r\n",
        b"Received by x\r\n",
        b"Received : by x\r\n",
        b"Received\t: by x\r\n",
        b"received: by x\r\n",
        b"RECEIVED: by x\r\n",
        b"Received-: by x\r\n",
        b"Received:by x\r\n \r\n Visible text\r\n",
        b"Received: by x\r\n\t\r\n",
        b"Received: by x\r\n \t \r\n Visible text\r\n",
        b"Received: by x\rVisible text\r\n",
        b"Received: by x\nVisible text\r\n",
        b"Received: by x\r\n \r Visible text\r\n",
        b"Received: by x\0Visible text\r\n",
        b"Received: by x\x0bVisible text\r\n",
        b"Received: by x\x0cVisible text\r\n",
        b"Received: by x\x1cVisible text\r\n",
        b"Received: by x\xc2\x85Visible text\r\n",
        b"Received: by x\xe2\x80\xa8Visible text\r\n",
        b"Received: by x\x85Visible text\r\n",
        b"Received: by x \x1b[2J\r\n",
        b" Received: by x\r\n",
        b"\tReceived: by x\r\n",
        b"Visible text\r\n",
        b"Visible text\r\nReceived: by x\r\n",
        b" Visible text\r\nReceived: by x\r\n",
        b"From someone Mon Nov 16 2026\r\nReceived: by x\r\n",
        b": Visible text\r\n",
        b"R\xc3\xa9ceived: by x\r\n",
        b"Subject: another\r\n",
        b"Subject: hello\r\n",
        b"Subject: hello\r\nReceived: by x\r\n",
        b"Content-Type: text/html\r\n",
        b"Return-Path: <x@example.org>\r\n",
        b"Authentication-Results: mx; dkim=pass\r\n",
        b"X-Received: x\r\n",
        b"\r\n",
        b" \r\n",
        b"Received: by x\r\n\r\n",
    ],
)
async def test_a_line_that_a_reader_may_show_was_left_out_of_the_hash(head: bytes) -> None:
    """Two mails that differ in it had one late decision: only well-formed Received fields on top may differ."""
    assert await key(head + MAIL) != await key()
    if head[:1] not in b" \t" or not head.strip():  # otherwise it is part of that Received field, for every reader
        assert await key(RECEIVED + head + MAIL) != await key()


@pytest.mark.parametrize(
    "line", [b"Visible text\r\n", b" \r\n", b"X-A: \r\n \r\n text\r\n", b"X-\xe9: 1\r\n", b"X-A: a\rb\r\n"]
)
async def test_with_a_line_that_is_no_field_the_whole_header_section_counts(line: bytes) -> None:
    """Wherever it is: readers disagree about what the lines around it belong to."""
    for content in (
        line + MAIL,
        MAIL.replace(b"X-A", line + b"X-A"),
        MAIL.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n"),
    ):
        assert await key(RECEIVED + content) != await key(content)
        assert await key(RECEIVED + content) != await key(RECEIVED.replace(b"1A2B", b"3C4D") + content)


async def test_only_received_fields_on_top_may_differ() -> None:
    """Below the first other field they are the sender's, like everything else."""
    assert await key(MAIL.replace(b"X-A", RECEIVED + b"X-A")) != await key()
    assert await key(MAIL.replace(b"\r\n\r\n", b"\r\n" + RECEIVED + b"\r\n")) != await key()


async def test_white_space_folding_order_and_repetition_count() -> None:
    """Readers see a boundary with one space and one with two as two boundaries."""
    fields = [b'Content-Type: multipart/mixed; boundary="a b"\r\n', b"To: b@example.org\r\n"]
    one, two = fields
    heads = [one + two, two + one, one.replace(b"a b", b"a  b") + two, one.replace(b"a b", b"a\r\n b") + two]
    heads += [one + one + two, one + two + two, one.replace(b"Content-Type", b"content-type") + two]
    assert len({await key(head + MAIL) for head in heads}) == len(heads)


async def test_a_header_section_cannot_imitate_a_body() -> None:
    """A head that is longer than what is searched, and the rest of it, are hashed completely."""
    long = b"".join(b"X-%d: x\r\n" % number for number in range(120_000))
    assert len(long) > 1 << 20
    assert await key(RECEIVED + long + MAIL) == await key(long + MAIL)
    assert await key(long + MAIL) != await key(long + MAIL.replace(b"X-A: 1", b"X-A: 2"))


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
        (ENVELOPE, ""),
        (Envelope("b@example.org", (Recipient("c@example.org"),)), "a@example.org"),
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
