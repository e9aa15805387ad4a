"""Contents that were found before: most readings of an ambiguous mail contain the same objects.

Contents are compared, which takes a fifth of the time of a digest. But storing every form of a large mail would fill
the memory, so of those beyond the first megabytes, only digests are kept.
"""

from __future__ import annotations

import hashlib

MAX_KEPT = 16 * 1024 * 1024  # bytes


class Seen:
    """The contents of one search."""

    def __init__(self) -> None:
        self._contents: set[bytes] = set()
        self._digests: set[bytes] = set()
        self._left = MAX_KEPT

    def is_new(self, content: bytes) -> bool:
        """Whether it is asked for the first time."""
        if content in self._contents:
            return False
        if len(content) <= self._left:
            self._left -= len(content)
            self._contents.add(content)
            return not self._digests or digest(content) not in self._digests
        key = digest(content)
        if key in self._digests:
            return False
        self._digests.add(key)
        return True


def digest(content: bytes) -> bytes:
    """To recognise it later."""
    return hashlib.blake2b(content, digest_size=32).digest()
