"""What aiosmtpd's own code, and handlers written for it, look for on a connection.

aiosmtpd keeps its settings on each connection; ours are kept once, in the listener's context, and found here under the
names that aiosmtpd gives them. Its AUTH runs on these, and so does its test suite. If this is wrong, AUTH fails, or
a handler written for aiosmtpd does.
"""

from __future__ import annotations

import logging
from types import CoroutineType, MethodType
from typing import Any

from aiosmtpd.smtp import MISSING, SMTP, TLSSetupException

from bridge.intake.smtp.context import SmtpContext
from bridge.intake.smtp.envelope import SmtpEnvelope
from bridge.intake.smtp.line_buffer import LineBuffer
from bridge.intake.smtp.session import SmtpSession
from bridge.mail.reply import Reply

log = logging.getLogger(__name__)

INTERNAL = Reply(451, "4.3.0", "Error: internal problem, try again later")


def _of_listener(name: str) -> Any:
    """An attribute that aiosmtpd keeps on each connection, and we once for the listener.

    Python 3.11: a single `__getattr__` would do for all of them, but disables the caching of attribute lookups.
    """
    return property(lambda connection: getattr(connection._context.stock, name))


class StockSurface(SMTP):
    """The connection as aiosmtpd knows it. `SmtpConnection` fills the slots."""

    __slots__ = ("_buffer", "_context", "session")

    _buffer: LineBuffer
    _context: SmtpContext
    session: SmtpSession

    _closed = None  # asyncio's StreamReaderProtocol looks for it in __del__

    loop = property(lambda self: self._context.loop)
    hostname = _of_listener("hostname")
    event_handler = _of_listener("event_handler")
    tls_context = _of_listener("tls_context")
    data_size_limit = _of_listener("data_size_limit")
    enable_SMTPUTF8 = _of_listener("enable_SMTPUTF8")
    _auth_required = _of_listener("_auth_required")
    _auth_require_tls = _of_listener("_auth_require_tls")
    _authenticator = _of_listener("_authenticator")
    _auth_callback = _of_listener("_auth_callback")

    @property
    def envelope(self) -> SmtpEnvelope:
        return self.session.envelope

    @property
    def _reader(self) -> LineBuffer:
        return self._buffer

    @property
    def _tls_protocol(self) -> Any:
        """Used as a flag: whether the connection is encrypted."""
        return self.session.ssl

    @property
    def _auth_methods(self) -> dict[str, Any]:
        """aiosmtpd's own mechanisms are methods of the connection that runs them."""
        methods = self._context.stock._auth_methods
        return {
            name: mechanism._replace(method=MethodType(mechanism.method.__func__, self))
            if mechanism.is_builtin
            else mechanism
            for name, mechanism in methods.items()
        }

    # Methods that its AUTH calls, and its handlers may

    async def push(self, status: str | bytes | Reply) -> None:
        self.session.answer(status)

    async def check_helo_needed(self, helo: str = "HELO") -> bool:
        if self.session.host_name:
            return False
        self.session.answer(Reply(503, "5.5.1", f"Error: send {helo} first"))
        return True

    async def _call_handler_hook(self, command: str, *arguments: Any) -> Any:
        """As in aiosmtpd, but hooks may be plain functions, too."""
        status = self._call_hook(command, arguments)
        return await status if isinstance(status, CoroutineType) else status

    async def handle_exception(self, error: Exception) -> str | Reply:
        handler = self._context.stock.event_handler
        if hasattr(handler, "handle_exception"):
            status: str | Reply = await handler.handle_exception(error)
            return status
        if not isinstance(error, TLSSetupException):
            log.error("session %s: unexpected error", self.session.id, exc_info=error)
        return INTERNAL

    def _call_hook(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """The hook's answer, or an awaitable for it."""
        hook = self._context.hooks.get(name)
        return MISSING if hook is None else hook(self, self.session, self.session.envelope, *arguments)
