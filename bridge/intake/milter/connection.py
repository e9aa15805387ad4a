"""One connection from a mail server: events in, answers out, one mail after another.

The reading side is synchronous: every event is checked against the table of the current state and
handled immediately; the answers to one read go out in one write. Only a complete mail starts a
task, which asks the filter. Whatever ends the mail first (ABORT, QUIT, a lost connection, a
deadline) cancels that task, and the filter frees its slot. A timer that all connections share
checks the deadlines, so a mail sets no timer.

After a protocol violation we close the connection, and the mail server applies its own default
action (docs/operate/milter.md says how to set it); no half-understood mail is ever let through.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import cast

from bridge.errors import ProtocolError, ScanTimeout
from bridge.filter import rule_names
from bridge.filter.policy import UNCERTAIN_DOMAIN, reply_to_error, with_id
from bridge.intake.milter import answer, codec, protocol
from bridge.intake.milter.client_info import ClientInfo
from bridge.intake.milter.context import MilterContext
from bridge.intake.milter.mail import TOO_MANY_RECIPIENTS, Mail, declared_size
from bridge.intake.milter.protocol import State
from bridge.intake.refused_client import RefusedClient, too_many
from bridge.intake.trusted_clients import UNKNOWN, peer_address
from bridge.intake.wait_for_disk import wait_for_disk
from bridge.mail.address import LoggedAddress
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.mail.transaction import Transaction, new_id
from bridge.runtime.write_batch import FEW

log = logging.getLogger(__name__)

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux
_NEVER = float("inf")
_TOO_LATE = reply_to_error(ScanTimeout())

# Python 3.11: enum member lookup is slow (0.1 µs, some 20 per mail); revisit with 3.12.
_READY, _HEADERS, _BODY, _BUSY = State.READY, State.HEADERS, State.BODY, State.BUSY
_CONTENT = (_HEADERS, _BODY)


class MilterConnection(asyncio.Protocol):
    """The state of one connection; whatever connections share is in the context."""

    def __init__(self, context: MilterContext) -> None:
        self.peer = "unix"
        self._context = context
        self._settings = context.settings
        self._quickack: Callable[[int, int, int], None] | None = None
        # The protocol
        self._decoder = codec.Decoder()
        self._state = State.NEW
        self._events = _DISPATCH[State.NEW]  # the row of the current state
        self._agreement = codec.Agreement(protocol.VERSIONS[0], 0, 0)
        self._answered = self._agreement.answered
        self._out: list[bytes] = []
        # The client and its mail
        self._client = ClientInfo()
        self._session_id = ""
        self._mail: Mail | None = None  # never None after MAIL: the table allows no content before it
        self._fields: list[bytes] = []  # header fields of one read, added to the mail together
        self._task: asyncio.Task[None] | None = None
        self._is_in_data = False  # the client has sent DATA
        self._is_handed_over = False  # the filter has the mail, and will close its message
        # Deadlines
        self._heard_at = _NEVER
        self._content_until = _NEVER
        self._progress_at = _NEVER
        self._overrun_at = _NEVER  # when we answer without the filter
        self._is_choked = False  # the peer does not read our answers

    # --- called by asyncio -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        address = None
        if sock.family != socket.AF_UNIX:
            address = self.peer = peer_address(transport.get_extra_info("peername")) or UNKNOWN
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._quickack = sock.setsockopt if _QUICKACK is not None else None
        if self._context.admit(self, address):
            self._heard_at = monotonic()
        else:
            self._enter(State.CLOSED)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._handle_events(data)
        except ProtocolError as error:
            if isinstance(error, codec.FrameTooLong):
                self._context.reports.limit("frame")
            self._context.warn("%s closed: %s", self.peer, error)
            self.cut()
            return
        if self._context.listener.draining and self.is_idle:
            self.close()
        elif self._out:
            self._flush()  # the answer carries the ACK
        elif self._state is not _BUSY:
            self._request_quick_ack()
        if self._state is not _BUSY and not self._decoder.stalled:
            self._heard_at = now = monotonic()
            if self._content_until is _NEVER and self._state in _CONTENT:
                self._content_until = now + self._settings.content_timeout_s

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read our answers; the read timeout runs."""
        self._is_choked = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_choked = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._heard_at = monotonic()

    def end_stop(self) -> bool:
        self._heard_at = monotonic()
        return not self._is_choked

    def connection_lost(self, exc: Exception | None) -> None:
        self._out.clear()
        try:
            self._drop_mail()
        finally:
            self._context.forget(self)

    def _request_quick_ack(self) -> None:
        """Postfix writes small pieces with Nagle's algorithm enabled; a delayed ACK would cost 40 ms per mail.

        The kernel clears the option with every answer we send, so it is set again after each read
        that has no answer. (After a read that has one, setting it would only cost a packet.)
        """
        if self._quickack is not None:
            try:
                self._quickack(socket.IPPROTO_TCP, cast(int, _QUICKACK), 1)
            except OSError:  # the connection is gone; connection_lost follows
                self._quickack = None

    def _flush(self) -> None:
        """Write at the end of this turn of the event loop, or now if there is much to write.

        Only a write shows that the mail server does not read its answers.
        """
        if len(self._out) > FEW:
            self._write()
        elif self._out:
            self._context.writes.add(self._write)

    def _write(self) -> None:
        out = self._out
        if out:
            self._transport.write(b"".join(out))
            out.clear()

    # --- called by the listener and its timer ----------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no mail is under way."""
        return self._state in (State.NEW, State.READY, State.CLOSED)

    def finish(self) -> None:
        """Close the connection, now or after the mail that is under way: the listener is draining."""
        if self.is_idle:
            self.close()

    def close(self) -> None:
        """Close after the pending answers are written."""
        self._write()
        self._transport.close()

    def cut(self) -> None:
        """Close now, whatever is under way."""
        self._enter(State.CLOSED)
        self._heard_at = _NEVER
        self._out.clear()
        self._transport.abort()
        self._drop_mail()

    def check_deadlines(self) -> None:
        """Close a silent connection; report progress on a running scan, or answer without the filter."""
        now = monotonic()
        if self._state is not _BUSY:
            limit = self._exceeded_limit(now)
            if limit is not None:
                self._context.reports.limit(limit)
                self._context.warn("%s closed: the mail server was silent %s", self.peer, self._state.value)
                self.cut()
        elif now >= self._overrun_at:
            self._context.warn("%s: the filter overran its deadline", self.peer)
            self._drop_mail()
            self._finish_mail([codec.encode_reply(protocol.END_OF_BODY, _TOO_LATE)])
        elif now >= self._progress_at:  # the mail server restarts its timer
            self._out.append(answer.PROGRESS)
            self._flush()
            self._progress_at = now + self._settings.progress_interval_s

    def _exceeded_limit(self, now: float) -> str | None:
        """The time limit that the mail server has exceeded, by its metric label."""
        silent_s = now - self._heard_at
        if self._state in _CONTENT:
            if now >= self._content_until:
                return "mail_timeout"
            is_stopped = not self._transport.is_reading() and not self._is_choked  # because of the disk
            return "data_timeout" if silent_s >= self._settings.read_timeout_s and not is_stopped else None
        is_reading = self._state is State.NEW or self._decoder.partial or self._is_choked
        limit_s = self._settings.read_timeout_s if is_reading else self._settings.idle_timeout_s
        return "command_timeout" if silent_s >= limit_s else None

    # --- events ----------------------------------------------------------------------------------

    def _handle_events(self, data: bytes) -> None:
        fields, header = self._fields, protocol.HEADER
        for command, payload in self._decoder.feed(data):
            # Half of a mail's events are header fields; all but the first skip the table.
            if command == header and self._state is _HEADERS:
                fields.append(payload)
                continue
            if fields:
                self._add_fields()
            event = self._events.get(command)
            if event is None:
                raise ProtocolError(f"command {command:#04x} is not allowed {self._state.value}")
            state, handle = event
            if state is not self._state:
                self._state, self._events = state, _DISPATCH[state]
            handle(self, payload)
        if fields:
            self._add_fields()

    def _enter(self, state: State) -> None:
        self._state = state
        self._events = _DISPATCH[state]

    def _answer(self, event: int, reply: Reply | None = None) -> None:
        if event in self._answered:
            self._out.append(answer.CONTINUE if reply is None else codec.encode_reply(event, reply))

    def _on_negotiate(self, data: bytes) -> None:
        self._agreement = codec.negotiate(data)
        self._answered = self._agreement.answered
        self._out.append(codec.encode_negotiation(self._agreement))

    def _on_macro(self, data: bytes) -> None:
        self._client.add_macros(data)

    def _on_connect(self, data: bytes) -> None:
        self._drop_mail()
        self._client.connect(data)
        self._session_id = new_id()
        self._answer(protocol.CONNECT)

    def _on_helo(self, data: bytes) -> None:
        self._drop_mail()
        self._client.greet(data)
        self._answer(protocol.HELO)

    def _on_mail(self, data: bytes) -> None:
        if not self._context.listener.still_trusts(self):
            raise ProtocolError("no longer in trusted_clients")
        if self._mail is not None:
            self._drop_mail()
        self._client.begin_mail()
        context = self._context
        parsed = codec.parse_address(data)
        sender, params = ("", ()) if isinstance(parsed, Reply) else parsed
        mail = self._mail = context.mail_class(
            sender, params, context.spool, context.limits, leading_space=self._agreement.leading_space
        )
        if isinstance(parsed, Reply):
            mail.refuse(parsed)
        elif mail.refusal is not None:  # the announced size is too large
            size = declared_size(params)
            mail.refuse(context.filter.early.refuse_mail(self._describe(), sender, mail.refusal, size))
        elif closed := context.filter.early.closed_at_mail():
            mail.refuse(closed)
            rule = context.filter.early.saturation_rule
            context.reports.saturated(
                RefusedClient("mail", self._describe().client.address, sender, "saturated", rule, closed)
            )
        elif refusal := context.filter.early.refused_by_rate(self._client.origin.address):
            mail.refuse(refusal)
            context.reports.too_many(too_many("mail", self._client.origin.address, sender, refusal))
        self._answer(protocol.MAIL, mail.refusal)

    def _on_rcpt(self, data: bytes) -> None:
        mail, early = self._mail, self._context.filter.early
        assert mail is not None
        if early.envelope_lists is None:
            refusal = mail.add_recipient(data)
        else:
            known = self._settings.groups.known
            refused = partial(early.refused_by_list, self._describe(), mail.sender, known=known)
            refusal = mail.add_recipient(data, refused)
        if refusal is TOO_MANY_RECIPIENTS or refusal is UNCERTAIN_DOMAIN:
            refusal = self._report_recipient(mail, data, refusal)
        self._answer(protocol.RCPT, refusal)

    def _report_recipient(self, mail: Mail, data: bytes, refusal: Reply) -> Reply:
        """Name the refused recipient in the log; if it is one too many, in a line that is throttled."""
        parsed = codec.parse_address(data)
        address = "" if isinstance(parsed, Reply) else parsed[0]
        if refusal is UNCERTAIN_DOMAIN:
            return self._context.filter.early.refuse_recipient(self._describe(), mail.sender, address, refusal)
        session = self._describe().id
        log.info("session %s: recipient <%s> refused: max_recipients", session, LoggedAddress(address))
        return refusal

    def _describe(self) -> Session:
        """The client of the current mail, before its content is complete."""
        self._session_id = self._session_id or new_id()
        return self._client.session(self._session_id, self._settings.name, self.peer)

    def _on_data(self, data: bytes) -> None:
        self._is_in_data = True
        self._answer(protocol.DATA)

    def _on_unknown(self, data: bytes) -> None:
        self._answer(protocol.UNKNOWN)

    def _on_header(self, data: bytes) -> None:
        self._fields.append(data)

    def _add_fields(self) -> None:
        mail, fields = self._mail, self._fields
        assert mail is not None
        mail.add_fields(fields)
        if protocol.HEADER in self._answered:
            self._out += [answer.CONTINUE] * len(fields)
        fields.clear()

    def _on_end_of_headers(self, data: bytes) -> None:
        assert self._mail is not None
        self._mail.end_headers()
        self._answer(protocol.END_OF_HEADERS)

    def _on_body_part(self, data: bytes) -> None:
        assert self._mail is not None
        self._mail.add_body(data)
        wait_for_disk(self._mail.message, self._transport, self)

    def _on_body(self, data: bytes) -> None:
        mail = self._mail
        assert mail is not None
        mail.add_body(data)
        wait_for_disk(mail.message, self._transport, self)
        if protocol.BODY in self._answered:
            skip = mail.refusal is not None and self._agreement.steps & protocol.CAN_SKIP
            self._out.append(answer.SKIP if skip else answer.CONTINUE)

    def _on_abort(self, data: bytes) -> None:
        self._drop_mail()
        self._client.abandon_mail()

    def _on_quit(self, data: bytes) -> None:
        self._drop_mail()
        self.close()

    def _on_quit_nc(self, data: bytes) -> None:
        """The SMTP client is gone; the mail server keeps this connection for its next client."""
        self._drop_mail()
        self._client = ClientInfo()
        self._session_id = ""

    # --- a complete mail -------------------------------------------------------------------------

    def _on_end_of_body(self, data: bytes) -> None:
        mail = self._mail
        assert mail is not None
        mail.end(data)
        session = self._client.session(self._session_id or new_id(), self._settings.name, self.peer)
        now, filter_ = monotonic(), self._context.filter
        can_hold = self._agreement.can_quarantine
        can_remove = self._agreement.can_remove and mail.is_as_written
        until = now + filter_.deadline_s
        tx = Transaction(new_id(), session, mail.envelope, mail.message, now, until, False, can_hold, can_remove)
        if mail.refusal is not None:
            outcome = filter_.early.refuse_transfer(tx, mail.refusal, mail.size)
            self._finish_mail([codec.encode_reply(protocol.END_OF_BODY, outcome.reply)])
            return
        self._progress_at = now + self._settings.progress_interval_s
        self._overrun_at = tx.deadline + self._settings.overrun_s
        self._task = self._context.loop.create_task(self._process(tx, mail))

    async def _process(self, tx: Transaction, mail: Mail) -> None:
        self._is_handed_over = True  # not reached by a task that is cancelled before it starts
        try:
            outcome = await self._context.filter.process(tx)
            frames = answer.frames_for(outcome, tx.id, mail.forged, self._agreement)
        except Exception as error:  # the filter should raise nothing; if it does, the mail must not pass
            log.exception("%s: the filter failed", tx.id)
            frames = [codec.encode_reply(protocol.END_OF_BODY, with_id(reply_to_error(error), tx.id))]
        if self._mail is mail:  # else it was dropped when the filter could no longer be stopped
            self._task = None
            self._finish_mail(frames)

    def _finish_mail(self, frames: list[bytes]) -> None:
        self._drop_mail()
        self._enter(_READY)
        self._out += frames
        self._heard_at = monotonic()
        if self._context.listener.draining:
            self.close()
        else:
            self._flush()

    def _drop_mail(self) -> None:
        """Forget the mail that is under way, and cancel the task that works on it.

        Once the filter has the mail, it closes the message: closing it here could interrupt a
        thread of the filter that is writing it. It also reports the mail.
        """
        mail = None if self._is_handed_over else self._mail
        has_content = self._is_in_data or self._content_until is not _NEVER
        self._content_until = _NEVER
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._mail = None
        self._is_in_data = False
        self._is_handed_over = False
        if mail is not None:
            is_cut_short = has_content and mail.refusal is None
            mail.close()
            if is_cut_short:
                address = self._describe().client.address
                is_stopped, rule = self._context.filter.is_stopping, rule_names.CLIENT_GONE
                self._context.reports.cancelled(
                    RefusedClient("data", address, mail.sender, "", rule, is_stopped=is_stopped)
                )


_Handler = Callable[[MilterConnection, bytes], None]
_HANDLERS: dict[int, _Handler] = {
    protocol.NEGOTIATE: MilterConnection._on_negotiate,
    protocol.MACRO: MilterConnection._on_macro,
    protocol.CONNECT: MilterConnection._on_connect,
    protocol.HELO: MilterConnection._on_helo,
    protocol.MAIL: MilterConnection._on_mail,
    protocol.RCPT: MilterConnection._on_rcpt,
    protocol.DATA: MilterConnection._on_data,
    protocol.UNKNOWN: MilterConnection._on_unknown,
    protocol.HEADER: MilterConnection._on_header,
    protocol.END_OF_HEADERS: MilterConnection._on_end_of_headers,
    protocol.BODY_PART: MilterConnection._on_body_part,
    protocol.BODY: MilterConnection._on_body,
    protocol.END_OF_BODY: MilterConnection._on_end_of_body,
    protocol.ABORT: MilterConnection._on_abort,
    protocol.QUIT: MilterConnection._on_quit,
    protocol.QUIT_NC: MilterConnection._on_quit_nc,
}

# For each state, the events it allows: the protocol's table of transitions, with the handlers added.
_DISPATCH: dict[State, dict[int, tuple[State, _Handler]]] = {
    state: {command: (following, _HANDLERS[command]) for command, following in row.items()}
    for state, row in protocol.TRANSITIONS.items()
}
