"""Redaction: how much of a mail address the log shows.

`full` shows all of it, `domain` only the domain (`*@example.org`), `hashed` a keyed hash instead
(`~1f2e3d4c5b6a7988`): the same for one address in every line, and neither reversible nor reproducible
without the key. Knows text only; the quarantine and other stores of addresses are not its business. If
this is wrong, the log names people although the operator promised that it would not.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from bridge.mail.address import comparable_address, split_address

Mode = Literal["full", "domain", "hashed"]

_HASH_BYTES = 8
_END = r"""\s<>()\[\]",:;@\\"""  # an address has these only within quotes or brackets
# Anything that looks like an address, from its first character on; `://user@host` belongs to a URL.
_ADDRESS = re.compile(
    rf"""(?<![^{_END}])(?!(?<=:)//)(?:"(?:[^"\\\r\n]|\\.)*"|[^{_END}]+)@(?:\[[^\]\s]*\]|[^{_END}]+)"""
)


class Redaction:
    """Hides addresses, and the addresses in a text."""

    def __init__(self, mode: Mode = "full", key: bytes = b"") -> None:
        assert mode != "hashed" or key
        self.mode = mode
        self._key = key

    def address(self, address: str) -> str:
        """One whole address. The null sender stays empty."""
        if self.mode == "full" or not address:
            return address
        if self.mode == "domain":
            domain = split_address(address)[1]
            return f"*@{domain}" if domain else "*"
        compared = comparable_address(address).encode("utf-8", "surrogatepass")
        return f"~{hashlib.blake2b(compared, digest_size=_HASH_BYTES, key=self._key).hexdigest()}"

    def text(self, text: str) -> str:
        """The text with every address in it hidden: a next hop's reply, an error."""
        if self.mode == "full" or "@" not in text:
            return text
        return _ADDRESS.sub(lambda match: self.address(match.group()), text)


FULL = Redaction()
