"""The dialect: how the bridge talks to one host of the scanner.

Bytes of requests out, answers in, and no I/O: hosts, circuits, deadlines, late decisions and failover are the same
for every dialect and know nothing of them. One object per host, because a dialect may have to introduce itself before
a mail (`is_ready`). If this is wrong, a mail that the scanner wanted stopped is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import urlsplit

from bridge.api.scanning import AnalysisRequest, AnalysisResult, QueueStatus
from bridge.mail.message import Message
from bridge.scanner.http import Answer


class Dialect(Protocol):
    @property
    def name(self) -> str:
        """As in `scanner.dialect`."""

    @property
    def is_ready(self) -> bool:
        """Whether a mail may be sent; otherwise `status` is sent first, until its answer is a status."""

    def submission(
        self, request: AnalysisRequest, message: Message, header: bytes, request_id: bytes
    ) -> Iterable[bytes]:
        """The request for one mail, with the caller's header lines. Raises MessageTooLarge."""

    def body_bytes(self, request: AnalysisRequest, message: Message) -> int:
        """The size of that request's body."""

    def result(self, answer: Answer) -> AnalysisResult:
        """The decision in the answer to a mail. Raises ScanError, Saturated."""

    def has_forgotten_us(self, answer: Answer) -> bool:
        """Whether the host wants us to introduce ourselves again, and has not looked at the mail. If so, do so."""

    def status(self, request_id: bytes) -> Iterable[bytes]:
        """The request for the host's status, or the next step of the introduction."""

    def read_status(self, answer: Answer) -> QueueStatus | None:
        """The status; None if the introduction continues with another `status`. Raises ScanError."""


MakeDialect = Callable[[str, str], Dialect]  # from the host's URL and the secret


def request_line(method: str, url: str, path: str) -> str:
    """The first two lines of a request: `path` below the base URL, and the host."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    host = f"[{name}]" if ":" in name else name
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{method} {parts.path}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
