"""The admin address: a page at /, /metrics, /livez (or /healthz), /readyz and /status, for operators only; and the API.

Knows HTTP and nothing of the daemon: an `AdminView` supplies the contents. There are two: `SingleView`
for a daemon that is one process, and `workers.aggregate.Aggregate` for one of several workers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from bridge.daemon.admin_page import HEADERS, page
from bridge.daemon.mail_counts import mail_counts
from bridge.daemon.what_is_wrong import Health, recent_of
from bridge.observe.last_mails import LAST
from bridge.observe.metrics import Metrics
from bridge.runtime.known_hosts import has_known_host, wrong_host

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

    def health(self, state: dict[str, Any]) -> Health:
        """What is wrong, judging by the state of all workers together."""


class AdminView(Protocol):
    """What the admin address shows, whichever process answers."""

    async def registry(self) -> CollectorRegistry:
        """Everything, for one scrape."""

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

    async def state(self) -> dict[str, Any]:
        own = self._status.state()
        rows = self._status.metrics.mails.dump()
        return with_health({**own, "workers": [worker_summary(own)]}, [own["recent"]], rows, self._status)

    def publish(self) -> None:
        pass

    async def publish_regularly(self) -> None:
        pass


def with_health(
    state: dict[str, Any], recent: Sequence[Sequence[Any]], mails: Iterable[Sequence[Any]], status: OwnStatus
) -> dict[str, Any]:
    """The state of all workers together with what is wrong, in words.

    `recent`: each worker's latest outcomes. `mails`: the rows of `scanbridge_mails_total`, of all workers.
    """
    health = status.health({**state, "recent": recent_of(recent, LAST)})
    del state["recent"]  # of this process only
    words = {"problems": list(health.problems), "warnings": list(health.warnings), "mails": mail_counts(mails, recent)}
    return {**state, **words, "ready": not health.stops_mail}


def worker_summary(state: dict[str, Any], age_s: float = 0.0) -> dict[str, Any]:
    """One worker in /status. `silent_s` is the age of its numbers, if a healthy worker would have newer ones."""
    silent_s = int(age_s) if age_s >= _SILENT_S else 0
    return {**{key: state[key] for key in ("pid", "uptime_s", "ready", "connections")}, "silent_s": silent_s}


def create_admin(view: AdminView, api: ASGIApp, hosts: Callable[[], Collection[str]] = tuple) -> Starlette:
    """`api` answers everything below /api. `hosts`: names of the admin address, besides those that cannot be forged."""

    def private(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            if not has_known_host(request.scope, hosts()):
                return PlainTextResponse(f"{wrong_host('admin.hosts')}\n", HTTPStatus.MISDIRECTED_REQUEST)
            return await answer(request)

        return checked

    async def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(await view.registry()), headers={"content-type": content_type})

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        """The status is for everyone, under any host name; the problems name machines."""
        state = await view.state()
        text = state["phase"] or "\n".join(state["problems"]) or "ok"
        if not state["ready"] and not has_known_host(request.scope, hosts()):
            text = "not ready"
        return PlainTextResponse(f"{text}\n", status_code=200 if state["ready"] else 503)

    async def status(request: Request) -> Response:
        return JSONResponse(await view.state())

    async def front(request: Request) -> Response:
        return HTMLResponse(page(await view.state()), headers=HEADERS)

    return Starlette(
        routes=[
            Route("/", private(front)),
            Route("/metrics", private(metrics)),
            Route("/livez", livez),
            Route("/healthz", livez),
            Route("/readyz", readyz),
            Route("/status", private(status)),
            Route("/api", api),
            Mount("/api", api),
        ]
    )
