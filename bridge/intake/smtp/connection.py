"""One SMTP connection: bytes in, command lines out, each answered at once or by a task.

aiosmtpd's server class, with its stream loop replaced: commands are taken as whole lines from what
has arrived and answered with one write, at once; a task is made only for what must wait (a mail that has
come whole, TLS, a hook that is a coroutine), because on a bad day nearly all that clients get is
a quick no. Content goes block by block from the socket into the message, with no task woken in
between. What the commands mean is in `smtp`.
If this is wrong, clients hang, sessions leak, or one client's bytes become another's commands.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import CoroutineType, FunctionType
from typing import Any, Self

from aiosmtpd.smtp import MISSING, TLSSetupException

from bridge.intake.smtp.data import DataReader
from bridge.intake.smtp.line_buffer import PAUSE_AT, Inbox, LineTooLong, one_line
from bridge.intake.smtp.tls_and_proxy import Outer
from bridge.intake.smtp.wire import SessionLimits
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client

log = logging.getLogger(__name__)

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE) \S+ HTTP/|PRI \* HTTP/2")
_IDLE_COMMANDS = frozenset(
    ["NOOP", "RSET", "VRFY", "EXPN", "HELP", "HELO", "EHLO", "LHLO", "STARTTLS", "AUTH", "XFORWARD", "XCLIENT"]
)
_BEFORE_TLS = frozenset({"NOOP", "EHLO", "LHLO", "STARTTLS", "QUIT"})  # RFC 3207 4
_INTERNAL = Reply(451, "4.3.0", "Error: internal problem, try again later")
_EXTENDED = 1024  # what ESMTP parameters may add to a MAIL or RCPT line
_NOBODY = Client()
_NUL, _CR, _LF = b"\0\r\n"  # as numbers, for `in` (see data.py)

Work = Callable[..., Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Command:
    """What there is to know of a verb, looked up once for each line."""

    name: str = ""
    method: Callable[..., Any] | None = None  # None: we do not know it
    waits: bool = False  # for more than its hook: the method is a coroutine function
    is_idle: bool = False  # brings no mail nearer
    is_checked: bool = False  # its own parser finds a CR, LF or NUL, and says more of it


_UNKNOWN = Command()


def _as_it_is(attribute: object) -> object:
    """An object's attribute, for a class: what is callable must not become a method there."""
    return staticmethod(attribute) if isinstance(attribute, FunctionType) else attribute


class Connection(Outer):
    """Make one, then `spawn` a copy for each connection: that is far cheaper than making each."""

    __slots__ = (
        *("_argument", "_call_limit", "_idle_commands", "_inbox", "_is_lost", "_task", "_turn", "_whole", "client"),
        *("counted_as", "described", "forwarded", "introduced", "peer_address", "trusted"),
    )

    _twins: type[Self] | None = None  # of the prototype alone

    def __init__(
        self, handler: Any, *, limits: SessionLimits | None = None, spool: Spool | None = None, **stock: Any
    ) -> None:
        super().__init__(handler, limits or SessionLimits(), **stock)
        self._spool = spool or Spool(1 << 30)
        self._has_auth = self._auth_required or not self._auth_require_tls or self._has_authenticator(stock)
        self._ehlo_replies: dict[tuple[bool, bool], bytes] = {}  # shared by all connections
        self._banner = f"220 {self.hostname} {self.__ident__}\r\n".encode()
        self.command_size_limits = dict.fromkeys(("MAIL", "RCPT"), self.command_size_limit + _EXTENDED)
        waits = asyncio.iscoroutinefunction(self._handle_hooks.get("CONNECT"))
        self._opens_at_once = self._proxy_timeout is None and not waits
        self._commands = {name.encode(): self._command(name) for name in self._smtp_methods}
        self._renew()

    def _command(self, name: str) -> Command:
        method = getattr(type(self), "smtp_" + name, None)
        waits = asyncio.iscoroutinefunction(method)
        return Command(name, method, waits, name in _IDLE_COMMANDS, name in ("MAIL", "RCPT"))

    @staticmethod
    def _has_authenticator(stock: dict[str, Any]) -> bool:
        return stock.get("authenticator") is not None or stock.get("auth_callback") is not None

    def spawn(self) -> Self:
        """A fresh connection with the same settings, without aiosmtpd's costly set-up.

        Those are in a class, for all connections together: each has only what is its own.
        """
        if self._twins is None:
            common = {name: _as_it_is(one) for name, one in self.__dict__.items()}
            self._twins = type(type(self).__name__, (type(self),), common)
        twin = object.__new__(self._twins)
        twin._renew()
        return twin

    def _renew(self) -> None:
        super()._renew()
        self._whole: DataReader | None = None  # content that has come, until the task for it begins
        self._task: asyncio.Task[None] | None = None  # what runs for this client and must wait
        self._turn = 0  # which task that is
        self._is_lost = False
        self._idle_commands = 0
        self._argument = b""
        self.peer_address: str | None = None  # of the connection's other end; None on a unix socket
        self.trusted = False  # believed about its clients; the handler sets it when a client connects
        self.counted_as: str | None = None  # whose connection this is, for the cap per client
        self.forwarded: Client | None = None  # XFORWARD's word, for one mail
        self.introduced = False  # `client` is XCLIENT's word
        if self._enforce_call_limit:
            self._call_limit: dict[str, int] = dict(self._call_limit_base)

    @property
    def _reader(self) -> Inbox:
        """aiosmtpd's word for it."""
        return self._inbox

    # The connection's life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._transport = transport
        self.session = self._create_session()
        self.session.peer = transport.get_extra_info("peername")
        self.envelope = self._create_envelope()
        self._phase_began = self.loop.time()
        self._clock.add(self)
        if self._opens_at_once:
            self._open_now()
        else:
            self._start(self._open)

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._clock.discard(self)
        if self._timeout_handle is not None:
            self._timeout_handle.cancel()
        self._inbox.close()
        self._close()
        self.transport = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        content = self._data or self._whole
        if content is not None:
            content.message.close()
            self._data = self._whole = None
        if (hook := self._handle_hooks.get("CLOSE")) is not None:
            hook(self)

    def eof_received(self) -> bool | None:
        """The client is gone, or says no more: what runs for it is cancelled, what it said was answered.

        Exim (4.96) sends QUIT right behind the final dot, ends its half of the connection and reads on: who has
        said goodbye is not gone.
        """
        is_expected = self._inbox.is_awaited or self._inbox.says_goodbye  # what runs goes on, and sees the end
        self._inbox.close()
        if self._task is None:
            self._hang_up()
        elif not is_expected:
            self._task.cancel()
            self.loop.call_soon(self._hang_up)  # cancelled before its first step, it would not do it
        return self.session.ssl is None

    def data_received(self, data: bytes) -> None:
        if self._data is not None:
            return self._take_content(data)
        if self._task is None and not self._inbox.buffer and not self._paused and self.transport is not None:
            taken = self._take_ordinary(data)
            if taken:
                data = data[taken:]
                if self._data is not None:
                    return self._take_content(data) if data else None
                if not data:
                    return self._flush()
            elif (line := one_line(data)) is not None:  # it need not go through the inbox
                return self._answer_line(line)
        self._inbox.feed(data)
        if self._task is None:
            self._work()
        return self._bound_inbox()

    def _take_ordinary(self, data: bytes) -> int:
        """Answer the ordinary commands that `data` begins with: how many bytes those were."""
        return 0

    def _bound_inbox(self) -> None:
        """A client that says more than we can answer now waits, too."""
        if len(self._inbox.buffer) > PAUSE_AT and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again: it may be answered again."""
        super().resume_writing()
        if self._task is None:
            self._work()

    async def handle_exception(self, error: Exception) -> str | Reply:
        if hasattr(self.event_handler, "handle_exception"):
            status: str | Reply = await self.event_handler.handle_exception(error)
            return status
        if not isinstance(error, TLSSetupException):
            log.error("session %s: unexpected error", self.session.id, exc_info=error)
        return _INTERNAL

    # What a client says is answered at once, or by a task

    def _answer_line(self, line: bytes) -> None:
        """One line came, and nothing before it waits."""
        try:
            self._execute(line)
            self._end_command()
        except Exception:
            self._break_down()
        self._flush()

    def _work(self) -> None:
        """Answer what is in the inbox, with one write, until something must wait."""
        try:
            while self._inbox.buffer and self._task is None and self.transport is not None and not self._paused:
                try:
                    line = self._inbox.take_line()
                    if line is None:
                        break
                    self._execute(line)
                except LineTooLong:
                    self._hit("line")
                    self._say(b"500 5.5.2 Command line too long")
                self._end_command()
        except Exception:
            self._break_down()
        if self._task is not None or self._paused:
            self._flush()
        elif self._inbox.at_eof:
            self._hang_up()
        else:
            self._before_wait()

    def _end_command(self) -> None:
        self._phase_began = self.loop.time()
        too_many_errors = self._errors >= self._limits.max_errors
        if (too_many_errors or self._idle_commands > self._limits.max_idle_commands) and self.transport is not None:
            self._hit("max_errors" if too_many_errors else "idle_commands")
            self._say(b"421 4.7.0 Error: too many errors or idle commands")
            self._hang_up()

    def _start(self, work: Work, *arguments: Any) -> None:
        """For what must wait. What the client says meanwhile is answered after that."""
        self._turn += 1
        self._task = self.loop.create_task(self._run(self._turn, work, *arguments))

    async def _run(self, turn: int, work: Work, *arguments: Any) -> None:
        try:
            try:
                await work(*arguments)
            except Exception as error:
                await self._fail(error)
        except asyncio.CancelledError:
            self._hang_up()
            if self._turn == turn:
                self._task = None  # it keeps the exception, and with that us: only the collector would find it
            raise
        except ConnectionError:
            self._hang_up()
        except Exception:
            self._break_down()
        if self._turn == turn:  # else it has started another, and that goes on
            self._task = None
            self._end_command()
            self._work()

    def _break_down(self) -> None:
        log.exception("session %s: ended by an unexpected error", self.session.id)
        self._say(b"421 4.3.0 Error: internal problem, try again later")
        self._hang_up()

    def _open_now(self) -> None:
        try:
            self._greet(self._call_hook("CONNECT"))
        except Exception:
            self._break_down()
        self._flush()

    async def _open(self) -> None:
        """The greeting, or what is said in place of it."""
        try:
            if self._proxy_timeout is None or await self._read_proxy():
                self._greet(await self._call_handler_hook("CONNECT"))
        except ConnectionError:
            self._hang_up()
        except Exception:
            self._break_down()

    def _greet(self, status: Any) -> None:
        if status is MISSING:
            self._out.append(self._banner)
        else:
            self._answer(status)
            self._hang_up()

    def _execute(self, line: bytes) -> None:
        """One command line, CRLF cut off."""
        word, _, argument = line.partition(b" ")
        command = self._commands.get(word) or self._commands.get(word.upper(), _UNKNOWN)
        refusal = self._refuse_line(command, word, line)
        if refusal is not None:
            return self._say(refusal)
        if self._enforce_call_limit and not self._within_call_limit(word):
            self._say(b"421 4.7.0 %b sent too many times" % word.upper())
            return self._hang_up()
        if self._mails >= self._limits.max_mails and command.name != "QUIT":
            self._hit("max_mails_per_connection")
            self._say(b"421 4.7.0 Enough mail on this connection, go on with a new one")
            return self._hang_up()
        if command.method is None:
            return self._unknown(line)
        self._idle_commands = self._idle_commands + 1 if command.is_idle else 0
        self._argument = argument.strip(b" \t")
        argument_text = self._argument.decode("utf-8", "replace") or None
        if command.waits:
            return self._start(command.method, self, argument_text)
        try:
            command.method(self, argument_text)
        except Exception as error:
            self._start(self._fail, error)
        return None

    async def _fail(self, error: Exception) -> None:
        """What goes wrong in a command is temporary, and ends the mail but not the session."""
        if isinstance(error, ConnectionError) and self._inbox.at_eof:
            raise error  # the client's own, not a hook's
        self._set_rset_state()
        await self._answer_exception(error)
        if isinstance(error, TLSSetupException):
            self._out.clear()
            self._hang_up()

    async def _answer_exception(self, error: Exception) -> None:
        try:
            self._answer(await self.handle_exception(error))
        except Exception:
            log.exception("session %s: the exception handler failed", self.session.id)
            self._reply(_INTERNAL)

    def _ask(self, hook: str, then: Callable[..., None], *arguments: Any) -> None:
        """`then` is called with the hook's answer and the arguments: now, or from a task if the hook waits."""
        call = self._handle_hooks.get(hook)
        status = MISSING if call is None else call(self, self.session, self.envelope, *arguments)
        if isinstance(status, CoroutineType):
            self._start(self._await_hook, status, then, *arguments)
        else:
            then(status, *arguments)

    async def _await_hook(self, status: Awaitable[Any], then: Callable[..., None], *arguments: Any) -> None:
        then(await status, *arguments)

    def _refuse_line(self, command: Command, word: bytes, line: bytes) -> bytes | None:
        if not line.isascii() and not self.enable_SMTPUTF8:
            return b"500 5.5.2 Error: strict ASCII mode" if word.isascii() else b"500 5.5.2 Error: bad syntax"
        if not line or not word.isascii():
            return b"500 5.5.2 Error: bad syntax"
        if (_NUL in line or _CR in line or _LF in line) and not command.is_checked:
            return b"501 5.5.2 Error: NUL, CR or LF inside a command"
        if len(line) > self.command_size_limit and len(line) > self._size_limit(command.name):
            self._hit("command")
            return b"500 5.5.2 Command line too long"
        if not self._tls_handshake_okay and command.name != "QUIT":
            return b"554 5.7.0 Command refused due to lack of security"
        if self.require_starttls and self.session.ssl is None and command.name not in _BEFORE_TLS:
            return b"530 5.7.0 Must issue a STARTTLS command first"
        return None

    def _size_limit(self, verb: str) -> int:
        limit: int = self.command_size_limit
        if self.session.extended_smtp:
            limit = self.command_size_limits.get(verb, limit)
        return limit

    def _within_call_limit(self, word: bytes) -> bool:
        verb = word.upper().decode("ascii")
        left = self._call_limit.get(verb, int(self._call_limit_default))
        self._call_limit[verb] = left - 1
        return left >= 1

    def _unknown(self, line: bytes) -> None:
        if _HTTP.match(line):
            self._out.clear()
            return self._hang_up()
        self._say(b"500 5.5.2 Error: command not recognized")

    # Content

    def _receive(self) -> None:
        """After 354: from now on blocks go from the socket into a message, until the final dot."""
        if self._inbox.at_eof:
            return self._hang_up()
        self._flush()
        self._silent_s = 0.0
        self._data_began = self._phase_began = self.loop.time()
        self._data = DataReader(Message(self._spool), self.data_size_limit)
        if self._inbox.buffer:
            self._take_content(self._inbox.take_all())
        if self._reading_paused:
            self._resume_reading()
        return None

    def _take_content(self, data: bytes) -> None:
        reader = self._data
        assert reader is not None
        rest = reader.feed(data)
        if rest is None or self.transport is None:  # we have hung up: nobody would hear of it
            return
        self._data, self._whole = None, reader
        self._busy = True
        self._start(self._take_mail)
        if rest:
            self._inbox.feed(rest)
            self._bound_inbox()

    async def _take_mail(self) -> None:
        """What is done with a whole mail."""
        raise NotImplementedError
