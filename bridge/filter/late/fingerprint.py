"""Fingerprint: how we recognise a mail that is sent to us again.

The same tenant, sender and recipients, and the same content. Only one thing may differ: the mail server in front of us
writes a new Received field on top each time it passes the mail on, so the Received fields at the top are left out. They
must be written exactly as servers write them; in a header section with a line that is not a field, nothing is left out,
because readers disagree about what such a line belongs to, and could show what was left out. If this is wrong, a mail
is delivered because of another mail's decision.

Every part is hashed with its length in front, so that no part can imitate the end of another. There are two hashes: a
short one of the envelope, cheap enough for every mail, and a strong one of the whole mail, computed only if the first
one is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import blake2b, sha256

from bridge.mail.envelope import Envelope
from bridge.mail.header_fields import clean_fields_from_top
from bridge.mail.message import Message

IN_A_THREAD_FROM = 64 * 1024  # bytes; hashing less is cheaper than handing it to a thread

# Raise this with every change of what is hashed: stored hashes of an earlier version must match no mail.
_VERSION = b"scanbridge fingerprint 2"

RECEIVED = b"Received"

# Fields that a server may write above its Received field (Postfix: PREPEND). They count, but the fields below them are
# still the server's: RFC 5321 4.4, RFC 7208 9.1, RFC 8601, RFC 8617 and common practice.
ABOVE_RECEIVED = frozenset(
    (
        *(b"x-received", b"return-path", b"delivered-to", b"x-original-to", b"envelope-to"),
        *(b"received-spf", b"authentication-results", b"x-envelope-from", b"x-envelope-to", b"x-greylist"),
        *(b"arc-seal", b"arc-message-signature", b"arc-authentication-results"),
    )
)


def envelope_hash(tenant: str | None, envelope: Envelope) -> bytes:
    """Eight bytes that stand for tenant and envelope."""
    return blake2b(_envelope(tenant, envelope), digest_size=8).digest()


async def fingerprint(tenant: str | None, envelope: Envelope, message: Message) -> bytes:
    """SHA-256 of everything that identifies the mail; a large mail is hashed in a thread."""
    if message.size < IN_A_THREAD_FROM:
        return _fingerprint(tenant, envelope, message)
    return await asyncio.to_thread(_fingerprint, tenant, envelope, message)


def attempt_key(sender: str, message: Message) -> str:
    """Joins the attempts to deliver one mail in the history, whatever recipients are left.

    Quick: it may err, because only people read it, so the end of long content does not count.
    """
    head = message.head()
    lasting = lasting_head(head)
    size = message.size - len(head) + len(lasting)
    digest = blake2b(sender.encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(b"\0%d\0" % size + lasting)
    left = IN_A_THREAD_FROM
    for chunk in _body(message, len(head)):
        digest.update(chunk[:left])
        left -= len(chunk)
        if left <= 0:
            break
    return digest.hexdigest()


def lasting_head(head: bytes) -> bytes:
    """The header section without the Received fields at its top."""
    fields = clean_fields_from_top(head)
    if fields is None:
        return head
    kept, position = [], 0
    for field in fields:
        is_trace = field.name == RECEIVED and field.is_printable
        if not is_trace and field.name.lower() not in ABOVE_RECEIVED:
            break
        position += len(field.raw)
        if not is_trace:
            kept.append(field.raw)
    return b"".join(kept) + head[position:]


def _fingerprint(tenant: str | None, envelope: Envelope, message: Message) -> bytes:
    head = message.head()
    lasting = lasting_head(head)
    digest = sha256(_VERSION + _envelope(tenant, envelope))
    digest.update((message.size - len(head) + len(lasting)).to_bytes(8) + lasting)
    for chunk in _body(message, len(head)):
        digest.update(chunk)
    return digest.digest()


def _body(message: Message, skip: int) -> Iterator[bytes]:
    """The content after its first `skip` bytes."""
    for chunk in message.chunks():
        if skip < len(chunk):
            yield chunk[skip:] if skip else chunk
        skip = max(skip - len(chunk), 0)


def _envelope(tenant: str | None, envelope: Envelope) -> bytes:
    tenants = () if tenant is None else (tenant,)
    recipients = sorted(envelope.addresses)
    texts = (*tenants, envelope.sender, *recipients)
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    counts = len(tenants).to_bytes(8) + len(parts).to_bytes(8)
    return counts + b"".join(len(part).to_bytes(8) + part for part in parts)
