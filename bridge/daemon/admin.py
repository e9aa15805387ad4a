"""The admin address: /metrics, /livez, /readyz, /status. For operators, not for strangers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route


def create_admin(
    registry: Callable[[], Awaitable[CollectorRegistry]],
    *,
    problem: Callable[[], str],
    state: Callable[[], Awaitable[Any]],
) -> Starlette:
    """`problem` is why we are not ready, "" when we are; `state` is what /status shows."""

    async def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(await registry()), headers={"content-type": content_type})

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        why = problem()
        return PlainTextResponse(f"{why}\n" if why else "ok\n", status_code=503 if why else 200)

    async def status(request: Request) -> Response:
        return JSONResponse(await state())

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
        ]
    )
