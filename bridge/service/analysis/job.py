"""One mail to analyze: its bytes, where they are stored, and the request that came with it.

Shared by the upload, the queue, the core nodes and the analyzers; it depends on none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from bridge.api.scanning import AnalysisRequest
from bridge.mail.message import Message, Spool


class StoredMail(Message):
    """A mail in the spool whose bytes, or whose file, the analyzers can take as a whole."""

    __slots__ = ("needs_process",)

    def __init__(self, spool: Spool) -> None:
        super().__init__(spool)
        self.needs_process = False  # True: the event loop began its inspection and gave up

    def content(self) -> bytes:
        """The whole mail as bytes: for small mail."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self.chunks())

    @property
    def descriptor(self) -> int | None:
        """The file that holds the mail; None if it is in memory."""
        return None if self._file is None else self._file.descriptor


@dataclass(frozen=True, slots=True)
class AnalysisJob:
    """One mail in the queue; `ggrid` identifies its analysis."""

    ggrid: str
    created: str
    request: AnalysisRequest
    mail: StoredMail

    @classmethod
    def new(cls, request: AnalysisRequest, mail: StoredMail) -> AnalysisJob:
        return cls(str(uuid4()), utc_now(), request, mail)


def utc_now() -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
