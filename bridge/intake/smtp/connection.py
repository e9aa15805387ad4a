"""One SMTP connection: bytes in, command lines to its session, replies out, and the effects performed.

This is aiosmtpd's server class with its stream loop replaced. Whole command lines are cut from the bytes that have
arrived, the session (`session`, a state machine without I/O) executes them, and all replies are sent in one write. A
task is created only for work that has to wait (a complete mail, TLS, a hook that is a coroutine), because under
overload nearly all that clients get is a quick refusal. Content goes block by block from the socket into the message,
without a task. Deadlines are checked by one timer for all connections of the listener.

Knows time, sockets and tasks; the session decides what a command means. If this is wrong, clients hang,
sessions leak, or one client's bytes become another's commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import Any, assert_never

from aiosmtpd.smtp import MISSING, TLSSetupException

from bridge.intake.smtp.aiosmtpd_surface import INTERNAL, StockSurface
from bridge.intake.smtp.commands import receive_line
from bridge.intake.smtp.context import SmtpContext
from bridge.intake.smtp.data import DataReader
from bridge.intake.smtp.effects import Ask, Authenticate, Close, Effect, ReadContent, StartTls
from bridge.intake.smtp.line_buffer import LINE_LIMIT, PAUSE_AT, LineBuffer, LineTooLong
from bridge.intake.smtp.proxy_header import read_proxy_header
from bridge.intake.smtp.session import SmtpSession
from bridge.intake.smtp.start_tls import start_tls
from bridge.intake.wait_for_disk import wait_for_disk
from bridge.mail.message import Message
from bridge.mail.reply import Reply
from bridge.runtime.write_batch import FEW

log = logging.getLogger(__name__)

_BROKEN = Reply(421, "4.3.0", "Error: internal problem, try again later")
_TIMEOUT = Reply(421, "4.4.2", "Error: timeout exceeded")
_LAST_REPLY_S = 5.0  # for a client to read the last reply before the connection is aborted

Work = Callable[[], Coroutine[Any, Any, None]]


class SmtpConnection(StockSurface):
    """Owns the session of one client, and points to the context of its listener.

    Everything is in slots: there may be thousands of connections, and a dictionary for each takes a KiB or more.
    """

    __slots__ = (
        *("_close_handle", "_complete", "_content", "_farewell", "_is_busy"),
        *("_is_lost", "_is_reading_paused", "_paused", "_phase_began", "_task", "_task_number"),
        *("_transport", "transport"),
    )

    def __init__(self, context: SmtpContext) -> None:
        # aiosmtpd's constructor is not called: the context called it once for all connections.
        self._context = context
        self.session = SmtpSession(context.settings)
        self._transport: Any = None
        self.transport: Any = None  # None before the connection is made and once we have closed it
        self._buffer = LineBuffer(context.loop, self._before_wait)
        self._paused = False  # the client does not read: nothing more is written
        self._is_reading_paused = False  # we do not read: the client has sent more than we can answer now
        self._content: DataReader | None = None  # still arriving
        self._complete: DataReader | None = None  # content that has arrived, until its task begins
        self._is_busy = False  # a mail is being processed
        self._task: asyncio.Task[None] | None = None  # work for this client that has to wait
        self._task_number = 0
        self._farewell: Reply | None = None  # sent once the mail in processing has its answer
        self._close_handle: asyncio.TimerHandle | None = None
        self._is_lost, self._phase_began = False, 0.0

    # The life of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._transport = transport
        self.session.peer = transport.get_extra_info("peername")
        self._begin_phase()
        self._context.timer.add(self)
        if self._context.greets_at_once:
            self._greet_now()
        else:
            self._start(self._greet)

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._context.timer.discard(self)
        if self._close_handle is not None:
            self._close_handle.cancel()
        self._buffer.close()
        self._close_transport()
        self.transport = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        try:
            self._forget_content()
        finally:
            if (hook := self._context.hooks.get("CLOSE")) is not None:
                hook(self)

    def _forget_content(self) -> None:
        """The client did not wait for its answer, or did not finish sending the content."""
        incomplete, complete = self._content, self._complete
        self._content = self._complete = None
        content = incomplete or complete
        if content is not None:
            content.message.close()
        if incomplete is not None and (hook := self._context.hooks.get("CANCEL")) is not None:
            hook(self, self.session, self.session.envelope)

    def eof_received(self) -> bool | None:
        """The client sends nothing more, or is gone: cancel the work for it; its commands have been answered.

        Exim (4.96) sends QUIT right after the final dot, closes its half of the connection and keeps reading: a
        client that has said QUIT is not gone.
        """
        is_expected = self._buffer.is_awaited or self._buffer.next_is_quit  # the task continues and sees the end
        self._buffer.close()
        if self._task is None:
            self._hang_up()
        elif not is_expected:
            self._task.cancel()
            self._context.loop.call_soon(self._hang_up)  # a task cancelled before its first step would not do it
        return self.session.ssl is None

    def data_received(self, data: bytes) -> None:
        if self._content is not None:
            return self._take_content(data)
        if not self._buffer.buffer and self._task is None and not self._paused and self.transport is not None:
            data = self._execute_lines(data)  # nothing came before: no need to go through the buffer
            if self._content is not None:
                return self._take_content(data) if data else None
            if not data:
                return self._flush()
        self._buffer.feed(data)
        if self._task is None:
            self._execute_buffered()
        return self._bound_buffer()

    def _bound_buffer(self) -> None:
        """Stop reading from a client that sends more than we can answer now."""
        if len(self._buffer.buffer) > PAUSE_AT and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        """The client reads again, so its commands may be answered again."""
        self._paused = False
        if self._task is None:
            self._execute_buffered()

    @property
    def in_mail(self) -> bool:
        """Whether a mail is being received or processed."""
        return self._is_busy or self._content is not None

    def goodbye(self, reply: Reply) -> None:
        """Send this last reply and close the connection."""
        if self.transport is not None:
            self.session.answer(reply)
            self._hang_up()

    def goodbye_after_mail(self, reply: Reply) -> None:
        """Send this last reply once the mail in processing has its answer."""
        self._farewell = reply

    # Commands

    def _execute_lines(self, data: bytes) -> bytes:
        """Execute the whole lines at the start of `data` until something has to wait; the rest is returned."""
        start, end = 0, data.find(b"\r\n")
        try:
            while end >= 0 and end - start <= LINE_LIMIT:
                self._execute(data[start:end])
                start = end + 2
                if start == len(data) or not self._takes_commands():
                    break
                end = data.find(b"\r\n", start)
        except Exception:
            self._break_down()
        if start:
            self._phase_began = self._context.loop.time()
        return data[start:]

    def _execute_buffered(self) -> None:
        """Execute the lines in the buffer until something has to wait, and answer them with one write."""
        try:
            while self._buffer.buffer and self._takes_commands():
                try:
                    line = self._buffer.take_line()
                    if line is None:
                        break
                    self._execute(line)
                except LineTooLong:
                    self.session.receive_long_line()
                    self._check_patience()
                self._begin_phase()
        except Exception:
            self._break_down()
        if self._task is not None or self._paused:
            self._flush()
        elif self._buffer.at_eof:
            self._hang_up()
        else:
            self._before_wait()

    def _takes_commands(self) -> bool:
        return self._task is None and self._content is None and not self._paused and self.transport is not None

    def _execute(self, line: bytes) -> None:
        session = self.session
        try:
            effect = receive_line(session, line)
            if effect is not None:
                self._perform(effect)
        except Exception as error:
            self._start(partial(self._fail, error))
        if session.errors or session.idle_commands:
            self._check_patience()

    def _check_patience(self) -> None:
        if self.transport is not None:
            effect = self.session.check_patience()
            if effect is not None:
                self._perform(effect)

    def _perform(self, effect: Effect | None) -> None:
        hooks, session = self._context.hooks, self.session
        while isinstance(effect, Ask):
            status, arguments = MISSING, effect.arguments
            if (hook := hooks.get(effect.hook)) is not None:
                status = hook(self, session, session.envelope, *arguments)
                if isinstance(status, CoroutineType):
                    return self._start(partial(self._await_answer, status, effect))
            effect = effect.then(session, status, arguments)
        match effect:
            case None:
                return None
            case ReadContent():
                return self._read_content()
            case Close(discards_replies):
                if discards_replies:
                    self.session.replies.clear()
                return self._hang_up()
            case StartTls():
                return self._start(self._start_tls)
            case Authenticate(argument):
                return self._start(partial(self.smtp_AUTH, argument))
            case _:
                assert_never(effect)

    async def _await_answer(self, status: Awaitable[Any], ask: Ask) -> None:
        self._perform(ask.then(self.session, await status, ask.arguments))

    # Tasks

    def _start(self, work: Work) -> None:
        """Start work that has to wait. What the client sends in the meantime is answered afterwards."""
        self._task_number += 1
        self._task = self._context.loop.create_task(self._run(self._task_number, work))

    async def _run(self, number: int, work: Work) -> None:
        try:
            try:
                await work()
            except Exception as error:
                await self._fail(error)
        except asyncio.CancelledError:
            self._hang_up()
            if self._task_number == number:
                self._task = None  # it keeps the exception, and thereby this object, alive until a garbage collection
            raise
        except ConnectionError:
            self._hang_up()
        except Exception:
            self._break_down()
        if self._task_number == number:  # else the work has started another task, which continues
            self._task = None
            self._begin_phase()
            if self.session.errors or self.session.idle_commands:
                self._check_patience()
            self._execute_buffered()

    async def _fail(self, error: Exception) -> None:
        """An error in a command is temporary for the client; it ends the mail but not the session."""
        if isinstance(error, ConnectionError) and self._buffer.at_eof:
            raise error  # the client's connection, not one of the hook's
        self.session.reset()
        try:
            self.session.answer(await self.handle_exception(error))
        except Exception:
            log.exception("session %s: the exception handler failed", self.session.id)
            self.session.answer(INTERNAL)
        if isinstance(error, TLSSetupException):
            self.session.replies.clear()
            self._hang_up()

    def _break_down(self) -> None:
        log.exception("session %s: ended by an unexpected error", self.session.id)
        self.session.answer(_BROKEN)
        self._hang_up()

    # Greeting, PROXY header, TLS

    def _greet_now(self) -> None:
        try:
            self._perform(Ask("CONNECT", SmtpSession.greet))
        except Exception:
            self._break_down()
        self._flush()

    async def _greet(self) -> None:
        try:
            if self._context.proxy_timeout_s is None or await self._accept_proxy_header():
                self._perform(self.session.greet(await self._call_handler_hook("CONNECT")))
        except ConnectionError:
            self._hang_up()
        except Exception:
            self._break_down()

    async def _accept_proxy_header(self) -> bool:
        """Read the PROXY header if the handler trusts the peer. False: the connection was closed without a reply."""
        hook = self._context.hooks.get("OPEN")
        if hook is not None and not hook(self):
            self._hang_up()
            return False
        handle = self._context.loop.call_later(self._context.proxy_timeout_s or 0.0, self._hang_up)
        try:
            self.session.proxy_data = await read_proxy_header(self._buffer)
        finally:
            handle.cancel()
        if self.session.proxy_data:
            status = await self._call_handler_hook("PROXY", self.session.proxy_data)
            if status is not MISSING and status:
                self._begin_phase()
                return True
        self._hang_up()
        return False

    async def _start_tls(self) -> None:
        """Raises TLSSetupException when the handshake fails; the connection is then unusable."""
        assert self._context.tls_context is not None
        self._before_wait()
        self._write()  # in plain text
        self._buffer.take_all()  # RFC 3207 4.2: what came in plain text after STARTTLS is discarded
        try:
            transport = await start_tls(
                self._transport, self, self._context.tls_context, self._timeout_s(), self.session.id
            )
        except TLSSetupException:
            self.cut()
            raise
        if self.transport is None:  # we closed it in the meantime, which asyncio's start_tls treats as success
            self.cut()
            raise ConnectionResetError
        self.transport = self._transport = transport
        self.session.secured(transport.get_extra_info("ssl_object"))
        hook = self._context.hooks.get("STARTTLS")
        self.session.is_tls_accepted = hook is None or hook(self, self.session, self.session.envelope)

    def cut(self) -> None:
        """Close now. The event loop does not always report that a connection ended during its handshake."""
        self._transport.abort()
        self.connection_lost(None)

    # Content

    def _read_content(self) -> None:
        """After 354: blocks go from the socket into a message until the final dot."""
        if self._buffer.at_eof:
            return self._hang_up()
        self._flush()
        self._begin_phase()
        settings = self._context.settings
        self._content = DataReader(Message(self._context.spool), settings.max_message_size, settings.limits.keeps_bare)
        self._content.began = self._phase_began
        if self._is_reading_paused:
            self._resume_reading()  # before the content, which may stop it again
        if self._buffer.buffer:
            self._take_content(self._buffer.take_all())
        return None

    def _take_content(self, data: bytes) -> None:
        content = self._content
        assert content is not None
        rest = content.feed(data)
        if rest is None or self.transport is None:  # once the connection is closed, no one would read the answer
            wait_for_disk(content.message, self._transport, self)
            return
        self._content, self._complete = None, content
        self._is_busy = True
        self._start(self._process_mail)
        if rest:
            self._buffer.feed(rest)
            self._bound_buffer()

    def end_stop(self) -> bool:
        self._begin_phase()
        return not self._is_reading_paused

    async def _process_mail(self) -> None:
        content, self._complete = self._complete, None
        assert content is not None
        message, arguments = content.message, ()
        try:
            status: Any = self.session.receive_content(content)
            del content  # thousands of mails may wait here: each keeps only what is needed
            if isinstance(status, Ask):
                arguments = status.arguments
                status = self._call_hook(status.hook, arguments)
            if isinstance(status, CoroutineType):
                status = await status
        except Exception as error:
            status = await self.handle_exception(error)
        finally:
            message.close()
            self._is_busy = False
        self.session.answer_mail(status, arguments)
        if self._farewell is not None:
            self.goodbye(self._farewell)

    # Time

    def _begin_phase(self) -> None:
        self._phase_began = self._context.loop.time()

    def _timeout_s(self) -> float:
        return self._context.command_timeout_s if self._content is None else self._context.data_timeout_s

    def check_deadlines(self) -> None:
        """Called by the timer: has the current phase taken too long?"""
        if self.transport is None or self._is_busy:
            return None
        now = self._context.loop.time()
        waited_s = now - self._phase_began
        if waited_s < self._timeout_s():
            return None
        limit = "command_timeout"
        if self._content is not None:
            is_half_full, is_stopped = self._context.spool.is_half_full, not self._transport.is_reading()
            limit = self._content.exceeded_limit(self._context.settings.limits, now, waited_s, is_half_full, is_stopped)
            if not limit:
                return self._begin_phase()
        self._context.settings.on_limit(limit)
        return self.goodbye(_TIMEOUT)

    # Writing: replies are collected, and written when nothing more can be answered

    def _flush(self) -> None:
        """Write at the end of this turn of the event loop, or now if there are many replies.

        Only a write shows that the client does not read them.
        """
        replies = self.session.replies
        if len(replies) > FEW:
            self._write()
        elif replies:
            self._context.writes.add(self._write)

    def _write(self) -> None:
        replies = self.session.replies
        if replies:
            if self.transport is not None:
                self._transport.write(b"".join(replies))
            replies.clear()

    def _before_wait(self) -> None:
        self._flush()
        if self._is_reading_paused:
            self._resume_reading()

    def _resume_reading(self) -> None:
        self._is_reading_paused = False
        if self.transport is not None:
            self._transport.resume_reading()

    def _hang_up(self) -> None:
        """Accept no more commands; abort the connection if the client does not read the last reply."""
        if self.transport is None:
            return
        self._write()
        self._close_transport()
        if self._transport.get_write_buffer_size():
            self._close_handle = self._context.loop.call_later(
                min(_LAST_REPLY_S, self._timeout_s()), self._transport.abort
            )
        self.transport = None

    def _close_transport(self) -> None:
        self._transport.close()
