"""What a client hears from us, and how long we wait for it.

The lower half of one SMTP connection: replies are collected and written when nothing more can be
answered, one clock for all connections looks back at each one's phase, and hanging up leaves nothing
behind. Knows neither commands nor mail. If this is wrong, clients hang, or a silent one stays for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiosmtpd.smtp import SMTP
from aiosmtpd.smtp import Session as StockSession

from bridge.intake.smtp.data import DataReader
from bridge.mail.reply import Reply
from bridge.mail.transaction import new_id
from bridge.runtime.write_batch import FEW, Writes

_RATE_WINDOW_S = 30.0
_LOOK_S, _LOOKS = 1.0, 10  # how often we look: at least so often, and so often within the shortest time
_LAST_WORDS_S = 5.0  # for a client to read what we said before we hang up


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may cost. Times in seconds."""

    command_timeout_s: float | None = None  # None: aiosmtpd's `timeout`
    data_timeout_s: float = 180.0
    min_data_rate: int = 256  # bytes per second over 30 s
    max_recipients: int = 1000
    max_errors: int = 20
    max_idle_commands: int = 100  # commands in a row that bring no mail nearer
    max_mails: int = 10_000  # on one connection
    mail_timeout_s: float = 7200.0  # from 354 to the final dot


class SmtpSession(StockSession):
    """aiosmtpd's session, with an id when somebody needs one."""

    __slots__ = ("_id", "extended_smtp", "host_name", "loop", "peer")

    # What aiosmtpd sets on each one, and few need.
    ssl: dict[str, Any] | None = None
    proxy_data: Any = None
    auth_data: Any = None
    authenticated: bool | None = None
    _login_data: Any = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.peer: Any = None
        self.host_name: str | None = None
        self.extended_smtp = False
        self._id = ""

    @property
    def id(self) -> str:
        if not self._id:
            self._id = new_id()
        return self._id


class Clock:
    """Looks at all connections now and then: a timer for each would cost as much as a quick no."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._loop = loop
        self._every_s = every_s
        self._open: set[Wire] = set()
        self._is_set = False

    def add(self, connection: Wire) -> None:
        self._open.add(connection)
        if not self._is_set:
            self._is_set = True
            self._loop.call_later(self._every_s, self._tick)

    def discard(self, connection: Wire) -> None:
        self._open.discard(connection)

    def _tick(self) -> None:
        self._is_set = bool(self._open)
        if self._is_set:
            self._loop.call_later(self._every_s, self._tick)
        for connection in tuple(self._open):
            connection._look_back()


class Wire(SMTP):
    """Each connection is a twin of a prototype, with the same settings; `_renew` gives it what is its own.

    That is in slots: there may be thousands of connections, and a dictionary for each has a KiB or more.
    """

    __slots__ = (
        *("_busy", "_data", "_data_began", "_errors", "_excused", "_farewell", "_mails", "_out", "_phase_began"),
        *("_reading_paused", "_silent_s", "_transport", "_writer", "envelope", "session", "transport"),
    )

    def __init__(self, handler: Any, limits: SessionLimits, **stock: Any) -> None:
        super().__init__(handler, **stock)
        self._limits = limits
        command_s = limits.command_timeout_s or float(self._timeout_duration)
        shortest_s = min(command_s, _RATE_WINDOW_S, limits.data_timeout_s, limits.mail_timeout_s)
        self._clock = Clock(self.loop, min(shortest_s / _LOOKS, _LOOK_S))
        self._writes = Writes(self.loop)

    def _renew(self) -> None:
        """What a connection begins with."""
        self._transport: Any = None
        self.transport: Any = None  # None once we have hung up
        self.session: Any = None
        self.envelope: Any = None
        self._out: list[bytes] = []
        self._reading_paused = False
        self._data: DataReader | None = None  # content on its way
        self._busy = False  # a mail in processing
        self._farewell: Reply | None = None  # said when the running mail is over
        self._phase_began = 0.0
        self._silent_s = 0.0
        self._data_began = 0.0
        self._errors = 0
        self._mails = 0
        self._excused = 0  # 503s that a pipelining client could not avoid

    def _create_session(self) -> SmtpSession:
        return SmtpSession(self.loop)

    # Time

    def _timeout(self) -> float:
        if self._data is not None:
            return min(_RATE_WINDOW_S, self._limits.data_timeout_s, self._limits.mail_timeout_s)
        return self._limits.command_timeout_s or float(self._timeout_duration)

    def _look_back(self) -> None:
        """Called by the clock: has this phase taken too long?"""
        if self.transport is None or self._busy:
            return None
        waited = self.loop.time() - self._phase_began
        if waited < self._timeout():
            return None
        limit = "command_timeout"
        if self._data is not None:
            limit = self._too_slow(self._data, waited)
            if not limit:
                return self._begin_phase()
        self._hit(limit)
        self._say(b"421 4.4.2 Error: timeout exceeded")
        return self._hang_up()

    def _too_slow(self, data: DataReader, waited: float) -> str:
        """The limit that the client has passed: too long in all, silent for too long, or speaking too slowly."""
        if self.loop.time() - self._data_began >= self._limits.mail_timeout_s:
            return "mail_timeout"
        received, data.received = data.received, 0
        if not received:
            self._silent_s += waited
            return "data_timeout" if self._silent_s >= self._limits.data_timeout_s else ""
        self._silent_s = 0.0
        return "min_data_rate" if received < self._limits.min_data_rate * waited else ""

    def _hit(self, limit: str) -> None:
        """Tell the handler, if it wants to know."""
        hook = self._handle_hooks.get("LIMIT")
        if hook is not None:
            hook(limit)

    def _begin_phase(self) -> None:
        self._phase_began = self.loop.time()

    # Replies: collected, and written when nothing more can be answered

    def _say(self, line: bytes) -> None:
        self._out.append(line + b"\r\n")
        if line[:2] == b"50":  # 500 to 504: the client's mistake
            self._errors += 1

    def _reply(self, reply: Reply) -> None:
        self._out.append(reply.to_bytes())
        if 500 <= reply.code <= 504:
            self._errors += 1

    def _answer(self, status: str | bytes | Reply) -> None:
        """With what a hook returned: a Reply, or text."""
        if isinstance(status, Reply):
            self._reply(status)
        else:
            self._say(status.encode("utf-8") if isinstance(status, str) else status)

    async def push(self, status: str | bytes | Reply) -> None:
        """aiosmtpd's way to answer."""
        self._answer(status)

    def _flush(self) -> None:
        """At the end of this turn, if it is little: a client that says much and reads nothing must be noticed."""
        if len(self._out) > FEW:
            self._write()
        elif self._out:
            self._writes.add(self._write)

    def _write(self) -> None:
        out = self._out
        if out:
            if self.transport is not None:
                self._transport.write(b"".join(out) if len(out) > 1 else out[0])
            out.clear()

    def _before_wait(self) -> None:
        self._flush()
        if self._reading_paused:
            self._resume_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if self.transport is not None:
            self._transport.resume_reading()

    def _hang_up(self) -> None:
        """No command is taken after this; a client that does not read our last words is cut."""
        if self.transport is None:
            return
        self._write()
        self._close()
        if self._transport.get_write_buffer_size():
            self._timeout_handle = self.loop.call_later(min(_LAST_WORDS_S, self._timeout()), self._transport.abort)
        self.transport = None

    def _close(self) -> None:
        self._transport.close()

    @property
    def in_mail(self) -> bool:
        """Whether content is on its way or in processing: not to be disturbed."""
        return self._busy or self._data is not None

    def goodbye(self, reply: Reply) -> None:
        """Say this last word and hang up."""
        if self.transport is not None:
            self._reply(reply)
            self._hang_up()

    def goodbye_after_mail(self, reply: Reply) -> None:
        """Say this last word when the mail in processing has its answer."""
        self._farewell = reply

    def _out_of_order(self, line: bytes) -> None:
        """Refuse what needs an earlier command; no mistake if that was refused and this already on its way."""
        self._say(line)
        if self._excused:
            self._excused -= 1
            self._errors -= 1

    def excuse(self, count: int) -> None:
        """So many commands may be on their way and come out of order now: no mistakes of the client's."""
        self._excused = max(self._excused, count)

    def strike(self) -> None:
        """One more mistake of the client's; too many end the session."""
        self._errors += 1
