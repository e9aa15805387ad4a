"""The HTTP API as an ASGI application: finds out who asks, what is asked, and has it answered.

Read-only. No other web site can use it through a browser: every request needs a token in `Authorization`, and no
answer allows another origin. Knows neither the daemon nor its configuration; `ApiParts` supplies what changes with a
reload.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from bridge.daemon.http_api import document, parameters
from bridge.daemon.http_api.failures import ApiError, invalid
from bridge.daemon.http_api.permissions import Caller, authenticate
from bridge.daemon.http_api.query_queue import Queries
from bridge.history.parameters import DEFAULT_LIMIT, MAIL_ID, MAX_LIMIT, PAGE, STATS
from bridge.history.query import BY, HistoryQuery
from bridge.observe.redaction import Redaction
from bridge.runtime.suggestion import did_you_mean

log = logging.getLogger(__name__)

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
_METHODS = ("GET", "HEAD")
_ADDRESSES = ("sender", "recipient", "address", "what")


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What the API answers with."""

    callers: Callable[[], Sequence[Caller]]
    quarantine: Callable[[], str | None]  # its directory; None: it is in object storage
    redaction: Redaction  # how addresses appear in the history
    queries: Queries | None  # None: no history is kept
    count: Callable[[str], None] = lambda result: None  # how each request ended


class Api:
    """Everything below /api."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._paths: dict[str, Callable[[Scope, Caller], Awaitable[bytes]]] = {
            document.HISTORY_PATH: self._history,
            document.STATS_PATH: self._stats,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(scope)
            self._parts.count("ok")
        except ApiError as exc:
            response = self._failed(exc)
        except Exception:
            log.exception("api: unexpected error")
            response = self._failed(ApiError("internal", "an internal error occurred; the log has the details"))
        await response(scope, receive, send)

    def _failed(self, exc: ApiError) -> Response:
        self._parts.count(exc.result)
        return JSONResponse(exc.body, exc.status, {**HEADERS, **exc.headers})

    async def close(self) -> None:
        if self._parts.queries is not None:
            await self._parts.queries.close()

    async def _answer(self, scope: Scope) -> Response:
        path = scope["path"]
        answer = self._paths.get(path)
        if path.startswith(document.MAILS_PATH) and "/" not in path.removeprefix(document.MAILS_PATH):
            answer = self._mail
        if answer is None and path != document.DOCUMENT_PATH:
            known = did_you_mean(path[:100], (*self._paths, document.DOCUMENT_PATH))
            raise ApiError("not_found", f"there is no such path{known}")
        if scope["method"] not in _METHODS:
            refused = ApiError("method_not_allowed", f"only {' and '.join(_METHODS)} are supported")
            refused.headers["Allow"] = ", ".join(_METHODS)
            raise refused
        if answer is None:
            parameters.read(scope["query_string"], {})
            return JSONResponse(document.document(), headers=HEADERS)
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        body = await answer(scope, authenticate(self._parts.callers(), given))
        return Response(body, media_type="application/json", headers=HEADERS)

    async def _history(self, scope: Scope, caller: Caller) -> bytes:
        given = parameters.read(scope["query_string"], PAGE)
        caller.check(given.get("tenant"))
        return await self._run(caller, {"about": "history", "query": self._query(given)})

    async def _stats(self, scope: Scope, caller: Caller) -> bytes:
        given = parameters.read(scope["query_string"], STATS)
        by = given.pop("by", None)
        if by is None:
            raise invalid("by", f"is required: one of {', '.join(BY)}")
        if by in ("hour", "day"):
            given.setdefault("limit", MAX_LIMIT)
        caller.check(given.get("tenant"))
        return await self._run(caller, {"about": "stats", "by": by, "query": self._query(given)})

    async def _mail(self, scope: Scope, caller: Caller) -> bytes:
        parameters.read(scope["query_string"], {})
        mail_id = scope["path"].removeprefix(document.MAILS_PATH)
        if not MAIL_ID.fullmatch(mail_id):
            raise ApiError(
                "not_found", "an id consists of up to 64 letters and digits; search with /api/v1/history?what=..."
            )
        return await self._run(caller, {"about": "mail", "id": mail_id, "quarantine": self._parts.quarantine()})

    async def _run(self, caller: Caller, question: dict[str, Any]) -> bytes:
        if self._parts.queries is None:
            raise ApiError("history_off", "no history is kept: set history.enabled to true and restart scanbridge")
        return await self._parts.queries.run(caller.name, {**question, "tenants": caller.tenants})

    def _query(self, given: dict[str, Any]) -> dict[str, Any]:
        """The fields of a HistoryQuery. Raises ApiError."""
        redaction = self._parts.redaction
        if redaction.mode != "full":
            given |= {name: _hidden(redaction, name, given[name]) for name in _ADDRESSES if name in given}
        return asdict(replace(HistoryQuery(limit=DEFAULT_LIMIT), **given))


def _hidden(redaction: Redaction, name: str, value: str) -> str:
    """As the history has it: an address as its pseudonym. Raises ApiError."""
    address = value.strip("<>")
    if "@" not in address.lstrip("@") or address.startswith(("@", "~")):
        return value
    if redaction.mode == "domain":
        domain = address.rpartition("@")[2]
        raise invalid(name, f"the history contains only domains (log.addresses: domain); search for @{domain}")
    return redaction.address(address)
