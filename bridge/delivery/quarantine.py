"""Quarantine: mail kept as files, `<id>.eml` (the mail) and `<id>.json` (what is known of it).

The client reads 250 for a quarantined mail, so this is the only copy. Both files are written under
temporary names and fsynced, then renamed, the metadata last, and the directory is fsynced: a
`.json` therefore stands for a whole mail, and anything without one is a leftover of a crash, whose
mail the client was never promised and will send again. `clean` removes leftovers at start-up.

Writers share a lock on the directory that `clean` must have alone, so that a new process cannot
take the half-written mail of one that is still finishing for a leftover.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bridge.delivery import durable
from bridge.errors import StoreError, StoreFull
from bridge.mail.transaction import Transaction

TEMPORARY = ".tmp-"  # prefix of files that are not whole yet


class Quarantine:
    """One directory, mode 0700, files mode 0600."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def keep(self, tx: Transaction, head: bytes, facts: dict[str, object]) -> None:
        """Keep the mail for good. Raises StoreFull or StoreError; then nothing of it is left."""
        metadata = _metadata(tx, head, facts)
        try:
            await durable.in_thread(lambda stop: self._store(tx, head, metadata, stop), tx.deadline)
        except durable.Stopped as exc:
            raise StoreError("quarantine: deadline passed") from exc
        except OSError as exc:
            raise _store_error(exc) from exc

    async def purge(self, older_than_s: float) -> int:
        """Remove mail kept longer ago than this; how many. Raises StoreError."""
        try:
            return await durable.in_thread(lambda stop: self._purge(older_than_s), math.inf)
        except OSError as exc:
            raise _store_error(exc) from exc

    def clean(self) -> int:
        """For start-up: make the directory, remove leftovers; how many. Raises StoreError.

        Does nothing while another process is writing.
        """
        try:
            durable.make_directory(self._directory)
            with _locked(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return self._remove_leftovers()
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise _store_error(exc) from exc

    def _store(self, tx: Transaction, head: bytes, metadata: bytes, stop: durable.Stop) -> None:
        durable.make_directory(self._directory)
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

    def _remove_leftovers(self) -> int:
        names = {entry.name for entry in os.scandir(self._directory)}
        leftovers = [name for name in names if _is_leftover(name, names)]
        for name in leftovers:
            (self._directory / name).unlink(missing_ok=True)
        return len(leftovers)

    def _purge(self, older_than_s: float) -> int:
        oldest = time.time() - older_than_s
        removed = 0
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and not entry.name.startswith(".") and _kept_at(entry) < oldest:
                    about = Path(entry.path)
                    about.unlink(missing_ok=True)  # first: a mail without it is a leftover
                    about.with_suffix(".eml").unlink(missing_ok=True)
                    removed += 1
        return removed


def _is_leftover(name: str, names: set[str]) -> bool:
    if name.startswith(TEMPORARY):
        return True
    stem, _, suffix = name.rpartition(".")
    other = {"eml": "json", "json": "eml"}.get(suffix)
    return bool(stem) and other is not None and f"{stem}.{other}" not in names


def _kept_at(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:  # released or purged meanwhile
        return math.inf


def _metadata(tx: Transaction, head: bytes, facts: dict[str, object]) -> bytes:
    """What a person searches by, and what a release needs: the whole envelope, and the size of our head."""
    client, envelope = tx.session.client, tx.envelope
    about = {
        "id": tx.id,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "sender": envelope.sender,
        "recipients": list(envelope.addresses),
        "mail_parameters": list(envelope.params),
        "recipient_parameters": [list(recipient.params) for recipient in envelope.recipients],
        "remote_address": client.address,
        "helo": client.helo,
        "listener": tx.session.listener,
        "session": tx.session.id,
        "size": tx.message.size,
        "head_size": len(head),  # the .eml starts with this many bytes of ours
        "facts": facts,
    }
    return json.dumps(about, indent=1, default=str).encode("ascii") + b"\n"


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
