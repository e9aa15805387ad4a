"""The interface of an analyzer: it gets one mail and returns tags and a score.

Custom analyzers implement it (docs/operate/service.md, "Your own analyzer"), and so do our own engines.
Any exception means "no answer"; `LimitReached` means that the analyzer does not handle mail like this
one. If the analyzer is required, both leave the mail undecided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bridge.api.scanning import AnalysisRequest
from bridge.service.analysis.parts import MailParts


@dataclass(frozen=True, slots=True)
class Findings:
    tags: frozenset[str] = frozenset()
    score: float = 0.0  # in addition to the scores of the tags
    opinion: float = 0.0  # of another spam filter, in our points: the worst one counts, not the sum


class LimitReached(Exception):
    """The mail exceeds a limit of the analyzer."""


class Content(Protocol):
    """The bytes of a mail, wherever they are stored."""

    @property
    def size(self) -> int: ...

    def chunks(self) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class ContentInPieces:
    """Content in memory, in pieces of at most a few hundred KiB."""

    pieces: Sequence[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    def chunks(self) -> Iterator[bytes]:
        return iter(self.pieces)


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail as an analyzer sees it."""

    ggrid: str
    request: AnalysisRequest
    stored: Content  # internal; custom analyzers use `size` and `chunks`
    found_parts: MailParts | None = None  # internal; custom analyzers use `parts`

    @property
    def size(self) -> int:
        return self.stored.size

    def chunks(self) -> Iterator[bytes]:
        """The raw mail, in chunks of at most a few hundred KiB."""
        return self.stored.chunks()

    def parts(self) -> MailParts:
        """The decoded parts. Takes CPU time in proportion to the mail, unless the service has read them already."""
        if self.found_parts is not None:
            return self.found_parts
        from bridge.service.analysis.inspection import parts_of  # slow to import

        return parts_of(b"".join(self.chunks()))


class Analyzer(Protocol):
    async def start(self) -> None: ...

    async def analyze(self, mail: Mail) -> Findings: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """An analyzer with its name and limits."""

    name: str
    analyzer: Analyzer
    required: bool
    timeout_s: float | None  # None: the analyzer applies its own timeout
    scans_objects: bool = False  # True: it looks for malware, so it also gets the objects of an ambiguous mail
    reads_parts: bool = False  # True: it is asked after the inspection, and gets the parts that were found


def as_tag(text: str) -> str:
    """A name from another program, in characters that a tag may have."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-")[:100]
