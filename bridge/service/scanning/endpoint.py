"""The Email Scanning API: submitEmail and status, as ASGI endpoints.

The way of a scan: token, slot, upload, queue, answer. The slot is taken at the head of the
request, so what is refused costs no upload, and it is given back whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from bridge.api.scanning import AnalysisResult, QueueStatus
from bridge.mail.message import Spool
from bridge.service.analysis.pipeline import Job
from bridge.service.auth import StaticTokens
from bridge.service.metrics import Metrics
from bridge.service.queue import Core
from bridge.service.responses import Refused, header, refuse, send_json, storage_unavailable
from bridge.service.scanning.admission import Admission
from bridge.service.scanning.upload import MAX_BODY_BYTES, Disconnected, Upload, too_large
from bridge.service.settings import Permission

log = logging.getLogger("bridge.service")


class SubmitEmail:
    """POST /v1/messageQueue/submitEmail"""

    def __init__(
        self,
        tokens: StaticTokens,
        admission: Admission,
        core: Core,
        spool: Spool,
        metrics: Metrics,
        *,
        enabled: bool,
        timeout_s: float,
    ) -> None:
        self._tokens = tokens
        self._admission = admission
        self._core = core
        self._spool = spool
        self._metrics = metrics
        self._enabled = enabled
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            result = await self._admitted(scope, receive)
        except Refused as refused:  # the slot is free again: a client that is slow to read it holds up nobody
            self._metrics.refused(refused.status)
            await refuse(scope, receive, send, refused)
        except Disconnected:
            log.info("a client went away before its answer")
        else:
            await send_json(send, 200, result.to_dict())

    async def _admitted(self, scope: Scope, receive: Receive) -> AnalysisResult:
        try:
            delay = self._enter(scope)
        except Refused as refused:
            refused.before_body = True
            raise
        start = time.monotonic()
        try:
            if delay:
                await asyncio.sleep(delay)
            return await self._scan(scope, receive)
        finally:
            self._admission.leave()
            self._metrics.took(time.monotonic() - start)

    def _enter(self, scope: Scope) -> float:
        """Everything that can be said from the head alone; the answer is the throttle."""
        self._tokens.check(scope, Permission.SCAN)
        if not self._enabled:
            raise Refused(403, "scan_source_disabled", "guard.scanSources.restApi is not configured")
        if not self._core.ready:
            raise storage_unavailable()
        check_length(scope)
        return self._admission.enter()

    async def _scan(self, scope: Scope, receive: Receive) -> AnalysisResult:
        upload = Upload(self._spool)
        try:
            request = await upload.read(receive, header(scope, b"content-type"))
            job = Job.new(request, upload.mail)
            return self._core.try_now(job) or await self._queued(job, receive)
        finally:
            upload.close()

    async def _queued(self, job: Job, receive: Receive) -> AnalysisResult:
        """Wait for the workers; a client that goes away ends the analysis."""
        future = self._core.submit(job)
        gone = asyncio.create_task(_disconnect(receive))
        either: set[asyncio.Future[Any]] = {future, gone}
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise Refused(504, "analysis_timeout", "the analysis took longer than longRequestTimeout") from None
        finally:
            gone.cancel()
            if not future.done():
                future.cancel()
        if future.cancelled():
            raise Disconnected
        return future.result()


class Status:
    """POST /v1/admin/status"""

    def __init__(self, tokens: StaticTokens, state: Callable[[], Awaitable[QueueStatus]]) -> None:
        self._tokens = tokens
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._tokens.check(scope, Permission.STATUS)
        except Refused as refused:
            await refuse(scope, receive, send, refused)
            return
        await send_json(send, 200, {"messageQueueStatus": str(await self._state())})


async def queue_status(admission: Admission, core: Core) -> QueueStatus:
    """The worse of what our own limit and the core say."""
    ours = await admission.status()
    if ours is QueueStatus.RED:
        return ours
    theirs = await core.status()
    return ours if theirs is QueueStatus.GREEN else theirs


def check_length(scope: Scope) -> None:
    """413 before the first byte of a body that cannot be right."""
    length = header(scope, b"content-length")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise too_large()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
