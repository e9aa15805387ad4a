"""One connection from a mail server: events in, answers out, one mail after another.

The reading side is plain and synchronous: every event is checked against the table of the state
we are in and handled at once; the answers of one read go out in one write. Only a complete mail
starts a task, which asks the filter; whatever ends the mail first (ABORT, QUIT, a lost connection,
a timer) cancels that task, and the filter gives its slot back. Time is the server's business: its
tick has every connection look back at when it last heard something, so that a mail costs no timer.

What the mail server reads after a violation is a closed connection, and its default action then
is its own (docs/milter.md says how to set it); no half-understood mail is ever let through.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, assert_never, cast

from bridge.errors import ProtocolError, ScanTimeout
from bridge.filter.outcome import Outcome
from bridge.filter.policy import reply_to_error, with_id
from bridge.intake.milter import codec, protocol
from bridge.intake.milter.mail import Facts, Mail
from bridge.intake.milter.protocol import State
from bridge.mail.action import Action
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction, new_id
from bridge.runtime.write_batch import FEW

if TYPE_CHECKING:
    from bridge.intake.milter.server import MilterServer

log = logging.getLogger(__name__)

GRACE_S = 5.0  # the filter keeps the deadline itself; this long after it we stop believing in it
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux
_HEADER, _IN_HEAD, _BUSY, _READY = protocol.HEADER, State.HEADERS, State.BUSY, State.READY
_CONTENT = (State.HEADERS, State.BODY)
_NEVER = float("inf")

_CONTINUE = codec.response(protocol.END_OF_BODY, protocol.CONTINUE)
_DISCARD = codec.response(protocol.END_OF_BODY, protocol.DISCARD)
_PROGRESS = codec.response(protocol.END_OF_BODY, protocol.PROGRESS)
_SKIP = codec.response(protocol.BODY, protocol.SKIP)

_TOO_LATE = reply_to_error(ScanTimeout())
_NO_HOLD = Reply(451, "4.3.0", "The mail cannot be held here, try again later")


class Connection(asyncio.Protocol):
    """The state of one connection; everything shared is in the server."""

    def __init__(self, server: MilterServer) -> None:
        self._server = server
        self._settings = server.settings
        self._decoder = codec.Decoder()
        self._out: list[bytes] = []
        self._fields: list[bytes] = []  # that came one after the other, and are taken together
        self._state = State.NEW
        self._steps = _STEPS[State.NEW]
        self._agreement = codec.Agreement(protocol.VERSIONS[0], 0, 0)
        self._answered = self._agreement.answered
        self._leading_space = False
        self._facts = Facts()
        self._mail: Mail | None = None  # the table lets no content in before MAIL
        self._task: asyncio.Task[None] | None = None
        self._handed_over = False  # the filter has the mail, and will close its message
        self._content_until = _NEVER
        self._session_id = ""
        self._quickack: Callable[[int, int, int], None] | None = None
        self._choked = False  # the peer does not read what we say
        self._heard_at = _NEVER
        self._overrun_at = _NEVER  # when we stop believing in the filter
        self._progress_at = _NEVER
        self.peer = "unix"

    # --- asyncio's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            self.peer = _address_of(transport.get_extra_info("peername"))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._quickack = sock.setsockopt if _QUICKACK is not None else None
        if self._server.admit(self):
            self._heard_at = monotonic()
        else:
            self._enter(State.CLOSED)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            fields = self._fields
            for command, payload in self._decoder.feed(data):
                if command == _HEADER and self._state is _IN_HEAD:  # half of the events of a mail
                    fields.append(payload)
                    continue
                if fields:
                    self._take_fields()
                step = self._steps.get(command)
                if step is None:
                    raise ProtocolError(f"command {command:#04x} {self._state.value}")
                state, handle = step
                if state is not self._state:
                    self._state = state
                    self._steps = _STEPS[state]
                handle(self, payload)
            if fields:
                self._take_fields()
        except ProtocolError as error:
            if isinstance(error, codec.FrameTooLong):
                self._server.on_limit("frame")
            self._server.warn("%s: closed: %s", self.peer, error)
            self.cut()
            return
        if self._server.draining and self.idle:
            self.close()
            return
        if self._out:
            self._flush()  # the answer carries the ACK
        elif self._state is not _BUSY:
            self._rearm_quickack()
        if self._state is not _BUSY and not self._decoder.stalled:
            self._heard_at = now = monotonic()
            if self._content_until is _NEVER and self._state in _CONTENT:
                self._content_until = now + self._settings.content_timeout_s

    def _rearm_quickack(self) -> None:
        """Postfix writes small pieces with Nagle on; a delayed ACK of ours would cost 40 ms a mail.

        The kernel forgets the option with every answer we send, so it is set again after each read
        that has none. (After one that has, setting it would only cost a packet.)
        """
        if self._quickack is not None:
            try:
                self._quickack(socket.IPPROTO_TCP, cast(int, _QUICKACK), 1)
            except OSError:  # the connection is gone; connection_lost follows
                self._quickack = None

    def _flush(self) -> None:
        """At the end of this turn, if it is little: a mail server that does not read must be noticed."""
        if len(self._out) > FEW:
            self._write()
        elif self._out:
            self._server.writes.add(self._write)

    def _write(self) -> None:
        out = self._out
        if out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    def pause_writing(self) -> None:
        """A peer that does not read its answers is not read from, and not waited for long."""
        self._choked = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._choked = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._heard_at = monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._out.clear()
        self._drop_mail()
        self._server.forget(self)

    # --- the server's side -----------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No mail is under way."""
        return self._state in (State.NEW, State.READY, State.CLOSED)

    def close(self) -> None:
        """Say what is left to say and close."""
        self._write()
        self._transport.close()

    def cut(self) -> None:
        """End now, whatever is under way."""
        self._enter(State.CLOSED)
        self._drop_mail()
        self._heard_at = _NEVER
        self._out.clear()
        self._transport.abort()

    def look_back(self, now: float) -> None:
        """Called by the server now and then: too long silent, or the filter too long at work?"""
        if self._state is not State.BUSY:
            limit = self._overdue(now)
            if limit is not None:
                self._server.on_limit(limit)
                self._server.warn("%s: closed: silent %s", self.peer, self._state.value)
                self.cut()
        elif now >= self._overrun_at:
            self._server.warn("%s: the filter overran its deadline", self.peer)
            self._drop_mail()
            self._finish([codec.reply_code(protocol.END_OF_BODY, _TOO_LATE)])
        elif now >= self._progress_at:  # the scan runs: the mail server's timer starts anew
            self._out.append(_PROGRESS)
            self._flush()
            self._progress_at = now + self._settings.progress_interval_s

    def _overdue(self, now: float) -> str | None:
        """The limit that the mail server has passed, if any."""
        silent_s = now - self._heard_at
        if self._state in _CONTENT:
            if now >= self._content_until:
                return "mail_timeout"
            return "data_timeout" if silent_s >= self._settings.read_timeout_s else None
        is_reading = self._state is State.NEW or self._decoder.partial or self._choked
        limit_s = self._settings.read_timeout_s if is_reading else self._settings.idle_timeout_s
        return "command_timeout" if silent_s >= limit_s else None

    # --- events ----------------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        self._state = state
        self._steps = _STEPS[state]

    def _answer(self, event: int, reply: Reply | None = None) -> None:
        if event in self._answered:
            self._out.append(_CONTINUE if reply is None else codec.reply_code(event, reply))

    def _drop_mail(self) -> None:
        """Forget the mail that was under way, and stop the task that works on it.

        Once the filter has it, it closes the message: closing it here could cut short what a
        thread of the filter is just writing.
        """
        self._content_until = _NEVER
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._mail is not None and not self._handed_over:
            self._mail.close()
        self._mail = None
        self._handed_over = False

    def _on_negotiate(self, data: bytes) -> None:
        self._agreement = codec.negotiate(data)
        self._answered = self._agreement.answered
        self._leading_space = bool(self._agreement.steps & protocol.LEADING_SPACE)
        self._out.append(codec.negotiation(self._agreement))

    def _on_macro(self, data: bytes) -> None:
        self._facts.macro(data)

    def _on_connect(self, data: bytes) -> None:
        self._drop_mail()
        self._facts.connect(data)
        self._session_id = new_id()
        self._answer(protocol.CONNECT)

    def _on_helo(self, data: bytes) -> None:
        self._drop_mail()
        self._facts.greet(data)
        self._answer(protocol.HELO)

    def _on_mail(self, data: bytes) -> None:
        if self._mail is not None:
            self._drop_mail()
        self._facts.begin_mail()
        server = self._server
        parsed = codec.address(data)
        address, params = ("", ()) if isinstance(parsed, Reply) else parsed
        mail = self._mail = server.kind_of_mail(
            address, params, server.spool, server.limits, leading_space=self._leading_space
        )
        if isinstance(parsed, Reply):
            mail.refuse(parsed)
        elif server.filter.envelope_lists is not None and (listed := self._refused_by_list(address)) is not None:
            mail.refuse(listed)
        elif mail.refusal is None and (closed := server.filter.closed_at_mail()):
            mail.refuse(closed)
            server.on_saturated("mail")
        self._answer(protocol.MAIL, mail.refusal)

    def _on_rcpt(self, data: bytes) -> None:
        mail = self._mail
        assert mail is not None
        if self._server.filter.envelope_lists is None:
            self._answer(protocol.RCPT, mail.recipient(data))
        else:
            self._answer(protocol.RCPT, mail.recipient(data, lambda to: self._refused_by_list(mail.sender, to)))

    def _refused_by_list(self, sender: str, recipient: str | None = None) -> Reply | None:
        self._session_id = self._session_id or new_id()
        session = self._facts.session(self._session_id, self._settings.listener, self.peer)
        return self._server.filter.refused_by_list(session, sender, recipient)

    def _on_header(self, data: bytes) -> None:
        self._fields.append(data)

    def _take_fields(self) -> None:
        mail, fields = self._mail, self._fields
        assert mail is not None
        mail.headers(fields)
        if protocol.HEADER in self._answered:
            self._out += [_CONTINUE] * len(fields)
        fields.clear()

    def _on_end_of_headers(self, data: bytes) -> None:
        assert self._mail is not None
        self._mail.end_of_headers()
        self._answer(protocol.END_OF_HEADERS)

    def _on_body_part(self, data: bytes) -> None:
        assert self._mail is not None
        self._mail.body(data)

    def _on_body(self, data: bytes) -> None:
        mail = self._mail
        assert mail is not None
        mail.body(data)
        if protocol.BODY in self._answered:
            skip = mail.refusal is not None and self._agreement.steps & protocol.CAN_SKIP
            self._out.append(_SKIP if skip else _CONTINUE)

    def _on_data(self, data: bytes) -> None:
        self._answer(protocol.DATA)

    def _on_unknown(self, data: bytes) -> None:
        self._answer(protocol.UNKNOWN)

    def _on_abort(self, data: bytes) -> None:
        self._drop_mail()

    def _on_quit(self, data: bytes) -> None:
        self._drop_mail()
        self.close()

    def _on_quit_nc(self, data: bytes) -> None:
        """The client is gone; the mail server keeps the connection for its next one."""
        self._drop_mail()
        self._facts = Facts()
        self._session_id = ""

    # --- a complete mail -------------------------------------------------------------------------

    def _on_end_of_body(self, data: bytes) -> None:
        mail = self._mail
        assert mail is not None
        mail.end(data)
        session = self._facts.session(self._session_id or new_id(), self._settings.listener, self.peer)
        now = monotonic()
        tx = Transaction(new_id(), session, mail.envelope, mail.message, now, now + self._server.filter.deadline_s)
        if mail.refusal is not None:
            self._refuse(tx, mail, mail.refusal)
            return
        self._progress_at = now + self._settings.progress_interval_s
        self._overrun_at = tx.deadline + GRACE_S
        self._task = self._server.loop.create_task(self._decide(tx, mail))

    def _refuse(self, tx: Transaction, mail: Mail, reply: Reply) -> None:
        outcome = self._server.filter.refuse(tx, reply, mail.size)
        self._finish([codec.reply_code(protocol.END_OF_BODY, outcome.reply)])

    async def _decide(self, tx: Transaction, mail: Mail) -> None:
        self._handed_over = True  # a task that is cancelled before its start never gets here
        try:
            outcome = await self._server.filter.process(tx)
            answer = self._render(outcome, tx, mail)
        except Exception as error:  # the filter promises none; a promise is no proof
            log.exception("%s the filter failed", tx.id)
            answer = [codec.reply_code(protocol.END_OF_BODY, with_id(reply_to_error(error), tx.id))]
        if self._mail is mail:  # else it was dropped, and the filter could not be stopped any more
            self._task = None
            self._finish(answer)

    def _finish(self, answer: list[bytes]) -> None:
        self._drop_mail()
        self._state = _READY
        self._steps = _STEPS[_READY]
        self._out += answer
        self._heard_at = monotonic()
        if self._server.draining:
            self.close()
        else:
            self._flush()

    def _render(self, outcome: Outcome, tx: Transaction, mail: Mail) -> list[bytes]:
        """The outcome in milter's words."""
        match outcome.action:
            case Action.RELAY:
                return [*self._edits(outcome, mail), _CONTINUE]
            case Action.REJECT | Action.TEMPFAIL:
                return [codec.reply_code(protocol.END_OF_BODY, outcome.reply)]
            case Action.DISCARD | Action.QUARANTINE:
                return [_DISCARD]
            case Action.HOLD if self._agreement.actions & protocol.CAN_QUARANTINE:
                return [*self._edits(outcome, mail), codec.quarantine(f"held for review ({tx.id})"), _CONTINUE]
            case Action.HOLD:
                self._server.warn("%s: the mail server cannot hold mail; %s is put off", self.peer, tx.id)
                return [codec.reply_code(protocol.END_OF_BODY, with_id(_NO_HOLD, tx.id))]
            case unknown:
                assert_never(unknown)

    def _edits(self, outcome: Outcome, mail: Mail) -> list[bytes]:
        """Strip what only we may write, last one first (the others keep their number), then stamp."""
        agreement = self._agreement
        edits = []
        if mail.forged and agreement.actions & protocol.CAN_CHANGE_HEADERS:
            for forged, count in mail.forged.items():
                edits += [codec.delete_header(forged, index) for index in range(count, 0, -1)]
        if agreement.actions & protocol.CAN_ADD_HEADERS:
            for name, value in outcome.stamp:
                edits.append(codec.add_header(name, value, agreement))
        return edits


def _address_of(peername: tuple[str, int] | None) -> str:
    return str(peername[0]) if peername else "unknown"  # gone before it was accepted


_Handler = Callable[[Connection, bytes], None]
_HANDLERS: dict[int, _Handler] = {
    protocol.NEGOTIATE: Connection._on_negotiate,
    protocol.MACRO: Connection._on_macro,
    protocol.CONNECT: Connection._on_connect,
    protocol.HELO: Connection._on_helo,
    protocol.MAIL: Connection._on_mail,
    protocol.RCPT: Connection._on_rcpt,
    protocol.DATA: Connection._on_data,
    protocol.UNKNOWN: Connection._on_unknown,
    protocol.HEADER: Connection._on_header,
    protocol.END_OF_HEADERS: Connection._on_end_of_headers,
    protocol.BODY_PART: Connection._on_body_part,
    protocol.BODY: Connection._on_body,
    protocol.END_OF_BODY: Connection._on_end_of_body,
    protocol.ABORT: Connection._on_abort,
    protocol.QUIT: Connection._on_quit,
    protocol.QUIT_NC: Connection._on_quit_nc,
}

# What an event leads to, in each state: the table of the protocol with the handlers in it.
_STEPS: dict[State, dict[int, tuple[State, _Handler]]] = {
    state: {command: (following, _HANDLERS[command]) for command, following in row.items()}
    for state, row in protocol.TRANSITIONS.items()
}
