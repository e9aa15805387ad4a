"""The store interface: what the quarantine needs from the place that holds its mail.

A mail is up to three objects with one id: `.eml` (the mail), `.json` (its metadata) and, once it was
released, `.releases`. The `.json` is written last and removed first. So an `.eml` with a `.json` is
complete, and any object without its counterpart is a leftover: its client was never told 250, and will
send the mail again.

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
from bridge.quarantine.record import StoredRecord
from bridge.quarantine.usage import Usage


class MailNotFound(StoreError):
    """There is no such mail, or it was removed."""

    def __init__(self, text: str = "no such mail") -> None:
        super().__init__(text)


class MailLocked(StoreError):
    """The mail is being released or removed by another process."""

    def __init__(self, text: str = "it is being released or removed by another process") -> None:
        super().__init__(text)


class LockLost(StoreError):
    """The lock ended before the work that it protects: another process may have it now."""

    def __init__(self, text: str = "the lock on it was lost with the database connection; nothing was sent") -> None:
        super().__init__(text)


class RecordChanged(MailLocked):
    """Another process has recorded a release in the meantime, because a lock was lost: ours is not recorded."""

    def __init__(self, text: str = "another process has begun to release it; nothing was sent") -> None:
        super().__init__(text)


class HeldLock:
    """A lock on one mail. This one is the kernel's, which no process can lose while it runs."""

    def check(self) -> None:
        """Call it just before a step that cannot be undone. Raises LockLost."""


@dataclass(frozen=True, slots=True)
class Content:
    """A mail as it is stored: the header fields we add, then the mail as received."""

    head: bytes
    message: Message

    @property
    def size(self) -> int:
        return len(self.head) + self.message.size

    def chunks(self) -> Iterator[bytes]:
        yield self.head
        yield from self.message.chunks()


@dataclass(frozen=True, slots=True)
class ListedMail:
    """A complete mail in the store."""

    kept_at: float  # Unix time
    releases_size: int = 0


class Store(Protocol):
    """Every method may raise StoreError; those that take an id, MailNotFound as well."""

    name: str  # shown to operators
    recount_s: float  # how often `usage` may be called for the quota

    async def keep(self, mail_id: str, content: Content, metadata: bytes, deadline: float) -> None:
        """Durably store mail and metadata, or neither. Raises StoreFull as well."""

    def listing(self) -> dict[str, ListedMail]:
        """All complete mails, by id."""

    def usage(self) -> Usage:
        """Count what is stored."""

    def read(self, mail_id: str) -> StoredRecord:
        """Everything but the mail itself."""

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        """The mail's bytes. Raises if it cannot be read to the end; never just stops early."""

    def lock(self, mail_id: str) -> AbstractContextManager[HeldLock]:
        """Exclusive access to the mail until the block, or our process, ends. Raises MailLocked."""

    def write_releases(self, mail_id: str, releases: bytes, replaces: str | None = None) -> None:
        """Durably replace the `.releases`. The caller holds the lock.

        `replaces` is the version that was read. If locks can be lost and the store can compare versions, raises
        RecordChanged if the stored version is another one.
        """

    def remove(self, mail_id: str) -> None:
        """Durably remove the mail. The caller holds the lock."""

    def clean(self) -> int:
        """Remove leftovers; return how many."""

    async def close(self) -> None:
        """Wait for work in the background."""


def is_id(mail_id: str) -> bool:
    return record.ID.fullmatch(mail_id) is not None


def leftovers(names: set[str]) -> list[str]:
    """The names whose counterpart is missing."""
    counterparts = {"eml": "json", "json": "eml", "releases": "json"}
    found = []
    for name in names:
        stem, _, suffix = name.rpartition(".")
        if is_id(stem) and suffix in counterparts and f"{stem}.{counterparts[suffix]}" not in names:
            found.append(name)
    return found
