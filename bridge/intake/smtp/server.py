"""One SMTP or LMTP listener: the hooks through which its connections reach the filter.

The hooks are all that the connections know of the rest of the bridge: a trusted client's mail is admitted, becomes a
transaction, goes through the filter, and the outcome's reply is the answer to the final dot. Trust, connection caps
and draining are `listener`'s. If this is wrong, an untrusted client's mail is accepted, or two tenants' mail is mixed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, assert_never

from aiosmtpd.smtp import MISSING

from bridge.filter import rule_names
from bridge.filter.outcome import Outcome
from bridge.filter.pipeline import Filter
from bridge.filter.policy import CONTINUES, LONG_HEAD, TWO_CLIENTS, UNCERTAIN_DOMAIN
from bridge.intake.connection_limits import ListenerSettings, Refusal
from bridge.intake.listener import Listener
from bridge.intake.one_tenant import RecipientGroups
from bridge.intake.refused_client import RefusedClient, rule_of, too_many
from bridge.intake.reports import NO_REPORTS, IntakeReports
from bridge.intake.smtp.client_header import BadClient, ClientHeader, FoldedClient, HiddenClient, TwoClients
from bridge.intake.smtp.connection import SmtpConnection
from bridge.intake.smtp.context import SmtpContext
from bridge.intake.smtp.envelope import SmtpEnvelope
from bridge.intake.smtp.parameters import TOO_LARGE
from bridge.intake.smtp.proxy_header import is_stream, named_client
from bridge.intake.smtp.session import SmtpSession
from bridge.intake.smtp.session_settings import SessionLimits
from bridge.intake.trusted_clients import Network, peer_address
from bridge.mail.address import LoggedAddress
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.mail.session import UNKNOWN_CLIENT, Client, Session
from bridge.mail.transaction import Transaction, new_id

log = logging.getLogger(__name__)

_PROXY_TIMEOUT_S = 5.0
_MAX_CLIENTS = 10_000
_FULL = Reply(421, "4.3.2", "Too many connections, try again later")
_CLIENT_FULL = Reply(421, "4.7.0", "Too many connections from your address")
_NOT_ALLOWED = Reply(550, "5.7.1", "Access denied: this server accepts mail only from trusted clients")
GOODBYE = Reply(421, "4.3.2", "Service shutting down")


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """The settings of one listener."""

    name: str
    hostname: str
    protocol: Literal["smtp", "lmtp"] = "smtp"
    trusted: tuple[Network, ...] = ()
    tls: ssl.SSLContext | None = None
    tls_required: bool = False
    proxy_protocol: bool = False
    client_header: ClientHeader | None = None  # the field in which the mail server names its client
    client_is_sender: bool = False  # a peer that names no client sends its own mail
    max_message_size: int = 50 * 1024 * 1024
    max_connections: int = 2000
    max_connections_per_client: int = 500
    session: SessionLimits = field(default_factory=SessionLimits)
    hidden: frozenset[str] = frozenset()  # ESMTP extensions that are neither announced nor accepted
    groups: RecipientGroups = field(default_factory=RecipientGroups)

    @property
    def listener(self) -> ListenerSettings:
        return ListenerSettings(self.name, self.trusted, self.max_connections, self.max_connections_per_client)


class SmtpServer:
    """Accepts on sockets it is given, until it is drained."""

    def __init__(
        self,
        settings: SmtpSettings,
        filter_: Filter,
        spool: Spool,
        *,
        reports: IntakeReports = NO_REPORTS,
        is_ahead: Callable[[], bool] | None = None,  # this worker has more connections than the others
    ) -> None:
        self.settings = settings
        self._filter = filter_
        self._loop = asyncio.get_running_loop()
        self._reports = reports
        self.handle_LIMIT = reports.limit  # a hook: called with the name of the limit that a client exceeded
        self.listener = Listener[SmtpConnection](settings.listener, is_ahead=is_ahead)
        self._spool = spool
        self._context = self._make_context()

    def _make_context(self) -> SmtpContext:
        settings = self.settings
        is_lmtp = settings.protocol == "lmtp"
        return SmtpContext(
            self,
            limits=settings.session,
            spool=self._spool,
            is_lmtp=is_lmtp,
            hidden=settings.hidden,
            data_size_limit=settings.max_message_size,
            enable_SMTPUTF8=True,
            hostname=settings.hostname,
            ident="LMTP scanbridge" if is_lmtp else "ESMTP scanbridge",
            tls_context=settings.tls,
            require_starttls=settings.tls_required,
            proxy_protocol_timeout=_proxy_timeout(settings) if settings.proxy_protocol else None,
            loop=self._loop,
        )

    def adopt(self, settings: SmtpSettings, filter_: Filter) -> None:
        """For a reload: use these for new connections, and for the next mail of open ones.

        A mail that is already in a filter stays with that filter.
        """
        self.settings = settings
        self._filter = filter_
        self.listener.adopt(settings.listener)
        self._context = self._make_context()

    @property
    def connections(self) -> int:
        return len(self.listener.open)

    async def serve(self, sock: socket.socket) -> None:
        """Start accepting on a listening TCP or unix socket."""
        await self.listener.serve(sock, self._make_connection)

    def _make_connection(self) -> SmtpConnection:
        return SmtpConnection(self._context)

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, close idle sessions, let running mail finish within the time."""
        await self.listener.drain(timeout_s, _finish, self._cut)

    def _cut(self, session: SmtpConnection) -> None:
        self._filter.is_stopping = True
        session.goodbye(GOODBYE)

    # Hooks: called with the connection, its session and its envelope, as in aiosmtpd

    def handle_OPEN(self, server: SmtpConnection) -> bool:
        """Whether to wait for a PROXY header at all."""
        peer = peer_address(server.session.peer)
        refusal = self.listener.expect(server, peer)
        if refusal is not None:
            self._refused(peer, refusal)
        return refusal is None

    def handle_CONNECT(self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope) -> Any:
        peer = session.peer_address = peer_address(session.peer)
        if session.proxy_data is None:
            session.client = _client(peer)
        session.trusted = session.client.address in self.listener.trusted
        refusal = self.listener.admit(server, session.client.address)
        if refusal is not None:
            reply = _reply_to_refused(refusal)
            self._refused(session.client.address, refusal, reply=reply)
            return reply
        return GOODBYE if self.listener.draining else MISSING

    def _refused(
        self, address: str | None, reason: Refusal, sender: str | None = None, reply: Reply | None = None
    ) -> None:
        stage = "connect" if sender is None else "mail"
        self._reports.refused(RefusedClient(stage, address, sender or "", reason.value, rule_of(reason), reply))
        text, mail = ("", ()) if sender is None else (", mail from <%s>", (LoggedAddress(sender),))
        log.info("listener %s: %s refused: %s" + text, self.settings.name, address or "unix", reason.value, *mail)

    def handle_CLOSE(self, server: SmtpConnection) -> None:
        """The connection is closed."""
        self.listener.forget(server)

    async def handle_PROXY(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, proxy: Any
    ) -> bool:
        """Accept the header only from a trusted peer, which is the client if the header names none (a health check)."""
        peer = peer_address(session.peer)
        if not is_stream(proxy) or peer not in self.listener.trusted:
            self._refused(peer, Refusal.UNTRUSTED)
            return False
        address = named_client(proxy)
        session.client = Client(address=address or peer, port=proxy.src_port or None)
        return True

    def handle_MAIL(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, address: str, options: list[str]
    ) -> Any:
        if not (session.trusted and self._still_trusts(server)):
            session.trusted = False
            self._refused(session.client.address, Refusal.UNTRUSTED, address, _NOT_ALLOWED)
            session.strike()
            return _NOT_ALLOWED
        early = self._filter.early
        refusal = early.closed_at_mail()
        if refusal is not None:
            return self._saturated("mail", session, address, refusal)
        client = _sending_host(session)
        if (refusal := early.refused_by_rate(client)) is not None:
            self._reports.too_many(too_many("mail", client, address, refusal))
            return refusal
        return MISSING

    def _still_trusts(self, server: SmtpConnection) -> bool:
        """The client, and the peer: if that is a proxy, it has named the client."""
        return server.session.peer_address in self.listener.trusted and self.listener.still_trusts(server)

    def handle_RCPT(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, address: str, options: list[str]
    ) -> Any:
        """A mail belongs to one tenant and goes to one next hop, unless each recipient gets a reply."""
        early, groups = self._filter.early, self.settings.groups
        if early.may_be_another(address, groups.known):
            return early.refuse_recipient(self._describe(session), envelope.mail_from or "", address, UNCERTAIN_DOMAIN)
        if envelope.rcpt_tos and not session.is_per_recipient:
            refusal = groups.refusal(envelope.rcpt_tos[0], address)
            if refusal is not None:
                return refusal
        if early.envelope_lists is not None:
            refusal = early.refused_by_list(self._describe(session), envelope.mail_from or "", address, groups.known)
            if refusal is not None:
                session.excuse(1)  # DATA
                return refusal
        return MISSING

    def handle_OVERSIZE(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, address: str, size: int
    ) -> Any:
        """The client announced a mail above the limit: no mail follows, so this is its only log line."""
        if not session.trusted:
            return MISSING
        return self._filter.early.refuse_mail(self._describe(session), address, TOO_LARGE, size)

    def handle_PREDATA(self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope) -> Any:
        refusal = self._filter.early.closed_before_content()
        return MISSING if refusal is None else self._saturated("data", session, envelope.mail_from or "", refusal)

    def _saturated(self, stage: str, session: SmtpSession, sender: str, refusal: Reply) -> Reply:
        rule = self._filter.early.saturation_rule
        self._reports.saturated(RefusedClient(stage, _sending_host(session), sender, "saturated", rule, refusal))
        return refusal

    def handle_CANCEL(self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope) -> None:
        """The client went away, or was cut off, before the end of the content."""
        client, sender = _sending_host(session), envelope.mail_from or ""
        is_stopped = self._filter.is_stopping
        self._reports.cancelled(
            RefusedClient("data", client, sender, "", rule_names.CLIENT_GONE, is_stopped=is_stopped)
        )

    def handle_DATA(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope
    ) -> Coroutine[Any, Any, Outcome]:
        transaction = self._transaction(session, envelope)
        header = self.settings.client_header
        if header is None:
            return self._filter.process(transaction)
        if transaction.message.is_in_file:
            return self._process_file(header, transaction)
        return self._process_with_client(header, transaction)

    async def _process_file(self, header: ClientHeader, transaction: Transaction) -> Outcome:
        """Nothing may read a mail before it is written; the filter defers one that could not be."""
        if await transaction.message.is_kept():
            return await self._process_with_client(header, transaction)
        return await self._filter.process(transaction)

    def _process_with_client(self, header: ClientHeader, transaction: Transaction) -> Coroutine[Any, Any, Outcome]:
        try:
            transaction = self._read_client(header, transaction)
        except FoldedClient:
            return self._filter.refuse_content(transaction, CONTINUES)
        except HiddenClient:
            return self._filter.refuse_content(transaction, LONG_HEAD)
        except TwoClients:
            return self._filter.refuse_content(transaction, TWO_CLIENTS)
        return self._filter.process(transaction)

    async def handle_REFUSED(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, reply: Reply, size: int
    ) -> Reply:
        """Content that cannot be accepted is not scanned, but logged and counted like any mail."""
        return self._filter.early.refuse_transfer(self._transaction(session, envelope), reply, size).reply

    def _transaction(self, session: SmtpSession, envelope: SmtpEnvelope) -> Transaction:
        assert envelope.message is not None and envelope.mail_from is not None
        now = self._loop.time()
        return Transaction(
            id=new_id(),
            session=self._describe(session),
            envelope=Envelope(
                envelope.mail_from,
                tuple(map(Recipient, envelope.rcpt_tos, envelope.rcpt_params)),
                tuple(envelope.mail_options),
            ),
            message=envelope.message,
            received_at=now,
            deadline=now + self._filter.deadline_s,
            is_per_recipient=session.is_per_recipient,
        )

    def _read_client(self, header: ClientHeader, transaction: Transaction) -> Transaction:
        """Remove the field in any case. XFORWARD and XCLIENT take precedence: no sender can forge those.

        Raises FoldedClient, HiddenClient, TwoClients.
        """
        session, client, fault = transaction.session, None, "is missing"
        try:
            client = header.take_from(transaction.message)
        except BadClient:
            fault = "cannot be read"
        except TwoClients:
            if session.in_header:
                raise
        if not session.in_header:
            return transaction
        if client is None:
            log.warning("mail %s: header field %s %s; the client is unknown", transaction.id, header.name, fault)
            return transaction
        return replace(transaction, session=replace(session, client=client, is_told=True))

    def _describe(self, session: SmtpSession) -> Session:
        """Made once, and again only when the client has said something new about itself, or after a reload."""
        header = self.settings.client_header
        told = (session.forwarded, session.client, session.host_name, session.extended_smtp, self.settings)
        if session.described is not None and session.described[0] == told:
            return session.described[1]
        client = session.forwarded or session.client
        if client.helo is None and session.forwarded is None:
            # Field by field: `dataclasses.replace` (Python 3.11) costs as much as the rest of this function.
            client = Client(
                client.address,
                client.port,
                client.name,
                session.host_name,
                client.protocol,
                client.ident,
                client.login,
                client.source,
            )
        in_header = header is not None and session.forwarded is None and not session.introduced
        is_told = not in_header and (_is_told(session) or self.settings.client_is_sender)
        description = Session(
            session.id,
            self.settings.name,
            session.peer_address or "unix",
            client=UNKNOWN_CLIENT if in_header else client,
            tls=session.ssl["ssl_object"].version() if session.ssl else None,
            helo=session.host_name,
            esmtp=session.extended_smtp,
            is_told=is_told,
            in_header=in_header,
        )
        session.described = (told, description)
        return description


def _finish(session: SmtpConnection) -> None:
    """Close the connection now, or after the running mail."""
    if session.in_mail:
        session.goodbye_after_mail(GOODBYE)
    else:
        session.goodbye(GOODBYE)


def _sending_host(session: SmtpSession) -> str | None:
    return (session.forwarded or session.client).address


def _reply_to_refused(refusal: Refusal) -> Reply:
    match refusal:
        case Refusal.FULL:
            return _FULL
        case Refusal.CLIENT_FULL:
            return _CLIENT_FULL
        case Refusal.UNTRUSTED:
            return _NOT_ALLOWED
        case _:
            assert_never(refusal)


def _is_told(session: SmtpSession) -> bool:
    """Whether XFORWARD, XCLIENT or a PROXY header named the client."""
    if session.forwarded is not None or session.introduced:
        return True
    return session.proxy_data is not None and named_client(session.proxy_data) is not None


@lru_cache(_MAX_CLIENTS)
def _client(address: str | None) -> Client:
    return Client(address=address)


def _proxy_timeout(settings: SmtpSettings) -> float:
    """Always shorter than the command timeout, which is answered with 421."""
    return min(_PROXY_TIMEOUT_S, (settings.session.command_timeout_s or 300.0) / 2)
