"""What surrounds an SMTP session: the PROXY header in front of it, and TLS.

Knows streams and handshakes, but neither commands nor mail. If this is wrong, an untrusted client chooses the address
it is judged by, or a connection continues in plain text after a failed handshake.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

from aiosmtpd.proxy_protocol import ProxyData, get_proxy
from aiosmtpd.smtp import TLSSetupException

from bridge.intake.smtp.line_buffer import LineBuffer

log = logging.getLogger(__name__)

_TLS_HANDSHAKE_S = 30.0


async def read_proxy_header(buffer: LineBuffer) -> ProxyData | None:
    """The header, valid or not; None if the client ended the connection within it."""
    try:
        return await get_proxy(buffer)
    except asyncio.IncompleteReadError:
        return None


async def start_tls(
    transport: Any, protocol: asyncio.Protocol, context: ssl.SSLContext, timeout_s: float, session_id: str
) -> Any:
    """The encrypted transport. Raises TLSSetupException when the handshake fails: the connection is then unusable.

    `timeout_s` is how long the client may be silent: the handshake ends earlier, because the 421 that
    follows a timeout would be sent in plain text.
    """
    try:
        return await asyncio.get_running_loop().start_tls(
            transport, protocol, context, server_side=True, ssl_handshake_timeout=min(_TLS_HANDSHAKE_S, timeout_s / 2)
        )
    except (OSError, ssl.SSLError) as error:
        log.info("session %s: TLS handshake failed: %s", session_id, type(error).__name__)
        raise TLSSetupException from error
