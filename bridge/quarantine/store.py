"""What the quarantine asks of the place where its mail lies: a directory here, or a bucket somewhere.

A mail is three things under one id: `.eml` (the mail), `.json` (what is known of it) and, once
somebody has sent it on, `.releases`. The `.json` is written last and removed first, so a `.eml` that
has one is whole, and anything that has no other half is a leftover, whose mail the client was never
promised and will send again.

Only `keep` is called from the event loop; everything else blocks and belongs in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from bridge.errors import StoreError
from bridge.mail.message import Message
from bridge.quarantine import record
from bridge.quarantine.record import Item
from bridge.quarantine.usage import Stock


class NotKept(StoreError):
    """There is no such mail, or not any more."""


class InUse(StoreError):
    """Somebody is releasing or removing it right now."""


@dataclass(frozen=True, slots=True)
class Content:
    """A mail as it is kept: our header fields, and what came in."""

    head: bytes
    message: Message

    @property
    def size(self) -> int:
        return len(self.head) + self.message.size

    def chunks(self) -> Iterator[bytes]:
        yield self.head
        yield from self.message.chunks()


@dataclass(frozen=True, slots=True)
class Listed:
    """A whole mail in the store."""

    kept_at: float  # seconds since 1970
    releases_size: int = 0


class Store(Protocol):
    """Every method may raise StoreError; those that name a mail, NotKept too."""

    name: str  # where it is, for people
    recount_s: float  # how often `stock` may be asked

    async def keep(self, mail_id: str, content: Content, about: bytes, deadline: float) -> None:
        """Both, for good; or, when it raises, nothing. Raises StoreFull too."""

    def listing(self) -> dict[str, Listed]:
        """Every whole mail."""

    def stock(self) -> Stock:
        """How much is in it."""

    def read(self, mail_id: str) -> Item: ...

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        """The mail, byte for byte; raises in the middle when that fails, and never just ends."""

    def claim(self, mail_id: str) -> AbstractContextManager[None]:
        """The mail for us alone, until the block or our process ends. Raises InUse."""

    def note(self, mail_id: str, releases: bytes) -> None:
        """Write down for good who sent it on. The caller holds the claim."""

    def remove(self, mail_id: str) -> None:
        """For good. The caller holds the claim."""

    def clean(self) -> int:
        """Remove leftovers; how many."""

    async def close(self) -> None: ...


def is_id(mail_id: str) -> bool:
    return record.ID.fullmatch(mail_id) is not None


def leftovers(names: set[str]) -> list[str]:
    """What has no other half."""
    other = {"eml": "json", "json": "eml", "releases": "json"}
    found = []
    for name in names:
        stem, _, suffix = name.rpartition(".")
        if is_id(stem) and suffix in other and f"{stem}.{other[suffix]}" not in names:
            found.append(name)
    return found
