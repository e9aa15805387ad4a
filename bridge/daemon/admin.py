"""The admin address: /metrics, /livez, /readyz and /status, for operators only.

Knows HTTP and nothing of the daemon: an `AdminView` supplies the contents. There are two: `SingleView`
for a daemon that is one process, and `workers.aggregate.Aggregate` for one of several workers.
"""

from __future__ import annotations

from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bridge.observe.metrics import Metrics

_SILENT_S = 2.0  # a worker publishes its numbers once a second


class OwnStatus(Protocol):
    """What one process knows about itself."""

    @property
    def metrics(self) -> Metrics: ...

    @property
    def connections(self) -> int:
        """Open connections of all listeners."""

    def problem(self) -> str:
        """Why this process accepts no mail; "" if it does."""

    def state(self) -> dict[str, Any]:
        """Its part of /status."""


class AdminView(Protocol):
    """What the admin address shows, whichever process answers."""

    async def registry(self) -> CollectorRegistry:
        """Everything, for one scrape."""

    def problem(self) -> str:
        """Why the daemon is not ready; "" if it is."""

    async def state(self) -> dict[str, Any]:
        """For /status and `scanbridge status`; `pid` is the process that handles the signals."""

    def publish(self) -> None:
        """Let the other workers know this process's numbers."""

    async def publish_regularly(self) -> None:
        """Publish once a second, and whenever another worker asks, until cancelled."""


class SingleView:
    """The view of a daemon that is one process: its own numbers, with no other worker to publish them to."""

    def __init__(self, status: OwnStatus) -> None:
        self._status = status
        status.metrics.workers_silent.read = lambda: [((), 0)]

    async def registry(self) -> CollectorRegistry:
        return self._status.metrics.registry

    def problem(self) -> str:
        return self._status.problem()

    async def state(self) -> dict[str, Any]:
        own = self._status.state()
        return {**own, "workers": [worker_summary(own)]}

    def publish(self) -> None:
        pass

    async def publish_regularly(self) -> None:
        pass


def worker_summary(state: dict[str, Any], age_s: float = 0.0) -> dict[str, Any]:
    """One worker in /status. `silent_s` is the age of its numbers, if a healthy worker would have newer ones."""
    silent_s = int(age_s) if age_s >= _SILENT_S else 0
    return {**{key: state[key] for key in ("pid", "uptime_s", "ready", "connections")}, "silent_s": silent_s}


def create_admin(view: AdminView) -> Starlette:
    async def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(await view.registry()), headers={"content-type": content_type})

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        problem = view.problem()
        return PlainTextResponse(f"{problem}\n" if problem else "ok\n", status_code=503 if problem else 200)

    async def status(request: Request) -> Response:
        return JSONResponse(await view.state())

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
        ]
    )
