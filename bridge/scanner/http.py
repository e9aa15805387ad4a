"""One HTTP/1.1 connection to the scanner: a request with a streamed body, a bounded answer.

Written by hand on httptools: every mail passes here, general clients cost many times more
(docs/understand/decisions/0001-http-client.md), and they hide what the bridge must know: whether the request was
sent completely, and an answer that arrives while we are still sending (413). Redirects are treated as
ordinary answers, proxy variables of the environment are ignored, compressed answers are refused, and
nothing is read beyond the limit.

The connection enforces the deadline. If the deadline passes after the request was sent completely,
the caller is released, but the connection keeps waiting, and the answer can still be collected later.

An answer must belong to its request: if this is wrong, a mail gets another mail's decision. Bytes that have
arrived before the request is written end the connection, and so do bytes after an answer. An answer that carries a
request id (`bridge/api/request_id.py`) must carry ours.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import httptools

from bridge.api.request_id import REQUEST_ID_KEY
from bridge.runtime.connection_timer import ConnectionTimer
from bridge.runtime.unread import socket_has_unread
from bridge.runtime.value import value
from bridge.runtime.write_batch import WriteBatch

_MAX_HEAD = 64 * 1024
_TIMER_S = 0.002  # uvloop's timers have a resolution of a millisecond
_CHECK_INTERVAL_S = 1.0
_JOIN_BELOW = 64 * 1024  # head and body of a small mail are sent in one write


class AnswerTooLarge(Exception):
    """The answer is above the limit; the rest was not read."""


class WrongAnswer(Exception):
    """The answer belongs to another request."""


class ConnectionLost(Exception):
    """The connection ended before the answer was complete. `sent_whole`: the whole request had been sent by then."""

    def __init__(self, text: str, *, sent_whole: bool, answered: bool) -> None:
        super().__init__(text)
        self.sent_whole = sent_whole
        self.answered = answered  # part of an answer had arrived


class DeadlinePassed(Exception):
    """No answer in time. `late` is the answer that may still arrive; None: the request was not sent completely."""

    def __init__(self, late: LateAnswer | None) -> None:
        super().__init__("no answer before the deadline")
        self.late = late


@value
class Answer:
    status: int
    headers: dict[bytes, bytes]  # names in lower case; of repeated fields the last
    body: bytes
    early: bool = False  # it arrived before the request was sent completely
    is_tied: bool = False  # it carries our request id


class SharedByConnections:
    """What all connections to one host share: a timer and a batch of writes.

    The timer checks all connections once a second: a timer for each would cost half a KiB while it waits. Only a
    connection whose deadline lies before the next check has its own timer.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.timer = ConnectionTimer(loop, _CHECK_INTERVAL_S)
        self.writes = WriteBatch(loop)


class ScannerConnection(asyncio.Protocol):
    """Sends one request after another with `ask`, each after the previous answer, while `reusable` is true.

    Uses no coroutine: thousands of mails may wait for the scanner, and each would keep a frame.
    """

    __slots__ = (
        *("_answer", "_body", "_body_bytes", "_deadline", "_head_complete", "_headers", "_is_paused", "_loop", "_lost"),
        *("_max_answer", "_may_be_read", "_on_slow", "_parser", "_received", "_request_id", "_sent_whole", "_shared"),
        *("_slow_at", "_socket", "_timer", "_transport", "_unsent", "idle_since", "opened_at", "reusable"),
    )

    def __init__(self, max_answer: int, shared: SharedByConnections | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_answer = max_answer
        self._shared = shared or SharedByConnections()
        self._transport: asyncio.Transport | None = None
        self._socket: Any = None
        self._unsent: Iterator[bytes] | None = None  # the rest of a request that the transport accepts in parts
        self._is_paused = False
        self._answer: asyncio.Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None  # at the deadline or before it
        self._deadline = math.inf
        self._slow_at = math.inf
        self._on_slow: Callable[[], None] | None = None
        self.reusable = False
        self.opened_at = self._loop.time()
        self.idle_since = 0.0
        self._lost = False
        self._sent_whole = False
        self._may_be_read = False  # some of the request has been written: an answer may arrive
        self._request_id = b""
        self._parser: Any = None  # created when an answer arrives; it refers to us
        self._headers: Any = None  # created with it, like the body
        self._body: Any = None
        self._head_complete = False
        self._received = 0
        self._body_bytes = 0

    def ask(
        self,
        request: Iterable[bytes],
        deadline: float,
        request_id: bytes = b"",
        slow_at: float = math.inf,
        on_slow: Callable[[], None] | None = None,
    ) -> asyncio.Future[Answer]:
        """Send the chunks of `request`. `deadline` is on the event loop's clock. The caller must `forget` the future.

        `on_slow` is called if there is no answer at `slow_at`.
        The future's result is the answer; its exception ConnectionLost, AnswerTooLarge, WrongAnswer, DeadlinePassed,
        or whatever `request` raised.
        """
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self._lost:
            answer.set_exception(ConnectionLost("closed while idle", sent_whole=False, answered=False))
            return answer
        self._sent_whole = self._may_be_read = self._head_complete = self.reusable = False
        self._parser = self._headers = self._body = None
        self._received = self._body_bytes = 0
        self._request_id = request_id
        self._answer = answer
        self._deadline = deadline
        self._slow_at, self._on_slow = slow_at, on_slow
        self.check_deadlines()
        self._unsent = iter(request)
        self._shared.writes.add(self._send_on)
        return answer

    def forget(self, answer: asyncio.Future[Answer]) -> None:
        """The caller no longer waits for this answer; data that arrives now closes the connection."""
        if self._answer is answer:
            self._answer = self._unsent = self._parser = self._headers = self._body = None
            self._deadline = self._slow_at = math.inf
            self._on_slow = None
        if answer.done() and not answer.cancelled():
            answer.exception()  # mark it as retrieved: if the caller was cancelled, nothing else will

    def _send_on(self) -> None:
        """Write as much as the transport accepts; `resume_writing` continues with the rest."""
        if self._unsent is None or self._answer is None or self._answer.done():  # cancelled since it was scheduled
            return
        assert self._transport is not None
        if not self._may_be_read:
            if self._has_unasked():
                return self._fail(self._lost_error("data arrived without a request"))
            self._may_be_read = True
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
        self._unsent = None  # releases the message while the scanner works
        self._sent_whole = True

    def _has_unasked(self) -> bool:
        """Whether bytes have arrived before the request is written. A new TLS connection may have its own."""
        assert self._transport is not None
        if self.idle_since == 0.0 and self._transport.get_extra_info("ssl_object") is not None:
            return False
        return socket_has_unread(self._socket)

    def check_deadlines(self) -> None:
        """Start a timer if the deadline or `slow_at` lies before the shared timer's next check."""
        deadline = self._slow_at if self._slow_at < self._deadline else self._deadline
        if deadline > self._shared.timer.next_tick_at:
            return
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._answer is None or self._answer.done():
            return None
        now = self._loop.time()
        if now >= self._deadline - _TIMER_S:
            return self._expire()
        if now >= self._slow_at - _TIMER_S:
            self._slow_at = math.inf
            if self._on_slow is not None:
                self._on_slow()
        self.check_deadlines()
        return None

    def _expire(self) -> None:
        """Release the caller; if the request was sent completely, keep waiting for its answer."""
        self._deadline = math.inf
        waiting = self._answer
        if waiting is None or waiting.done():
            return
        if not self._sent_whole:
            self._fail(DeadlinePassed(None))
            return
        if self._transport is not None:
            _enable_keepalive(self._transport.get_extra_info("socket"))
        self._answer = self._loop.create_future()
        self._answer.add_done_callback(_seen)
        waiting.set_exception(DeadlinePassed(LateAnswer(self, self._answer)))

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Called by the timer."""
        self.close()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket")
        self._shared.timer.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.reusable = False
        self._shared.timer.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unsent = None
        self._fail(self._lost_error("connection lost"))
        self._parser = None  # breaks the reference cycle, so that no garbage collection is needed

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._unsent is None or self._answer is None:
            return
        if self._answer.done():  # an early 413, or the connection was lost
            self._unsent = None
        else:
            self._send_on()

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # there was no request
            self.close()
            return
        if not self._may_be_read:  # it is not written yet
            self._fail(self._lost_error("data arrived without a request"))
            return
        self._received += len(data)
        if self._received > self._max_answer + _MAX_HEAD:
            self._fail(AnswerTooLarge())
            return
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # not related by inheritance
            self._fail(self._lost_error("the answer is not HTTP"))

    def eof_received(self) -> bool:
        """An answer without a length ends with the connection."""
        lengths = {b"content-length", b"transfer-encoding"}
        if self._answer is not None and self._head_complete and not self._headers.keys() & lengths:
            self._complete(is_reusable=False)
            self.reusable = False
        return False

    def _lost_error(self, text: str) -> ConnectionLost:
        return ConnectionLost(text, sent_whole=self._sent_whole, answered=self._received > 0)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if not self._lost:
            self.close()

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():  # a second answer: the next request would get the wrong one
            self.close()
        self._headers, self._body = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_complete:  # not a trailer (RFC 9110 6.5.1)
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
        self._complete(is_reusable=self._sent_whole and self._parser.should_keep_alive())

    def _complete(self, is_reusable: bool) -> None:
        answer = self._answer
        if answer is None or answer.done():  # the end of a second answer
            return
        self.reusable = is_reusable
        given = self._headers.get(REQUEST_ID_KEY)
        if given is not None and self._request_id and given != self._request_id:
            self._fail(WrongAnswer())
            return
        status, body = self._parser.get_status_code(), b"".join(self._body)
        answer.set_result(Answer(status, self._headers, body, not self._sent_whole, given is not None))


class LateAnswer:
    """The answer to a request whose deadline has passed. The connection waits until it is awaited or abandoned."""

    def __init__(self, connection: ScannerConnection, answer: asyncio.Future[Answer]) -> None:
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
        """Close the connection: its unread answer must not be taken for another mail's."""
        self.connection.close()


def _seen(answer: asyncio.Future[Answer]) -> None:
    """Mark the error of an abandoned late answer as retrieved; asyncio would log it otherwise."""
    if not answer.cancelled():
        answer.exception()


def _enable_keepalive(sock: socket.socket) -> None:
    """Detect a vanished machine within a minute: a late scan may wait much longer than that."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, number in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, number)
