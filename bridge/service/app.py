"""The service as an ASGI application: its routes, its components, and their start and stop order.

A `Site` belongs to one configuration and never changes. A reload starts a second site; requests that began in the
first are answered there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from bridge.api.failure import Failure
from bridge.api.feedback import FEEDBACK_PATH
from bridge.api.lists import ADD_PATH, DELETE_PATH, GET_LISTS_PATH, LIST_ENTRIES_PATH
from bridge.api.scanning import MAX_MESSAGE_BYTES, STATUS_PATH, SUBMIT_PATH
from bridge.errors import ConfigError
from bridge.mail.message import Spool
from bridge.mail.spool import SpoolDisk
from bridge.runtime.shared_call import SharedCall
from bridge.service import openapi
from bridge.service.abby_settings import Permission
from bridge.service.analysis.engines import engines_of
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.auth import StaticTokens
from bridge.service.cluster.members import Members
from bridge.service.core_nodes import CoreNodes
from bridge.service.database_calls import DatabaseCalls
from bridge.service.health import Health
from bridge.service.keys import KeyRing
from bridge.service.learning.endpoint import FeedbackEndpoint
from bridge.service.learning.follow import Learned
from bridge.service.learning.store import VoteStore
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

MAX_IN_PROCESSING = 10_000  # of a cluster, whose limit changes with its workers
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(slots=True)
class Lasting:
    """What a reload keeps: threads, and counts, so that requests of the old and new configurations share one limit."""

    admission: Admission
    metrics: ServiceMetrics
    disk: SpoolDisk

    @classmethod
    def new(cls, timings: Timings, disk: SpoolDisk | None = None) -> Lasting:
        return cls(Admission(1, 1, timings.throttle_max_s), ServiceMetrics(), disk or SpoolDisk())


class Site:
    """The service with one configuration: from `start` until its last request is answered."""

    def __init__(self, config: ServiceConfig, timings: Timings, lasting: Lasting) -> None:
        """Build everything; nothing runs until `start`. Raises ConfigError."""
        self.config = config
        self._lasting = lasting
        self._store = Store(config.database_url)
        self._calls = calls = DatabaseCalls(timings.database_s)
        self._keys = KeyRing(self._store, calls)
        self._lists = ListStore(self._store, config.lists)
        allowing = config.decisions.allowing(self._lists.definitions)
        self._follower = ListFollower(self._store, self._lists, self._keys, allowing, calls)
        self._records = RecordWriter(self._store, config.records.retention, calls)
        self._votes = VoteStore(self._store)
        self._learned = Learned(self._votes, calls)
        self._engines = engines_of(config.analyzers)
        self._backend = self._chosen_backend(timings)
        tokens = StaticTokens(config.abby.staticApiTokens)
        self._feedback = FeedbackEndpoint(
            *(tokens, self._votes, self._learned, config.analyzers, lasting.metrics),
            timings.upload_idle_s,
            lasting.disk,
            calls,
        )
        scanning = config.guard.scanSources.restApi is not None
        self._status = SharedCall(  # anyone may ask (/readyz), and other machines may have to answer
            partial(queue_status, lasting.admission, self._backend, enabled=scanning)
        )
        self._app = self._application(tokens, timings)
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stack = AsyncExitStack()

    def _chosen_backend(self, timings: Timings) -> AnalysisBackend:
        config, core = self.config, self.config.abby.serviceProviders.core
        if core.hosts:
            return CoreNodes(config, timings, self._store.identity)
        if core.nats is not None:
            return cluster_queue(config, self._store.identity)
        pipeline = Pipeline(config, self._follower, self._records, self._engines, self._lasting.metrics, self._learned)
        return AnalysisQueue(pipeline, config.guard.mainWorkerCount)

    async def start(self) -> None:
        """Start in order. Raises ConfigError or StoreUnavailable, and has then stopped what was started."""
        async with AsyncExitStack() as stack:
            stack.callback(self._calls.close)
            stack.callback(self._store.close)  # the first component opens it
            for component in (self._follower, self._learned, self._records, self._feedback, self._backend):
                stack.push_async_callback(component.stop)
                await component.start()
            stack.push_async_callback(self._status.stop)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Stop in reverse order."""
        await self._stack.aclose()

    @property
    def loaded(self) -> bool:
        """Whether the lists could be read."""
        return self._follower.loaded

    def enter(self) -> None:
        """From now on, requests come here."""
        guard, admission = self.config.guard, self._lasting.admission
        limit, threshold = guard.maxGuardRequestsInProcessing, guard.guardRequestThrottleThreshold
        admission.use(limit, threshold, self._backend.limits)
        self._show_metrics()

    def _application(self, tokens: StaticTokens, timings: Timings) -> Starlette:
        guard, core = self.config.guard, self.config.abby.serviceProviders.core
        enabled = guard.scanSources.restApi is not None
        limit = (MAX_IN_PROCESSING if core.nats else guard.maxGuardRequestsInProcessing) * MAX_MESSAGE_BYTES
        submit = SubmitEmailEndpoint(
            tokens,
            self._lasting.admission,
            self._backend,
            Spool(limit, disk=self._lasting.disk),
            self._lasting.metrics,
            enabled=enabled,
            timeout_s=core.longRequestTimeout / 1000,
            idle_s=timings.upload_idle_s,
        )
        scanning = enabled and any(token.may(Permission.SCAN) for token in self.config.abby.staticApiTokens)
        database = self._store.identity
        hosts = self.config.metrics_host_names
        health = Health(
            tokens, self._follower, self._lasting.metrics, self._status, database, scanning=scanning, hosts=hosts
        )
        app = Starlette(
            routes=[
                Route(SUBMIT_PATH, submit, methods=["POST"]),
                Route(FEEDBACK_PATH, self._feedback, methods=["POST"]),
                Route(STATUS_PATH, StatusEndpoint(tokens, self._status, database), methods=["POST"]),
                *_list_routes(ListsApi(self._lists, self._keys, self._follower, self._calls)),
                *_health_routes(health),
                *_document_routes(),
            ],
            middleware=[Middleware(EchoRequestId)],
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        )
        app.router.redirect_slashes = False  # a path is exact or 404; none of our clients follows redirects
        return app

    def _show_metrics(self) -> None:
        metrics = self._lasting.metrics
        metrics.know_engines(engine.name for engine in self._engines)
        metrics.know_engines(["yara"] if self.config.analyzers.yara else [])
        metrics.gauge(
            "in_processing", "submitEmail requests being processed.", lambda: self._lasting.admission.in_processing
        )
        metrics.gauge("queue_waiting", "Analyses waiting for a worker.", lambda: self._backend.waiting)
        metrics.gauge(
            "records_dropped",
            "Analysis records lost because the database was unavailable.",
            lambda: self._records.dropped,
        )
        metrics.show_learning(self._learned)
        if isinstance(members := getattr(self._backend, "members", None), Members):
            metrics.gauge("workers", "Analysis workers that are connected.", lambda: len(members.workers))
            metrics.gauge(
                "worker_slots", "Maximum number of concurrent analyses of all workers.", lambda: members.slots
            )
            metrics.gauge("worker_busy", "Analyses that workers are carrying out.", lambda: members.busy)
        metrics.gauge("lists_current", "1 while the lists in memory are up to date.", lambda: self._follower.current)

    async def idle(self) -> None:
        """Wait until no request is in processing here."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._requests += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()


def cluster_queue(config: ServiceConfig, database: Callable[[], str]) -> AnalysisBackend:
    """Raises ConfigError, including if the library for NATS is not installed."""
    try:
        from bridge.service.cluster.queue import NatsQueue
    except ImportError as exc:
        raise ConfigError(NEEDS_NATS) from exc
    return NatsQueue(config, database)


NEEDS_NATS = "abby.serviceProviders.core.nats: a library is missing: pip install 'scanbridge[nats]'"


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
