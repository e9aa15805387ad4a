"""What all connections of one milter listener share: settings, filter, counts, and a quiet log.

A connection knows this object and not the server, so that neither file needs the other. Knows
nothing of the protocol. If this is wrong, a reload misses the open connections, or a noisy mail
server fills the disk with log lines.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.filter.pipeline import Filter
from bridge.intake.connection_limits import ListenerSettings, Refusal
from bridge.intake.listener import Listener
from bridge.intake.milter.mail import Limits, Mail
from bridge.intake.milter.stalwart import WholeMail
from bridge.intake.one_tenant import RecipientGroups
from bridge.intake.refused_client import RefusedClient, rule_of
from bridge.intake.reports import IntakeReports
from bridge.intake.trusted_clients import LOOPBACK, Network
from bridge.intake.warnings import Warnings
from bridge.mail.message import Spool
from bridge.runtime.connection_timer import ConnectionTimer
from bridge.runtime.write_batch import WriteBatch

_CHECK_EVERY_S = 1.0
_CHECKS_PER_TIMEOUT = 4


@dataclass(frozen=True, slots=True)
class MilterSettings:
    """What one milter listener needs to know."""

    name: str
    trusted: tuple[Network, ...] = LOOPBACK  # the only clients that may connect, besides those on a unix socket
    max_connections: int = 2000
    max_message_size: int = MAX_MESSAGE_BYTES
    max_recipients: int = 1000
    groups: RecipientGroups = field(default_factory=RecipientGroups)
    body_is_whole: bool = False  # the mail server repeats the header fields in the body
    progress_interval_s: float = 5.0
    read_timeout_s: float = 60.0  # for the rest of a frame, and for each pause within the content
    content_timeout_s: float = 600.0  # first header to end of body; the mail server sends it from its disk
    idle_timeout_s: float = 7210.0  # libmilter's: twice the hour an SMTP client may wait between two commands
    overrun_s: float = 5.0  # the filter keeps its own deadline; this long after it we answer without the filter

    @property
    def listener(self) -> ListenerSettings:
        return ListenerSettings(self.name, self.trusted, self.max_connections)

    @property
    def check_interval_s(self) -> float:
        """How often the connections' deadlines are checked."""
        shortest_s = min(self.progress_interval_s, self.read_timeout_s)
        return min(_CHECK_EVERY_S, shortest_s / _CHECKS_PER_TIMEOUT)


class OpenConnection(Protocol):
    """What a listener may do with a connection."""

    peer: str

    def check_deadlines(self) -> None: ...

    def finish(self) -> None: ...

    def cut(self) -> None: ...


class MilterContext:
    """Everything the connections of one listener share."""

    def __init__(
        self,
        settings: MilterSettings,
        filter_: Filter,
        spool: Spool,
        listener: Listener[OpenConnection],
        reports: IntakeReports,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.spool = spool
        self.reports = reports
        self.listener = listener
        self.timer = ConnectionTimer(self.loop, settings.check_interval_s)
        self.writes = WriteBatch(self.loop)
        self.warn = Warnings(settings.name)
        self._configure(settings, filter_)

    def adopt(self, settings: MilterSettings, filter_: Filter) -> None:
        """Use these for new connections, and for the next mail on open ones. For a reload."""
        self.listener.adopt(settings.listener)
        self._configure(settings, filter_)

    def _configure(self, settings: MilterSettings, filter_: Filter) -> None:
        self.settings = settings
        self.filter = filter_
        self.mail_class = WholeMail if settings.body_is_whole else Mail
        self.limits = Limits.of(settings, filter_, self.reports.limit)

    def admit(self, connection: OpenConnection, address: str | None) -> bool:
        """Whether a new connection from this address (None: on a unix socket) may stay."""
        if address not in self.listener.trusted:
            self.warn("%s refused: not in trusted_clients", connection.peer)
            self._refused(address, Refusal.UNTRUSTED)
            return False
        if self.listener.draining or self.listener.admit(connection, address) is not None:
            self.warn("%s refused: %d connections are open", connection.peer, len(self.listener.open))
            self._refused(address, Refusal.FULL)
            return False
        self.timer.add(connection)
        return True

    def _refused(self, address: str | None, reason: Refusal) -> None:
        self.reports.refused(RefusedClient("connect", address, "", reason.value, rule_of(reason)))

    def forget(self, connection: OpenConnection) -> None:
        self.timer.discard(connection)
        self.listener.forget(connection)
