"""One HTTP/1.1 connection to the scanner: a request with a streamed body, a bounded answer.

Written by hand on httptools, because every mail passes here and general clients cost many times
more (docs/decisions/0001-http-client.md), and because the bridge needs to know what they hide:
whether the request was sent whole, and an answer that comes while we still send (413).
Redirects are answers like any other, environment proxies do not exist, compressed answers are
refused, and nothing is read beyond the limit.

The deadline is the connection's matter: when it passes after the request was sent whole, the
waiter is freed, but the connection goes on waiting, and whoever wants the answer can have it later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

import httptools

from bridge.runtime.value import value
from bridge.runtime.write_batch import Writes

_MAX_HEAD = 64 * 1024
_TIMER_S = 0.002  # uvloop counts in milliseconds
_LOOK_S = 1.0
_JOIN_BELOW = 64 * 1024  # head and body of a small mail leave in one write


class AnswerTooLarge(Exception):
    """The answer is over the limit; the rest was not read."""


class ConnectionLost(Exception):
    """The connection ended before the answer did. `sent_whole`: the request had left us by then."""

    def __init__(self, text: str, *, sent_whole: bool, answered: bool) -> None:
        super().__init__(text)
        self.sent_whole = sent_whole
        self.answered = answered  # some bytes of an answer had come


class DeadlinePassed(Exception):
    """No answer in time. `late` is the answer that may still come; None: the request was not sent whole."""

    def __init__(self, late: LateAnswer | None) -> None:
        super().__init__("no answer before the deadline")
        self.late = late


@value
class Answer:
    status: int
    headers: dict[bytes, bytes]  # names in small letters; the last of equal ones
    body: bytes
    early: bool = False  # it came before the request had left us


class Watch:
    """All connections, looked at once a second: a timer for each would cost half a KiB while it waits.

    Only one whose deadline comes before the next look has a timer of its own.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: set[HttpConnection] = set()
        self._is_set = False
        self.next_look = 0.0  # on the event loop's clock
        self.writes = Writes(self._loop)  # of all connections, too

    def add(self, connection: HttpConnection) -> None:
        self._open.add(connection)
        if not self._is_set:
            self._set()

    def discard(self, connection: HttpConnection) -> None:
        self._open.discard(connection)

    def _set(self) -> None:
        self._is_set = True
        self.next_look = self._loop.time() + _LOOK_S
        self._loop.call_at(self.next_look, self._look)

    def _look(self) -> None:
        self._is_set = False
        if self._open:
            self._set()
            for connection in self._open:
                connection.look_ahead()


class HttpConnection(asyncio.Protocol):
    """`ask` one request after another, each when the one before has its answer; `reusable`: there may be a next.

    No coroutine of ours waits here: thousands of mails may wait for the scanner, and each would keep its frame.
    """

    __slots__ = (
        *("_answer", "_body", "_body_bytes", "_deadline", "_head_complete", "_headers", "_is_paused", "_loop", "_lost"),
        *("_max_answer", "_parser", "_received", "_sent_whole", "_timer", "_transport", "_unsent", "_watch"),
        *("idle_since", "reusable"),
    )

    def __init__(self, max_answer: int, watch: Watch | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_answer = max_answer
        self._watch = watch or Watch()
        self._transport: asyncio.Transport | None = None
        self._unsent: Iterator[bytes] | None = None  # of a request that the transport takes in parts
        self._is_paused = False
        self._answer: asyncio.Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None  # at the deadline or before it
        self._deadline = math.inf
        self.reusable = False
        self.idle_since = 0.0
        self._lost = False
        self._sent_whole = False
        self._begin()

    def _begin(self) -> None:
        self._parser: Any = None  # made when an answer comes; it refers to us
        self._headers: Any = None  # these two, too
        self._body: Any = None
        self._head_complete = False
        self._received = 0
        self._body_bytes = 0

    def ask(self, request: Iterable[bytes], deadline: float) -> asyncio.Future[Answer]:
        """Send what `request` gives. `deadline` is on the event loop's clock. Whoever asks says `forget` in the end.

        The answer is one, or ConnectionLost, AnswerTooLarge, DeadlinePassed, or what `request` raised.
        """
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self._lost:
            answer.set_exception(ConnectionLost("closed while idle", sent_whole=False, answered=False))
            return answer
        self._begin()
        self._sent_whole = False
        self.reusable = False
        self._answer = answer
        self._deadline = deadline
        self.look_ahead()
        self._unsent = iter(request)
        self._watch.writes.add(self._send_on)
        return answer

    def forget(self, answer: asyncio.Future[Answer]) -> None:
        """Nobody waits for this any more; whatever comes now was not asked for."""
        if self._answer is answer:
            self._answer = self._unsent = self._parser = self._headers = self._body = None
            self._deadline = math.inf
        if answer.done() and not answer.cancelled():
            answer.exception()  # when its waiter was cancelled, nobody else will look at it

    def _send_on(self) -> None:
        """As much as the transport takes; `resume_writing` goes on with the rest."""
        if self._unsent is None or self._answer is None or self._answer.done():  # it was given up in this very turn
            return
        assert self._transport is not None
        pending: list[bytes] = []
        size = 0
        try:
            for chunk in self._unsent:
                pending.append(chunk)
                size += len(chunk)
                if size < _JOIN_BELOW:
                    continue
                self._transport.writelines(pending)
                pending, size = [], 0
                if self._is_paused or self._answer.done():
                    return
        except Exception as exc:  # the spool cannot be read
            return self._fail(exc)
        self._transport.write(b"".join(pending))
        self._unsent = None  # nothing of it is kept while the scanner works
        self._sent_whole = True

    def look_ahead(self) -> None:
        """See to it that we wake up at the deadline, if nobody looks here before it."""
        deadline = self._deadline
        if deadline > self._watch.next_look:
            return
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._answer is None or self._answer.done():
            return
        if self._loop.time() < self._deadline - _TIMER_S:
            self.look_ahead()
        else:
            self._expire()

    def _expire(self) -> None:
        """The deadline has passed."""
        self._deadline = math.inf
        waiting = self._answer
        if waiting is None or waiting.done():
            return
        if not self._sent_whole:
            self._fail(DeadlinePassed(None))
            return
        self._answer = self._loop.create_future()
        self._answer.add_done_callback(_seen)
        waiting.set_exception(DeadlinePassed(LateAnswer(self, self._answer)))

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._watch.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.reusable = False
        self._watch.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unsent = None
        self._fail(self._lost_error("connection lost"))
        self._parser = None  # or only the collector would find us

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._unsent is None or self._answer is None:
            return
        if self._answer.done():  # it has heard enough: an early 413, or a lost connection
            self._unsent = None
        else:
            self._send_on()

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nobody asked
            self.close()
            return
        self._received += len(data)
        if self._received > self._max_answer + _MAX_HEAD:
            self._fail(AnswerTooLarge())
            return
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # the second is no kind of the first
            self._fail(self._lost_error("the answer is not HTTP"))

    def eof_received(self) -> bool:
        """An answer that gives no length ends with the connection."""
        lengths = {b"content-length", b"transfer-encoding"}
        if self._answer is not None and self._head_complete and not self._headers.keys() & lengths:
            self._complete()
            self.reusable = False
        return False

    def _lost_error(self, text: str) -> ConnectionLost:
        return ConnectionLost(text, sent_whole=self._sent_whole, answered=self._received > 0)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if not self._lost:
            self.close()

    # httptools' side

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():  # a second answer to one request: whose would the next be?
            self.close()
        self._headers, self._body = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._head_complete = True

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._max_answer:
            self._fail(AnswerTooLarge())
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if 100 <= self._parser.get_status_code() < 200:
            self._headers = {}
            self._head_complete = False
            return
        self.reusable = self._sent_whole and self._parser.should_keep_alive()
        self._complete()

    def _complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            status, body = self._parser.get_status_code(), b"".join(self._body)
            self._answer.set_result(Answer(status, self._headers, body, early=not self._sent_whole))


class LateAnswer:
    """The answer to a request whose deadline has passed. Await it or abandon it: the connection waits until then."""

    def __init__(self, connection: HttpConnection, answer: asyncio.Future[Answer]) -> None:
        self.connection = connection
        self._answer = answer

    async def answer(self) -> Answer:
        """Raises ConnectionLost, AnswerTooLarge. When cancelled, the connection is closed."""
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abandon()
            raise
        finally:
            self.connection.forget(self._answer)

    def abandon(self) -> None:
        """A connection whose answer nobody reads must not serve another mail."""
        self.connection.close()


def _seen(answer: asyncio.Future[Answer]) -> None:
    """When a late answer is abandoned, nobody else looks at the error that ends it."""
    if not answer.cancelled():
        answer.exception()
