"""Fingerprint: how we recognise a mail that is sent to us again.

The same tenant, sender and recipients, and the same content without trace fields: every server that
the mail passes on its second way adds its own. Every part is hashed with its length in front, so that
no part can imitate the end of another. There are two hashes: a short one of the envelope, cheap enough
for every mail, and a strong one of the whole mail, computed only if the first one is known.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b, sha256

from bridge.mail.envelope import Envelope
from bridge.mail.header_fields import without_fields
from bridge.mail.message import Message

IN_A_THREAD_FROM = 64 * 1024  # bytes; hashing less is cheaper than handing it to a thread

# Written by servers on the way, not by the sender: RFC 5321 4.4, RFC 7208 9.1, RFC 8601, RFC 8617 and common practice.
TRACE = frozenset(
    (
        *(b"received", b"x-received", b"return-path", b"delivered-to", b"x-original-to", b"envelope-to"),
        *(b"received-spf", b"authentication-results", b"x-envelope-from", b"x-envelope-to"),
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


def _fingerprint(tenant: str | None, envelope: Envelope, message: Message) -> bytes:
    head = message.head()
    lasting = without_fields(head, TRACE)
    digest = sha256(_envelope(tenant, envelope))
    digest.update(len(lasting).to_bytes(8) + lasting + (message.size - len(head)).to_bytes(8))
    skip = len(head)
    for chunk in message.chunks():
        if skip < len(chunk):
            digest.update(chunk[skip:] if skip else chunk)
        skip = max(skip - len(chunk), 0)
    return digest.digest()


def _envelope(tenant: str | None, envelope: Envelope) -> bytes:
    recipients = sorted(envelope.addresses)
    parts = [text.encode("utf-8", "surrogatepass") for text in (tenant or "", envelope.sender, *recipients)]
    return len(parts).to_bytes(8) + b"".join(len(part).to_bytes(8) + part for part in parts)
