"""The Email Scanning API: submitEmail and status, as ASGI endpoints.

A scan passes through five steps: token, slot, upload, queue, answer. The slot is taken as soon as
the head of the request is known, so a refused request costs no upload. The slot is always given back.

A mail that was received completely gets a result, whatever goes wrong while it is analysed: a 500 would
look like a failure of the service, and any sender could cause one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from bridge.api.scanning import AnalysisResult, Decision, QueueStatus
from bridge.mail.message import Spool
from bridge.service.abby_settings import Permission
from bridge.service.analysis.decision import unfinished
from bridge.service.analysis.job import AnalysisJob
from bridge.service.auth import StaticTokens
from bridge.service.metrics import ServiceMetrics
from bridge.service.queue import AnalysisBackend
from bridge.service.requests import header
from bridge.service.responses import Refused, RequestBody, check_plain, declared_length, refuse, send_json
from bridge.service.scanning.admission import Admission
from bridge.service.scanning.parameters import parse_parameters
from bridge.service.scanning.upload import MAX_BODY_BYTES, Disconnected, Upload, body_too_large
from bridge.service.store import DATABASE_ID

log = logging.getLogger("bridge.service")


class SubmitEmailEndpoint:
    """POST /v1/messageQueue/submitEmail"""

    def __init__(
        self,
        tokens: StaticTokens,
        admission: Admission,
        backend: AnalysisBackend,
        spool: Spool,
        metrics: ServiceMetrics,
        *,
        enabled: bool,
        timeout_s: float,
        idle_s: float,
    ) -> None:
        self._tokens = tokens
        self._admission = admission
        self._backend = backend
        self._spool = spool
        self._metrics = metrics
        self._enabled = enabled
        self._timeout_s = timeout_s
        self._idle_s = idle_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        receive = RequestBody(receive)
        try:
            result = await self._admit_and_scan(scope, receive)
        except Refused as refused:  # the slot is free by now, so a client that reads slowly blocks no one
            self._metrics.refused(refused.status)
            await refuse(scope, receive, send, refused)
        except Disconnected:
            log.info("client disconnected before the answer was ready")
        else:
            await send_json(send, 200, result.to_dict())

    async def _admit_and_scan(self, scope: Scope, receive: Receive) -> AnalysisResult:
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
        """Check everything that the head alone decides, take a slot, and return the delay in seconds."""
        self._tokens.check(scope, Permission.SCAN)
        if not self._enabled:
            raise Refused(403, "scan_source_disabled", "guard.scanSources.restApi is not configured")
        if (refused := self._backend.refusal()) is not None:
            raise refused
        check_plain(scope)
        check_length(scope)
        return self._admission.enter()

    async def _scan(self, scope: Scope, receive: Receive) -> AnalysisResult:
        upload = Upload(self._spool, parse_parameters, self._idle_s)
        try:
            request = await upload.read(receive, header(scope, b"content-type"))
            job = AnalysisJob.new(request, upload.mail)
            try:
                return self._backend.try_now(job) or await self._wait_for_result(job, receive)
            except (Refused, Disconnected):
                raise
            except Exception:
                log.exception("ggrid=%s analysis failed", job.ggrid)
                self._metrics.decided(Decision.UNDECIDED)
                return unfinished(job, "failed:analysis")
        finally:
            upload.close()

    async def _wait_for_result(self, job: AnalysisJob, receive: Receive) -> AnalysisResult:
        """Queue the job; if the client disconnects, the analysis is cancelled."""
        future = self._backend.submit(job)
        disconnected = asyncio.create_task(_disconnect(receive))
        either: set[asyncio.Future[Any]] = {future, disconnected}
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise Refused(504, "analysis_timeout", "the analysis took longer than longRequestTimeout") from None
        finally:
            disconnected.cancel()
            is_answered = future.done() and not future.cancelled()
            future.cancel()
        if not is_answered:
            raise Disconnected
        return future.result()


class StatusEndpoint:
    """POST /v1/admin/status"""

    def __init__(
        self, tokens: StaticTokens, status: Callable[[], Awaitable[QueueStatus]], database: Callable[[], str]
    ) -> None:
        self._tokens = tokens
        self._status = status
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._tokens.check(scope, Permission.STATUS)
        except Refused as refused:
            await refuse(scope, RequestBody(receive), send, refused)
            return
        headers = [(DATABASE_ID.encode(), self._database().encode())]
        await send_json(send, 200, {"messageQueueStatus": str(await self._status())}, headers)


async def queue_status(admission: Admission, backend: AnalysisBackend, *, enabled: bool) -> QueueStatus:
    """The worse status of the two: our own limit and the backend. RED if no mail can be scanned at all."""
    if not enabled:
        return QueueStatus.RED
    ours = await admission.status()
    if ours is QueueStatus.RED:
        return ours
    theirs = await backend.status()
    return ours if theirs is QueueStatus.GREEN else theirs


def check_length(scope: Scope) -> None:
    """Refuse an oversized body with 413 before its first byte is read."""
    if (declared_length(scope) or 0) > MAX_BODY_BYTES:
        raise body_too_large()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
