"""Compares our reader with the others: whatever one of them extracts from a mail and ours does not is a finding.

What counts: the longest beginning of the payload that stands in one extracted object, in steps of 48 bytes (less
than 48 is chance or a fragment). It is measured twice: anywhere in an object, and in objects that begin with it,
because a file whose first bytes are something else is another kind of file. Ours must reach at least as far as any
other reader, both times. If a reader shows a file name that ends in .exe, the inspection must report a program. A
mail that ours cannot read completely is held, so it is no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from tests.mime import ours
from tests.mime.grammar import FILE, Case, shrink, simplest
from tests.mime.reader import Found, Reader
from tests.mime.servers import Clamav

STEP = 48
FILE_END = FILE.decode()[-4:]


@dataclass(frozen=True, order=True)
class Extent:
    """How many bytes of the payload were extracted: anywhere in an object, and as the beginning of one."""

    inside: int = 0
    first: int = 0

    def covers(self, other: Extent) -> bool:
        return self.inside >= other.inside and self.first >= other.first


@dataclass(frozen=True)
class Finding:
    """A reader that extracts more than ours. `detail` says what; `size` is how much the reader extracts."""

    case: Case
    reader: str
    detail: str
    size: int = 0

    def __str__(self) -> str:
        text = self.case.mail.decode("latin-1")
        return f"seed {self.case.seed}: {self.reader} {self.detail}\n  mutations: {self.case.mutations}\n{text!r}"


def extent(found: Iterable[Found], payload: bytes) -> Extent:
    inside = first = 0
    for item in found:
        inside = max(inside, _longest(item.content, payload))
        first = max(first, _common(item.content, 0, payload))
    return Extent(inside, first)


def _longest(content: bytes, payload: bytes) -> int:
    if payload in content:
        return len(payload)
    best, at = 0, content.find(payload[:STEP])
    while at >= 0:
        best = max(best, _common(content, at, payload))
        at = content.find(payload[:STEP], at + 1)
    return best


def _common(content: bytes, at: int, payload: bytes) -> int:
    """How many bytes are equal from there on, in whole steps."""
    if content.startswith(payload, at):
        return len(payload)
    size = 0
    while size + STEP <= len(payload) and content.startswith(payload[size : size + STEP], at + size):
        size += STEP
    return size


def check(case: Case, reader: Reader) -> Finding | None:
    """What this reader extracts and ours does not."""
    if isinstance(reader, Clamav):
        return _check_detection(case, reader)
    found = reader.read(case.mail)
    theirs = extent(found, case.payload)
    if theirs == Extent():
        return None
    mine = _ours(case.mail, case.payload)
    if mine is None:
        return None
    if _is_program(found) and not _seen_as_program(case.mail):
        return Finding(case, reader.name, "shows a file name that ends in .exe, ours reports no program")
    if not mine.covers(theirs):
        return Finding(case, reader.name, f"extracts {theirs}, ours {mine}, payload {len(case.payload)}", theirs.inside)
    if _is_zip(case) and theirs.inside == len(case.payload) and not _detected(case.mail):
        return Finding(case, reader.name, "extracts the whole archive, ours too, but the inspection does not report it")
    return None


def _is_program(found: Iterable[Found]) -> bool:
    """Windows ignores dots and spaces at the end of a name."""
    return any(item.name.rstrip(" .\0").lower().endswith(FILE_END) for item in found)


def _check_detection(case: Case, reader: Reader) -> Finding | None:
    if not _is_zip(case) or not reader.read(case.mail) or _detected(case.mail):
        return None
    return Finding(case, reader.name, "finds EICAR in the archive, ours does not")


def _is_zip(case: Case) -> bool:
    return case.payload.startswith(b"PK\x03\x04")


@lru_cache(maxsize=4096)
def _ours(mail: bytes, payload: bytes) -> Extent | None:
    """None: the mail is held."""
    found = ours.read(mail)
    return None if found is None else extent(found, payload)


def _detected(mail: bytes) -> bool:
    return any(tag.startswith(("malware:", "held")) for tag in _tags(mail))


def _seen_as_program(mail: bytes) -> bool:
    return any(tag.startswith(("mime:executable", "held")) for tag in _tags(mail))


_tags = lru_cache(maxsize=4096)(ours.tags)


def check_all(cases: Sequence[Case], readers: Sequence[Reader]) -> list[Finding]:
    """Each reader in a thread of its own: most of them wait for another process."""

    def one(reader: Reader) -> list[Finding]:
        return [finding for case in cases if (finding := check(case, reader)) is not None]

    with ThreadPoolExecutor(max(1, len(readers))) as pool:
        return [finding for found in pool.map(one, readers) for finding in found]


def smaller(finding: Finding, reader: Reader, *, lines: bool = True) -> Finding:
    """The same reader's finding, with fewer mutations and (if `lines`) fewer lines."""

    def fails(case: Case) -> bool:
        found = check(case, reader)
        return found is not None and found.size >= finding.size and found.detail[:8] == finding.detail[:8]

    case = (shrink if lines else simplest)(finding.case, fails)
    return check(case, reader) or finding


class Survey:
    """Findings of a long run, each class once: a class is the set of mutations that a finding needs."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = {reader.name: reader for reader in readers}
        self.mails = 0
        self.classes: dict[str, Finding] = {}

    def run(self, cases: Sequence[Case]) -> list[Finding]:
        """The findings of new classes, as small as they get."""
        self.mails += len(cases)
        return [new for finding in check_all(cases, list(self._readers.values())) for new in self._new(finding)]

    def _new(self, finding: Finding) -> list[Finding]:
        reader = self._readers[finding.reader]
        simple = smaller(finding, reader, lines=False)
        if simple.case.cause in self.classes:
            return []
        small = smaller(simple, reader)
        self.classes[simple.case.cause] = small
        return [small]
