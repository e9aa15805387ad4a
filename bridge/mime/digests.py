"""Sizes and hashes of the parts of one mail, for a page that shows them: as many as a second or two allows.

A mail may consist of tiny lines, which take long to decode, or of messages within messages, which contain the same
bytes thirty times. Beyond the bound, a part has no hash, and its size is that of its encoded content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from bridge.mime.encodings import PLAIN, decoded_blocks
from bridge.mime.structure import Part

MAX_WORK = 128 * 1024 * 1024  # bytes to decode and hash: a mail of 50 MiB in Base64, and as much again
_LINE = 64  # bytes that take as long as a line of an encoding; uuencode may leave out 61 characters of each


class Digests:
    def __init__(self, mail: bytes, max_work: int = MAX_WORK) -> None:
        self._mail = mail
        self._left = max_work
        self.left_out = 0  # parts without a hash
        self._known: dict[tuple[int, int, str], tuple[int, str]] = {}  # two lists may show a part

    @property
    def problem(self) -> str:
        return "some hashes were not computed, because that would take too long" if self.left_out else ""

    def of(self, part: Part) -> tuple[int, str]:
        """The decoded size and the SHA-256; of a part that is left out, the encoded size and ""."""
        key = part.body, part.end, part.encoding
        if key not in self._known:
            self._known[key] = self._compute(part)
        return self._known[key]

    def _compute(self, part: Part) -> tuple[int, str]:
        work = part.end - part.body
        if part.encoding not in PLAIN:
            work += _LINE * max(self._count(b"\n", part), self._count(b"\r", part))
        if work > self._left:  # a smaller part may still get its hash
            self.left_out += 1
            return part.end - part.body, ""
        self._left -= work
        size, digest = 0, hashlib.sha256()
        for block in self._content(part):
            size += len(block)
            digest.update(block)
        return size, digest.hexdigest()

    def _count(self, line_end: bytes, part: Part) -> int:
        return self._mail.count(line_end, part.body, part.end)

    def _content(self, part: Part) -> Iterable[bytes | memoryview]:
        if part.encoding in PLAIN:  # without a copy
            return [memoryview(self._mail)[part.body : part.end]]
        return decoded_blocks(self._mail[part.body : part.end], part.encoding)
