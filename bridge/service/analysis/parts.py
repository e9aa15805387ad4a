"""The parts of a mail, decoded, for engines that look at one object at a time and cannot read MIME.

The inspection finds them, in its process or in the event loop; this file collects and keeps them. A part is what a
mail program would save or show. Files in archives are not parts, because such engines open archives themselves. What
some program finds only in another reading of an ambiguous mail is a part too. Large ones are kept in an unlinked file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.mail.message import Spool
from bridge.mime.words import whole_characters
from bridge.service.analysis.job import StoredMail

MAX_BYTES = 64 * 1024 * 1024  # of all parts; those of an unambiguous mail are not larger than the mail
MAX_PARTS = 5000
MAX_NAMES = 20  # of one part; the rest are variants of these
BLOCK = 256 * 1024


@dataclass(frozen=True, slots=True)
class MailPart:
    names: tuple[str, ...]  # file names that mail programs may show; empty for a text
    content_type: str  # as declared by the mail; "" if unknown
    size: int
    sha256: str
    stored: StoredMail  # internal; use `chunks` or `content`
    offset: int

    def chunks(self) -> Iterator[bytes]:
        """The content, in chunks of at most a few hundred KiB."""
        at, end, file = self.offset, self.offset + self.size, self.stored.descriptor
        whole = self.stored.content() if file is None else b""
        while at < end:
            count = min(BLOCK, end - at)
            block = whole[at : at + count] if file is None else os.pread(file, count, at)
            if not block:
                raise OSError("the file that holds the parts of the mail is too short")
            yield block
            at += len(block)

    def content(self) -> bytes:
        return b"".join(self.chunks())


class MailParts(Sequence[MailPart]):
    """All parts of a mail, until `close`."""

    def __init__(self, pieces: Iterator[bytes], described: Sequence[Any], *, is_complete: bool) -> None:
        """`described`: from `Collector`. Takes the bytes of the parts from `pieces`. Raises ValueError and OSError."""
        self.is_complete = is_complete  # False: the inspection reached one of its limits
        self._store = StoredMail(Spool(2 * MAX_BYTES))
        self._parts: list[MailPart] = []
        offset = 0
        for names, content_type, size, sha256 in described:
            part = MailPart(tuple(map(str, names)), str(content_type), int(size), str(sha256), self._store, offset)
            if part.size <= 0:
                raise ValueError("a part has no size")
            self._parts.append(part)
            offset += part.size
        try:
            self._fill(pieces, offset)
        except BaseException:
            self.close()
            raise

    def _fill(self, pieces: Iterator[bytes], size: int) -> None:
        for piece in pieces:
            self._store.write(piece, is_last=self._store.size + len(piece) >= size)
        if self._store.size != size:
            raise ValueError("the sizes of the parts differ from their description")

    def __getitem__(self, index: Any) -> Any:
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)

    def close(self) -> None:
        self._store.close()


def divided(pieces: Sequence[bytes], count: int) -> tuple[list[bytes], list[bytes]]:
    """The first `count` bytes, and the rest."""
    first: list[bytes] = []
    for number, piece in enumerate(pieces):
        if len(piece) >= count:
            rest = [piece[count:], *pieces[number + 1 :]] if len(piece) > count else pieces[number + 1 :]
            return [*first, piece[:count]] if count else first, list(rest)
        first.append(piece)
        count -= len(piece)
    return first, []


class Collector:
    """Collects parts while a mail is inspected: each content once, within the limits."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.described: list[tuple[list[str], str, int, str]] = []
        self.is_full = False
        self._size = 0
        self._seen: dict[str, int] = {}

    def see(self, content: bytes, names: Collection[str], _is_opaque: bool, content_type: str | None) -> None:
        """For `inspect`."""
        if content_type is not None:
            self.add(content, names, content_type)

    def add(self, content: bytes, names: Collection[str], content_type: str) -> None:
        if not content:
            return
        names = set(map(whole_characters, names))
        digest = hashlib.sha256(content).hexdigest()
        number = self._seen.setdefault(digest, len(self.contents))
        if number < len(self.contents):
            known = self.described[number][0]
            known += sorted(names - set(known))[: MAX_NAMES - len(known)]
            return
        if self._size + len(content) > MAX_BYTES or number >= MAX_PARTS:
            self.is_full = True
            del self._seen[digest]
            return
        self._size += len(content)
        self.contents.append(content)
        self.described.append((sorted(names)[:MAX_NAMES], content_type, len(content), digest))
