"""Redaction: how much of a mail address the log shows.

`full` shows all of it, `domain` only the domain (`*@example.org`), `hashed` a keyed hash instead
(`~1f2e3d4c5b6a7988`): the same for one address in every line, and neither reversible nor reproducible
without the key. Knows text only; the quarantine and other stores of addresses are not its concern. If
this is wrong, the log names people although the operator promised that it would not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

from bridge.mail.address import comparable_address, split_address

Mode = Literal["full", "domain", "hashed"]

_HASH_BYTES = 8
_MAX_ADDRESS = 2048  # characters; a longer one is not searched for comments and quotes
_MAX_TEXT = 64 * 1024  # a traceback may be long; of other text, the log shows less
_END = r"""\s<>()\[\]",:;@\\"""  # an address has these only within quotes or brackets
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,2048}>")
_IN_BRACKETS = re.compile(r"<([^<>@]{1,2048})>")
_PLAIN_DOMAIN = re.compile(r"[A-Za-z0-9._-]{1,255}")
# A quote after a backslash may begin a local part, too, but is looked at no further than one reaches (RFC 5321
# 4.5.3.1.1): text full of such quotes took quadratic time.
_QUOTED = r"""(?:(?<!\\)"(?:[^"\\\r\n]|\\.)*"|(?<=\\)"(?:[^"\\\r\n]|\\.){0,64}")"""
# Closed or not, but never beyond an `@` or a bracket, where another address may begin: brackets that are never closed
# took quadratic time.
_LITERAL = r"""\[(?:[^\[\]\s@]*+(?:\]|(?!@)))?"""
# Anything that looks like an address, from its first character on; `://user@host` belongs to a URL.
_ADDRESS = re.compile(rf"""(?<![^{_END}])(?!(?<=:)//)(?:{_QUOTED}|[^{_END}]+)@(?:{_LITERAL}|[^{_END}]+)""")


class Redaction:
    """Hides addresses, and the addresses in a text."""

    def __init__(self, mode: Mode = "full", key: bytes = b"") -> None:
        assert mode != "hashed" or key
        self.mode = mode
        self._key = key
        self._names: frozenset[str] = frozenset()

    def of_mail(self, sender: str, recipients: Iterable[str]) -> Redaction:
        """For texts about this mail: also hides `<postmaster>`, if that is one of its addresses."""
        names = frozenset(each for each in (sender, *recipients) if each and "@" not in each)
        if self.mode == "full" or not names:
            return self
        found = Redaction(self.mode, self._key)
        found._names = names
        return found

    def address(self, address: str) -> str:
        """One whole address. The null sender stays empty."""
        if self.mode == "full" or not address:
            return address
        is_long = len(address) > _MAX_ADDRESS
        if self.mode == "domain":
            domain = _last_word(address) if is_long else split_address(address)[1]
            return f"*@{domain}" if domain else "*"
        compared = (address if is_long else comparable_address(address)).encode("utf-8", "surrogatepass")
        return f"~{hashlib.blake2b(compared, digest_size=_HASH_BYTES, key=self._key).hexdigest()}"

    def message_id(self, text: str) -> str:
        """A Message-ID, which is like an address; whatever else is in the field is text."""
        if self.mode == "full" or not text:
            return text
        return f"<{self.address(text[1:-1])}>" if _MESSAGE_ID.fullmatch(text) else self.text(text)

    def text(self, text: str) -> str:
        """The text with every address in it hidden: a next hop's reply, an error."""
        if self.mode == "full" or not ("@" in text or self._names):
            return text
        if len(text) > _MAX_TEXT:  # up to a space: the end could be half an address
            text = f"{text[:_MAX_TEXT].rpartition(' ')[0]} ..."
        if self._names:
            text = _IN_BRACKETS.sub(self._without_name, text)
        return _ADDRESS.sub(lambda match: self.address(match.group()), text)

    def _without_name(self, found: re.Match[str]) -> str:
        return f"<{self.address(found[1])}>" if found[1] in self._names else found[0]


def _last_word(address: str) -> str:
    domain = address.rpartition("@")[2]
    return domain if _PLAIN_DOMAIN.fullmatch(domain) else ""


FULL = Redaction()
