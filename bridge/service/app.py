"""The service as an ASGI application: which path leads where, and what starts and ends with it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from bridge.api.failure import Failure
from bridge.api.lists import ADD_PATH, DELETE_PATH, GET_LISTS_PATH, LIST_ENTRIES_PATH
from bridge.api.scanning import MAX_MESSAGE_BYTES, STATUS_PATH, SUBMIT_PATH
from bridge.mail.message import Spool
from bridge.service import openapi
from bridge.service.analysis.engines import engines_of
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.auth import StaticTokens
from bridge.service.core_nodes import RemoteCore
from bridge.service.health import Health
from bridge.service.keys import KeyRing
from bridge.service.lists.endpoint import ListsApi
from bridge.service.lists.follow import ListFollower
from bridge.service.lists.store import ListStore
from bridge.service.metrics import Metrics
from bridge.service.queue import AnalysisQueue, Core
from bridge.service.scanning.admission import Admission
from bridge.service.scanning.endpoint import Status, SubmitEmail, queue_status
from bridge.service.scanning.records import Records
from bridge.service.settings import ServiceConfig
from bridge.service.store import Store

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

log = logging.getLogger("bridge.service")


def create_app(config: ServiceConfig) -> Starlette:
    """Build it; nothing runs before the lifespan begins."""
    guard = config.guard
    tokens = StaticTokens(config.abby.staticApiTokens)
    admission = Admission(guard.maxGuardRequestsInProcessing, guard.guardRequestThrottleThreshold)
    store = Store(config.database_url)
    keys = KeyRing(store)
    lists = ListStore(store, config.lists)
    follower = ListFollower(store, lists, keys)
    records = Records(store, config.records.retention)
    engines = engines_of(config.analyzers)
    metrics = Metrics(engine.name for engine in engines)
    core: Core
    if config.abby.serviceProviders.core.hosts:
        core = RemoteCore(config)
    else:
        core = AnalysisQueue(Pipeline(config, follower, records, engines, metrics), guard.mainWorkerCount)
    metrics.gauge("in_processing", "submitEmail requests in processing.", lambda: admission.in_processing)
    metrics.gauge("queue_waiting", "Analyses that wait for a worker.", lambda: core.waiting)
    metrics.gauge("records_dropped", "Analysis records lost because the database was away.", lambda: records.dropped)
    metrics.gauge("lists_current", "1 while the lists in memory follow the database.", lambda: follower.current)
    state = partial(queue_status, admission, core)
    submit = SubmitEmail(
        tokens,
        admission,
        core,
        Spool(guard.maxGuardRequestsInProcessing * MAX_MESSAGE_BYTES),
        metrics,
        enabled=guard.scanSources.restApi is not None,
        timeout_s=config.abby.serviceProviders.core.longRequestTimeout / 1000,
    )
    app = Starlette(
        routes=[
            Route(SUBMIT_PATH, submit, methods=["POST"]),
            Route(STATUS_PATH, Status(tokens, state), methods=["POST"]),
            *_list_routes(ListsApi(lists, keys, follower)),
            *_health_routes(Health(tokens, follower, metrics, state)),
            *_document_routes(),
        ],
        lifespan=_lifespan(store, [follower, records, core]),
        exception_handlers={HTTPException: _http_error, Exception: _our_error},
    )
    app.router.redirect_slashes = False  # a path is right or 404; no client of ours follows redirects
    return app


class _Part(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _lifespan(store: Store, parts: Sequence[_Part]) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Start in order, stop in reverse, also when a start fails half way."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(store.close)  # the first part opens it
            for part in parts:
                stack.push_async_callback(part.stop)
                await part.start()
            yield

    return lifespan


def _list_routes(api: ListsApi) -> list[Route]:
    handlers = {
        ADD_PATH: api.add_entries,
        DELETE_PATH: api.delete_entries,
        GET_LISTS_PATH: api.get_lists,
        LIST_ENTRIES_PATH: api.list_entries,
    }
    return [Route(path, api.endpoint(handler), methods=["POST"]) for path, handler in handlers.items()]


def _health_routes(health: Health) -> list[Route]:
    handlers = {"/livez": health.live, "/readyz": health.ready, "/metrics": health.metrics}
    return [Route(path, handler, methods=["GET"]) for path, handler in handlers.items()]


def _document_routes() -> list[Route]:
    described = json.dumps(openapi.document()).encode()
    readable = openapi.page()

    async def document(_request: Request) -> Response:
        return Response(described, media_type="application/json")

    async def page(_request: Request) -> Response:
        return HTMLResponse(readable, headers={"Content-Security-Policy": PAGE_POLICY})

    return [Route("/openapi.json", document, methods=["GET"]), Route("/docs", page, methods=["GET"])]


_ERRORS = {404: "not_found", 405: "method_not_allowed"}


def _http_error(_request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    failure = Failure(_ERRORS.get(exc.status_code, "error"), exc.detail)
    return JSONResponse(failure.to_dict(), exc.status_code, exc.headers)


def _our_error(_request: Request, exc: Exception) -> Response:
    return JSONResponse(Failure("internal", "an error of the service").to_dict(), 500)
