"""Values of a request's JSON, with the type that they must have.

Both dialects name client, sender and recipients in much the same way. Whatever does not have the expected type makes
the request invalid: nothing is guessed. If this is wrong, a mail is scanned with the wrong envelope.
"""

from __future__ import annotations

import re
from typing import Any

from bridge.intake.hooks.json_body import BadJson
from bridge.mail.session import Client, canonical_ip
from bridge.runtime.value import value

_MAX_TEXT = 2048
_MAX_NUMBER = 2**53  # RFC 8259 6: what every reader of JSON understands; a longer one is too large for a float
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")
_PARAMETER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_PARAMETER_VALUE = re.compile(r"[^\x00-\x20=\x7f]*")

Found = dict[str, Any]


@value
class Question:
    """What a mail server asks about, whatever its dialect: addresses and parameters as milter writes them."""

    stage: str
    client: Client
    tls: str | None
    sender: bytes | None  # None: the stage has none
    recipients: tuple[bytes, ...]


def member(found: Found, name: str) -> Found:
    """An object in an object; empty if it is missing or null."""
    inner = found.get(name)
    if inner is None:
        return {}
    if not isinstance(inner, dict):
        raise BadJson(f"{name} is not an object")
    return inner


def text(found: Found, *names: str) -> str | None:
    """A string, by the first of these names that exists; None if it is missing, null or empty."""
    for name in names:
        given = found.get(name)
        if given is not None:
            if not isinstance(given, str) or len(given) > _MAX_TEXT:
                raise BadJson(f"{name} is not a string, or too long")
            return given or None
    return None


def number(found: Found, name: str) -> int | None:
    given = found.get(name)
    if given is not None and (type(given) is not int or not 0 <= given <= _MAX_NUMBER):
        raise BadJson(f"{name} is not a number")
    return given


def client(found: Found, queue: Found, auth: Found) -> Client:
    """The host that sent the mail, as the mail server knows it."""
    given, port = text(found, "ip"), number(found, "port")
    try:
        address = canonical_ip(given) if given else None
    except ValueError:
        raise BadJson("the client's ip is not an address") from None
    return Client(
        address,
        port if port and port < 65536 else None,
        text(found, "ptr"),
        text(found, "ehlo", "helo"),
        None,
        text(queue, "id"),
        text(auth, "login"),
    )


def tls(found: Found) -> str | None:
    version = text(found, "version")
    return None if version is None else f"{_plain(version)}/{_plain(text(found, 'cipher') or '')}"


def _plain(name: str) -> str:
    """A name of a protocol or cipher; it goes into the log unquoted."""
    return _UNUSUAL.sub("?", name[:64])


def envelope(found: Found) -> tuple[bytes | None, tuple[bytes, ...]]:
    """The sender, None if there is none, and the recipients."""
    if not found:
        return None, ()
    recipients = found.get("to") or []
    if not isinstance(recipients, list):
        raise BadJson("envelope.to is not a list")
    return address(found.get("from"), is_sender=True), tuple(map(address, recipients))


def address(found: Any, is_sender: bool = False) -> bytes:
    """An address and its ESMTP parameters, each terminated by NUL."""
    if not isinstance(found, dict):
        raise BadJson("an address is not an object")
    given = found.get("address")
    if given is None and is_sender:
        given = ""
    if not isinstance(given, str) or (not given and not is_sender):
        raise BadJson("an address is not a string")
    words = [given]
    for name, said in member(found, "parameters").items():
        said = "" if said is None else said
        if not isinstance(said, str) or not _PARAMETER.fullmatch(name) or not _PARAMETER_VALUE.fullmatch(said):
            raise BadJson("an ESMTP parameter is invalid")
        words.append(f"{name}={said}" if said else name)
    if any("\0" in word for word in words):
        raise BadJson("an address contains a NUL")
    return "\0".join([*words, ""]).encode()
