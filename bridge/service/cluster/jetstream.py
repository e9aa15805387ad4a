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
import json
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    Header,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore

from bridge.runtime.nats_client import cancellable
from bridge.service.cluster.link import NATS_ERRORS, REQUEST_S, Session, reason
from bridge.service.cluster.wire import Names
from bridge.service.nats_settings import Nats

ACK_WAIT_S = 6.0  # a worker that says nothing for this long has lost its job
DELIVERIES = -1  # of one job: no limit, since NATS says nothing when it is reached; `worker` gives up much earlier
DUPLICATES_S = 120.0  # a job that is sent again within this time is the same job
CHUNK = 256 * 1024
_WAITING_PULLS = 10_000  # one for each free slot of all workers

log = logging.getLogger("bridge.service")


async def prepare(session: Session, settings: Nats, names: Names, timeout_s: float) -> None:
    """Create what is missing, as far as NATS can, and log why it cannot: each reason once in a session.

    A stream may be without a leader, or gone with a server that kept it in memory.
    """
    problem = ""
    try:
        async with asyncio.timeout(REQUEST_S):
            await _create(session, settings, names, timeout_s)
    except APIError as exc:
        problem = exc.description or "JetStream is not enabled for this account, or has no leader"
    except NATS_ERRORS as exc:
        problem = reason(exc)
    if problem and problem != session.problem:
        log.warning("queue: NATS cannot keep mail for analysis: %s", problem)
    session.problem = problem


async def _create(session: Session, settings: Nats, names: Names, timeout_s: float) -> None:
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
    """Like the library's `put`, but all chunks of all attempts are found under the object's name.

    The library chooses a random subject, which is lost with an attempt that fails: its chunks would stay there until
    they expire. Raises nats errors.
    """
    place = f"{name}.{secrets.token_hex(8)}"
    digest, size, chunks = hashlib.sha256(), 0, 0
    largest = min(CHUNK, session.client.max_payload)
    for chunk in _chunks(pieces, largest):
        await session.stream.publish(f"$O.{names.bucket}.C.{place}", chunk)
        digest.update(chunk)
        size, chunks = size + len(chunk), chunks + 1
    info = {
        "name": name, "bucket": names.bucket, "nuid": place, "size": size, "chunks": chunks,
        "mtime": datetime.now(UTC).isoformat(), "options": {"max_chunk_size": largest},
        "digest": f"SHA-256={base64.urlsafe_b64encode(digest.digest()).decode()}",
    }  # fmt: skip
    latest = {Header.ROLLUP.value: "sub"}  # this message replaces those of the same subject
    await session.stream.publish(_about(names, name), json.dumps(info).encode(), headers=latest)


def stored_size(size_bytes: int) -> int:
    """What an object of this size takes at most, with the subject of each chunk and its metadata."""
    return size_bytes + (size_bytes // CHUNK + 2) * 1024


async def free_bytes(session: Session, names: Names) -> int:
    """What the object store can still take, from all API nodes. Raises nats errors."""
    info = await session.stream.stream_info(f"OBJ_{names.bucket}")
    return (info.config.max_bytes or 0) - info.state.bytes


def _chunks(pieces: Iterable[bytes], largest: int) -> Iterator[bytes]:
    rest = bytearray()
    for piece in pieces:
        rest += piece
        while len(rest) >= largest:
            yield bytes(rest[:largest])
            del rest[:largest]
    if rest:
        yield bytes(rest)


def _about(names: Names, name: str) -> str:
    """The subject that says where an object's chunks are."""
    return f"$O.{names.bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


async def get(session: Session, names: Names, name: str) -> AsyncIterator[bytes]:
    """The object in chunks. Raises nats errors, ObjectNotFoundError and ValueError if its content is not complete."""
    info = await _store(session, names).get_info(name)
    digest, left = hashlib.sha256(), info.size or 0
    subscription = await session.stream.subscribe(f"$O.{names.bucket}.C.{info.nuid}", ordered_consumer=True)
    try:
        while left > 0:
            async with asyncio.timeout(REQUEST_S):
                chunk = (await cancellable(subscription.next_msg(REQUEST_S))).data
            left -= len(chunk)
            digest.update(chunk)
            yield chunk
    finally:
        await subscription.unsubscribe()
    if left or base64.urlsafe_b64encode(digest.digest()).decode() != (info.digest or "").partition("=")[2]:
        raise ValueError("the object's digest differs")


async def remove(session: Session, names: Names, name: str) -> None:
    """Delete the content, including that of failed attempts, and its metadata. Raises nats errors."""
    try:
        place = (await _store(session, names).get_info(name)).nuid
    except NotFoundError:
        place = None
    subjects = [f"$O.{names.bucket}.C.{name}.*", _about(names, name)]
    if place is not None and not place.startswith(f"{name}."):  # stored by an API node of an older version
        subjects.insert(0, f"$O.{names.bucket}.C.{place}")
    for subject in subjects:
        await session.stream.purge_stream(f"OBJ_{names.bucket}", subject=subject)


def _store(session: Session, names: Names) -> ObjectStore:
    """Made without the library's function, which asks at every use whether the store exists."""
    return ObjectStore(name=names.bucket, stream=f"OBJ_{names.bucket}", js=session.stream)
