"""What NATS keeps for us: the stream of jobs, its consumer, and the object store for large mail.

The API node or worker that comes first creates them. Jobs are in a work queue: a job is removed as soon as a worker
has acknowledged it, or after `longRequestTimeout`, when no one is waiting for it; the same holds for objects. A
full stream refuses new jobs and keeps the ones it has.

Large mail is in JetStream's object store rather than in S3: the same servers, account, TLS and credentials, a limit
in bytes, and an age in seconds after which even forgotten content disappears; S3's rules count in days.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    ObjectMeta,
    ObjectMetaOptions,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore

from bridge.service.cluster.link import REQUEST_S, Session
from bridge.service.cluster.wire import Names
from bridge.service.nats_settings import Nats

ACK_WAIT_S = 6.0  # a worker that says nothing for this long has lost its job
DELIVERIES = 10  # of one job; `worker` gives up much earlier
DUPLICATES_S = 120.0  # a job that is sent again within this time is the same job
CHUNK = 256 * 1024
_WAITING_PULLS = 10_000  # one for each free slot of all workers


async def prepare(session: Session, settings: Nats, names: Names, timeout_s: float) -> None:
    """Create what is missing, and adapt what has other limits. Raises nats errors."""
    common = StreamConfig(
        storage=StorageType.MEMORY if settings.storage == "memory" else StorageType.FILE,
        num_replicas=settings.replicas,
        max_bytes=settings.max_size,
        max_age=timeout_s,
        discard=DiscardPolicy.NEW,
    )
    jobs = replace(
        common,
        name=names.stream,
        description="scanbridge: mail to be analyzed",
        subjects=[names.all_jobs],
        retention=RetentionPolicy.WORK_QUEUE,
        duplicate_window=min(DUPLICATES_S, timeout_s),
    )
    objects = replace(  # as the library names and configures them
        common,
        name=f"OBJ_{names.bucket}",
        description="scanbridge: large mail to be analyzed",
        subjects=[f"$O.{names.bucket}.C.>", f"$O.{names.bucket}.M.>"],
        allow_rollup_hdrs=True,
        allow_direct=True,
    )
    await _ensure(session, jobs)
    await _ensure(session, objects)
    consumer = ConsumerConfig(
        durable_name=names.consumer,
        filter_subject=names.jobs,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        max_deliver=DELIVERIES,
        max_waiting=_WAITING_PULLS,
        max_ack_pending=_WAITING_PULLS,
        mem_storage=settings.storage == "memory" or None,
    )
    await session.stream.add_consumer(names.stream, consumer)


async def _ensure(session: Session, wanted: StreamConfig) -> None:
    assert wanted.name is not None
    try:
        found = (await session.stream.stream_info(wanted.name)).config
    except NotFoundError:
        try:
            await session.stream.add_stream(wanted)
        except APIError as exc:
            if exc.err_code != _NAME_IN_USE:  # another one was faster
                raise
        return
    changed = [key for key in _ADAPTED if getattr(found, key) != getattr(wanted, key)]
    if changed:
        for key in changed:
            setattr(found, key, getattr(wanted, key))
        await session.stream.update_stream(found)


_NAME_IN_USE = 10058
_ADAPTED = ("max_bytes", "max_age", "num_replicas")


async def put(session: Session, names: Names, name: str, pieces: Iterable[bytes]) -> None:
    store = _store(session, names)
    meta = ObjectMeta(name=name, options=ObjectMetaOptions(max_chunk_size=CHUNK))
    await store.put(name, _Pieces(iter(pieces)), meta)


async def get(session: Session, names: Names, name: str) -> AsyncIterator[bytes]:
    """The object in chunks. Raises nats errors, ObjectNotFoundError and ValueError if its content is not complete."""
    info = await _store(session, names).get_info(name)
    digest, left = hashlib.sha256(), info.size or 0
    subscription = await session.stream.subscribe(f"$O.{names.bucket}.C.{info.nuid}", ordered_consumer=True)
    try:
        while left > 0:
            async with asyncio.timeout(REQUEST_S):
                chunk = (await subscription.next_msg(REQUEST_S)).data
            left -= len(chunk)
            digest.update(chunk)
            yield chunk
    finally:
        await subscription.unsubscribe()
    if left or base64.urlsafe_b64encode(digest.digest()).decode() != (info.digest or "").partition("=")[2]:
        raise ValueError("the object's digest differs")


async def remove(session: Session, names: Names, name: str) -> None:
    """The content and all that was known about it; nothing happens if it does not exist."""
    try:
        info = await _store(session, names).get_info(name)
    except NotFoundError:
        return
    bucket = f"OBJ_{names.bucket}"
    await session.stream.purge_stream(bucket, subject=f"$O.{names.bucket}.C.{info.nuid}")
    label = base64.urlsafe_b64encode(name.encode()).decode()
    await session.stream.purge_stream(bucket, subject=f"$O.{names.bucket}.M.{label}")


def _store(session: Session, names: Names) -> ObjectStore:
    """Without the library's question, at every use, whether it exists."""
    return ObjectStore(name=names.bucket, stream=f"OBJ_{names.bucket}", js=session.stream)


class _Pieces(io.BufferedIOBase):
    """A file that consists of these pieces, read once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        filled = 0
        while filled < len(buffer):
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
                continue
            count = min(len(buffer) - filled, len(self._rest))
            buffer[filled : filled + count] = self._rest[:count]
            self._rest = self._rest[count:]
            filled += count
        return filled
