"""Text in header fields: RFC 2047 encoded words and charsets, read leniently; nothing here raises."""

from __future__ import annotations

from email.errors import HeaderParseError
from email.header import decode_header


def decode_words(text: str) -> str:
    """Decode RFC 2047 encoded words: forbidden in parameters, but mail programs write them there."""
    if "=?" not in text:
        return text
    try:
        found = decode_header(text[:2000])
    except (HeaderParseError, ValueError):
        return text
    return "".join(p if isinstance(p, str) else as_text(p, c or "ascii") for p, c in found)


def as_text(raw: bytes, charset: str) -> str:
    try:
        return raw.decode(charset or "utf-8", "replace")
    except (LookupError, ValueError):  # unknown charset
        return raw.decode("latin-1")
