"""STARTTLS: the handshake that encrypts an SMTP connection.

Knows transports, but neither commands nor mail. If this is wrong, a connection continues in plain text after a failed
handshake.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

from aiosmtpd.smtp import TLSSetupException

log = logging.getLogger(__name__)

_TLS_HANDSHAKE_S = 30.0


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
