"""What all SMTP connections of a listener share: one object that each of them points to.

aiosmtpd's constructor reads the handler's hooks and its own options with `inspect`, which costs more than a whole mail.
So it runs once for each listener, here, and not once for each connection. If this is wrong, a connection
follows the settings of another listener, or of a configuration that was replaced.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from aiosmtpd.smtp import MISSING, SMTP

from bridge.intake.smtp.envelope import SmtpEnvelope
from bridge.intake.smtp.session import SmtpSession
from bridge.intake.smtp.session_settings import SessionLimits, SessionSettings
from bridge.mail.message import Spool
from bridge.runtime.connection_timer import ConnectionTimer
from bridge.runtime.write_batch import WriteBatch

RATE_WINDOW_S = 30.0  # over which `min_data_rate` is measured
_CHECK_INTERVAL_S = 1.0  # deadlines are checked at least this often,
_CHECKS_PER_TIMEOUT = 10  # and this often within the shortest of them


class SmtpContext:
    """The settings, the handler and the loop's services that a listener's connections use."""

    def __init__(
        self,
        handler: Any,
        *,
        limits: SessionLimits | None = None,
        spool: Spool | None = None,
        is_lmtp: bool = False,
        hidden: frozenset[str] = frozenset(),
        **options: Any,
    ) -> None:
        """`options` are those of aiosmtpd's SMTP class."""
        stock = SMTP(handler, **options)
        self.stock = stock  # never serves a client; aiosmtpd's own code finds its settings here
        self.hooks: dict[str, Callable[..., Any]] = stock._handle_hooks
        if "DATA" not in self.hooks and hasattr(handler, "process_message"):
            self.hooks["DATA"] = partial(_process_message, handler.process_message)
        self.loop: asyncio.AbstractEventLoop = stock.loop
        self.spool = spool or Spool(1 << 30)
        self.tls_context: ssl.SSLContext | None = stock.tls_context
        self.proxy_timeout_s: float | None = stock._proxy_timeout
        self.settings = _settings(stock, limits or SessionLimits(), is_lmtp, hidden, options)
        self.command_timeout_s = self.settings.limits.command_timeout_s or float(stock._timeout_duration)
        limits = self.settings.limits
        self.data_timeout_s = min(RATE_WINDOW_S, limits.data_timeout_s, limits.mail_timeout_s)
        shortest_s = min(self.command_timeout_s, self.data_timeout_s)
        self.timer = ConnectionTimer(self.loop, min(shortest_s / _CHECKS_PER_TIMEOUT, _CHECK_INTERVAL_S))
        self.writes = WriteBatch(self.loop)
        # Otherwise a task is needed before the greeting.
        self.greets_at_once = self.proxy_timeout_s is None and not inspect.iscoroutinefunction(
            self.hooks.get("CONNECT")
        )


def _settings(
    stock: Any, limits: SessionLimits, is_lmtp: bool, hidden: frozenset[str], options: dict[str, Any]
) -> SessionSettings:
    """What aiosmtpd's constructor made of its options, as our settings."""
    has_authenticator = options.get("authenticator") is not None or options.get("auth_callback") is not None
    has_auth = stock._auth_required or not stock._auth_require_tls or has_authenticator
    return SessionSettings(
        hostname=stock.hostname,
        ident=stock.__ident__,
        is_lmtp=is_lmtp,
        limits=limits,
        hidden=hidden,
        max_message_size=stock.data_size_limit,
        takes_utf8=stock.enable_SMTPUTF8,
        offers_tls=bool(stock.tls_context),
        requires_tls=bool(stock.require_starttls),
        on_limit=stock._handle_hooks.get("LIMIT", _ignore),
        ehlo_hook=stock._ehlo_hook_ver,
        auth_mechanisms=tuple(sorted(stock._auth_methods)) if has_auth else None,
        auth_requires_tls=stock._auth_require_tls,
        requires_auth=stock._auth_required,
        decodes_content=stock._decode_data,
        local_part_limit=stock.local_part_limit,
        command_size_limit=stock.command_size_limit,
        call_limits=stock._call_limit_base if stock._enforce_call_limit else None,
        default_call_limit=stock._call_limit_default if stock._enforce_call_limit else 0,
    )


async def _process_message(process: Callable[..., Any], _: object, session: SmtpSession, envelope: SmtpEnvelope) -> Any:
    """aiosmtpd's deprecated hook, which its test suite still covers."""
    status = process(session.peer, envelope.mail_from, envelope.rcpt_tos, envelope.content)
    status = await status if asyncio.iscoroutine(status) else status
    return MISSING if status is None else status


def _ignore(*_: object) -> None:
    """For a handler without handle_LIMIT."""
