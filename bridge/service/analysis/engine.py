"""What an analyzer is: something that is shown one mail and answers with tags and a score.

This is the interface for analyzers of one's own (docs/service.md, "Your own analyzer"), and our
engines use it too. Raising anything means "no answer"; `LimitReached` means "I do not look at mail
like this one". Both leave the mail undecided when the analyzer is required.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bridge.api.scanning import AnalysisRequest


@dataclass(frozen=True, slots=True)
class Findings:
    tags: frozenset[str] = frozenset()
    score: float = 0.0  # beside what the tags weigh


class LimitReached(Exception):
    """The mail is beyond what the analyzer looks at."""


class Content(Protocol):
    """Where the bytes of a mail are."""

    @property
    def size(self) -> int: ...

    def chunks(self) -> Iterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail as an analyzer sees it."""

    ggrid: str
    request: AnalysisRequest
    stored: Content  # not for analyzers of one's own: they use what follows

    @property
    def size(self) -> int:
        return self.stored.size

    def chunks(self) -> Iterator[bytes]:
        """The raw mail, in pieces of at most a few hundred KiB."""
        return self.stored.chunks()


class Analyzer(Protocol):
    async def start(self) -> None: ...

    async def analyze(self, mail: Mail) -> Findings: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """An analyzer with its bounds."""

    name: str
    analyzer: Analyzer
    required: bool
    timeout_s: float | None  # None: it keeps its own time


def as_tag(text: str) -> str:
    """Somebody else's word, fit for a tag."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-")[:100]
