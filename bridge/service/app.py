"""The service as an ASGI application: its routes, its components, and their start and stop order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
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
from bridge.service.core_nodes import CoreNodes
from bridge.service.health import Health
from bridge.service.keys import KeyRing
from bridge.service.lists.endpoint import ListsApi
from bridge.service.lists.follow import ListFollower
from bridge.service.lists.store import ListStore
from bridge.service.metrics import ServiceMetrics
from bridge.service.queue import AnalysisBackend, AnalysisQueue
from bridge.service.request_id import EchoRequestId
from bridge.service.scanning.admission import Admission
from bridge.service.scanning.endpoint import StatusEndpoint, SubmitEmailEndpoint, queue_status
from bridge.service.scanning.records import RecordWriter
from bridge.service.settings import ServiceConfig, Timings
from bridge.service.store import Store

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def create_app(config: ServiceConfig, timings: Timings) -> Starlette:
    """Build the application; nothing runs until its lifespan starts."""
    guard = config.guard
    tokens = StaticTokens(config.abby.staticApiTokens)
    admission = Admission(
        guard.maxGuardRequestsInProcessing, guard.guardRequestThrottleThreshold, timings.throttle_max_s
    )
    store = Store(config.database_url)
    keys = KeyRing(store)
    lists = ListStore(store, config.lists)
    follower = ListFollower(store, lists, keys)
    records = RecordWriter(store, config.records.retention)
    engines = engines_of(config.analyzers)
    metrics = ServiceMetrics(engine.name for engine in engines)
    backend: AnalysisBackend
    if config.abby.serviceProviders.core.hosts:
        backend = CoreNodes(config, timings)
    else:
        backend = AnalysisQueue(Pipeline(config, follower, records, engines, metrics), guard.mainWorkerCount)
    metrics.gauge("in_processing", "submitEmail requests in processing.", lambda: admission.in_processing)
    metrics.gauge("queue_waiting", "Analyses waiting for a worker.", lambda: backend.waiting)
    metrics.gauge(
        "records_dropped",
        "Analysis records lost because the database was unavailable.",
        lambda: records.dropped,
    )
    metrics.gauge("lists_current", "1 while the lists in memory are up to date.", lambda: follower.current)
    status = partial(queue_status, admission, backend)
    submit = SubmitEmailEndpoint(
        tokens,
        admission,
        backend,
        Spool(guard.maxGuardRequestsInProcessing * MAX_MESSAGE_BYTES),
        metrics,
        enabled=guard.scanSources.restApi is not None,
        timeout_s=config.abby.serviceProviders.core.longRequestTimeout / 1000,
        idle_s=timings.upload_idle_s,
    )
    app = Starlette(
        routes=[
            Route(SUBMIT_PATH, submit, methods=["POST"]),
            Route(STATUS_PATH, StatusEndpoint(tokens, status), methods=["POST"]),
            *_list_routes(ListsApi(lists, keys, follower)),
            *_health_routes(Health(tokens, follower, metrics, status)),
            *_document_routes(),
        ],
        middleware=[Middleware(EchoRequestId)],
        lifespan=_lifespan(store, [follower, records, backend]),
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )
    app.router.redirect_slashes = False  # a path is exact or 404; none of our clients follows redirects
    return app


class _Component(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def _lifespan(
    store: Store, components: Sequence[_Component]
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Start in order, stop in reverse order, even if one fails to start."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(store.close)  # the first component opens it
            for component in components:
                stack.push_async_callback(component.stop)
                await component.start()
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
    openapi_json = json.dumps(openapi.document()).encode()
    html = openapi.page()

    async def document(_request: Request) -> Response:
        return Response(openapi_json, media_type="application/json")

    async def page(_request: Request) -> Response:
        return HTMLResponse(html, headers={"Content-Security-Policy": PAGE_POLICY})

    return [Route("/openapi.json", document, methods=["GET"]), Route("/docs", page, methods=["GET"])]


_ERRORS = {404: "not_found", 405: "method_not_allowed"}


def _http_error(_request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    failure = Failure(_ERRORS.get(exc.status_code, "error"), exc.detail)
    return JSONResponse(failure.to_dict(), exc.status_code, exc.headers)


def _internal_error(_request: Request, exc: Exception) -> Response:
    return JSONResponse(Failure("internal", "an internal error occurred").to_dict(), 500)
