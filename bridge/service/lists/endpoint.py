"""The List API as ASGI endpoints.

Without `tenantUid`, a call works on the deployment-global scope. A misspelled `tenantUid` would
therefore change the whole deployment, so unknown fields are refused. Database work runs in threads. The
stream of entries is read page by page: it needs the memory of one page, and a slow reader holds
neither a lock nor a connection. The number of requests at a time is limited: each may need some megabytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from json.encoder import encode_basestring_ascii
from typing import Any

from starlette.types import Receive, Scope, Send

from bridge.api.lists import MAX_ENTRIES_PER_REQUEST, NDJSON
from bridge.matching import spelling
from bridge.service.database_calls import DatabaseCalls
from bridge.service.keys import KeyRing
from bridge.service.lists.follow import ListFollower
from bridge.service.lists.store import GLOBAL, PAGE, Entry, ListFull, ListStore
from bridge.service.requests import decode_json, header, is_json, tenant_uid
from bridge.service.responses import Refused, RequestBody, check_plain, refuse, send_json, storage_unavailable
from bridge.service.settings import ListDefinition
from bridge.service.store import STORAGE_ERRORS

MAX_REQUESTS = 64  # of all clients, from the head of a request to the end of its answer
MAX_BODY = 8 * 1024 * 1024  # 500 entries with comments, every character escaped
BODY_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 60.0  # time for a reader of the stream to accept one chunk
CHUNK = 64 * 1024

log = logging.getLogger("bridge.service")

Body = dict[str, Any]
Handler = Callable[[Body, Send], Awaitable[None]]


class ListsApi:
    def __init__(self, lists: ListStore, keys: KeyRing, follower: ListFollower, calls: DatabaseCalls) -> None:
        self._lists = lists
        self._calls = calls
        self._keys = keys
        self._follower = follower
        self._places = _Places()

    def endpoint(self, handler: Handler) -> ListEndpoint:
        return ListEndpoint(self._keys, handler, self._places)

    async def add_entries(self, body: Body, send: Send) -> None:
        _check_fields(body, {"listName", "entries", "tenantUid"})
        definition, scope = self._list(body), _scope(body)
        items = _items(body)
        try:
            count = await self._calls.change(self._add, scope, definition, items)
        except ListFull:
            text = f"the list would have more than {definition.maxSize} entries"
            raise Refused(409, "list_full", text) from None
        self._follower.wake()
        await send_json(send, 200, {"modifiedEntries": count})

    def _add(self, scope: str, definition: ListDefinition, items: list[Any]) -> int:
        """Raises Refused, ListFull. Blocks: converting 500 international names alone takes half a second."""
        entries = [_entry(definition, item, i) for i, item in enumerate(items)]
        count = self._lists.add(scope, definition.name, entries)
        if replaced := _of_earlier_versions(definition, entries):
            self._lists.delete(scope, definition.name, (), replaced)
        return count

    async def delete_entries(self, body: Body, send: Send) -> None:
        _check_fields(body, {"listName", "entries", "tenantUid"})
        definition, scope = self._list(body), _scope(body)
        items = _texts(_items(body))
        count = await self._calls.change(self._delete, scope, definition, items)
        self._follower.wake()
        await send_json(send, 200, {"modifiedEntries": count})

    def _delete(self, scope: str, definition: ListDefinition, items: list[str]) -> int:
        """An entry that cannot exist is not an error. Blocks."""
        keys, before = [], {}
        for item in items:
            with suppress(ValueError):
                keys.append(spelling.stored(definition.category, item))
            with suppress(ValueError):
                before[spelling.stored_before(definition.category, item)] = item
        return self._lists.delete(scope, definition.name, keys, before)

    async def get_lists(self, body: Body, send: Send) -> None:
        _check_fields(body, {"tenantUid"})
        _scope(body)
        await send_json(send, 200, {"listFileInfos": [info.to_dict() for info in self._lists.infos()]})

    async def list_entries(self, body: Body, send: Send) -> None:
        _check_fields(body, {"listName", "tenantUid"})
        name, scope = self._list(body).name, _scope(body)
        chunks, last = await self._calls.ask(self._page, scope, name, None)
        headers = [(b"content-type", NDJSON.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await _send_chunks(send, chunks)
            while last is not None:
                chunks, last = await self._calls.ask(self._page, scope, name, last)
                await _send_chunks(send, chunks)
        except TimeoutError:
            log.info("list=%s client stopped reading the stream of entries", name)
            return  # no final chunk: the client can tell that the stream is incomplete
        except STORAGE_ERRORS as exc:
            log.error("list=%s database connection lost while streaming entries: %s", name, type(exc).__name__)
            return  # no final chunk here either
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _page(self, scope: str, name: str, after: str | None) -> tuple[list[bytes], str | None]:
        """One page as NDJSON, and the key after which the next page starts (None: no more). Blocks."""
        page = self._lists.page(scope, name, after)
        return _lines(page), page[-1].key if len(page) == PAGE else None

    def _list(self, body: Body) -> ListDefinition:
        name = body.get("listName")
        if not isinstance(name, str):
            raise _invalid("`listName` must be a string")
        definition = self._lists.definitions.get(name)
        if definition is None:
            raise Refused(404, "list_not_found", "there is no list with this name")
        return definition


class _Places:
    """Counts the requests that are being processed."""

    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises Refused."""
        if self._taken >= MAX_REQUESTS:
            raise Refused(503, "saturated", "too many list requests are being processed", retry_after_s=1)
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class ListEndpoint:
    """Checks the key, reads the body, calls the handler, and turns failures into Error objects."""

    def __init__(self, keys: KeyRing, handler: Handler, places: _Places) -> None:
        self._keys = keys
        self._handler = handler
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        receive = RequestBody(receive)
        try:
            await self._keys.check(scope)
            with self._places.one():
                body = await _read(scope, receive)
                await self._handler(body, send)
        except Refused as refused:
            await refuse(scope, receive, send, refused)
        except STORAGE_ERRORS:
            await refuse(scope, receive, send, storage_unavailable())


async def _read(scope: Scope, receive: Receive) -> Body:
    if not is_json(header(scope, b"content-type")):
        raise Refused(415, "not_json", "the request must be of type application/json")
    check_plain(scope)
    raw = bytearray()
    more = True
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while more:
                event = await receive()
                if event["type"] == "http.disconnect":  # what has arrived may look complete and is not
                    raise _invalid("the request is incomplete: it ended too early")
                raw += event.get("body", b"")
                more = event.get("more_body", False)
                if len(raw) > MAX_BODY:
                    raise Refused(413, "payload_too_large", "the request is larger than 8 MiB")
    except TimeoutError:
        raise Refused(408, "upload_timeout", "the request took too long") from None
    try:
        body = decode_json(bytes(raw))
    except (ValueError, RecursionError):
        raise _invalid("the body is not JSON encoded as UTF-8, or contains a duplicate field") from None
    if not isinstance(body, dict):
        raise _invalid("the body must be an object")
    return body


def _check_fields(body: Body, known: set[str]) -> None:
    if not body.keys() <= known:
        raise _invalid(f"unknown field; the only fields are {', '.join(sorted(known))}")


def _scope(body: Body) -> str:
    if "tenantUid" not in body:
        return GLOBAL
    if body["tenantUid"] is None:
        raise _invalid("`tenantUid` must be a UUID; omit it for the deployment's own lists")
    try:
        return tenant_uid(body["tenantUid"]) or GLOBAL
    except ValueError as exc:
        raise _invalid(str(exc)) from None


def _items(body: Body) -> list[Any]:
    items = body.get("entries")
    if not isinstance(items, list):
        raise _invalid("`entries` must be a list")
    if len(items) > MAX_ENTRIES_PER_REQUEST:
        raise Refused(400, "too_many_entries", f"`entries` has more than {MAX_ENTRIES_PER_REQUEST} items")
    return items


def _of_earlier_versions(definition: ListDefinition, entries: list[Entry]) -> dict[str, str]:
    """The other keys under which earlier versions stored these entries: there, they were about another host."""
    found = {}
    for entry in entries:
        with suppress(ValueError):
            if (key := spelling.stored_before(definition.category, entry.shown)) != entry.key:
                found[key] = entry.shown
    return found


def _entry(definition: ListDefinition, item: Any, position: int) -> Entry:
    if not isinstance(item, dict) or not item.keys() <= {"entry", "comment"} or not isinstance(item.get("entry"), str):
        raise _invalid(f"`entries[{position}]` must be an object with `entry` and `comment`")
    if not 1 <= len(item["entry"]) <= spelling.MAX_ENTRY:
        raise _invalid(f"`entries[{position}].entry` must be 1 to {spelling.MAX_ENTRY} characters long")
    comment = item.get("comment", "")
    if not isinstance(comment, str) or not spelling.is_clean(comment):
        raise _invalid(f"`entries[{position}].comment` must be text of at most {spelling.MAX_COMMENT} characters")
    try:
        return Entry(spelling.normalise(definition.category, item["entry"]), item["entry"], comment)
    except ValueError as exc:
        # 409: the request is well-formed, but the list does not accept this kind of entry.
        raise Refused(409, "invalid_entry", f"`entries[{position}]`: {exc}") from None


def _texts(items: list[Any]) -> list[str]:
    for position, item in enumerate(items):
        if not isinstance(item, str):
            raise _invalid(f"`entries[{position}]` must be a string")
    return items


async def _send_chunks(send: Send, chunks: list[bytes]) -> None:
    """Raises TimeoutError if the client stops reading."""
    for chunk in chunks:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _lines(page: list[Entry]) -> list[bytes]:
    """NDJSON in chunks of about 64 KiB."""
    chunks, current, size = [], [], 0
    for entry in page:
        line = b'{"entry": %s, "comment": %s}\n' % (_quoted(entry.shown), _quoted(entry.comment))
        current.append(line)
        size += len(line)
        if size >= CHUNK:
            chunks.append(b"".join(current))
            current, size = [], 0
    return [*chunks, b"".join(current)] if current else chunks


def _quoted(text: str) -> bytes:
    """A JSON string. Takes a third of the time of `json.dumps` for the whole line."""
    return encode_basestring_ascii(text).encode()


def _invalid(message: str) -> Refused:
    return Refused(400, "invalid_request", message)
