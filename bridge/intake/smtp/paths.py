"""MAIL and RCPT arguments: RFC 5321 paths and ESMTP parameters, on the raw bytes.

An accepted address goes to the next hop exactly as it came, so this parser repairs nothing: it drops no comments, adds
no quotes and decodes no RFC 2047 words. Control characters and bytes that are not UTF-8 are refused: an address that
contained CR LF would be a command for the next hop. It tolerates what the mail servers in front of us tolerate: a space
after the colon, missing brackets, consecutive dots, a local part without a domain.
"""

from __future__ import annotations

import binascii
import re
from typing import NamedTuple

from bridge.mail.reply import Reply

_ATOM = rb"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.\x80-\xff-]+"
_QUOTED = rb'"(?:[\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\x20-\x7e])*"'
_DOMAIN = rb"(?:[A-Za-z0-9_.\x80-\xff-]+|\[[A-Za-z0-9:.]+\])"
_MAILBOX = rb"(?:%b|%b)(?:@%b)?" % (_ATOM, _QUOTED, _DOMAIN)
_PATH = re.compile(rb" *(?:<(%b|)>|(%b))(?: +(.*))?" % (_MAILBOX, _MAILBOX), re.DOTALL)
_PARAM = re.compile(rb"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([\x21-\x3c\x3e-\x7e\x80-\xff]+))?")
_EMPTY_HALF = re.compile(rb" *<(?:@[^@<>,:]*|[^@<> ]+@)>.*", re.DOTALL)  # <@domain>, <user@>
_ENCODED_WORD = re.compile(rb"=\?[^?]*\?[Bb]\?([^?]*)")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class Path(NamedTuple):
    """A parsed argument: the address without brackets, the parameters' values in their original case."""

    address: str
    params: tuple[tuple[str, str | None], ...] = ()  # (KEYWORD in capitals, value)

    @property
    def as_sent(self) -> tuple[str, ...]:
        return tuple([name if value is None else f"{name}={value}" for name, value in self.params])

    @property
    def is_ascii(self) -> bool:
        return self.address.isascii() and all(value is None or value.isascii() for _, value in self.params)


def parse_path(argument: bytes, *, syntax: str) -> Path | Reply:
    """`<address> [params]`, or the refusal. `syntax` is the text of a 501."""
    match = _PATH.fullmatch(argument)
    if match is None:
        if _CONTROL.search(argument):
            return Reply(553, "5.1.3", "Error: control characters in the address")
        if _EMPTY_HALF.fullmatch(argument):
            return Reply(553, "5.1.3", "Error: malformed address")
        return Reply(501, "5.5.4", syntax)
    raw = match.group(1) if match.group(1) is not None else match.group(2)
    if b"=?" in raw and _hides_control(raw):
        return Reply(553, "5.1.3", "Error: control characters in the address")
    try:
        address = raw.decode("utf-8")
        params = _parse_params(match.group(3) or b"")
    except UnicodeDecodeError:
        return Reply(553, "5.1.3", "Error: the address is not valid UTF-8")
    if params is None:
        return Reply(501, "5.5.4", syntax)
    return Path(address, params)


def _hides_control(raw: bytes) -> bool:
    """Whether software that wrongly decodes RFC 2047 words in an address would find a control character."""
    try:
        decoded = [binascii.a2b_base64(word) for word in _ENCODED_WORD.findall(raw)]
    except binascii.Error:
        return True
    return any(_CONTROL.search(text) for text in (*decoded, binascii.a2b_qp(raw)))


def _parse_params(raw: bytes) -> tuple[tuple[str, str | None], ...] | None:
    if not raw:
        return ()
    params: dict[str, str | None] = {}
    for word in raw.split(b" "):
        if not word:
            continue
        match = _PARAM.fullmatch(word)
        if match is None:
            return None
        name = match.group(1).decode("ascii").upper()
        if name in params:
            return None
        params[name] = None if match.group(2) is None else match.group(2).decode("utf-8")
    return tuple(params.items())
