"""The client of the List API: its four operations, typed and async, on httpx2.

The only module in this package that knows HTTP. The key is sent to the configured addresses and
nowhere else: redirects are not followed, proxies from the environment are not used, certificates are
verified. Answers are limited in size and never decompressed. Temporary failures are retried, within
the caller's patience, because every operation is idempotent. If there are several addresses, another one is tried at
once. Its service must use the same database; a service with a different one refuses the key.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httpx2

from bridge.api.failure import Failure
from bridge.api.lists import (
    ADD_PATH,
    AUTH_SCHEME,
    DELETE_PATH,
    GET_LISTS_PATH,
    LIST_ENTRIES_PATH,
    NDJSON,
    ListEntry,
    ListFileInfo,
)
from bridge.api.request_id import REQUEST_ID
from bridge.lists import batches
from bridge.lists.batches import BatchResult, Progress, Tally
from bridge.lists.errors import (
    EntryRefused,
    ListsError,
    ListsForbidden,
    ListsMalformed,
    ListsRefused,
    ListsUnavailable,
    ListsUncertain,
    ListsUnreachable,
    clean,
    refusal,
)
from bridge.lists.ndjson import EntryReader
from bridge.lists.retry import Patience, RetrySettings, parse_retry_after
from bridge.runtime.no_cookies import no_cookies
from bridge.runtime.reason import reason

MAX_ANSWER = 64 * 1024
MAX_LISTS_ANSWER = 16 * 1024 * 1024
MAX_LIST = 2 * 1024 * 1024 * 1024  # bytes; an endless stream would fill the memory or the disk
LONGEST_S = 3600.0  # for a whole list


@dataclass(frozen=True, slots=True)
class ListSettings:
    url: str  # the service's base URL, without /api/public/lists/v1
    api_key: str = field(repr=False)
    tls: ssl.SSLContext | None = None  # for https; None: the system's certificates
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0  # for a whole answer, or for a pause within the stream of entries
    max_list: int = MAX_LIST
    longest_s: float = LONGEST_S
    parallel: int = 4
    retry: RetrySettings = field(default_factory=RetrySettings)
    # Called when a request has failed and will be repeated, with the seconds from its first failure to the next
    # attempt.
    on_retry: Callable[[ListsUnavailable, float], None] | None = None
    key_file: str = ""  # for messages
    other_urls: tuple[str, ...] = ()  # of services with the same database, tried in this order if the first one fails
    on_fail_over: Callable[[ListsUnavailable, str], None] | None = None  # called with the address that is tried next

    @property
    def urls(self) -> tuple[str, ...]:
        return self.url, *self.other_urls


class ListClient:
    """`async with ListClient(settings) as client`. Every operation raises ListsError."""

    def __init__(self, settings: ListSettings) -> None:
        self._settings = settings
        self._urls = [url.rstrip("/") for url in settings.urls]
        self._url = self._urls[0]  # the one in use
        self._echoes = False  # the service repeats our request id
        self._not_before = 0.0  # no request is sent earlier, because the service asked us to wait
        self._http = httpx2.AsyncClient(
            cookies=no_cookies(),
            headers={
                "Authorization": f"{AUTH_SCHEME} {settings.api_key}",
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",  # a small answer must not expand to a large one
            },
            verify=_tls(settings),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(settings.answer_timeout_s, connect=settings.connect_timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=settings.parallel + 1, max_keepalive_connections=settings.parallel),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def lists(self, tenant: str | None = None) -> list[ListFileInfo]:
        """The lists of one tenant, or the deployment-global ones."""
        answer = _object(await self._call(GET_LISTS_PATH, _body(tenant), MAX_LISTS_ANSWER))
        infos = answer.get("listFileInfos")
        if not isinstance(infos, list):
            raise ListsMalformed("the answer to getLists contains no lists")
        try:
            return [ListFileInfo.from_dict(info) for info in infos]
        except ValueError:
            raise ListsMalformed("the answer to getLists contains something that is not a list") from None

    async def add(
        self,
        name: str,
        entries: Iterable[ListEntry] | AsyncIterable[ListEntry],
        tenant: str | None = None,
        *,
        keep_going: bool = False,
        tally: Tally | None = None,
        progress: Progress | None = None,
    ) -> Tally:
        """Add or update any number of entries. `tally`, if given, is correct even if this raises.

        With `keep_going`, an entry that the service refuses by name is skipped and put in
        `tally.refused`. Entries must be unique: if one is given twice in different batches, it is
        undefined which one wins.
        """

        async def send(batch: list[ListEntry]) -> BatchResult:
            left = list(batch)
            while left:
                body = _body(tenant, listName=name, entries=[entry.to_dict() for entry in left])
                try:
                    return BatchResult(await self._change(ADD_PATH, body), len(batch) - len(left))
                except EntryRefused as exc:
                    named = _named(exc, [entry.entry for entry in left])
                    if not keep_going or exc.position is None or exc.position >= len(left):
                        raise named from None
                    counts.refused[left.pop(exc.position).entry] = str(named)
            return BatchResult(0, len(batch))

        counts = Tally() if tally is None else tally
        await batches.run(send, entries, self._settings.parallel, counts, progress)
        return counts

    async def delete(
        self,
        name: str,
        entries: Iterable[str] | AsyncIterable[str],
        tenant: str | None = None,
        *,
        tally: Tally | None = None,
        progress: Progress | None = None,
    ) -> Tally:
        """Delete any number of entries; entries that do not exist are not an error."""

        async def send(batch: list[str]) -> BatchResult:
            body = _body(tenant, listName=name, entries=batch)
            try:
                return BatchResult(await self._change(DELETE_PATH, body))
            except EntryRefused as exc:
                raise _named(exc, batch) from None

        tally = Tally() if tally is None else tally
        await batches.run(send, entries, self._settings.parallel, tally, progress)
        return tally

    async def entries(self, name: str, tenant: str | None = None) -> AsyncGenerator[ListEntry, None]:
        """Every entry of a list, streamed. Use `contextlib.aclosing` to stop early."""
        async with aclosing(self.entry_chunks(name, tenant)) as chunks:
            async for chunk in chunks:
                for entry in chunk:
                    yield entry

    async def entry_chunks(self, name: str, tenant: str | None = None) -> AsyncGenerator[list[ListEntry], None]:
        """Like `entries`, in chunks as they arrive: this takes a third of the time for a million entries.

        A stream that is cut off before its first entry is opened again. After that the caller must
        decide what to do with the entries it has: `received` of ListsUnavailable says how many.
        """
        effort, body = _Effort(self._settings.retry), _body(tenant, listName=name)
        received = 0
        while True:
            await self._wait()
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(self._settings.answer_timeout_s):
                        answer = await stack.enter_async_context(self._open(effort, LIST_ENTRIES_PATH, body))
                    _check_framed(answer)
                    reader, check = EntryReader(), self._bounds()
                    async for raw in answer.aiter_raw():
                        check(len(raw))
                        if found := reader.feed(raw):
                            received += len(found)
                            yield found
                    if found := reader.end():
                        received += len(found)
                        yield found
                return
            except ListsUnavailable as exc:
                if received:
                    raise ListsUnavailable(f"cut off after {received:,} entries: {exc}", received=received) from exc
                await self._continue_or_raise(effort, exc)
            except TimeoutError:
                await self._continue_or_raise(effort, self._late())

    def _bounds(self) -> Callable[[int], None]:
        """A function for the size of each piece of a list; it raises ListsMalformed if the list does not end."""
        settings, until, left = self._settings, time.monotonic() + self._settings.longest_s, self._settings.max_list

        def check(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                raise ListsMalformed(f"the list is larger than {settings.max_list:,} bytes")
            if time.monotonic() > until:
                raise ListsMalformed(f"the list has not ended after {settings.longest_s:g} s")

        return check

    def _late(self) -> ListsUnavailable:
        return ListsUnavailable(f"no answer within {self._settings.answer_timeout_s:g} s")

    async def _change(self, path: str, body: bytes) -> int:
        """The number of modified entries. Raises ListsUncertain if the answer to the change cannot be read."""
        try:
            return _modified(await self._call(path, body, MAX_ANSWER))
        except ListsMalformed as exc:
            raise ListsUncertain(f"{exc}; the service may or may not have made the change") from None

    async def _call(self, path: str, body: bytes, max_answer: int) -> bytes:
        effort = _Effort(self._settings.retry)
        while True:
            await self._wait()
            try:
                async with asyncio.timeout(self._settings.answer_timeout_s), self._open(effort, path, body) as answer:
                    return await _read(answer, max_answer)
            except ListsUnavailable as exc:
                await self._continue_or_raise(effort, exc)
            except TimeoutError:
                await self._continue_or_raise(effort, self._late())

    @asynccontextmanager
    async def _open(self, effort: _Effort, path: str, body: bytes) -> AsyncIterator[httpx2.Response]:
        """The answer with status 200, its body not read yet; any other status raises ListsError."""
        effort.url = url = self._url
        request_id = secrets.token_hex(16)
        headers = {REQUEST_ID: request_id}
        if not self._echoes:  # such a service gets one request per connection, so that no answer can be another's
            headers["Connection"] = "close"
        with _translated(self._settings, url):
            async with self._http.stream("POST", url + path, content=body, headers=headers) as answer:
                self._check_id(answer, request_id)
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise ListsMalformed("the answer is compressed, although an uncompressed one was requested")
                if answer.status_code != 200:
                    failure = Failure.from_json(await _read(answer, MAX_ANSWER))
                    wait = parse_retry_after(answer.headers.get("retry-after"))
                    raise self._refusal(answer.status_code, failure, wait)
                yield answer

    def _refusal(self, status: int, failure: Failure, retry_after_s: float | None) -> ListsError:
        error = refusal(status, failure, retry_after_s, self._settings.api_key)
        if isinstance(error, ListsForbidden):
            error.key_file = self._settings.key_file
        return error

    def _check_id(self, answer: httpx2.Response, request_id: str) -> None:
        """An answer with another request's id, or entries without one where there used to be one, is not ours."""
        given = answer.headers.get(REQUEST_ID)
        if given != request_id and (given is not None or (self._echoes and answer.status_code == 200)):
            self._echoes = False
            raise ListsUnavailable("the answer belongs to another request")
        self._echoes = given is not None

    async def _wait(self) -> None:
        while (left := self._not_before - time.monotonic()) > 0:  # noqa: ASYNC110 (a time, not an event)
            await asyncio.sleep(left)

    async def _continue_or_raise(self, effort: _Effort, exc: ListsUnavailable) -> None:
        """Use another service, or wait until the request may be sent again; raise `exc` if the patience is used up."""
        if self._fail_over(effort, exc):
            return
        now, patience = time.monotonic(), effort.patience
        delay = patience.delay(now, exc.retry_after_s)
        if delay is None:
            raise exc
        if exc.retry_after_s is not None:
            self._not_before = max(self._not_before, now + exc.retry_after_s)
        if self._settings.on_retry is not None:
            self._settings.on_retry(exc, patience.waited(now) + delay)
        await asyncio.sleep(delay)

    def _fail_over(self, effort: _Effort, exc: ListsUnavailable) -> bool:
        """Whether another service is used now: one on which this request has not failed since its last pause."""
        effort.failed.add(effort.url)
        left = [url for url in self._urls if url not in effort.failed]
        if not left:
            effort.failed.clear()
            return False
        if self._url in effort.failed:  # otherwise, another request has already moved on
            self._url, self._echoes = left[0], False
            if self._settings.on_fail_over is not None:
                self._settings.on_fail_over(exc, self._url)
        return True


class _Effort:
    """One request: how long it is retried, and the services on which it failed."""

    def __init__(self, retry: RetrySettings) -> None:
        self.patience = Patience(retry)
        self.url = ""
        self.failed: set[str] = set()


def _tls(settings: ListSettings) -> ssl.SSLContext:
    if settings.tls is not None:
        return settings.tls
    if any(url.startswith("https:") for url in settings.urls):
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used; loading the system's certificates would take time


@contextmanager
def _translated(settings: ListSettings, url: str) -> Iterator[None]:
    """Translate httpx2's errors into ours; the cause is kept."""
    try:
        yield
    except httpx2.TimeoutException as exc:
        if isinstance(exc, httpx2.ConnectTimeout):
            raise ListsUnreachable(f"no connection within {settings.connect_timeout_s:g} s") from exc
        raise ListsUnavailable(f"no answer within {settings.answer_timeout_s:g} s") from exc
    except httpx2.TransportError as exc:
        if (untrusted := _certificate_problem(exc)) is not None:
            raise ListsRefused(f"the service's certificate is not trusted: {untrusted}") from exc
        if isinstance(exc, httpx2.ConnectError):
            raise ListsUnreachable(f"{url} cannot be reached: {_reason(exc, settings)}") from exc
        raise ListsUnavailable(f"the connection was lost: {_reason(exc, settings)}") from exc
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as exc:
        raise ListsRefused(f"the request cannot be made: {type(exc).__name__}") from exc


def _certificate_problem(exc: BaseException) -> str | None:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None


def _reason(exc: Exception, settings: ListSettings) -> str:
    return clean(reason(exc), settings.api_key) or type(exc).__name__


def _check_framed(answer: httpx2.Response) -> None:
    """Without a length or chunked encoding, a truncated list looks like a complete one."""
    if not answer.headers.keys() & {"content-length", "transfer-encoding"}:
        raise ListsMalformed(f"the {NDJSON} answer has neither a length nor chunked encoding, so it may be incomplete")


async def _read(answer: httpx2.Response, limit: int) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise ListsMalformed(f"the answer is larger than {limit} bytes")
    return bytes(body)


def _body(tenant: str | None, **fields: Any) -> bytes:
    if tenant is not None:
        fields["tenantUid"] = tenant
    return json.dumps(fields).encode("ascii")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise ListsMalformed("the answer is not JSON") from None
    if not isinstance(value, dict):
        raise ListsMalformed("the answer is not an object")
    return value


def _modified(raw: bytes) -> int:
    count = _object(raw).get("modifiedEntries")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ListsMalformed("the answer does not say how many entries were modified")
    return count


def _named(exc: EntryRefused, batch: list[str]) -> EntryRefused:
    """The same refusal, but naming the entry: a position in a batch of 500 means nothing to an operator."""
    if exc.position is None or exc.position >= len(batch):
        return exc
    entry = batch[exc.position]
    return EntryRefused(f"the entry {clean(entry)!r} was refused: {exc}", exc.position, entry)
