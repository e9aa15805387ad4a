"""A store in a local directory (mode 0700, files mode 0600).

Files are written under temporary names and fsynced, then renamed, the metadata last, and the directory
is fsynced. A mail never replaces another: two ids may be equal, though that is very unlikely.

Writers share a lock on the directory that `clean` needs exclusively, so that a new process
does not mistake a mail that another process is still writing for a leftover. Releasing or removing a
mail locks its `.eml`; the kernel ends that lock with the process, even if it crashes.

The directory belongs to the service's user, but root runs our commands. So no file in it is opened through a link, and
nothing but an ordinary file is opened: otherwise that user could have root send them any file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.errors import StoreError, StoreFull
from bridge.mail.spool import BLOCK
from bridge.quarantine.record import StoredRecord
from bridge.quarantine.store import Content, HeldLock, ListedMail, MailLocked, MailNotFound, is_id, leftovers
from bridge.quarantine.usage import Usage, measure
from bridge.runtime import durable_files

TEMPORARY = ".tmp-"  # prefix of files that are still being written
_MAX_RECORD = 64 * 1024 * 1024  # bytes; a record of 10,000 recipients has a few


class LocalStore:
    """See `store.Store`."""

    recount_s = 60.0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    async def keep(self, mail_id: str, content: Content, metadata: bytes, deadline: float) -> None:
        try:
            await durable_files.in_thread(lambda stop: self._keep(mail_id, content, metadata, stop), deadline)
        except durable_files.Stopped as exc:
            raise StoreError("quarantine: deadline passed") from exc
        except OSError as exc:
            raise _store_error(exc) from exc

    def listing(self) -> dict[str, ListedMail]:
        kept_at: dict[str, float] = {}
        releases_size: dict[str, int] = {}
        with _translated(is_mail_named=False), os.scandir(self._path) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.rpartition(".")
                if not is_id(stem) or suffix not in ("json", "releases"):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed in the meantime
                    continue
                if suffix == "json":
                    kept_at[stem] = status.st_mtime
                else:
                    releases_size[stem] = status.st_size
        return {mail_id: ListedMail(at, releases_size.get(mail_id, 0)) for mail_id, at in kept_at.items()}

    def usage(self) -> Usage:
        with _translated(is_mail_named=False):
            return measure(self._path)

    def read(self, mail_id: str) -> StoredRecord:
        path = self._file(mail_id, ".json")
        with _translated():
            metadata, kept_at = durable_files.read(path, _MAX_RECORD)
            try:
                releases, _ = durable_files.read(path.with_suffix(".releases"), _MAX_RECORD)
            except FileNotFoundError:
                releases = b""
        return StoredRecord(mail_id, metadata, releases, kept_at)

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        with _translated(), open(durable_files.open_to_read(self._file(mail_id, ".eml")), "rb") as file:
            while block := file.read(BLOCK):
                yield block

    @contextmanager
    def lock(self, mail_id: str) -> Iterator[HeldLock]:
        path = self._file(mail_id, ".eml")
        with _translated():
            fd = durable_files.open_to_read(path)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise MailLocked from exc
            if not os.path.lexists(path.with_suffix(".json")) or os.fstat(fd).st_nlink == 0:
                raise MailNotFound
            yield HeldLock()
        finally:
            os.close(fd)

    def write_releases(self, mail_id: str, releases: bytes, replaces: str | None = None) -> None:
        path = self._file(mail_id, ".releases")
        temporary = path.with_name(TEMPORARY + path.name)
        try:
            with _directory_locked(self._path, fcntl.LOCK_SH) as directory_fd:
                durable_files.remove(temporary)  # a crash may have left one; the mail's lock rules out other writers
                durable_files.write(temporary, [releases], lambda: None)
                durable_files.give_to_owner(temporary)
                temporary.rename(path)
                os.fsync(directory_fd)
        except OSError as exc:
            durable_files.remove(temporary)
            raise _store_error(exc) from exc

    def remove(self, mail_id: str) -> None:
        with _translated():
            for suffix in (".json", ".eml", ".releases"):  # the .json first: without it the others are leftovers
                self._file(mail_id, suffix).unlink(missing_ok=True)
            durable_files.sync_directory(self._path)

    def clean(self) -> int:
        """Also creates the directory. Removes nothing while another process is writing."""
        try:
            durable_files.make_directory(self._path)
            with _directory_locked(self._path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return self._remove_leftovers()
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise _store_error(exc) from exc

    async def close(self) -> None:
        """Nothing is open."""

    def _file(self, mail_id: str, suffix: str) -> Path:
        if not is_id(mail_id):
            raise MailNotFound
        return self._path / f"{mail_id}{suffix}"

    def _keep(self, mail_id: str, content: Content, metadata: bytes, stop: durable_files.Stop) -> None:
        durable_files.make_directory(self._path)
        eml, json = self._file(mail_id, ".eml"), self._file(mail_id, ".json")
        temporary_eml, temporary_json = eml.with_name(TEMPORARY + eml.name), json.with_name(TEMPORARY + json.name)
        with _directory_locked(self._path, fcntl.LOCK_SH) as directory_fd:
            ours: list[Path] = []  # to remove if a step fails; never an older mail with this id
            try:
                durable_files.write(temporary_eml, content.chunks(), stop.check)
                ours.append(temporary_eml)
                durable_files.write(temporary_json, [metadata], stop.check)
                ours.append(temporary_json)
                stop.check()
                for temporary, path in ((temporary_eml, eml), (temporary_json, json)):
                    durable_files.rename_new(temporary, path)
                    ours[ours.index(temporary)] = path
                os.fsync(directory_fd)
                stop.confirm()
            except BaseException:
                for path in reversed(ours):
                    durable_files.remove(path)
                raise

    def _remove_leftovers(self) -> int:
        names = {entry.name for entry in os.scandir(self._path)}
        found = [name for name in names if name.startswith(TEMPORARY)] + leftovers(names)
        for name in found:
            (self._path / name).unlink(missing_ok=True)
        return len(found)


@contextmanager
def _directory_locked(directory: Path, how: int) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _translated(is_mail_named: bool = True) -> Iterator[None]:
    """Turns OSError into StoreError; a missing file into MailNotFound, if the caller named a mail."""
    try:
        yield
    except OSError as exc:
        if is_mail_named and isinstance(exc, FileNotFoundError):
            raise MailNotFound from exc
        raise _store_error(exc) from exc


def _store_error(exc: OSError) -> StoreError:
    error_class = StoreFull if exc.errno in durable_files.FULL else StoreError
    return error_class(f"quarantine: {exc}")
