"""The history as one person may see it: every question is limited to their tenants, whoever asks it and why.

`bridge.history.mails.whole` looks for other attempts with the same mail, by keys that strangers have chosen; through
this, it cannot find another tenant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bridge.console.roles import Tenants
from bridge.history.entry import LaterEvent, MailEntry
from bridge.history.query import By, HistoryQuery, Sum, Top
from bridge.history.store import Found, HistoryStore


@dataclass(frozen=True, slots=True)
class TenantHistory:
    """A `HistoryReader`: the console only reads the history."""

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
