"""Repeats the client's request id in every answer, so that the client can tell whose answer it is."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.api.request_id import REQUEST_ID_KEY, is_request_id
from bridge.service.requests import header


class EchoRequestId:
    """An ASGI middleware. A request without a valid id is answered without one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header(scope, REQUEST_ID_KEY) if scope["type"] == "http" else b""
        if not is_request_id(given):
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID_KEY, given)]
            await send(message)

        await self._app(scope, receive, send_with_id)
