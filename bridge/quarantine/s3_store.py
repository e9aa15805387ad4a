"""A store in S3-compatible object storage, through obstore.

Each object is written with one PUT, never a multipart upload: the server has all of it or nothing, a crash leaves no
hidden parts behind, and mail is small (50 MiB at most). All of a mail is in memory while it is sent, so mails wait for
each other if there is no room for them (`upload_room`). `keep` awaits the server's confirmation, until the mail's
deadline; the transfer runs on obstore's own threads, not on the event loop. Whatever failed or timed out is removed in
the background. If that fails as well, its `.json` or `.eml` is missing, and `clean` finds it a day later; earlier it
could be a mail that another machine is still writing.

No mail replaces another that has the same id (`If-None-Match`). Has no locks except `Locks`; because they can be lost,
the record of releases is replaced only if it is the one that was read (`If-Match`, `If-None-Match`). Never logs a
secret: of an error response only the status and the error code are repeated. obstore starts threads, which do not
survive a fork, so it is imported on first use.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import secrets
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bridge.errors import StoreError, StoreFull
from bridge.mail.spool import BLOCK
from bridge.quarantine.locks import Locks
from bridge.quarantine.record import StoredRecord
from bridge.quarantine.store import Content, HeldLock, ListedMail, MailNotFound, RecordChanged, is_id, leftovers
from bridge.quarantine.upload_room import UploadRoom
from bridge.quarantine.usage import Usage
from bridge.runtime import durable_files

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import S3Store as ObstoreS3

log = logging.getLogger("bridge.quarantine")

LEFTOVER_AGE_S = 86400.0  # longer than any mail takes to write, and than clocks may differ
_CLEAN_UP_S = 10.0  # for removing a failed mail in the background
_CONNECT_S = 5
_REQUEST_S = 60  # for the largest mail, if the deadline is not earlier
_PAUSES_S = (0.1, 0.5, 2.0)  # before a request without an answer is sent again
_NO_ANSWER = "error sending request"
_STATUS = re.compile(r"status code: (\d{3})")
_REFUSED = re.compile(r"status code: (?:400|501)")  # by servers that do not support conditional writes
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
# The library has no option to ignore a proxy in the environment, but one for hosts to reach without it: here, all.
_NO_PROXY = {"proxy_url": "http://127.0.0.1:9", "proxy_excludes": "*,0.0.0.0/0,::/0"}
_FULL = re.compile(r"StorageFull|InsufficientStorage|QuotaExceeded|InsufficientCapacity", re.IGNORECASE)


class _AnotherMail(StoreError):
    """What is stored under this id is not ours, and must stay."""


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Without keys, obstore takes them from the environment, as the AWS tools do."""

    bucket: str
    endpoint: str | None = None  # None: Amazon
    region: str = "us-east-1"
    prefix: str = ""
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    allow_http: bool = False
    ca: bytes | None = field(default=None, repr=False)  # PEM
    leftover_age_s: float = LEFTOVER_AGE_S
    max_in_memory: int = 128 * 1024 * 1024  # bytes of mail that is being stored

    @property
    def name(self) -> str:
        where = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{where}"


class S3Store:
    """See `store.Store`. Several machines can share it."""

    recount_s = 600.0

    def __init__(self, settings: S3Settings, locks: Locks) -> None:
        self.name = settings.name
        self._settings = settings
        self._locks = locks
        self._room = UploadRoom(settings.max_in_memory)
        self._cleaning_up: set[asyncio.Task[None]] = set()

    async def keep(self, mail_id: str, content: Content, metadata: bytes, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline), self._room.take(content.size):
                await self._upload(mail_id, await _whole(content, deadline), metadata)
        except TimeoutError as exc:
            raise StoreError(f"quarantine: {self.name}: deadline passed") from exc

    async def _upload(self, mail_id: str, data: bytearray, metadata: bytes) -> None:
        try:
            with _translated():
                await self._create(f"{mail_id}.eml", data)
                await self._create(f"{mail_id}.json", metadata)
        except _AnotherMail:
            raise
        except BaseException:
            self._in_background(self._clean_up(mail_id))
            raise

    async def _create(self, name: str, content: bytes | bytearray) -> None:
        """Never replaces an object. If the server refuses conditions, the randomness of ids must suffice."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            await self._put_new(name, content)
        except (AlreadyExistsError, PreconditionError):
            if not await self._has(name, content):  # otherwise it was sent again after an answer was lost
                raise _AnotherMail(f"quarantine: {self.name}: there is another mail with this id") from None
        except BaseError as exc:
            if not _REFUSED.search(str(exc)):
                raise
            await obstore.put_async(self._bucket, name, content, use_multipart=False)

    async def _put_new(self, name: str, content: bytes | bytearray) -> None:
        """Raises obstore's errors. A conditional request whose connection ends without an answer is not sent again by
        obstore, so we do."""
        import obstore
        from obstore.exceptions import BaseError

        for pause_s in (*_PAUSES_S, None):
            try:
                await obstore.put_async(self._bucket, name, content, mode="create", use_multipart=False)
                return
            except BaseError as exc:
                if pause_s is None or _NO_ANSWER not in str(exc):
                    raise
            await asyncio.sleep(pause_s)

    async def _has(self, name: str, content: bytes | bytearray) -> bool:
        """Whether the object has this content."""
        import obstore

        answer, compared = await obstore.get_async(self._bucket, name), 0
        if answer.meta["size"] != len(content):
            return False
        async for chunk in answer.stream(min_chunk_size=BLOCK):
            if content[compared : compared + len(chunk)] != chunk:
                return False
            compared += len(chunk)
        return compared == len(content)

    def listing(self) -> dict[str, ListedMail]:
        kept_at: dict[str, float] = {}
        releases_size: dict[str, int] = {}
        mails: set[str] = set()
        for name, size, changed_at in self._objects():
            stem, _, suffix = name.rpartition(".")
            if suffix == "json":
                kept_at[stem] = changed_at
            elif suffix == "releases":
                releases_size[stem] = size
            elif suffix == "eml":
                mails.add(stem)
        return {
            mail_id: ListedMail(at, releases_size.get(mail_id, 0))
            for mail_id, at in kept_at.items()
            if mail_id in mails and is_id(mail_id)
        }

    def usage(self) -> Usage:
        mails, total, oldest = 0, 0, None
        for name, size, changed_at in self._objects():
            total += size
            if name.endswith(".json"):
                mails += 1
                oldest = changed_at if oldest is None else min(oldest, changed_at)
        return Usage(mails, total, oldest)

    def read(self, mail_id: str) -> StoredRecord:
        import obstore

        with _translated():
            answer = obstore.get(self._bucket, _name(mail_id, ".json"))
            metadata, kept_at = bytes(answer.bytes()), answer.meta["last_modified"].timestamp()
        try:
            with _translated():
                answer = obstore.get(self._bucket, _name(mail_id, ".releases"))
                releases, version = bytes(answer.bytes()), answer.meta["e_tag"]
        except MailNotFound:
            releases, version = b"", ""
        return StoredRecord(mail_id, metadata, releases, kept_at, version)

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        import obstore

        with _translated():
            answer = obstore.get(self._bucket, _name(mail_id, ".eml"))
            missing = answer.meta["size"]
            for chunk in answer.stream(min_chunk_size=BLOCK):
                missing -= len(chunk)
                yield bytes(chunk)
        if missing:
            raise StoreError(f"quarantine: {self.name}: the mail is incomplete")

    @contextmanager
    def lock(self, mail_id: str) -> Iterator[HeldLock]:
        import obstore

        name = _name(mail_id, ".json")
        with self._locks.hold(f"{self.name} {mail_id}") as held:
            with _translated():
                obstore.head(self._bucket, name)
            yield held

    def write_releases(self, mail_id: str, releases: bytes, replaces: str | None = None) -> None:
        """The server compares the versions. If it ignores or refuses conditions, the lock must suffice."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        name, mode = _name(mail_id, ".releases"), _condition(replaces)
        with _translated():
            try:
                self._put(name, releases, mode)
                return
            except (AlreadyExistsError, PreconditionError):
                pass
            except BaseError as exc:
                if mode == "overwrite" or not _REFUSED.search(str(exc)):
                    raise
                self._put(name, releases, "overwrite")
                return
        if self.read(mail_id).releases != releases:  # otherwise obstore has retried after an answer was lost
            raise RecordChanged

    def _put(self, name: str, content: bytes, mode: PutMode) -> None:
        import obstore

        obstore.put(self._bucket, name, content, mode=mode, use_multipart=False)

    def remove(self, mail_id: str) -> None:
        import obstore

        for suffix in (".json", ".eml", ".releases"):  # the .json first: without it the others are leftovers
            try:
                with _translated():
                    obstore.delete(self._bucket, _name(mail_id, suffix))
            except MailNotFound:  # some servers report a missing object
                pass

    def clean(self) -> int:
        import obstore

        objects = {name: changed_at for name, _, changed_at in self._objects()}
        age_s, found = self._settings.leftover_age_s, leftovers(set(objects))
        old = [name for name in found if objects[name] <= time.time() - age_s]
        if old:  # by the server's clock, too: ours may be ahead, and another machine may still be writing
            before = self._server_time() - age_s
            old = [name for name in old if objects[name] <= before]
        for name in old:
            with _translated():
                obstore.delete(self._bucket, name)
        return len(old)

    def _server_time(self) -> float:
        """The time of an object that we write."""
        import obstore

        with _translated(), _probe_object(self._bucket) as name:
            found: float = obstore.head(self._bucket, name)["last_modified"].timestamp()
        return found + 1.0  # the header has whole seconds, the list of objects may have parts of them

    async def close(self) -> None:
        """Wait until failed mails are removed."""
        while self._cleaning_up:
            await asyncio.wait(self._cleaning_up)

    @functools.cached_property
    def _bucket(self) -> ObstoreS3:
        return _open(self._settings)

    def _objects(self) -> Iterator[tuple[str, int, float]]:
        """Name, size and time of the objects directly under our prefix, not deeper."""
        import obstore

        with _translated():
            for batch in obstore.list(self._bucket, chunk_size=1000):
                for entry in batch:
                    if "/" not in entry["path"]:
                        yield entry["path"], entry["size"], entry["last_modified"].timestamp()

    async def _clean_up(self, mail_id: str) -> None:
        import obstore

        try:
            async with asyncio.timeout(_CLEAN_UP_S):
                for suffix in (".json", ".eml"):
                    with suppress(MailNotFound), _translated():  # some servers report a missing object
                        await obstore.delete_async(self._bucket, f"{mail_id}{suffix}")
        except (StoreError, TimeoutError) as exc:
            log.debug("%s: the remaining objects of mail %s have not been removed yet: %s", self.name, mail_id, exc)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._cleaning_up.add(task)
        task.add_done_callback(self._cleaning_up.discard)


def probe(settings: S3Settings) -> bool:
    """Write and remove an object, to check keys, bucket and permissions. Raises StoreError.

    Returns whether the server supports conditional writes.
    """
    bucket = _open(settings)
    try:
        with _translated(), _probe_object(bucket) as name:
            is_conditional = _supports_conditions(bucket, name)
    except MailNotFound:
        raise StoreError("quarantine: object storage: an object that was just written is missing") from None
    return is_conditional


@contextmanager
def _probe_object(bucket: ObstoreS3) -> Iterator[str]:
    """The name of an object that is there for a moment. Raises obstore's errors."""
    import obstore

    name = f"probe-{secrets.token_hex(8)}"
    obstore.put(bucket, name, b"x", use_multipart=False)
    try:
        yield name
    finally:
        obstore.delete(bucket, name)


def _supports_conditions(bucket: ObstoreS3, name: str) -> bool:
    """Whether the server refuses to create an object that exists, rather than refusing the condition itself."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    try:
        obstore.put(bucket, name, b"x", mode="create", use_multipart=False)
    except (AlreadyExistsError, PreconditionError):
        return True
    except BaseError as exc:
        if not _REFUSED.search(str(exc)):
            raise
    return False


def reach(settings: S3Settings, timeout_s: float) -> None:
    """Whether the server answers and knows our keys; changes nothing. Raises StoreError."""
    import obstore

    bucket = _open(settings, timeout_s, retries=0)
    try:
        with _translated():
            next(iter(obstore.list(bucket, prefix="probe-", chunk_size=1)), None)
    except MailNotFound:
        raise StoreError("quarantine: object storage: 404") from None


def _open(settings: S3Settings, timeout_s: float = _REQUEST_S, retries: int = 2) -> ObstoreS3:
    from obstore.store import S3Store as ObstoreS3

    connect_s = min(_CONNECT_S, timeout_s)
    options: dict[str, Any] = {"allow_http": settings.allow_http, "connect_timeout": f"{connect_s * 1000:.0f}ms"}
    options["timeout"] = f"{timeout_s * 1000:.0f}ms"
    if settings.allow_http:  # a proxy would read the mail
        options |= _NO_PROXY
    if settings.ca is not None:
        options["root_certificate"] = settings.ca
    keys: dict[str, Any] = {}
    if settings.access_key is not None:
        keys = {"access_key_id": settings.access_key, "secret_access_key": settings.secret_key}
    if settings.endpoint is not None:
        keys["endpoint"] = settings.endpoint
    with _translated():
        return ObstoreS3(
            settings.bucket,
            prefix=settings.prefix or None,
            region=settings.region,
            disable_bulk_delete=True,  # not every server has that request
            client_options=options,  # type: ignore[arg-type]
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=_CONNECT_S)},
            **keys,
        )


async def _whole(content: Content, deadline: float) -> bytearray:
    """The content in memory. A large mail is in a spool file, so it is read in a thread."""
    if content.size <= BLOCK:
        return _join(content)
    try:
        return await durable_files.in_thread(lambda stop: _join(content), deadline)
    except durable_files.Stopped as exc:
        raise StoreError("quarantine: deadline passed") from exc
    except OSError as exc:
        raise StoreError(f"quarantine: {exc}") from exc


def _join(content: Content) -> bytearray:
    """Copies each byte once."""
    data = bytearray(content.size)
    at = 0
    for chunk in content.chunks():
        data[at : at + len(chunk)] = chunk
        at += len(chunk)
    if at != len(data):
        raise StoreError("quarantine: the spooled mail has the wrong size")
    return data


def _condition(version: str | None) -> PutMode:
    """The mode of a write that replaces this version. RFC 9110 13.1.1: a weak tag never matches."""
    if version is None or version.startswith("W/"):
        return "overwrite"
    return {"e_tag": version} if version else "create"


def _name(mail_id: str, suffix: str) -> str:
    if not is_id(mail_id):
        raise MailNotFound
    return mail_id + suffix


@contextmanager
def _translated() -> Iterator[None]:
    """Turns obstore's errors, which hold whole responses and URLs, into StoreError with what an operator needs."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as exc:
        if "NoSuchBucket" in str(exc):
            raise StoreError("quarantine: the bucket does not exist (quarantine.s3.bucket)") from exc
        raise MailNotFound from exc
    except (BaseError, OSError, ValueError) as exc:
        if isinstance(exc, TimeoutError):  # from the caller's asyncio.timeout
            raise
        text = str(exc)
        status, code = _STATUS.search(text), _CODE.search(text)
        why = " ".join(found.group(1) for found in (status, code) if found) or _kind(text, exc)
        full = (status is not None and status.group(1) == "507") or (code is not None and _FULL.search(code.group(1)))
        raise (StoreFull if full else StoreError)(f"quarantine: object storage: {why}") from None


def _kind(text: str, exc: Exception) -> str:
    for words in (_NO_ANSWER, "timed out", "connect"):
        if words in text.lower():
            return "unreachable, or not answering"
    return type(exc).__name__
