"""Veil: how much of a mail address the log shows.

`full` shows it as it is, `domain` only where it belongs (`*@example.org`), `hashed` a name in its
place (`~1f2e3d4c5b6a7988`) that is the same for one address in all lines, and that nobody can turn
back, or make, without the key. Knows text only, and no other place that keeps addresses. If this is
wrong, people are named in logs whose keepers were promised otherwise.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

Mode = Literal["full", "domain", "hashed"]

_NAME_BYTES = 8
_END = r"""\s<>()\[\]",:;@\\"""  # what an address has only within quotes or brackets
# Anything that looks like one, from where it begins, in any text; `://user@host` is a URL's.
_ADDRESS = re.compile(
    rf"""(?<![^{_END}])(?!(?<=:)//)(?:"(?:[^"\\\r\n]|\\.)*"|[^{_END}]+)@(?:\[[^\]\s]*\]|[^{_END}]+)"""
)


class Veil:
    """Over addresses, and over the addresses in a text."""

    def __init__(self, mode: Mode = "full", key: bytes = b"") -> None:
        assert mode != "hashed" or key
        self.mode = mode
        self._key = key

    def address(self, address: str) -> str:
        """One address, whole. The null sender is nobody's."""
        if self.mode == "full" or not address:
            return address
        if self.mode == "domain":
            _, at, domain = address.rpartition("@")
            return f"*@{domain}" if at else "*"
        name = hashlib.blake2b(address.lower().encode("utf-8", "surrogatepass"), digest_size=_NAME_BYTES, key=self._key)
        return f"~{name.hexdigest()}"

    def text(self, text: str) -> str:
        """With every address in it veiled: somebody else's reply, an error."""
        if self.mode == "full" or "@" not in text:
            return text
        return _ADDRESS.sub(lambda match: self.address(match.group()), text)


FULL = Veil()
