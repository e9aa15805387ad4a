"""Quarantine: mail kept in a store, and an index to find it by.

The client reads 250 for a quarantined mail, so this is the only copy. The store (a directory, or a
bucket) has the mail and what is known of it, for good, before `keep` returns. The index comes after
it and is only for searching: when it fails the mail is kept all the same, and `sync` adds what it missed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bridge.errors import StoreError
from bridge.mail.address import domain_of
from bridge.mail.transaction import Transaction
from bridge.quarantine import record
from bridge.quarantine.index import Index, IndexFailed, Query
from bridge.quarantine.local_store import Directory
from bridge.quarantine.locks import Claims, FileClaims, ServerClaims
from bridge.quarantine.record import Item, Kept, Release
from bridge.quarantine.s3_store import Bucket, BucketSettings
from bridge.quarantine.space import Space
from bridge.quarantine.store import Content, InUse, NotKept, Store
from bridge.quarantine.usage import Stock
from bridge.runtime import durable_files
from bridge.runtime.database import Database

__all__ = ["InUse", "NotKept", "Place", "Quarantine", "Query"]

log = logging.getLogger("bridge.quarantine")
T = TypeVar("T")

_BATCH = 50  # mails read into the index in one transaction
_AT_START = 1000  # mails read into it before the first client is served: some tenths of a second


@dataclass(frozen=True, slots=True)
class Place:
    """Where quarantined mail lies, how much of it, and what it is told apart by."""

    directory: Path  # of the mail; with a bucket, only of what people did
    index: Database | None = None  # None: mail can be kept, and is searched one by one
    max_size: int | None = None  # bytes
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)
    default_tenant: str | None = None
    bucket: BucketSettings | None = None
    owner: str = ""  # whose mail it is, where several machines share the index but not the mail


class Quarantine:
    """Mail in one place."""

    def __init__(self, place: Place | Path) -> None:
        self._place = place if isinstance(place, Place) else Place(place)
        self._store = _store(self._place)
        name = self._place.bucket.name if self._place.bucket is not None else self._place.owner
        self._index = Index(self._place.index, name) if self._place.index is not None else None
        self._index_failing = False
        self._space = Space(lambda: self._store.stock().size_bytes, self._place.max_size, self._store.recount_s)

    @property
    def is_remote(self) -> bool:
        """Whether the store is reached over the network, which may be slow, or down when we start."""
        return self._place.bucket is not None

    async def keep(self, tx: Transaction, head: bytes, facts: dict[str, object]) -> None:
        """Keep the mail for good. Raises StoreFull or StoreError; then nothing of it is left."""
        about = record.write(tx, head, facts, self._tenant(tx))
        content = Content(head, tx.message)
        size, used = content.size + len(about), False
        if self._space.is_limited:
            await _in_thread(lambda stop: self._space.take(size), tx.deadline)
        try:
            await self._store.keep(tx.id, content, about, tx.deadline)
            used = True
        finally:
            self._space.settle(size, used=used)
        if self._index is not None:
            item = Item(tx.id, about, b"", time.time())
            await durable_files.in_thread(lambda stop: self._tell_index([tx.id], [item]), math.inf)

    async def purge(self, older_than_s: float) -> int:
        """Remove mail kept longer ago than this; how many. Raises StoreError."""
        return await _in_thread(lambda stop: len(self.purge_now(older_than_s)), math.inf)

    async def stock(self) -> Stock:
        """What is kept, counted now. Raises StoreError."""
        return await _in_thread(lambda stop: self._store.stock(), math.inf)

    async def reconcile(self) -> int:
        """What `clean` does, for a store that may be slow; how many. Raises StoreError."""

        def work(stop: durable_files.Stop) -> int:
            left = self._store.clean()
            self._repair(gently=True)
            return left

        return await _in_thread(work, math.inf)

    def clean(self) -> int:
        """For start-up: make the store ready, remove leftovers, see to the index; how many. Raises StoreError."""
        left = self._store.clean()
        self._repair(_AT_START)
        if self._index is not None:
            self._index.close()  # whoever forks after this opens it again
        return left

    async def close(self) -> None:
        await self._store.close()
        if self._index is not None:
            self._index.close()

    # For people: search, read, claim, remove. These block; the daemon calls none of them.

    def search(self, query: Query) -> list[Kept]:
        """Newest first, and complete, whatever has become of the index. Raises StoreError."""
        for index in (self._index, Index(None)):
            if index is None:
                continue
            try:
                self.sync(index)
                return index.search(query)
            except IndexFailed as exc:
                log.warning("%s; reading every mail instead", exc)
        raise StoreError("quarantine: it cannot be searched")

    def read(self, mail_id: str) -> Kept:
        """Raises NotKept or StoreError."""
        item = self._store.read(mail_id)
        return record.read(item.id, item.about, item.releases, item.kept_at)

    def item(self, mail_id: str) -> Item:
        """As it is stored. Raises NotKept or StoreError."""
        return self._store.read(mail_id)

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        """The mail itself. Raises NotKept or StoreError, also in the middle."""
        return self._store.chunks(mail_id)

    def claim(self, mail_id: str) -> AbstractContextManager[None]:
        """The mail for us alone. Raises NotKept, InUse or StoreError."""
        return self._store.claim(mail_id)

    def note_releases(self, mail_id: str, releases: tuple[Release, ...]) -> None:
        """Write down for good who sent it on. The caller holds the claim. Raises StoreError."""
        self._store.note(mail_id, record.write_releases(releases))
        self._look_again(mail_id)

    def remove(self, mail_id: str) -> None:
        """For good. Raises NotKept, InUse or StoreError."""
        with self.claim(mail_id):
            self._store.remove(mail_id)
        self._look_again(mail_id)

    def purge_now(self, older_than_s: float) -> list[str]:
        """Remove mail kept longer ago than this, unless it is being released; which. Raises StoreError."""
        oldest = time.time() - older_than_s
        removed: list[str] = []
        for mail_id in [one for one, listed in self._store.listing().items() if listed.kept_at < oldest]:
            try:
                with self.claim(mail_id):
                    self._store.remove(mail_id)
                removed.append(mail_id)
            except (NotKept, InUse):
                pass
        self._space.recount()
        self._repair(gently=True)
        return removed

    def sync(self, index: Index, at_most: int | None = None, *, gently: bool = False) -> None:
        """Bring the index to what the store says. Raises StoreError, of which IndexFailed is one."""
        known = index.known()  # before the store: what is added meanwhile must not look removed
        there = self._store.listing()
        index.remove(known.keys() - there.keys())
        missing = [one for one, listed in there.items() if known.get(one) != listed.releases_size][:at_most]
        for start in range(0, len(missing), _BATCH):
            began = time.monotonic()
            index.put([item for item in map(self._item_or_none, missing[start : start + _BATCH]) if item is not None])
            if gently:
                time.sleep(time.monotonic() - began)

    # Private.

    def _item_or_none(self, mail_id: str) -> Item | None:
        try:
            return self._store.read(mail_id)
        except StoreError:  # removed meanwhile, or unreadable
            return None

    def _look_again(self, mail_id: str) -> None:
        if self._index is not None:
            item = self._item_or_none(mail_id)
            self._tell_index([mail_id], [item] if item is not None else [])

    def _tell_index(self, ids: list[str], items: list[Item]) -> None:
        """What has become of these. Never raises: the mail's fate is sealed."""
        assert self._index is not None
        try:
            if gone := set(ids) - {item.id for item in items}:
                self._index.remove(gone)
            if items:
                self._index.put(items)
            self._index_failing = False
        except StoreError as exc:
            self._on_index_error(exc)

    def _repair(self, at_most: int | None = None, *, gently: bool = False) -> None:
        """Twice: a damaged index is set aside by the first try, and made anew by the second.

        `gently` leaves the processor to mail half of the time; this may run beside it for minutes.
        """
        if self._index is None:
            return
        for last in (False, True):
            try:
                self._index.check()
                self.sync(self._index, at_most, gently=gently)
                self._index_failing = False
                return
            except StoreError as exc:
                if last:
                    self._on_index_error(exc)

    def _on_index_error(self, exc: Exception) -> None:
        if not self._index_failing:
            log.warning("%s; mail is kept all the same, and the index is repaired later", exc)
        self._index_failing = True

    def _tenant(self, tx: Transaction) -> str | None:
        """By the first recipient's domain, as for the scan."""
        domain = domain_of(tx.envelope.recipients[0].address) if tx.envelope.recipients else ""
        return self._place.tenant_by_domain.get(domain, self._place.default_tenant)


def _store(place: Place) -> Store:
    if place.bucket is None:
        return Directory(place.directory)
    shared = place.index is not None and not place.index.is_sqlite
    claims: Claims = FileClaims(place.directory / "claims.lock")
    if shared:
        assert place.index is not None
        claims = ServerClaims(place.index)
    return Bucket(place.bucket, claims)


async def _in_thread(work: Callable[[durable_files.Stop], T], deadline: float) -> T:
    try:
        return await durable_files.in_thread(work, deadline)
    except OSError as exc:
        raise StoreError(f"quarantine: {exc}") from exc
