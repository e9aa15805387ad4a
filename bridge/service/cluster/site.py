"""A worker with one configuration: its lists, records and analyzers, the queue, and its pages for operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from starlette.applications import Starlette
from starlette.routing import Route

from bridge.api.scanning import QueueStatus
from bridge.errors import ConfigError
from bridge.service.analysis.engines import engines_of
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.auth import StaticTokens
from bridge.service.cluster.worker import NatsWorker
from bridge.service.database_calls import DatabaseCalls
from bridge.service.health import Health
from bridge.service.keys import KeyRing
from bridge.service.learning.follow import Learned
from bridge.service.learning.store import VoteStore
from bridge.service.lists.follow import ListFollower
from bridge.service.lists.store import ListStore
from bridge.service.metrics import ServiceMetrics
from bridge.service.scanning.records import RecordWriter
from bridge.service.settings import ServiceConfig
from bridge.service.store import Store


class WorkerSite:
    def __init__(self, config: ServiceConfig) -> None:
        """Build everything; nothing runs until `start`. Raises ConfigError."""
        if config.abby.serviceProviders.core.nats is None:
            raise ConfigError(
                "abby.serviceProviders.core.nats: this key is required: a worker takes its mail from the queue in NATS"
            )
        self._metrics = ServiceMetrics()
        self._store = Store(config.database_url)
        self._calls = calls = DatabaseCalls()
        lists = ListStore(self._store, config.lists)
        self._follower = ListFollower(
            self._store, lists, KeyRing(self._store, calls), config.decisions.allowing(lists.definitions), calls
        )
        self._records = RecordWriter(self._store, config.records.retention, calls)
        self._learned = Learned(VoteStore(self._store), calls)
        engines = engines_of(config.analyzers)
        pipeline = Pipeline(config, self._follower, self._records, engines, self._metrics, self._learned)
        self._worker = NatsWorker(config, pipeline, self._metrics, self._store.identity)
        self._metrics.know_engines(engine.name for engine in engines)
        self._show_metrics()
        self.app = self._application(config)
        self._stack = AsyncExitStack()

    @property
    def slots(self) -> int:
        return self._worker.slots

    async def start(self) -> None:
        """Start in order. Raises ConfigError or StoreUnavailable, and has then stopped what was started."""
        async with AsyncExitStack() as stack:
            stack.callback(self._calls.close)
            stack.callback(self._store.close)
            for component in (self._follower, self._learned, self._records, self._worker):
                stack.push_async_callback(component.stop)
                await component.start()
            self._stack = stack.pop_all()

    async def stop(self, drain_s: float) -> None:
        """Finish what it has begun, as far as time allows, then stop in reverse order."""
        await self._worker.leave(drain_s)
        await self._stack.aclose()

    def show_reloads(self, last: Callable[[], tuple[bool, float]]) -> None:
        self._metrics.show_reloads(last)

    async def _status(self) -> QueueStatus:
        return QueueStatus.GREEN if self._worker.connected else QueueStatus.RED

    def _application(self, config: ServiceConfig) -> Starlette:
        tokens = StaticTokens(config.abby.staticApiTokens)
        health = Health(
            *(tokens, self._follower, self._metrics, self._status, self._store.identity),
            scanning=True,
            hosts=config.metrics_host_names,
        )
        handlers = {"/livez": health.live, "/readyz": health.ready, "/metrics": health.metrics}
        return Starlette(routes=[Route(path, handler, methods=["GET"]) for path, handler in handlers.items()])

    def _show_metrics(self) -> None:
        metrics, worker = self._metrics, self._worker
        metrics.gauge("in_processing", "Analyses that this worker is carrying out.", lambda: worker.busy)
        metrics.gauge("queue_connected", "1 while this worker is connected to NATS.", lambda: worker.connected)
        metrics.gauge(
            "records_dropped",
            "Analysis records lost because the database was unavailable.",
            lambda: self._records.dropped,
        )
        metrics.gauge("lists_current", "1 while the lists in memory are up to date.", lambda: self._follower.current)
