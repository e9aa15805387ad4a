"""XFORWARD and XCLIENT: what a trusted mail server says about the client behind it.

Attribute syntax, xtext and the meaning of "[UNAVAILABLE]" only; whether the client may send it is the caller's
business. What is not known stays None: the address of our own peer is never put in its place.
"""

from __future__ import annotations

import re
from dataclasses import replace

from bridge.mail.session import Client, canonical_ip

XFORWARD_NAMES = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "IDENT", "SOURCE")
XCLIENT_NAMES = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "LOGIN", "DESTADDR", "DESTPORT")

_XTEXT = re.compile(rb"\+([0-9A-Fa-f]{2})")
_BAD_XTEXT = re.compile(rb"\+(?![0-9A-Fa-f]{2})")
_UNKNOWN = ("[UNAVAILABLE]", "[TEMPUNAVAIL]")
_MAX_VALUE = 255


class BadAttribute(ValueError):
    """The command is refused with 501; none of its attributes is accepted."""


def apply(client: Client, argument: bytes, names: tuple[str, ...]) -> Client:
    """`client` with the attributes of one command. Raises BadAttribute."""
    words = argument.split()
    if not words:
        raise BadAttribute
    for word in words:
        name, equals, raw = word.partition(b"=")
        key = name.decode("ascii", "replace").upper()
        if not equals or key not in names or len(raw) > _MAX_VALUE:
            raise BadAttribute
        client = _with(client, key, _decode(raw))
    return client


def _with(client: Client, key: str, value: str | None) -> Client:
    match key:
        case "ADDR":
            return replace(client, address=_address(value))
        case "PORT":
            return replace(client, port=_port(value))
        case "NAME":
            return replace(client, name=value)
        case "HELO":
            return replace(client, helo=value)
        case "PROTO":
            return replace(client, protocol=value)
        case "IDENT":
            return replace(client, ident=value)
        case "SOURCE":
            return replace(client, source=value)
        case "LOGIN":
            return replace(client, login=value)
        case _:  # DESTADDR, DESTPORT: accepted, but not used
            return client


def _decode(raw: bytes) -> str | None:
    """Decode xtext; a value with a bad escape is kept as it is, as Postfix does."""
    if not _BAD_XTEXT.search(raw):
        raw = _XTEXT.sub(lambda m: bytes([int(m.group(1), 16)]), raw)
    text = raw.decode("utf-8", "replace")
    return None if text.upper() in _UNKNOWN or not text else text


def _address(value: str | None) -> str | None:
    if value is None:
        return None
    text = value[5:] if value[:5].upper() == "IPV6:" else value
    try:
        return canonical_ip(text)
    except ValueError:
        raise BadAttribute from None


def _port(value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or int(value) > 65535:
        raise BadAttribute
    return int(value)
