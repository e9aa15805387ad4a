"""The milter listener that the daemon starts: serve, reload, drain.

One server serves any number of listening sockets, TCP or unix, which the daemon made or systemd
handed over. A single timer checks the deadlines of all connections: it closes silent ones, and
tells the mail server of each running scan that we are still working (SMFIR_PROGRESS restarts its
timer), so thousands of mails in flight need no timer each.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from bridge.filter.pipeline import Filter
from bridge.intake.listener import Listener
from bridge.intake.milter.connection import MilterConnection
from bridge.intake.milter.context import MilterContext, MilterSettings, OpenConnection
from bridge.intake.reports import NO_REPORTS, IntakeReports
from bridge.mail.message import Spool

_AFTER_CUT_S = 1.0  # for the event loop to close what was cut


class MilterServer:
    """Accepts on the sockets it is given, until it is drained."""

    def __init__(
        self,
        settings: MilterSettings,
        filter_: Filter,
        spool: Spool,
        *,
        reports: IntakeReports = NO_REPORTS,
        is_ahead: Callable[[], bool] | None = None,  # whether other workers should get the next connections
    ) -> None:
        self.listener = Listener[OpenConnection](settings.listener, is_ahead=is_ahead)
        self.context = MilterContext(settings, filter_, spool, self.listener, reports)

    @property
    def connections(self) -> int:
        return len(self.listener.open)

    def adopt(self, settings: MilterSettings, filter_: Filter) -> None:
        """Use these for new connections, and for the next mail on open ones. For a reload."""
        self.context.adopt(settings, filter_)

    async def serve(self, sock: socket.socket) -> None:
        """Start accepting on a bound TCP or unix socket."""
        await self.listener.serve(sock, lambda: MilterConnection(self.context))

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, close what is idle, let running mail finish, then close everything."""
        finished = await self.listener.drain(timeout_s, lambda connection: connection.finish(), self._cut)
        if not finished:
            await self.listener.wait_until_empty(_AFTER_CUT_S)

    def _cut(self, connection: OpenConnection) -> None:
        self.context.filter.is_stopping = True
        connection.cut()
