"""All that one reading of the configuration makes: scanner, next hop, quarantine, and a filter per listener.

A reload makes another one beside it; mail that has begun is finished with the parts it began with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.config import model
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.filter.admission import Admission
from bridge.filter.headers import HeaderEditor
from bridge.filter.late.decisions import LateDecisions
from bridge.filter.outcome import Record
from bridge.filter.pipeline import Filter
from bridge.intake.milter.context import MilterSettings
from bridge.intake.milter.server import MilterServer
from bridge.intake.smtp.server import SmtpServer, SmtpSettings
from bridge.lists.copies import Copies
from bridge.mail.message import Spool
from bridge.mail.trace import Trace
from bridge.quarantine.quarantine import Quarantine
from bridge.relay.monitored import Hop
from bridge.relay.relay import Relay

Server = SmtpServer | MilterServer
ListenerKey = tuple[str, str, str]  # name, protocol, address


@dataclass(frozen=True, slots=True)
class Common:
    """What outlives a reload."""

    state: Path
    admission: Admission
    spool: Spool
    late: LateDecisions | None
    copies: Copies
    report: Callable[[Record], None]
    trace: Callable[[], Trace | None] | None  # None: mail is not traced
    on_refused: Callable[[str, str], None]  # listener, reason
    on_saturated: Callable[[str, str], None]  # listener, stage
    on_limit: Callable[[str, str], None]  # listener, limit
    on_handed: Callable[[str, str], None]  # next hop, result
    is_ahead: Callable[[], bool] | None  # of other workers, with connections; None: there are none


class Plan:
    """What a listener is to be, before anything of it is touched."""

    def __init__(self, parts: Parts, listener: model.Listener) -> None:
        self.listener = listener
        self.filter = parts.filter(listener)
        self._common = parts.common
        self._milter: MilterSettings | None = None
        self._smtp: SmtpSettings | None = None
        if listener.protocol == "milter":
            self._milter = wiring.milter_settings(parts.config, listener)
        else:
            self._smtp = wiring.smtp_settings(parts.config, listener)

    @property
    def key(self) -> ListenerKey:
        """Two plans with the same key are the same listener before and after a reload."""
        return self.listener.name, self.listener.protocol, str(self.listener.address)

    def make(self) -> Server:
        name, common = self.listener.name, self._common
        count = {
            "on_refused": lambda reason: common.on_refused(name, reason),
            "on_saturated": lambda stage: common.on_saturated(name, stage),
            "on_limit": lambda limit: common.on_limit(name, limit),
        }
        if self._milter is not None:
            return MilterServer(self._milter, self.filter, common.spool, is_ahead=common.is_ahead, **count)
        assert self._smtp is not None
        return SmtpServer(self._smtp, self.filter, common.spool, is_ahead=common.is_ahead, **count)

    def change(self, server: Server) -> None:
        """A running server goes by this plan from now on."""
        if isinstance(server, MilterServer):
            assert self._milter is not None
            server.adopt(self._milter, self.filter)
        else:
            assert self._smtp is not None
            server.adopt(self._smtp, self.filter)


class Parts:
    """Raises ConfigError when something the configuration names cannot be used."""

    def __init__(self, conf: Config, common: Common) -> None:
        self.config = conf
        self.common = common
        self.quarantine = Quarantine(wiring.quarantine_place(conf, common.state))
        self.hops: list[Hop] = []
        self.relay = wiring.relay(conf, self._watched)
        self.scanner = wiring.scanner(conf)
        self.limit = wiring.limit(conf)
        self._marks = wiring.release_marks(conf, common.state)
        self._headers = HeaderEditor(conf.headers.prefix, wiring.hostname(conf), conf.headers.received)
        if wiring.wanted_lists(conf):
            wiring.list_settings(conf)  # a key that cannot be read is said now
        self.plans = [Plan(self, listener) for listener in conf.listeners]

    def _watched(self, name: str, relay: Relay) -> Relay:
        self.hops.append(Hop(name, relay, self.common.on_handed))
        return self.hops[-1]

    def filter(self, listener: model.Listener) -> Filter:
        return Filter(
            wiring.filter_settings(self.config, listener),
            scanner=self.scanner,
            admission=self.common.admission,
            headers=self._headers,
            quarantine=self.quarantine,
            relay=None if listener.protocol == "milter" else self.relay,
            report=self.common.report,
            trace=self.common.trace,
            marks=self._marks,
            late=self.common.late,
            limit=self.limit,
            door=wiring.door(self.config, listener, self.common.copies),
        )

    @property
    def longest_s(self) -> float:
        """After this no mail that began with these parts is left."""
        return max(listener.deadline for listener in self.config.listeners) + 10.0

    async def close(self) -> None:
        try:
            if self.relay is not None:
                await self.relay.close()
        finally:
            self.scanner.close()
            await self.quarantine.close()
