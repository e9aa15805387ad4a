"""Quarantine: mail in a store, and an index to search it.

The client receives 250 for a quarantined mail, so this is the only copy. `keep` returns once the store (a
directory or object storage) has durably stored the mail and its metadata. The index is updated
afterwards and serves searches only: if it fails, the mail is stored anyway, and `sync` adds the
missing records later.
"""

from __future__ import annotations

import logging
import math
import random
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
from bridge.quarantine.index import BUSY_S, Arrival, Index, IndexFailed
from bridge.quarantine.index_search import Query
from bridge.quarantine.local_store import LocalStore
from bridge.quarantine.locks import FileLocks, Locks, PostgresLocks
from bridge.quarantine.purge_guard import PurgeGuard
from bridge.quarantine.record import MailRecord, ReleaseAttempt, StoredRecord
from bridge.quarantine.s3_store import S3Settings, S3Store
from bridge.quarantine.shared_upkeep import SharedUpkeep
from bridge.quarantine.store import Content, HeldLock, MailLocked, MailNotFound, Store
from bridge.quarantine.usage import Quota, Usage
from bridge.runtime import durable_files
from bridge.runtime.database import Database
from bridge.runtime.threads import Threads
from bridge.runtime.turns import Turns

__all__ = ["MailLocked", "MailNotFound", "Quarantine", "QuarantineSettings", "Query"]

log = logging.getLogger("bridge.quarantine")
T = TypeVar("T")

_INDEX_S = 5.0  # how long a reply may wait for the index, whatever the database does
_index_threads = Threads("quarantine-index")
_BATCH = 50  # records added to the index per transaction
_SHARED_AGE_S = 60.0  # of a count that another bridge made, for the quota
_MAX_FAILED, _NAMED = 20, 3  # mails that a purge cannot remove before it gives up, and that it names
_dice = random.Random()  # noqa: S311 - a purge begins with different mails each time; nothing secret
_AT_START = 1000  # records added before the first client is served; takes a few tenths of a second


@dataclass(frozen=True, slots=True)
class QuarantineSettings:
    """Where quarantined mail is stored and indexed, and how much of it."""

    directory: Path  # of the mail; with S3, only of the log of operators' actions
    index: Database | None = None  # None: each search reads every record
    max_size: int | None = None  # bytes
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)
    default_tenant: str | None = None
    s3: S3Settings | None = None
    patience_s: float = BUSY_S  # for the index; short in the daemon, because a mail's reply waits
    statement_s: float | None = None  # one statement in a database server; None: ten times the patience
    owner: str = ""  # separates the records of machines that share the index but not the store


class Quarantine:
    """One store with its index."""

    def __init__(self, settings: QuarantineSettings | Path) -> None:
        self._settings = settings if isinstance(settings, QuarantineSettings) else QuarantineSettings(settings)
        self._store = _store(self._settings)
        index = self._settings.index
        patience = self._settings.patience_s, self._settings.statement_s
        self._index = Index(index, self.owner, *patience) if index is not None else None
        self._is_index_failing = False
        self._upkeep = _shared_upkeep(self._settings, self._store)
        self._quota = Quota(self._count_bytes, self._settings.max_size, self._store.recount_s)

    @property
    def is_remote(self) -> bool:
        """Whether the store is reached over the network, and so may be slow, or down when we start."""
        return self._settings.s3 is not None

    async def keep(self, tx: Transaction, head: bytes, facts: dict[str, object]) -> None:
        """Durably store the mail. Raises StoreFull or StoreError after removing what was written."""
        metadata = record.write(tx, head, facts, self._tenant(tx))
        content = Content(head, tx.message)
        size, is_reserved, is_stored = content.size + len(metadata), False, False

        def reserve(stop: durable_files.Stop) -> None:
            nonlocal is_reserved
            self._quota.reserve(size)
            try:
                stop.confirm()
            except durable_files.Stopped:
                self._quota.settle(size, is_stored=False)
                raise
            is_reserved = True

        try:
            if self._quota.is_limited:
                await _in_thread(reserve, tx.deadline)
            await self._store.keep(tx.id, content, metadata, tx.deadline)
            is_stored = True
        finally:  # even if the client disconnected while the thread was reserving
            if is_reserved:
                self._quota.settle(size, is_stored=is_stored)
        if self._index is not None:
            await self._add_to_index(StoredRecord(tx.id, metadata, b"", time.time()))

    async def _add_to_index(self, stored: StoredRecord) -> None:
        """The mail is stored, so nothing that happens here may keep the client from its 250."""
        try:
            limit = time.monotonic() + _INDEX_S
            await durable_files.in_thread(lambda stop: self._update_index(stored.id, stored), limit, _index_threads)
        except durable_files.Stopped:
            self._on_index_error(IndexFailed("state database: no answer in time"))
        except Exception as exc:
            self._on_index_error(exc)

    async def purge(self, older_than_s: float, every_s: float = 0.0, guard: PurgeGuard | None = None) -> int:
        """Remove mail older than this, unless the guard objects; return how many. Raises StoreError.

        Also removes leftovers from object storage. Bridges that share it do all this only once in `every_s`.
        """

        def work() -> int:
            try:
                return len(self.purge_now(older_than_s, guard))
            finally:
                if self.is_remote:
                    self._store.clean()

        upkeep = self._upkeep
        return await _in_thread(lambda stop: work() if upkeep is None else upkeep.run(work, every_s), math.inf)

    async def usage(self, max_age_s: float = 0.0) -> Usage:
        """Count what is stored, or use the count of another bridge that is not older than this. Raises StoreError."""
        return await _in_thread(lambda stop: self._usage(max_age_s), math.inf)

    async def reconcile(self) -> int:
        """Like `clean`, but in a thread and at half speed, for a slow store. Raises StoreError."""

        def work(stop: durable_files.Stop) -> int:
            removed = self._store.clean()
            self._repair_index(gently=True)
            return removed

        return await _in_thread(work, math.inf)

    def clean(self) -> int:
        """At start: prepare the store, remove leftovers, repair the index; return how many. Raises StoreError."""
        removed = self._store.clean()
        self._repair_index(_AT_START)
        if self._index is not None:
            self._index.close()  # a database connection must not be shared across fork
        return removed

    async def close(self) -> None:
        await self._store.close()
        for part in (self._index, self._upkeep):
            if part is not None:
                part.close()

    # For the command line: search, read, lock, remove. These block; the daemon calls none of them.

    def search(self, query: Query) -> list[MailRecord]:
        """Newest first, and complete even if the index fails. Raises StoreError."""
        for index in (self._index, Index(None)):
            if index is None:
                continue
            try:
                self.sync(index)
                return index.search(query)
            except IndexFailed as exc:
                log.warning("%s; reading every record instead", exc)
        raise StoreError("quarantine: the index cannot be searched")

    def look(self, query: Query) -> list[MailRecord]:
        """Newest first, from the index as it is: within milliseconds, however much mail there is. Raises StoreError.

        A mail is missing only if the index failed while it was stored, and until `sync`.
        """
        return self._index.search(query) if self._index is not None else self.search(query)

    def count(self, tenants: frozenset[str] | None = None) -> int:
        """From the index as it is. Raises StoreError."""
        if self._index is not None:
            return self._index.count(tenants)
        return len(self.search(Query(tenants=tenants)))

    def arrivals(self, after: tuple[float, str], limit: int) -> list[Arrival]:
        """The mails that follow this time and id, the oldest first, from the index as it is. Raises StoreError."""
        if self._index is None:
            raise StoreError("quarantine: there is no index")
        return self._index.arrivals(after, limit)

    def records(self, ids: list[str]) -> list[MailRecord]:
        """The mails with these ids, from the index as it is; missing ones are left out. Raises StoreError."""
        if self._index is None:
            raise StoreError("quarantine: there is no index")
        return self._index.records(ids)

    @property
    def owner(self) -> str:
        """What separates this store from others that share a database."""
        return self._settings.s3.name if self._settings.s3 is not None else self._settings.owner

    def repair(self) -> None:
        """Make the index match the store, slowly and over a separate connection, while others search it."""
        if self._index is not None:
            own = self._index.another()
            try:
                self._repair_index(gently=True, index=own)
            finally:
                own.close()

    @property
    def place(self) -> str:
        """Where the mail is, for messages."""
        return self._store.name

    def ids(self) -> list[str]:
        """The ids of all mail, in any order. Raises StoreError."""
        return list(self._store.listing())

    def older_than(self, moment: float) -> set[str]:
        """The ids of mail that was stored before this Unix time. Raises StoreError."""
        return {mail_id for mail_id, listed in self._store.listing().items() if listed.kept_at < moment}

    def read(self, mail_id: str) -> MailRecord:
        """Raises MailNotFound or StoreError."""
        return record.read(self._store.read(mail_id))

    def read_stored(self, mail_id: str) -> StoredRecord:
        """The record's files. Raises MailNotFound or StoreError."""
        return self._store.read(mail_id)

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        """The mail itself. Raises MailNotFound or StoreError, possibly after some chunks."""
        return self._store.chunks(mail_id)

    def lock(self, mail_id: str) -> AbstractContextManager[HeldLock]:
        """Exclusive access to the mail. Raises MailNotFound, MailLocked or StoreError."""
        return self._store.lock(mail_id)

    def write_releases(self, mail_id: str, releases: tuple[ReleaseAttempt, ...], replaces: str | None = None) -> None:
        """Durably record the attempts to release the mail. The caller holds the lock. Raises StoreError.

        `replaces` is the version of the record that was read. Raises RecordChanged if another process, which got the
        lock after we had lost it, has written since; not every store can tell.
        """
        self._store.write_releases(mail_id, record.write_releases(releases), replaces)
        self._refresh_index(mail_id)

    def remove(self, mail_id: str) -> None:
        """Durably remove the mail. Raises MailNotFound, MailLocked or StoreError."""
        with self.lock(mail_id):
            self._store.remove(mail_id)
        self._refresh_index(mail_id)

    def purge_now(self, older_than_s: float, guard: PurgeGuard | None = None) -> list[str]:
        """Remove mail older than this, unless it is being released; return the ids.

        Raises StoreError. If that is about single mails, the others have been removed: no mail keeps all others.
        """
        oldest = time.time() - older_than_s
        removed: list[str] = []
        failed: list[str] = []
        listing = self._store.listing()
        if guard is not None:
            guard.check([listed.kept_at for listed in listing.values()], oldest)
        old = [mail_id for mail_id, listed in listing.items() if listed.kept_at < oldest]
        for mail_id in _dice.sample(old, len(old)):
            try:
                with self.lock(mail_id):
                    self._store.remove(mail_id)
                removed.append(mail_id)
            except (MailNotFound, MailLocked):
                pass
            except StoreError as exc:
                failed.append(f"{mail_id}: {exc}")
                if len(failed) == _MAX_FAILED:  # the store itself fails
                    break
        self._quota.recount()
        self._repair_index(gently=True)
        if failed:
            raise StoreError("; ".join(failed[:_NAMED]))
        return removed

    def sync(self, index: Index, at_most: int | None = None, *, gently: bool = False) -> None:
        """Make the index match the store. Raises StoreError; IndexFailed is one.

        `gently` sleeps half of the time: this may run for minutes while mail is processed.
        """
        indexed = index.known()  # before listing the store: a mail added in between must not look removed
        listed = self._store.listing()
        index.remove(indexed.keys() - listed.keys())
        missing = [mail_id for mail_id, mail in listed.items() if indexed.get(mail_id) != mail.releases_size]
        missing = missing[:at_most]
        for start in range(0, len(missing), _BATCH):
            began = time.monotonic()
            stored = map(self._stored_or_none, missing[start : start + _BATCH])
            index.put([each for each in stored if each is not None], skips_refused=True)
            if gently:
                time.sleep(time.monotonic() - began)

    # Private.

    def _usage(self, max_age_s: float) -> Usage:
        return self._store.usage() if self._upkeep is None else self._upkeep.usage(self._store.usage, max_age_s)

    def _count_bytes(self) -> int:
        """A shared store that is full is listed once a minute, not once a second by every bridge."""
        return self._usage(_SHARED_AGE_S).size_bytes

    def _stored_or_none(self, mail_id: str) -> StoredRecord | None:
        try:
            return self._store.read(mail_id)
        except StoreError:  # removed in the meantime, or unreadable
            return None

    def _refresh_index(self, mail_id: str) -> None:
        if self._index is not None:
            self._update_index(mail_id, self._stored_or_none(mail_id))

    def _update_index(self, mail_id: str, stored: StoredRecord | None) -> None:
        """Add or replace the record, or remove it if None. Never raises: the store has already changed."""
        assert self._index is not None
        try:
            if stored is None:
                self._index.remove([mail_id])
            else:
                self._index.put([stored])
            self._is_index_failing = False
        except StoreError as exc:
            self._on_index_error(exc)

    def _repair_index(self, at_most: int | None = None, *, gently: bool = False, index: Index | None = None) -> None:
        """Tries twice: the first try sets a damaged index aside, the second rebuilds it."""
        index = index or self._index
        if index is None:
            return
        for is_last_try in (False, True):
            try:
                index.check()
                self.sync(index, at_most, gently=gently)
                self._is_index_failing = False
                return
            except StoreError as exc:
                if is_last_try:
                    self._on_index_error(exc)

    def _on_index_error(self, exc: Exception) -> None:
        if not self._is_index_failing:
            log.warning("%s; mail is still stored, and the index will be repaired later", exc)
        self._is_index_failing = True

    def _tenant(self, tx: Transaction) -> str | None:
        """By the recipients' domains, as for the scan; None if they differ: no tenant may see another's recipients."""
        found = {self._tenant_of(domain_of(address)) for address in tx.envelope.addresses or ("",)}
        return found.pop() if len(found) == 1 else None

    def _tenant_of(self, domain: str) -> str | None:
        return self._settings.tenant_by_domain.get(domain, self._settings.default_tenant)


def _store(settings: QuarantineSettings) -> Store:
    if settings.s3 is None:
        return LocalStore(settings.directory)
    shared = _shared_database(settings)
    locks: Locks = PostgresLocks(shared) if shared is not None else FileLocks(settings.directory / "claims.lock")
    return S3Store(settings.s3, locks)


def _shared_upkeep(settings: QuarantineSettings, store: Store) -> SharedUpkeep | None:
    shared = _shared_database(settings)
    return SharedUpkeep(Turns(shared), store.name) if settings.s3 is not None and shared is not None else None


def _shared_database(settings: QuarantineSettings) -> Database | None:
    """The database server that bridges share."""
    return settings.index if settings.index is not None and not settings.index.is_sqlite else None


async def _in_thread(work: Callable[[durable_files.Stop], T], deadline: float) -> T:
    try:
        return await durable_files.in_thread(work, deadline)
    except durable_files.Stopped as exc:
        raise StoreError("quarantine: deadline passed") from exc
    except OSError as exc:
        raise StoreError(f"quarantine: {exc}") from exc
