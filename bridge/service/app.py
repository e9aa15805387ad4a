"""The service as an ASGI application: which path leads where, and what starts and ends with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bridge.api.failure import Failure
from bridge.api.scanning import MAX_MESSAGE_BYTES, STATUS_PATH, SUBMIT_PATH
from bridge.mail.message import Spool
from bridge.service.admission import Admission
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.auth import StaticTokens
from bridge.service.queue import AnalysisQueue
from bridge.service.scanning import Status, SubmitEmail
from bridge.service.settings import ServiceConfig

log = logging.getLogger("bridge.service")


def create_app(config: ServiceConfig) -> Starlette:
    """Build it; nothing runs before the lifespan begins."""
    guard = config.guard
    tokens = StaticTokens(config.abby.staticApiTokens)
    admission = Admission(guard.maxGuardRequestsInProcessing, guard.guardRequestThrottleThreshold)
    queue = AnalysisQueue(Pipeline(config), guard.mainWorkerCount)
    submit = SubmitEmail(
        tokens,
        admission,
        queue,
        Spool(guard.maxGuardRequestsInProcessing * MAX_MESSAGE_BYTES),
        enabled=guard.scanSources.restApi is not None,
        timeout_s=config.abby.serviceProviders.core.longRequestTimeout / 1000,
    )

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await queue.start()
        try:
            yield
        finally:
            await queue.stop()

    return Starlette(
        routes=[
            Route(SUBMIT_PATH, submit, methods=["POST"]),
            Route(STATUS_PATH, Status(tokens, admission), methods=["POST"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, Exception: _our_error},
    )


_ERRORS = {404: "not_found", 405: "method_not_allowed"}


def _http_error(_request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    failure = Failure(_ERRORS.get(exc.status_code, "error"), exc.detail)
    return JSONResponse(failure.to_dict(), exc.status_code, exc.headers)


def _our_error(_request: Request, exc: Exception) -> Response:
    return JSONResponse(Failure("internal", "an error of the service").to_dict(), 500)
