"""What both homes of the history offer: a directory of SQLite files, and a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bridge.errors import BridgeError
from bridge.history.entry import Kind, LaterEvent, MailEntry, Row
from bridge.history.query import By, HistoryQuery, Sum, Top

MAX_LATER = 200  # a user can try to release a mail again and again


class HistoryError(BridgeError):
    """The history cannot be written to or read now; the text says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """A page of a search that may have ended early."""

    entries: list[MailEntry]  # the newest first
    back_to: float | None = None  # Unix time: mail from before was not looked at; None: everything was

    @property
    def cursor(self) -> str:
        """Where to continue, if it ended early."""
        return "" if self.back_to is None else f"{self.back_to!r}:"


class HistoryReader(Protocol):
    """Every method may raise HistoryError, and may take seconds."""

    def find(self, query: HistoryQuery) -> list[MailEntry]:
        """The newest first."""

    def find_within(self, query: HistoryQuery, seconds: float) -> Found:
        """The same, but only as far back as it gets in about this time."""

    def count(self, by: By, query: HistoryQuery) -> list[Sum]:
        """Numbers of mails and bytes by this property: the largest first; hours and days in order."""

    def top(self, by: By, query: HistoryQuery, most: int) -> Top:
        """The largest of `count`, up to this number, and the sum of the others."""

    def oldest(self) -> float | None:
        """The time of the first mail that is still there; None if there is none."""

    def later(self, ids: Sequence[str]) -> list[LaterEvent]:
        """What happened to these mails later, in order: the latest `MAX_LATER` events."""


class HistoryStore(HistoryReader, Protocol):
    """A home of the history. Every method may raise HistoryError, and may take seconds."""

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        """All of them or none."""

    def note(self, events: Sequence[LaterEvent]) -> None:
        """What happened to mails later."""

    def settle(self) -> None:
        """Make what this process wrote ready to be deleted when its time comes, even if no more mail arrives."""

    def maintain(self, before: float, max_size: int | None) -> tuple[int, int]:
        """Delete what ended before this time, then the oldest until the rest fits. Returns both numbers."""

    def size(self) -> int:
        """Bytes on disk."""

    def close(self) -> None: ...
