"""Opening a connection to the next hop: greeting, EHLO, STARTTLS, within one time limit.

Whatever fails here fails before the mail is mentioned, so it is never the mail's fault: every error becomes
a 451, even if the greeting was a 554. The exception's text, for the log, says what happened.

STARTTLS: `none` never; `opportunistic` if offered, with any certificate, and in plaintext if the handshake
fails; `required` with a verified certificate for the next hop's name, or no connection at all.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from dataclasses import dataclass, replace
from typing import Literal

from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.relay.client_replies import LATE, UNREACHABLE, UNTRUSTED
from bridge.relay.commands import Capabilities
from bridge.relay.connection import NextHopConnection
from bridge.runtime.endpoints import NextHop
from bridge.runtime.host_addresses import NameLookup
from bridge.runtime.reason import reason

log = logging.getLogger("bridge.relay")

TlsMode = Literal["none", "opportunistic", "required"]

# A next hop that does not answer for this part of its time to connect counts as down, even if the mail's deadline came
# first: every mail may have less time than that, and none would ever go to another next hop.
_ENOUGH = 0.25


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """One SMTP or LMTP next hop."""

    next_hop: NextHop
    hostname: str  # our name in EHLO
    tls: TlsMode = "opportunistic"
    tls_context: ssl.SSLContext | None = None  # for `required`; None: the system's certificates
    connect_timeout_s: float = 10.0  # connect, greeting, EHLO and TLS together
    timeout_s: float = 60.0  # each reply
    max_idle_s: float = 20.0
    max_connections: int = 100


class CannotConnect(NextHopError):
    """This next hop cannot be connected to, so the mail may safely go to another."""


class _TlsFailed(Exception):
    """TLS could not be started; the text says why."""


async def open_connection(settings: RelaySettings, names: NameLookup, until: float) -> NextHopConnection:
    """A connection ready for MAIL. Raises NextHopError."""
    now = asyncio.get_running_loop().time()
    limit = min(now + settings.connect_timeout_s, until)
    try:
        async with asyncio.timeout_at(limit):
            return await _open(settings, names)
    except OSError as exc:  # TimeoutError and ssl.SSLError are OSErrors
        late = limit == until and isinstance(exc, TimeoutError)
        if late:
            is_down = until - now >= settings.connect_timeout_s * _ENOUGH
            raise (CannotConnect if is_down else NextHopError)(LATE, f"{settings.next_hop}: timed out") from exc
        raise CannotConnect(UNREACHABLE, f"{settings.next_hop}: {reason(exc) or 'timed out'}") from exc


async def _open(settings: RelaySettings, names: NameLookup) -> NextHopConnection:
    try:
        return await _dialogue(settings, names, settings.tls)
    except _TlsFailed as exc:
        if settings.tls == "required":
            raise CannotConnect(UNTRUSTED, f"{settings.next_hop}: {exc}") from exc
        log.warning("next hop %s: %s; continuing without TLS", settings.next_hop, exc)
        return await _dialogue(settings, names, "none")


async def _dialogue(settings: RelaySettings, names: NameLookup, tls: TlsMode) -> NextHopConnection:
    conn = await _connect(settings, names)
    try:
        greeting = await _answer(conn, settings)
        if greeting.code != 220:
            raise CannotConnect(UNREACHABLE, f"{settings.next_hop}: greeting: {greeting}")
        conn.capabilities = await _hello(conn, settings)
        if tls != "none" and await _secure(conn, settings, tls):
            conn.capabilities = await _hello(conn, settings)  # RFC 3207 4.2: discard what was announced, and ask again
        elif settings.tls != "none" and "STARTTLS" in conn.capabilities.names:
            conn.capabilities = replace(conn.capabilities, is_all=False)
        if conn.ended is not None:
            raise CannotConnect(UNREACHABLE, f"{settings.next_hop}: {conn.ended} before the mail was sent")
        conn.takes_mail = True
    except BaseException:
        conn.abort()
        raise
    return conn


async def _connect(settings: RelaySettings, names: NameLookup) -> NextHopConnection:
    """To the first address that accepts."""
    loop = asyncio.get_running_loop()
    address = settings.next_hop.address
    if address.path:
        return (await loop.create_unix_connection(NextHopConnection, address.path))[1]
    made = await names.connect(
        address.host or "",
        lambda ip: loop.create_connection(NextHopConnection, ip, address.port),
        settings.connect_timeout_s,
        lambda made: made[1].abort(),
    )
    return made[1]


async def _answer(conn: NextHopConnection, settings: RelaySettings) -> Reply:
    replies = await conn.replies(1, settings.connect_timeout_s)
    if not replies:
        raise CannotConnect(UNREACHABLE, f"{settings.next_hop}: {conn.ended} before the mail was sent")
    return replies[0]


async def _hello(conn: NextHopConnection, settings: RelaySettings) -> Capabilities:
    smtp = settings.next_hop.protocol == "smtp"
    name = settings.hostname.encode()
    conn.send(b"%s %s\r\n" % (b"EHLO" if smtp else b"LHLO", name), 1)
    reply = await _answer(conn, settings)
    if reply.code == 250:
        return Capabilities.parse(reply)
    if smtp and 500 <= reply.code < 600:  # RFC 5321 3.2: an old server
        conn.send(b"HELO %s\r\n" % name, 1)
        reply = await _answer(conn, settings)
        if reply.code == 250:
            return Capabilities(is_all=False)  # it may support EHLO, and only be too busy for it
    raise CannotConnect(UNREACHABLE, f"{settings.next_hop}: hello: {reply}")


async def _secure(conn: NextHopConnection, settings: RelaySettings, tls: TlsMode) -> bool:
    """Start TLS if it is offered; return whether it is on."""
    refusal = "STARTTLS not offered"
    if "STARTTLS" in conn.capabilities.names:
        conn.expect_tls(True)
        conn.send(b"STARTTLS\r\n", 1)
        reply = await _answer(conn, settings)
        if reply.code == 220:
            await _handshake(conn, settings, tls)
            return True
        refusal = f"STARTTLS: {reply}"
    if tls == "required":
        raise _TlsFailed(refusal)
    conn.expect_tls(False)
    return False


async def _handshake(conn: NextHopConnection, settings: RelaySettings, tls: TlsMode) -> None:
    context = _unverified() if tls == "opportunistic" else settings.tls_context or _verified()
    try:
        await conn.start_tls(context, settings.next_hop.address.host or "localhost")
    except OSError as exc:
        raise _TlsFailed(f"TLS handshake: {str(exc) or 'connection closed'}") from exc


@functools.cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@functools.cache
def _verified() -> ssl.SSLContext:
    return ssl.create_default_context()  # cached: reading the system's certificates is slow
