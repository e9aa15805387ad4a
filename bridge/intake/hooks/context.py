"""What all connections of one MTA Hooks listener share: settings, filter, counts, registrations, and a quiet log.

Knows nothing of HTTP. If this is wrong, a reload misses requests, or a client without the token fills the disk with
log lines.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.filter import rule_names
from bridge.filter.pipeline import Filter
from bridge.intake.connection_limits import ListenerSettings, Refusal
from bridge.intake.hooks.json_body import MAX_KEPT
from bridge.intake.hooks.registrations import Registrations
from bridge.intake.hooks.replays import Replays
from bridge.intake.milter.mail import Limits
from bridge.intake.one_tenant import RecipientGroups
from bridge.intake.refused_client import RefusedClient, rule_of
from bridge.intake.reports import IntakeReports
from bridge.intake.trusted_clients import LOOPBACK, Network, TrustedClients
from bridge.intake.warnings import Warnings
from bridge.mail.message import Spool

RATE_WINDOW_S = 30.0  # over which `min_data_rate` is measured


@dataclass(frozen=True, slots=True)
class HooksSettings:
    """What one MTA Hooks listener needs to know."""

    name: str
    token: str = field(repr=False)
    token_digest: bytes = field(repr=False)
    ended: Path  # a directory of registrations that have ended
    trusted: tuple[Network, ...] = LOOPBACK
    tls: ssl.SSLContext | None = None
    max_connections: int = 2000
    max_connections_per_client: int | None = None
    max_message_size: int = MAX_MESSAGE_BYTES
    max_recipients: int = 1000
    groups: RecipientGroups = field(default_factory=RecipientGroups)
    can_delete: bool = True  # the mail server deletes header fields and recipients when it is told to
    defers_lossy: bool = True  # a mail of which we have no exact copy is deferred
    data_timeout_s: float = 180.0
    mail_timeout_s: float = 7200.0
    min_data_rate: int = 256
    head_timeout_s: float = 30.0

    @property
    def listener(self) -> ListenerSettings:
        return ListenerSettings(self.name, self.trusted, self.max_connections, self.max_connections_per_client)

    @property
    def max_body(self) -> int:
        """A mail that is too large is read to its end and refused, unless it is more than twice the allowed size."""
        return 2 * (self.max_message_size * 4 // 3) + MAX_KEPT


class HooksContext:
    def __init__(self, settings: HooksSettings, filter_: Filter, spool: Spool, reports: IntakeReports) -> None:
        self.spool = spool
        self.reports = reports
        self.replays = Replays()
        self.warn = Warnings(settings.name)
        self._configure(settings, filter_)

    def adopt(self, settings: HooksSettings, filter_: Filter) -> None:
        """Use these for the next requests. For a reload."""
        self.replays.clear()
        self._configure(settings, filter_)

    def _configure(self, settings: HooksSettings, filter_: Filter) -> None:
        self.settings = settings
        self.filter = filter_
        self.trusted = TrustedClients(settings.trusted)
        self.registrations = Registrations(settings.token, settings.name, settings.ended)
        self.limits = Limits.of(settings, filter_, self.reports.limit)

    def refused(self, peer: str | None, reason: Refusal) -> None:
        """A connection."""
        self.warn("%s refused: %s", peer or "unix", reason.value)
        self.reports.refused(RefusedClient("connect", peer, "", reason.value, rule_of(reason)))

    def refused_token(self, peer: str | None) -> None:
        """A request whose token is missing or wrong."""
        self.warn("%s refused: its token is missing or wrong", peer or "unix")
        self.reports.refused(RefusedClient("connect", peer, "", "token", rule_names.HOOKS_TOKEN))

    def gone(self, peer: str | None) -> None:
        """A client went away before it had our answer."""
        is_stopped = self.filter.is_stopping
        self.reports.cancelled(RefusedClient("data", peer, "", "", rule_names.CLIENT_GONE, is_stopped=is_stopped))
