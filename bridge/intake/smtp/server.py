"""One SMTP or LMTP listener: who may connect, how many, and what their mail becomes.

The hooks here are all that `smtp` knows of the rest: a trusted client's mail is admitted, becomes a
transaction, goes through the filter, and the outcome's reply is the answer to the final dot.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, assert_never

from aiosmtpd.smtp import MISSING

from bridge.filter.outcome import Outcome
from bridge.filter.pipeline import Filter
from bridge.intake.listener import Listener, ListenerSettings, Network, Refusal, peer_address
from bridge.intake.smtp.client_header import BadClient, ClientHeader
from bridge.intake.smtp.envelope import SmtpEnvelope
from bridge.intake.smtp.session import BridgeLMTP, BridgeSMTP
from bridge.intake.smtp.wire import SessionLimits
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction, new_id

log = logging.getLogger(__name__)

_PROXY_TIMEOUT_S = 5.0
_MAX_CLIENTS = 10_000
_NOBODY = Client()
_FULL = Reply(421, "4.3.2", "Too many connections, try again later")
_CLIENT_FULL = Reply(421, "4.7.0", "Too many connections from your address")
_NOT_ALLOWED = Reply(550, "5.7.1", "Access denied: this server takes mail from its mail servers only")
_TWO_TENANTS = Reply(452, "4.5.3", "Recipients of another tenant: send them in another transaction")
_TWO_WAYS = Reply(452, "4.5.3", "Recipients that go another way: send them in another transaction")
GOODBYE = Reply(421, "4.3.2", "Service shutting down")


Kind = tuple[str | None, int]


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which recipients may share a mail that has one reply for all: those of one tenant and one next hop."""

    by_domain: Mapping[str, Kind] = field(default_factory=dict)  # (tenant, number of the next hop)
    default: Kind = (None, 0)

    def of(self, address: str) -> Kind:
        return self.by_domain.get(address.rpartition("@")[2].lower(), self.default)


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    """What one listener is told."""

    name: str
    hostname: str
    protocol: Literal["smtp", "lmtp"] = "smtp"
    trusted: tuple[Network, ...] = ()
    tls: ssl.SSLContext | None = None
    tls_required: bool = False
    proxy_protocol: bool = False
    client_header: ClientHeader | None = None  # where the mail server names its client
    max_message_size: int = 50 * 1024 * 1024
    max_connections: int = 2000
    max_connections_per_client: int = 500
    session: SessionLimits = field(default_factory=SessionLimits)
    hidden: frozenset[str] = frozenset()  # ESMTP extensions that the listener does without
    kinds: Kinds = field(default_factory=lambda: Kinds())

    @property
    def listener(self) -> ListenerSettings:
        return ListenerSettings(self.name, self.trusted, self.max_connections, self.max_connections_per_client)


def _ignore(*_: object) -> None:
    """For metrics nobody wants."""


class SmtpServer:
    """Accepts on sockets it is given, until it is drained."""

    def __init__(
        self,
        settings: SmtpSettings,
        filter_: Filter,
        spool: Spool,
        *,
        on_refused: Callable[[str], None] = _ignore,
        on_saturated: Callable[[str], None] = _ignore,
        on_limit: Callable[[str], None] = _ignore,
        is_ahead: Callable[[], bool] | None = None,  # of other workers, who shall have the next connections
    ) -> None:
        self.settings = settings
        self._filter = filter_
        self._loop = asyncio.get_running_loop()
        self._on_refused = on_refused
        self._on_saturated = on_saturated
        self.handle_LIMIT = on_limit  # a hook: which limit a client has passed
        self.listener = Listener[BridgeSMTP](settings.listener, is_ahead=is_ahead)
        self._spool = spool
        self._prototype = self._make_prototype()

    def _make_prototype(self) -> BridgeSMTP:
        settings = self.settings
        prototype = (BridgeLMTP if settings.protocol == "lmtp" else BridgeSMTP)(
            self,
            limits=settings.session,
            spool=self._spool,
            data_size_limit=settings.max_message_size,
            enable_SMTPUTF8=True,
            hostname=settings.hostname,
            ident="LMTP scanbridge" if settings.protocol == "lmtp" else "ESMTP scanbridge",
            tls_context=settings.tls,
            require_starttls=settings.tls_required,
            proxy_protocol_timeout=_proxy_timeout(settings) if settings.proxy_protocol else None,
            loop=self._loop,
        )
        prototype.hidden |= settings.hidden
        return prototype

    def adopt(self, settings: SmtpSettings, filter_: Filter) -> None:
        """For a reload: new connections, and the next mail of those that are open, go by these.

        Mail that the filter already has is finished by the one it was given to.
        """
        self.settings = settings
        self._filter = filter_
        self.listener.adopt(settings.listener)
        self._prototype = self._make_prototype()

    @property
    def connections(self) -> int:
        return len(self.listener.open)

    async def serve(self, sock: socket.socket) -> None:
        """Start accepting on a listening TCP or unix socket."""
        await self.listener.serve(sock, self._spawn)

    def _spawn(self) -> BridgeSMTP:
        return self._prototype.spawn()

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, close idle sessions, let running mail finish within the time."""
        await self.listener.drain(timeout_s, _finish, _cut)

    # Hooks: called by the session with itself, aiosmtpd's session and its envelope

    def handle_OPEN(self, server: BridgeSMTP) -> bool:
        """Whether to wait for a PROXY header at all (called without await)."""
        peer = peer_address(server.session.peer)
        refusal = self.listener.expect(server, peer)
        if refusal is not None:
            self._refused(peer, refusal)
        return refusal is None

    def handle_CONNECT(self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope) -> Any:
        peer = server.peer_address = peer_address(session.peer)
        if session.proxy_data is None:
            server.client = _client(peer)
        server.trusted = server.client.address in self.listener.trusted
        refusal = self.listener.admit(server, server.client.address)
        if refusal is not None:
            self._refused(server.client.address, refusal)
            return _reply_to_refused(refusal)
        return GOODBYE if self.listener.draining else MISSING

    def _refused(self, address: str | None, reason: Refusal) -> None:
        self._on_refused(reason.value)
        log.info("listener %s: %s refused: %s", self.settings.name, address or "unix", reason.value)

    def handle_CLOSE(self, server: BridgeSMTP) -> None:
        """The connection is gone (called without await)."""
        self.listener.forget(server)

    async def handle_PROXY(self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope, proxy: Any) -> bool:
        """Believed from a trusted peer only. LOCAL (a health check) leaves the peer as it is."""
        peer = peer_address(session.peer)
        if not proxy.valid or peer not in self.listener.trusted:
            self._refused(peer, Refusal.UNTRUSTED)
            return False
        source = str(proxy.src_addr) if proxy.src_addr else None
        try:
            address = str(ipaddress.ip_address(source)) if source else peer
        except ValueError:
            address = peer
        server.client = Client(address=address, port=proxy.src_port or None)
        return True

    def handle_MAIL(
        self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope, address: str, options: list[str]
    ) -> Any:
        if not server.trusted:
            self._refused(server.client.address, Refusal.UNTRUSTED)
            server.strike()
            return _NOT_ALLOWED
        if self._filter.door is not None:
            refusal = self._filter.refused_by_list(self._describe(server, session), address)
            if refusal is not None:
                server.excuse(self.settings.session.max_recipients + 1)  # RCPTs and DATA
                return refusal
        return self._admit("mail", self._filter.closed_at_mail())

    def handle_RCPT(
        self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope, address: str, options: list[str]
    ) -> Any:
        """A transaction belongs to one tenant and goes to one next hop, unless its recipients are answered apart."""
        kinds = self.settings.kinds
        if kinds.by_domain and envelope.rcpt_tos and not server.answers_each:
            first, this = kinds.of(envelope.rcpt_tos[0]), kinds.of(address)
            if first != this:
                return _TWO_TENANTS if first[0] != this[0] else _TWO_WAYS
        if self._filter.door is not None:
            refusal = self._filter.refused_by_list(self._describe(server, session), envelope.mail_from or "", address)
            if refusal is not None:
                server.excuse(1)  # DATA
                return refusal
        return MISSING

    def handle_PREDATA(self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope) -> Any:
        return self._admit("data", self._filter.closed())

    def _admit(self, stage: str, refusal: Reply | None) -> Any:
        if refusal is None:
            return MISSING
        self._on_saturated(stage)
        return refusal

    def handle_DATA(self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope) -> Coroutine[Any, Any, Outcome]:
        transaction = self._transaction(server, session, envelope)
        if self.settings.client_header is not None:
            transaction = self._read_client(self.settings.client_header, transaction)
        return self._filter.process(transaction)

    async def handle_REFUSED(
        self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope, reply: Reply, size: int
    ) -> Reply:
        """Content that cannot be taken: not scanned, but logged and counted like any mail."""
        return self._filter.refuse(self._transaction(server, session, envelope), reply, size).reply

    def _transaction(self, server: BridgeSMTP, session: Any, envelope: SmtpEnvelope) -> Transaction:
        assert envelope.message is not None and envelope.mail_from is not None
        now = self._loop.time()
        return Transaction(
            id=new_id(),
            session=self._describe(server, session),
            envelope=Envelope(
                envelope.mail_from,
                tuple(map(Recipient, envelope.rcpt_tos, envelope.rcpt_params)),
                tuple(envelope.mail_options),
            ),
            message=envelope.message,
            received_at=now,
            deadline=now + self._filter.deadline_s,
            each=server.answers_each,
        )

    def _read_client(self, header: ClientHeader, transaction: Transaction) -> Transaction:
        """The field is taken out in any case. XFORWARD and XCLIENT win over it: no sender can write those."""
        session, client, fault = transaction.session, None, "is not there"
        try:
            client = header.take_from(transaction.message)
        except BadClient:
            fault = "cannot be read"
        if not session.in_header:
            return transaction
        if client is None:
            log.warning("mail %s: %s %s, the client is not known", transaction.id, header.name, fault)
            return transaction
        return replace(transaction, session=replace(session, client=client, is_told=True))

    def _describe(self, server: BridgeSMTP, session: Any) -> Session:
        """Made once, and again only when the client said something new of itself."""
        header = self.settings.client_header
        told = (server.forwarded, server.client, session.host_name, session.extended_smtp, header)
        if server.described is not None and server.described[0] == told:
            return server.described[1]
        client = server.forwarded or server.client
        if client.helo is None and server.forwarded is None:
            # Field by field: `replace` costs as much as the rest of this.
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
        in_header = header is not None and server.forwarded is None and not server.introduced
        description = Session(
            session.id,
            self.settings.name,
            server.peer_address or "unix",
            client=_NOBODY if in_header else client,
            tls=session.ssl["ssl_object"].version() if session.ssl else None,
            helo=session.host_name,
            esmtp=session.extended_smtp,
            is_told=not in_header and (server.forwarded is not None or _is_told(server, session)),
            in_header=in_header,
        )
        server.described = (told, description)
        return description


def _finish(session: BridgeSMTP) -> None:
    """Say goodbye now, or after the running mail."""
    if session.in_mail:
        session.goodbye_after_mail(GOODBYE)
    else:
        session.goodbye(GOODBYE)


def _cut(session: BridgeSMTP) -> None:
    session.goodbye(GOODBYE)


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


def _is_told(server: BridgeSMTP, session: Any) -> bool:
    """By a PROXY header, or by XCLIENT."""
    return session.proxy_data is not None or server.client.address != server.peer_address


@lru_cache(_MAX_CLIENTS)
def _client(address: str | None) -> Client:
    return Client(address=address)


def _proxy_timeout(settings: SmtpSettings) -> float:
    """Always before the time for a command is over, which would be answered with 421."""
    return min(_PROXY_TIMEOUT_S, (settings.session.command_timeout_s or 300.0) / 2)
