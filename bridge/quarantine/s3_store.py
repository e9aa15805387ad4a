"""A bucket of kept mail: S3-compatible object storage, through obstore.

Each object is one PUT, never a multipart upload: the server has it whole or not at all, a crash
leaves nothing hidden behind, and mail is small (50 MiB at most). `keep` awaits the server's word and
runs on obstore's own threads, not on the event loop; it ends with the mail's deadline. What failed or
ran out of time is removed behind the scenes; what cannot be removed then has no `.json`, or no `.eml`,
and `clean` finds it a day later: before that it may be another machine's, not finished yet.

Knows no lock but `Claims`. Never says a key: only the status and the code of an answer are repeated.
obstore starts threads that no fork survives, so it is touched when first needed and not before.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import secrets
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bridge.errors import StoreError, StoreFull
from bridge.mail.message import BLOCK
from bridge.quarantine.locks import Claims
from bridge.quarantine.record import Item
from bridge.quarantine.store import Content, Listed, NotKept, is_id, leftovers
from bridge.quarantine.usage import Stock
from bridge.runtime import durable_files

if TYPE_CHECKING:
    from obstore.store import S3Store

log = logging.getLogger("bridge.quarantine")

LEFTOVER_AGE_S = 86400.0  # no mail is written for so long, and no two clocks differ by so much
_TIDY_S = 10.0  # for removing what failed, while nobody waits
_CONNECT_S = 5
_REQUEST_S = 60  # for the largest mail, when no deadline is nearer
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_FULL = re.compile(r"StorageFull|InsufficientStorage|QuotaExceeded|InsufficientCapacity", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """Without keys they come from the environment, as the tools of AWS do it."""

    bucket: str
    endpoint: str | None = None  # None: Amazon's own
    region: str = "us-east-1"
    prefix: str = ""
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    allow_http: bool = False
    ca: bytes | None = field(default=None, repr=False)  # PEM
    leftover_age_s: float = LEFTOVER_AGE_S

    @property
    def name(self) -> str:
        where = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{where}"


class Bucket:
    """A store that several machines can share."""

    recount_s = 600.0

    def __init__(self, settings: BucketSettings, claims: Claims) -> None:
        self.name = settings.name
        self._settings = settings
        self._claims = claims
        self._tidying: set[asyncio.Task[None]] = set()

    async def keep(self, mail_id: str, content: Content, about: bytes, deadline: float) -> None:
        import obstore

        data = await _whole(content, deadline)
        try:
            async with asyncio.timeout(deadline - asyncio.get_running_loop().time()):
                with _translated():
                    await obstore.put_async(self._store, f"{mail_id}.eml", data, use_multipart=False)
                    await obstore.put_async(self._store, f"{mail_id}.json", about, use_multipart=False)
        except BaseException as exc:
            self._later(self._tidy(mail_id))
            if isinstance(exc, TimeoutError):
                raise StoreError(f"quarantine: {self.name}: deadline passed") from exc
            raise

    def listing(self) -> dict[str, Listed]:
        times: dict[str, float] = {}
        acted: dict[str, int] = {}
        mails: set[str] = set()
        for name, size, changed_at in self._objects():
            stem, _, suffix = name.rpartition(".")
            if suffix == "json":
                times[stem] = changed_at
            elif suffix == "releases":
                acted[stem] = size
            elif suffix == "eml":
                mails.add(stem)
        return {one: Listed(at, acted.get(one, 0)) for one, at in times.items() if one in mails and is_id(one)}

    def stock(self) -> Stock:
        mails, total, oldest = 0, 0, None
        for name, size, changed_at in self._objects():
            total += size
            if name.endswith(".json"):
                mails += 1
                oldest = changed_at if oldest is None else min(oldest, changed_at)
        return Stock(mails, total, oldest)

    def read(self, mail_id: str) -> Item:
        import obstore

        with _translated():
            answer = obstore.get(self._store, _name(mail_id, ".json"))
            about, kept_at = bytes(answer.bytes()), answer.meta["last_modified"].timestamp()
        try:
            with _translated():
                releases = bytes(obstore.get(self._store, _name(mail_id, ".releases")).bytes())
        except NotKept:
            releases = b""
        return Item(mail_id, about, releases, kept_at)

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        import obstore

        with _translated():
            answer = obstore.get(self._store, _name(mail_id, ".eml"))
            missing = answer.meta["size"]
            for chunk in answer.stream(min_chunk_size=BLOCK):
                missing -= len(chunk)
                yield bytes(chunk)
        if missing:
            raise StoreError(f"quarantine: {self.name}: the mail came back short")

    @contextmanager
    def claim(self, mail_id: str) -> Iterator[None]:
        import obstore

        name = _name(mail_id, ".json")
        with self._claims.hold(f"{self.name} {mail_id}"):
            with _translated():
                obstore.head(self._store, name)
            yield

    def note(self, mail_id: str, releases: bytes) -> None:
        import obstore

        with _translated():
            obstore.put(self._store, _name(mail_id, ".releases"), releases, use_multipart=False)

    def remove(self, mail_id: str) -> None:
        import obstore

        for suffix in (".json", ".eml", ".releases"):  # the .json first: without it the others are leftovers
            try:
                with _translated():
                    obstore.delete(self._store, _name(mail_id, suffix))
            except NotKept:  # some servers say so
                pass

    def clean(self) -> int:
        import obstore

        objects = {name: changed_at for name, _, changed_at in self._objects()}
        before = time.time() - self._settings.leftover_age_s
        old = [name for name in leftovers(set(objects)) if objects[name] <= before]
        for name in old:
            with _translated():
                obstore.delete(self._store, name)
        return len(old)

    async def close(self) -> None:
        """Wait for what is being removed."""
        while self._tidying:
            await asyncio.wait(self._tidying)

    @functools.cached_property
    def _store(self) -> S3Store:
        return _open(self._settings)

    def _objects(self) -> Iterator[tuple[str, int, float]]:
        """Name, size, time; those directly in our place, not below it."""
        import obstore

        with _translated():
            for batch in obstore.list(self._store, chunk_size=1000):
                for one in batch:
                    if "/" not in one["path"]:
                        yield one["path"], one["size"], one["last_modified"].timestamp()

    async def _tidy(self, mail_id: str) -> None:
        import obstore

        try:
            async with asyncio.timeout(_TIDY_S):
                for suffix in (".json", ".eml"):
                    with _translated():
                        await obstore.delete_async(self._store, f"{mail_id}{suffix}")
        except (NotKept, StoreError, TimeoutError) as exc:
            log.debug("%s: what is left of mail %s is removed later: %s", self.name, mail_id, exc)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)


def probe(settings: BucketSettings) -> None:
    """Write an object and remove it: the keys, the bucket, the rights. Raises StoreError."""
    import obstore

    store, name = _open(settings), f"probe-{secrets.token_hex(8)}"
    try:
        with _translated():
            obstore.put(store, name, b"x", use_multipart=False)
            obstore.delete(store, name)
    except NotKept:
        raise StoreError("quarantine: object storage: what was written is not there") from None


def _open(settings: BucketSettings) -> S3Store:
    from obstore.store import S3Store

    options: dict[str, Any] = {"allow_http": settings.allow_http, "connect_timeout": f"{_CONNECT_S}s"}
    options["timeout"] = f"{_REQUEST_S}s"
    if settings.ca is not None:
        options["root_certificate"] = settings.ca
    keys: dict[str, Any] = {}
    if settings.access_key is not None:
        keys = {"access_key_id": settings.access_key, "secret_access_key": settings.secret_key}
    if settings.endpoint is not None:
        keys["endpoint"] = settings.endpoint
    with _translated():
        return S3Store(
            settings.bucket,
            prefix=settings.prefix or None,
            region=settings.region,
            disable_bulk_delete=True,  # not every server knows that request
            client_options=options,  # type: ignore[arg-type]
            retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=_CONNECT_S)},
            **keys,
        )


async def _whole(content: Content, deadline: float) -> bytearray:
    """A large one lies in a file, and is read in a thread."""
    if content.size <= BLOCK:
        return _join(content)
    try:
        return await durable_files.in_thread(lambda stop: _join(content), deadline)
    except OSError as exc:
        raise StoreError(f"quarantine: {exc}") from exc


def _join(content: Content) -> bytearray:
    """In one piece, copied once."""
    data = bytearray(content.size)
    at = 0
    for chunk in content.chunks():
        data[at : at + len(chunk)] = chunk
        at += len(chunk)
    if at != len(data):
        raise StoreError("quarantine: the mail is not what it was")
    return data


def _name(mail_id: str, suffix: str) -> str:
    if not is_id(mail_id):
        raise NotKept("no such mail")
    return mail_id + suffix


@contextmanager
def _translated() -> Iterator[None]:
    """obstore's errors hold whole answers and addresses; ours hold what an operator needs."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as exc:
        if "NoSuchBucket" in str(exc):
            raise StoreError("quarantine: there is no such bucket (quarantine.s3.bucket)") from exc
        raise NotKept("no such mail") from exc
    except (BaseError, OSError, ValueError) as exc:
        if isinstance(exc, TimeoutError):  # the caller's own
            raise
        text = str(exc)
        status, code = _STATUS.search(text), _CODE.search(text)
        why = " ".join(found.group(1) for found in (status, code) if found) or _kind(text, exc)
        full = (status is not None and status.group(1) == "507") or (code is not None and _FULL.search(code.group(1)))
        raise (StoreFull if full else StoreError)(f"quarantine: object storage: {why}") from None


def _kind(text: str, exc: Exception) -> str:
    for words in ("error sending request", "timed out", "connect"):
        if words in text.lower():
            return "it cannot be reached, or does not answer"
    return type(exc).__name__
