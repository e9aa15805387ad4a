"""The history as one person may see it: every question is limited to their tenants, whoever asks it and why.

`bridge.history.mails.whole` looks for other attempts with the same mail, by keys that strangers have chosen; through
this, it cannot find another tenant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bridge.console.roles import Tenants
from bridge.history.entry import Kind, LaterEvent, MailEntry, Row
from bridge.history.query import By, HistoryQuery, Sum, Top
from bridge.history.store import Found, HistoryStore


@dataclass(frozen=True, slots=True)
class TenantHistory:
    """A `HistoryStore` that only reads."""

    store: HistoryStore
    tenants: Tenants

    def find(self, query: HistoryQuery) -> list[MailEntry]:
        return self.store.find(replace(query, tenants=self.tenants))

    def find_within(self, query: HistoryQuery, seconds: float) -> Found:
        return self.store.find_within(replace(query, tenants=self.tenants), seconds)

    def count(self, by: By, query: HistoryQuery) -> list[Sum]:
        return self.store.count(by, replace(query, tenants=self.tenants))

    def top(self, by: By, query: HistoryQuery, most: int) -> Top:
        return self.store.top(by, replace(query, tenants=self.tenants), most)

    def oldest(self) -> float | None:
        return self.store.oldest()

    def later(self, ids: Sequence[str]) -> list[LaterEvent]:
        """`ids` are those of mails that were found here."""
        return self.store.later(ids)

    # The console changes nothing of the history, but notes what people did with a mail.

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        raise NotImplementedError

    def note(self, events: Sequence[LaterEvent]) -> None:
        self.store.note(events)

    def maintain(self, before: float, max_size: int | None) -> tuple[int, int]:
        raise NotImplementedError

    def settle(self) -> None:
        raise NotImplementedError

    def size(self) -> int:
        return self.store.size()

    def close(self) -> None:
        """It belongs to the sources."""
