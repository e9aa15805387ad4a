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
from typing import Any, Literal

from aiosmtpd.smtp import MISSING

from bridge.filter.outcome import Outcome
from bridge.filter.pipeline import Filter
from bridge.intake.acceptor import Acceptor
from bridge.intake.smtp.client_header import BadClient, ClientHeader
from bridge.intake.smtp.connection import SmtpConnection
from bridge.intake.smtp.context import SmtpContext
from bridge.intake.smtp.rules import SessionLimits
from bridge.intake.smtp.session import SmtpEnvelope, SmtpSession
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction, new_id

log = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PROXY_TIMEOUT_S = 5.0
_UNTRUSTED_SHARE = 20  # strangers get at most a twentieth of the connections
_MAX_KNOWN = 10_000
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
        self._is_ahead = is_ahead
        self._acceptors: list[Acceptor] = []
        self._sessions: set[SmtpConnection] = set()
        self._per_client: dict[str, int] = {}
        self._strangers = 0
        self._known: dict[str, bool] = {}  # addresses already looked up in the trusted networks
        self._expected: set[SmtpConnection] = set()  # those whose PROXY header has not come yet
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False
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
        """For a reload: new connections, and the next mail of those that are open, go by these.

        Mail that the filter already has is finished by the one it was given to.
        """
        self.settings = settings
        self._filter = filter_
        self._known = {}
        self._context = self._make_context()

    @property
    def connections(self) -> int:
        return len(self._sessions)

    async def serve(self, sock: socket.socket) -> None:
        """Start accepting on a listening TCP or unix socket."""
        self._acceptors.append(Acceptor(sock, self._spawn, self._is_ahead))
        await self._acceptors[-1].start()

    def _spawn(self) -> SmtpConnection:
        return SmtpConnection(self._context)

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, say goodbye to the idle, let running mail finish within the time."""
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.close()
        for session in list(self._sessions):
            if session.in_mail:
                session.goodbye_after_mail(GOODBYE)
            else:
                session.goodbye(GOODBYE)
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            log.warning("listener %s: %d sessions cut after the drain time", self.settings.name, len(self._sessions))
            for session in list(self._sessions):
                session.goodbye(GOODBYE)

    # Hooks: called by the session with itself, aiosmtpd's session and its envelope

    def handle_OPEN(self, server: SmtpConnection) -> bool:
        """Whether to wait for a PROXY header at all (called without await)."""
        peer = _peer_address(server.session.peer)
        if not self._is_trusted(peer):
            self._refused(peer, "untrusted")
            return False
        if self.draining or len(self._sessions) + len(self._expected) >= self.settings.max_connections:
            self._refused(peer, "limit")
            return False
        self._expected.add(server)
        return True

    def handle_CONNECT(self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope) -> Any:
        peer = session.peer_address = _peer_address(session.peer)
        if session.proxy_data is None:
            session.client = _client(peer)
        session.trusted = self._is_trusted(session.client.address)
        refusal = self._count_in(server)
        return MISSING if refusal is None else refusal

    def _count_in(self, server: SmtpConnection) -> Reply | None:
        settings, session = self.settings, server.session
        stranger, address = not session.trusted, session.client.address
        self._expected.discard(server)
        if len(self._sessions) >= settings.max_connections or (
            stranger and self._strangers >= max(settings.max_connections // _UNTRUSTED_SHARE, 5)
        ):
            self._refused(address, "limit")
            return _FULL
        of_client = self._per_client.get(address, 0) if address is not None else 0
        if of_client >= settings.max_connections_per_client:
            self._refused(address, "client_limit")
            return _CLIENT_FULL
        if not self._sessions:
            self._empty.clear()
        self._sessions.add(server)
        self._strangers += stranger
        if address is not None:
            self._per_client[address] = of_client + 1
        server.counted_as = address
        return GOODBYE if self.draining else None

    def _refused(self, address: str | None, reason: str) -> None:
        self._on_refused(reason)
        log.info("listener %s: %s refused: %s", self.settings.name, address or "unix", reason)

    def handle_CLOSE(self, server: SmtpConnection) -> None:
        """The connection is gone (called without await)."""
        self._expected.discard(server)
        if server not in self._sessions:
            return
        self._sessions.discard(server)
        self._strangers -= not server.session.trusted
        address = server.counted_as
        if address is not None:
            left = self._per_client[address] = self._per_client[address] - 1
            if not left:
                del self._per_client[address]
        if not self._sessions:
            self._empty.set()

    def _is_trusted(self, address: str | None) -> bool:
        if address is None:  # a unix socket: its permissions decide
            return True
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            ip = ipaddress.ip_address(address)
            known = self._known[address] = any(ip in network for network in self.settings.trusted)
        return known

    async def handle_PROXY(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, proxy: Any
    ) -> bool:
        """Believed from a trusted peer only. LOCAL (a health check) leaves the peer as it is."""
        peer = _peer_address(session.peer)
        if not proxy.valid or not self._is_trusted(peer):
            self._refused(peer, "untrusted")
            return False
        source = str(proxy.src_addr) if proxy.src_addr else None
        try:
            address = str(ipaddress.ip_address(source)) if source else peer
        except ValueError:
            address = peer
        session.client = Client(address=address, port=proxy.src_port or None)
        return True

    def handle_MAIL(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, address: str, options: list[str]
    ) -> Any:
        if not session.trusted:
            self._refused(session.client.address, "untrusted")
            session.strike()
            return _NOT_ALLOWED
        if self._filter.door is not None:
            refusal = self._filter.refused_by_list(self._describe(session), address)
            if refusal is not None:
                session.excuse(self.settings.session.max_recipients + 1)  # RCPTs and DATA
                return refusal
        return self._admit("mail", self._filter.closed_at_mail())

    def handle_RCPT(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, address: str, options: list[str]
    ) -> Any:
        """A transaction belongs to one tenant and goes to one next hop, unless its recipients are answered apart."""
        kinds = self.settings.kinds
        if kinds.by_domain and envelope.rcpt_tos and not session.answers_each:
            first, this = kinds.of(envelope.rcpt_tos[0]), kinds.of(address)
            if first != this:
                return _TWO_TENANTS if first[0] != this[0] else _TWO_WAYS
        if self._filter.door is not None:
            refusal = self._filter.refused_by_list(self._describe(session), envelope.mail_from or "", address)
            if refusal is not None:
                session.excuse(1)  # DATA
                return refusal
        return MISSING

    def handle_PREDATA(self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope) -> Any:
        return self._admit("data", self._filter.closed())

    def _admit(self, stage: str, refusal: Reply | None) -> Any:
        if refusal is None:
            return MISSING
        self._on_saturated(stage)
        return refusal

    def handle_DATA(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope
    ) -> Coroutine[Any, Any, Outcome]:
        transaction = self._transaction(session, envelope)
        if self.settings.client_header is not None:
            transaction = self._read_client(self.settings.client_header, transaction)
        return self._filter.process(transaction)

    async def handle_REFUSED(
        self, server: SmtpConnection, session: SmtpSession, envelope: SmtpEnvelope, reply: Reply, size: int
    ) -> Reply:
        """Content that cannot be taken: not scanned, but logged and counted like any mail."""
        return self._filter.refuse(self._transaction(session, envelope), reply, size).reply

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
            each=session.answers_each,
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

    def _describe(self, session: SmtpSession) -> Session:
        """Made once, and again only when the client said something new of itself."""
        header = self.settings.client_header
        told = (session.forwarded, session.client, session.host_name, session.extended_smtp, header)
        if session.described is not None and session.described[0] == told:
            return session.described[1]
        client = session.forwarded or session.client
        if client.helo is None and session.forwarded is None:
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
        in_header = header is not None and session.forwarded is None and not session.introduced
        description = Session(
            session.id,
            self.settings.name,
            session.peer_address or "unix",
            client=_NOBODY if in_header else client,
            tls=session.ssl["ssl_object"].version() if session.ssl else None,
            helo=session.host_name,
            esmtp=session.extended_smtp,
            is_told=not in_header and (session.forwarded is not None or _is_told(session)),
            in_header=in_header,
        )
        session.described = (told, description)
        return description


def _is_told(session: SmtpSession) -> bool:
    """By a PROXY header, or by XCLIENT."""
    return session.proxy_data is not None or session.client.address != session.peer_address


@lru_cache(_MAX_KNOWN)
def _client(address: str | None) -> Client:
    return Client(address=address)


def _proxy_timeout(settings: SmtpSettings) -> float:
    """Always before the time for a command is over, which would be answered with 421."""
    return min(_PROXY_TIMEOUT_S, (settings.session.command_timeout_s or 300.0) / 2)


def _peer_address(peer: Any) -> str | None:
    """The bare address; None for a unix socket. A mapped IPv4 address is IPv4."""
    if not isinstance(peer, tuple):
        return None
    if ":" not in peer[0]:
        return str(peer[0])
    ip = ipaddress.ip_address(peer[0].partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return str(mapped or ip)
