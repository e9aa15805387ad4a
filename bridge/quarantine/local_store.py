"""A directory of kept mail, mode 0700, files mode 0600.

Files are written under temporary names and fsynced, then renamed, the metadata last, and the
directory is fsynced. Writers share a lock on the directory that `clean` must have alone, so that a
new process cannot take the half-written mail of one that is still finishing for a leftover. Who
releases or removes a mail locks its `.eml`; the kernel ends that lock with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.errors import StoreError, StoreFull
from bridge.mail.message import BLOCK
from bridge.quarantine.record import Item
from bridge.quarantine.store import Content, InUse, Listed, NotKept, is_id, leftovers
from bridge.quarantine.usage import Stock, take_stock
from bridge.runtime import durable_files

TEMPORARY = ".tmp-"  # prefix of files that are not whole yet


class Directory:
    """A store on this machine."""

    recount_s = 60.0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    async def keep(self, mail_id: str, content: Content, about: bytes, deadline: float) -> None:
        try:
            await durable_files.in_thread(lambda stop: self._keep(mail_id, content, about, stop), deadline)
        except durable_files.Stopped as exc:
            raise StoreError("quarantine: deadline passed") from exc
        except OSError as exc:
            raise _store_error(exc) from exc

    def listing(self) -> dict[str, Listed]:
        found: dict[str, float] = {}
        acted: dict[str, int] = {}
        with _translated(of_a_mail=False), os.scandir(self._path) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.rpartition(".")
                if not is_id(stem) or suffix not in ("json", "releases"):
                    continue
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed meanwhile
                    continue
                if suffix == "json":
                    found[stem] = about.st_mtime
                else:
                    acted[stem] = about.st_size
        return {mail_id: Listed(kept_at, acted.get(mail_id, 0)) for mail_id, kept_at in found.items()}

    def stock(self) -> Stock:
        with _translated(of_a_mail=False):
            return take_stock(self._path)

    def read(self, mail_id: str) -> Item:
        path = self._file(mail_id, ".json")
        with _translated():
            about, kept_at = path.read_bytes(), path.stat().st_mtime
            try:
                releases = path.with_suffix(".releases").read_bytes()
            except FileNotFoundError:
                releases = b""
        return Item(mail_id, about, releases, kept_at)

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        with _translated(), self._file(mail_id, ".eml").open("rb") as file:
            while block := file.read(BLOCK):
                yield block

    @contextmanager
    def claim(self, mail_id: str) -> Iterator[None]:
        path = self._file(mail_id, ".eml")
        with _translated():
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise InUse("somebody is releasing or removing it right now") from exc
            if not path.with_suffix(".json").exists() or os.fstat(fd).st_nlink == 0:
                raise NotKept("no such mail")
            yield
        finally:
            os.close(fd)

    def note(self, mail_id: str, releases: bytes) -> None:
        path = self._file(mail_id, ".releases")
        new = path.with_name(TEMPORARY + path.name)
        try:
            with _locked(self._path, fcntl.LOCK_SH) as directory_fd:
                durable_files.remove(new)  # a crash may have left one, and nobody else can be writing it
                durable_files.write(new, [releases], lambda: None)
                durable_files.give_to_owner(new)
                new.rename(path)
                os.fsync(directory_fd)
        except OSError as exc:
            durable_files.remove(new)
            raise _store_error(exc) from exc

    def remove(self, mail_id: str) -> None:
        with _translated():
            for suffix in (".json", ".eml", ".releases"):  # the .json first: without it the others are leftovers
                self._file(mail_id, suffix).unlink(missing_ok=True)
            durable_files.sync_directory(self._path)

    def clean(self) -> int:
        """Makes the directory, too. Removes nothing while another process is writing."""
        try:
            durable_files.make_directory(self._path)
            with _locked(self._path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return self._remove_leftovers()
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise _store_error(exc) from exc

    async def close(self) -> None:
        """Nothing is open."""

    def _file(self, mail_id: str, suffix: str) -> Path:
        if not is_id(mail_id):
            raise NotKept("no such mail")
        return self._path / f"{mail_id}{suffix}"

    def _keep(self, mail_id: str, content: Content, about: bytes, stop: durable_files.Stop) -> None:
        durable_files.make_directory(self._path)
        mail, known = self._file(mail_id, ".eml"), self._file(mail_id, ".json")
        new_mail, new_known = mail.with_name(TEMPORARY + mail.name), known.with_name(TEMPORARY + known.name)
        with _locked(self._path, fcntl.LOCK_SH) as directory_fd:
            ours: list[Path] = []  # what to remove if a step fails; never an earlier mail of this name
            try:
                durable_files.write(new_mail, content.chunks(), stop.check)
                ours.append(new_mail)
                durable_files.write(new_known, [about], stop.check)
                ours.append(new_known)
                stop.check()
                new_mail.rename(mail)
                ours.append(mail)
                new_known.rename(known)
                ours.append(known)
                os.fsync(directory_fd)
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
def _locked(directory: Path, how: int) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _translated(of_a_mail: bool = True) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if of_a_mail and isinstance(exc, FileNotFoundError):
            raise NotKept("no such mail") from exc
        raise _store_error(exc) from exc


def _store_error(exc: OSError) -> StoreError:
    kind = StoreFull if exc.errno in durable_files.FULL else StoreError
    return kind(f"quarantine: {exc}")
