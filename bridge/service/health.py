"""Endpoints for operators: /livez, /readyz and /metrics.

/livez answers as long as the event loop runs. /readyz answers 200 if a scan sent now would be
served: scanning is configured, the lists are current, and the queue is not stuck. /metrics is open to clients that
connect over loopback or a Unix socket and use a known host name; others need a token with the permission `metrics`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from bridge.api.scanning import QueueStatus
from bridge.runtime.ip import ip_or_none
from bridge.runtime.known_hosts import has_known_host, wrong_host
from bridge.service.abby_settings import Permission
from bridge.service.auth import StaticTokens
from bridge.service.lists.follow import ListFollower
from bridge.service.metrics import ServiceMetrics
from bridge.service.responses import Refused
from bridge.service.store import DATABASE_ID


class Health:
    def __init__(
        self,
        tokens: StaticTokens,
        follower: ListFollower,
        metrics: ServiceMetrics,
        status: Callable[[], Awaitable[QueueStatus]],
        database: Callable[[], str],
        *,
        scanning: bool,
        hosts: Collection[str] = (),
    ) -> None:
        """`scanning`: whether the configuration allows scans at all. `hosts`: other names of this machine."""
        self._scanning = scanning
        self._hosts = hosts
        self._tokens = tokens
        self._status = status
        self._database = database
        self._follower = follower
        self._metrics = metrics

    async def live(self, _request: Request) -> Response:
        """Names the database, so that `service check` can tell this service from another one on the same address."""
        return JSONResponse({"status": "ok"}, headers={DATABASE_ID: self._database()})

    async def ready(self, _request: Request) -> Response:
        problems = [] if self._scanning else ["scanning is disabled (see the log)"]
        if not self._follower.current:
            problems.append("lists")
        if self._scanning and await self._status() is QueueStatus.RED:
            problems.append("queue")
        if problems:
            return JSONResponse({"error": "not_ready", "message": f"not ready: {', '.join(problems)}"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        try:
            if not is_local(request.scope):
                self._tokens.check(request.scope, Permission.METRICS)
            elif not has_known_host(request.scope, self._hosts):
                raise Refused(421, "wrong_host", wrong_host("metrics_hosts"))
        except Refused as refused:
            return JSONResponse(
                refused.failure.to_dict(), refused.status, {k.decode(): v.decode() for k, v in refused.headers}
            )
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def is_local(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:  # a Unix socket
        return True
    address = ip_or_none(client[0])
    return address is not None and address.is_loopback
