"""What is around an SMTP session: a PROXY header in front of it, and TLS.

The middle of one connection, between `wire` (replies, time) and `connection` (commands). If this is wrong, a stranger
chooses the address that he is judged by, or what he said in the clear is taken for the secured client's word.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import replace
from types import CoroutineType
from typing import Any

from aiosmtpd.proxy_protocol import get_proxy
from aiosmtpd.smtp import MISSING, TLSSetupException

from bridge.intake.smtp.line_buffer import Inbox
from bridge.intake.smtp.wire import Wire
from bridge.mail.session import Client, Session

log = logging.getLogger(__name__)

_TLS_HANDSHAKE_S = 30.0
_NOBODY = Client()


class Outer(Wire):
    """What we believe of the client, and how it is connected."""

    def _renew(self) -> None:
        super()._renew()
        self._inbox = Inbox(self.loop, self._before_wait)
        self.client = _NOBODY  # what we believe of the client behind this connection
        self.described: tuple[Any, Session] | None = None  # what was said, and the session made of it

    async def _call_handler_hook(self, command: str, *arguments: Any) -> Any:
        """aiosmtpd's, for hooks that are plain functions, too."""
        status = self._call_hook(command, *arguments)
        return await status if isinstance(status, CoroutineType) else status

    def _call_hook(self, command: str, *arguments: Any) -> Any:
        """The hook's answer, or what is to be awaited for it."""
        hook = self._handle_hooks.get(command)
        return MISSING if hook is None else hook(self, self.session, self.envelope, *arguments)

    async def _read_proxy(self) -> bool:
        """The PROXY header, from a peer the handler trusts. False: hang up without a word."""
        hook = self._handle_hooks.get("OPEN")
        if hook is not None and not hook(self):
            self._hang_up()
            return False
        handle = self.loop.call_later(self._proxy_timeout, self._hang_up)
        try:
            self.session.proxy_data = await get_proxy(self._inbox)
        except asyncio.IncompleteReadError:
            pass
        finally:
            handle.cancel()
        if self.session.proxy_data:
            status = await self._call_handler_hook("PROXY", self.session.proxy_data)
            if status is not MISSING and status:
                self._begin_phase()
                return True
        self._hang_up()
        return False

    async def start_tls(self) -> None:
        """The handshake. Raises TLSSetupException when it fails; the connection is of no use then."""
        self._before_wait()
        self._write()  # in the clear
        self._inbox.take_all()  # RFC 3207 4.2: what came in the clear behind STARTTLS was never said
        timeout = min(_TLS_HANDSHAKE_S, self._timeout() / 2)  # before a 421 would go out in the clear
        try:
            transport = await self.loop.start_tls(
                self._transport, self, self.tls_context, server_side=True, ssl_handshake_timeout=timeout
            )
        except (OSError, ssl.SSLError) as error:
            log.info("session %s: TLS handshake failed: %s", self.session.id, type(error).__name__)
            self._end_unsecured()
            raise TLSSetupException from error
        if self.transport is None:  # we hung up meanwhile, which start_tls takes for a success
            self._end_unsecured()
            raise ConnectionResetError
        self._secured(transport)

    def _end_unsecured(self) -> None:
        """The loop does not always tell us that a connection ended during its handshake."""
        self._transport.abort()
        self.connection_lost(None)

    def _secured(self, transport: Any) -> None:
        """RFC 3207 4.2: after the handshake the session starts anew."""
        self.transport = self._transport = transport
        self._over_ssl = True
        self._tls_protocol = transport  # aiosmtpd asks whether it is there
        self.described = None
        old, self.session = self.session, self._create_session()
        self.session._id, self.session.peer, self.session.proxy_data = old.id, old.peer, old.proxy_data
        self.session.ssl = {"ssl_object": transport.get_extra_info("ssl_object")}
        self._set_rset_state()
        self.client = replace(self.client, helo=None)
        hook = self._handle_hooks.get("STARTTLS")
        self._tls_handshake_okay = True if hook is None else hook(self, self.session, self.envelope)
