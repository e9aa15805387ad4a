"""Quarantine: mail kept as files, `<id>.eml` (the mail) and `<id>.json` (what is known of it).

The client reads 250 for a quarantined mail, so this is the only copy. Both files are written under
temporary names and fsynced, then renamed, the metadata last, and the directory is fsynced: a
`.json` therefore stands for a whole mail, and anything without one is a leftover of a crash, whose
mail the client was never promised and will send again. `clean` removes leftovers at start-up.

`<id>.releases` says who sent the mail on (`release`). The index comes after the files and is only
for searching: when it fails the mail is kept all the same, and `sync` adds what it missed.

Writers share a lock on the directory that `clean` must have alone, so that a new process cannot
take the half-written mail of one that is still finishing for a leftover. Who releases or removes a
mail locks its `.eml` (`claim`); the kernel ends that lock with the process, however it ends.
"""

from __future__ import annotations

import email.header
import fcntl
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bridge.delivery import durable, kept
from bridge.delivery.index import Index, IndexFailed, Item, Query
from bridge.delivery.kept import Kept, Release
from bridge.delivery.space import Space
from bridge.delivery.stock import Stock, take_stock
from bridge.errors import StoreError, StoreFull
from bridge.mail.transaction import Transaction

log = logging.getLogger("bridge.delivery")

TEMPORARY = ".tmp-"  # prefix of files that are not whole yet
_BATCH = 50  # mails read into the index in one transaction
_AT_START = 1000  # mails read into it before the first client is served: some tenths of a second
_MAX_SUBJECT = 200
_SUBJECT = re.compile(rb"^subject:([^\r\n]*(?:\r\n[ \t][^\r\n]*)*)", re.IGNORECASE | re.MULTILINE)


class NotKept(StoreError):
    """There is no such mail, or not any more."""


class InUse(StoreError):
    """Somebody is releasing or removing it right now."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where quarantined mail lies, how much of it, and what it is told apart by."""

    directory: Path
    index: Path | None = None  # the state database; None: mail can be kept, and is searched file by file
    max_size: int | None = None  # bytes
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)
    default_tenant: str | None = None


class Quarantine:
    """One directory, mode 0700, files mode 0600."""

    def __init__(self, place: Place | Path) -> None:
        self._place = place if isinstance(place, Place) else Place(place)
        self._directory = self._place.directory
        self._index = Index(self._place.index) if self._place.index is not None else None
        self._index_failing = False
        self._space = Space(self._directory, self._place.max_size)

    async def keep(self, tx: Transaction, head: bytes, facts: dict[str, object]) -> None:
        """Keep the mail for good. Raises StoreFull or StoreError; then nothing of it is left."""
        metadata = _metadata(tx, head, facts, self._tenant(tx))
        try:
            await durable.in_thread(lambda stop: self._store(tx, head, metadata, stop), tx.deadline)
        except durable.Stopped as exc:
            raise StoreError("quarantine: deadline passed") from exc
        except OSError as exc:
            raise _store_error(exc) from exc

    async def purge(self, older_than_s: float) -> int:
        """Remove mail kept longer ago than this; how many. Raises StoreError."""
        try:
            return await durable.in_thread(lambda stop: len(self.purge_now(older_than_s)), math.inf)
        except OSError as exc:
            raise _store_error(exc) from exc

    async def stock(self) -> Stock:
        """What is kept, counted now. Raises StoreError."""
        try:
            return await durable.in_thread(lambda stop: take_stock(self._directory), math.inf)
        except OSError as exc:
            raise _store_error(exc) from exc

    def clean(self) -> int:
        """For start-up: make the directory, remove leftovers, see to the index; how many. Raises StoreError.

        Removes nothing while another process is writing.
        """
        left = 0
        try:
            durable.make_directory(self._directory)
            with _locked(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
                left = self._remove_leftovers()
        except BlockingIOError:
            pass
        except OSError as exc:
            raise _store_error(exc) from exc
        self._repair(_AT_START)
        if self._index is not None:
            self._index.close()  # whoever forks after this opens it again
        return left

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
                log.warning("%s; reading every file instead", exc)
            except OSError as exc:
                raise _store_error(exc) from exc
        raise StoreError("quarantine: it cannot be searched")

    def read(self, mail_id: str) -> Kept:
        """Raises NotKept or StoreError."""
        item = self._item(mail_id)
        return kept.read(item.id, item.about, item.releases, item.kept_at)

    def mail_file(self, mail_id: str) -> Path:
        """Where the mail itself lies. Raises NotKept if the id cannot be one."""
        if not kept.ID.fullmatch(mail_id):
            raise NotKept("no such mail")
        return self._directory / f"{mail_id}.eml"

    @contextmanager
    def claim(self, mail_id: str) -> Iterator[int]:
        """The mail for us alone, as an open file. Raises NotKept, InUse or StoreError."""
        path = self.mail_file(mail_id)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise NotKept("no such mail") from exc
        except OSError as exc:
            raise _store_error(exc) from exc
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise InUse("somebody is releasing or removing it right now") from exc
            if not path.with_suffix(".json").exists() or os.fstat(fd).st_nlink == 0:
                raise NotKept("no such mail")
            yield fd
        finally:
            os.close(fd)

    def note_releases(self, mail_id: str, releases: tuple[Release, ...]) -> None:
        """Write down for good who sent it on. The caller holds the claim. Raises StoreError."""
        path = self.mail_file(mail_id).with_suffix(".releases")
        new = path.with_name(TEMPORARY + path.name)
        content = kept.write_releases(releases)
        try:
            with _locked(self._directory, fcntl.LOCK_SH) as directory_fd:
                durable.remove(new)  # a crash may have left one, and nobody else can be writing it
                durable.write(new, [content], lambda: None)
                durable.give_to_owner(new)
                new.rename(path)
                os.fsync(directory_fd)
        except OSError as exc:
            durable.remove(new)
            raise _store_error(exc) from exc
        self._tell_index([mail_id])

    def remove(self, mail_id: str) -> None:
        """For good. Raises NotKept, InUse or StoreError."""
        with self.claim(mail_id):
            try:
                self._unlink(mail_id)
                durable.sync_directory(self._directory)
            except OSError as exc:
                raise _store_error(exc) from exc
        self._tell_index([mail_id])

    def purge_now(self, older_than_s: float) -> list[str]:
        """Remove mail kept longer ago than this, unless it is being released; which. Raises OSError."""
        oldest = time.time() - older_than_s
        removed: list[str] = []
        with os.scandir(self._directory) as entries:
            old = [e.name[:-5] for e in entries if _is_metadata(e.name) and _kept_at(e) < oldest]
        for mail_id in old:
            try:
                with self.claim(mail_id):
                    self._unlink(mail_id)
                removed.append(mail_id)
            except (NotKept, InUse):
                pass
        self._space.recount()
        self._repair(gently=True)
        return removed

    def sync(self, index: Index, at_most: int | None = None, *, gently: bool = False) -> None:
        """Bring the index to what the files say. Raises IndexFailed or OSError."""
        known = index.known()  # before the files: what is added meanwhile must not look removed
        there = _names(self._directory)
        index.remove(known.keys() - there.keys())
        missing = [mail_id for mail_id, size in there.items() if known.get(mail_id) != size][:at_most]
        for start in range(0, len(missing), _BATCH):
            began = time.monotonic()
            index.put(filter(None, map(self._item_or_none, missing[start : start + _BATCH])))
            if gently:
                time.sleep(time.monotonic() - began)

    # Private: files.

    def _store(self, tx: Transaction, head: bytes, metadata: bytes, stop: durable.Stop) -> None:
        durable.make_directory(self._directory)
        with self._space.taken(len(head) + tx.message.size + len(metadata)):
            self._write(tx, head, metadata, stop)
        self._tell_index([tx.id])

    def _write(self, tx: Transaction, head: bytes, metadata: bytes, stop: durable.Stop) -> None:
        mail, about = self._directory / f"{tx.id}.eml", self._directory / f"{tx.id}.json"
        new_mail, new_about = mail.with_name(TEMPORARY + mail.name), mail.with_name(TEMPORARY + about.name)
        with _locked(self._directory, fcntl.LOCK_SH) as directory_fd:
            ours: list[Path] = []  # what to remove if a step fails; never an earlier mail of this name
            try:
                durable.write(new_mail, _all(head, tx), stop.check)
                ours.append(new_mail)
                durable.write(new_about, [metadata], stop.check)
                ours.append(new_about)
                stop.check()
                new_mail.rename(mail)
                ours.append(mail)
                new_about.rename(about)
                ours.append(about)
                os.fsync(directory_fd)
            except BaseException:
                for path in reversed(ours):
                    durable.remove(path)
                raise

    def _unlink(self, mail_id: str) -> None:
        mail = self.mail_file(mail_id)
        for suffix in (".json", ".eml", ".releases"):  # the .json first: without it the others are leftovers
            mail.with_suffix(suffix).unlink(missing_ok=True)

    def _remove_leftovers(self) -> int:
        names = {entry.name for entry in os.scandir(self._directory)}
        leftovers = [name for name in names if _is_leftover(name, names)]
        for name in leftovers:
            (self._directory / name).unlink(missing_ok=True)
        return len(leftovers)

    def _item(self, mail_id: str) -> Item:
        path = self.mail_file(mail_id).with_suffix(".json")
        try:
            about, kept_at = path.read_bytes(), path.stat().st_mtime
            try:
                releases = path.with_suffix(".releases").read_bytes()
            except FileNotFoundError:
                releases = b""
        except FileNotFoundError as exc:
            raise NotKept("no such mail") from exc
        except OSError as exc:
            raise _store_error(exc) from exc
        return Item(mail_id, about, releases, kept_at)

    def _item_or_none(self, mail_id: str) -> Item | None:
        try:
            return self._item(mail_id)
        except StoreError:  # removed meanwhile, or unreadable
            return None

    # Private: the index.

    def _tell_index(self, ids: list[str]) -> None:
        """What has become of these. Never raises: the mail's fate is sealed."""
        if self._index is None:
            return
        try:
            items = [item for item in map(self._item_or_none, ids) if item is not None]
            self._index.remove(set(ids) - {item.id for item in items})
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
            except (StoreError, OSError) as exc:
                if last:
                    self._on_index_error(exc)

    def _on_index_error(self, exc: Exception) -> None:
        if not self._index_failing:
            log.warning("%s; mail is kept all the same, and the index is repaired later", exc)
        self._index_failing = True

    def _tenant(self, tx: Transaction) -> str | None:
        """By the first recipient's domain, as for the scan."""
        domain = tx.envelope.recipients[0].address.rpartition("@")[2].lower() if tx.envelope.recipients else ""
        return self._place.tenant_by_domain.get(domain, self._place.default_tenant)


def _names(directory: Path) -> dict[str, int]:
    """The ids of all whole mails, each with the size of its .releases."""
    found: dict[str, int] = {}
    acted: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if _is_metadata(entry.name):
                found[entry.name[:-5]] = 0
            elif entry.name.endswith(".releases") and not entry.name.startswith("."):
                acted[entry.name[:-9]] = entry.stat().st_size
    return {mail_id: acted.get(mail_id, 0) for mail_id in found}


def _is_metadata(name: str) -> bool:
    return name.endswith(".json") and bool(kept.ID.fullmatch(name[:-5]))


def _is_leftover(name: str, names: set[str]) -> bool:
    if name.startswith(TEMPORARY):
        return True
    stem, _, suffix = name.rpartition(".")
    other = {"eml": "json", "json": "eml", "releases": "json"}.get(suffix)
    return bool(stem) and other is not None and f"{stem}.{other}" not in names


def _kept_at(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:  # released or purged meanwhile
        return math.inf


def _metadata(tx: Transaction, head: bytes, facts: dict[str, object], tenant: str | None) -> bytes:
    """What a person searches by, and what a release needs: the whole envelope, and the size of our head."""
    client, envelope = tx.session.client, tx.envelope
    about = {
        "id": tx.id,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "sender": envelope.sender,
        "recipients": list(envelope.addresses),
        "mail_parameters": list(envelope.params),
        "recipient_parameters": [list(recipient.params) for recipient in envelope.recipients],
        "subject": subject(tx.message.head()),
        "tenant": tenant,
        "remote_address": client.address,
        "helo": client.helo,
        "listener": tx.session.listener,
        "session": tx.session.id,
        "size": tx.message.size,
        "head_size": len(head),  # the .eml starts with this many bytes of ours
        "facts": facts,
    }
    return json.dumps(about, indent=1, default=str).encode("ascii") + b"\n"


def subject(head: bytes) -> str:
    """The Subject field as a person reads it, cut short."""
    match = _SUBJECT.search(head)
    if match is None:
        return ""
    raw = re.sub(rb"\r\n[ \t]", b" ", match.group(1)[: 4 * _MAX_SUBJECT]).decode("utf-8", "replace")
    try:
        raw = str(email.header.make_header(email.header.decode_header(raw)))
    except Exception:  # a stranger's encoding must not cost his mail: shown as it came
        log.debug("a subject could not be decoded", exc_info=True)
    return " ".join(raw.split())[:_MAX_SUBJECT]


@contextmanager
def _locked(directory: Path, how: int) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield fd
    finally:
        os.close(fd)


def _store_error(exc: OSError) -> StoreError:
    kind = StoreFull if exc.errno in durable.FULL else StoreError
    return kind(f"quarantine: {exc}")


def _all(head: bytes, tx: Transaction) -> Iterator[bytes]:
    yield head
    yield from tx.message.chunks()
