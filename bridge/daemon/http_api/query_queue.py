"""Has queries answered by separate processes: a few at a time, and no client waits for long.

A query may take seconds: a history has millions of rows, and its database may be slow or down. A process that does
not answer in time is killed. The processes start with the first query and exit after a minute without queries.
`searcher` is the other side of the pipes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from bridge.daemon.http_api.failures import ERRORS, RETRY_S, ApiError
from bridge.daemon.systemd import environment_for_child

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "bridge.daemon.http_api.searcher")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """For one process of the daemon."""

    running: int = 4
    running_per_token: int = 2  # so that slow queries of one token leave room for others
    waiting_per_token: int = 20
    wait_s: float = 5.0  # for a place
    max_s: float = 15.0  # for the answer
    idle_s: float = 60.0  # a process exits after this time without queries


class Queries:
    """`place` says where the history is; it may have a password, so it goes through a pipe."""

    def __init__(
        self, place: Callable[[], Json], limits: QueryLimits | None = None, program: Sequence[str] = PROGRAM
    ) -> None:
        self._place = place
        self._limits = limits or QueryLimits()
        self._program = program
        self._places = asyncio.Semaphore(self._limits.running)
        self._places_of: dict[str, asyncio.Semaphore] = {}
        self._waiting: Counter[str] = Counter()
        self._idle: list[_Searcher] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, token: str, question: Json) -> bytes:
        """The answer's body. Raises ApiError."""
        async with self._running(token):
            searcher = await self._take()
            is_usable = False
            try:
                async with asyncio.timeout(self._limits.max_s):
                    head, body = await searcher.ask(question)
                is_usable = True
            except TimeoutError:
                head, body = {"error": "query_timeout"}, b""
            except (OSError, EOFError, ValueError) as exc:
                raise _unavailable(f"the search ended: {type(exc).__name__}") from exc
            finally:
                self._put_back(searcher) if is_usable else self._end(searcher)
        if head.get("error") == "query_timeout":
            raise ApiError("query_timeout", "the query took too long; narrow it, for example with `since`")
        if head.get("error") == "history_unavailable":
            raise _unavailable(head["message"])
        if head.get("error") in ERRORS:
            raise ApiError(head["error"], head["message"])
        return body

    async def close(self) -> None:
        while self._idle:
            self._end(self._idle.pop())
        await asyncio.gather(*self._ending)

    # Places

    @asynccontextmanager
    async def _running(self, token: str) -> AsyncIterator[None]:
        own = self._places_of.setdefault(token, asyncio.Semaphore(self._limits.running_per_token))
        if self._waiting[token] >= self._limits.waiting_per_token:
            raise ApiError("too_many_queries", "too many queries with this token are waiting", retry_after_s=1)
        self._waiting[token] += 1
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await own.acquire()
                try:
                    await self._places.acquire()
                except BaseException:
                    own.release()
                    raise
        except TimeoutError:
            raise ApiError("saturated", "too many queries are running", retry_after_s=1) from None
        finally:
            self._waiting[token] -= 1
        try:
            yield
        finally:
            self._places.release()
            own.release()

    # Processes

    async def _take(self) -> _Searcher:
        while self._idle:
            searcher = self._idle.pop()
            if searcher.is_alive:
                return searcher
            self._end(searcher)
        try:
            return await _Searcher.start(self._program, self._place())
        except OSError as exc:
            raise _unavailable(f"the search cannot be started: {exc}") from exc

    def _put_back(self, searcher: _Searcher) -> None:
        loop = asyncio.get_running_loop()
        searcher.used_at = loop.time()
        self._idle.append(searcher)
        loop.call_later(self._limits.idle_s, self._end_if_idle, searcher, searcher.used_at)

    def _end_if_idle(self, searcher: _Searcher, used_at: float) -> None:
        if searcher in self._idle and searcher.used_at == used_at:
            self._idle.remove(searcher)
            self._end(searcher)

    def _end(self, searcher: _Searcher) -> None:
        ending = asyncio.create_task(searcher.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _Searcher:
    """One process."""

    used_at = 0.0

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, program: Sequence[str], place: Json) -> _Searcher:
        """Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment_for_child(),
            start_new_session=True,  # Ctrl-C in a terminal must reach only us; we end the program
        )
        searcher = cls(process)
        searcher._write(place)
        return searcher

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._output.at_eof()

    async def ask(self, question: Json) -> tuple[Json, bytes]:
        """Raises OSError, EOFError or ValueError."""
        self._write(question)
        await self._input.drain()
        head = json.loads(await self._output.readline() or "null")
        if head is None:
            raise EOFError
        return head, await self._output.readexactly(head["size"])

    def _write(self, value: Json) -> None:
        self._input.write(json.dumps(value).encode() + b"\n")

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._input.close()
        await self._process.wait()


def _unavailable(why: str) -> ApiError:
    """`why` is for the log."""
    log.warning("api: the history cannot be read: %s", why)
    problem = "the history cannot be read at the moment; the log says why"
    return ApiError("history_unavailable", problem, retry_after_s=RETRY_S)
