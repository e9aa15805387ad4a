"""Archives after other content: 7-Zip searches for the start of an archive in any file that it cannot open otherwise.

The beginning of a photograph, a document or anything else would hide them. Each place where an archive may begin is
tried. Most are not archives, so data that cannot be read there does not count as damage. Raises nothing but TooMuch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import islice

from bridge.service.analysis.content.archive_marks import WITHIN
from bridge.service.analysis.content.decompression import GZIP_LEVELS, bzip2_members, gzip_members, xz_members
from bridge.service.analysis.content.tar_archive import is_header, tar_members
from bridge.service.analysis.content.unpacking import UNOPENED, BadArchive, Budget, Member

_MAX_FOUND = 20  # archives; programs open the first one
_PLACE_WORK = 4096
_MARK_WORK = 256  # for each mark, whatever is around it
_FEW = 100  # marks that are looked at without a budget
_NO_FLAGS = 0xE0  # of gzip: these are reserved
_NOT_PLAIN = re.compile("[^ -~]")

_Opener = Callable[[bytes, Collection[str], Budget], Iterator[Member]]


def _gzip_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """If it is damaged, its own name may be random bytes, which look deceptive: only its plain characters count."""
    found: list[Member] = []
    try:
        found.extend(gzip_members(content, names, budget))
    except BadArchive:
        found = [replace(member, names=tuple(map(_plain, member.names))) for member in found]
    yield from found


def _plain(name: str) -> str:
    return _NOT_PLAIN.sub("", name)


# The mark of each, where it is in the archive, and the function that opens it.
_KINDS: tuple[tuple[bytes, int, _Opener], ...] = (
    (b"\x1f\x8b\x08", 0, _gzip_members),
    (b"1AY&SY", 4, bzip2_members),
    (b"\xfd7zXZ\0", 0, xz_members),
    (b"ustar", 257, tar_members),
)


def has_buried(content: bytes) -> bool:
    """Whether one may begin after the first byte; or there are too many marks to look at without a budget."""
    marks = _marks(content)
    return any(_is_likely(content, *mark) for mark in islice(marks, _FEW)) or next(marks, None) is not None


def buried_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    places = _places(content, budget)
    for at, opener in islice(places, _MAX_FOUND):
        budget.take_work(_PLACE_WORK)
        try:
            for member in opener(content[at:], names, budget):
                if member.content or member.limit:
                    yield replace(member, broken=False, is_disputed=True)
        except BadArchive:
            pass
    if next(places, None) is not None:
        yield Member((), None, tags=(UNOPENED,))


def _places(content: bytes, budget: Budget) -> Iterator[tuple[int, _Opener]]:
    for at, opener in _marks(content):
        budget.take_work(_MARK_WORK)
        if _is_likely(content, at, opener):
            yield at, opener


def _marks(content: bytes) -> Iterator[tuple[int, _Opener]]:
    for mark, offset, opener in _KINDS:
        # No text has the largest byte of two of the marks, and one byte is found much faster than several.
        found = content.find(mark, 1 + offset, WITHIN) if max(mark) in content else -1
        while found >= 0:
            yield found - offset, opener
            found = content.find(mark, found + 1, WITHIN)


def _is_likely(content: bytes, at: int, opener: _Opener) -> bool:
    """The marks of gzip and tar are short, and may be a coincidence."""
    if opener is _gzip_members:
        return at + 9 < len(content) and not content[at + 3] & _NO_FLAGS and content[at + 8 : at + 9] in GZIP_LEVELS
    if opener is bzip2_members:
        return content.startswith(b"BZh", at)
    return opener is not tar_members or is_header(content, at)
