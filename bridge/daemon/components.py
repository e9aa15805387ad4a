"""Everything that one version of the configuration defines: scanner, next hops, quarantine, a filter per listener.

A reload builds new components next to the running ones; mail in processing is finished with the
components it started with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bridge.config.listener import Listener
from bridge.config.model import Config
from bridge.daemon import certificate_expiry, feedback_wiring, hooks_wiring, list_wiring, wiring
from bridge.daemon.core import Core, count
from bridge.daemon.event_wiring import event_plans
from bridge.daemon.http_api.read_tokens import read_callers
from bridge.daemon.personal_wiring import personal_filter
from bridge.filter import mail_rates
from bridge.filter.pipeline import Filter
from bridge.filter.released import ReleasedMail
from bridge.intake.hooks.context import HooksSettings
from bridge.intake.hooks.server import HooksServer
from bridge.intake.milter.context import MilterSettings
from bridge.intake.milter.server import MilterServer
from bridge.intake.refused_client import RefusedClient
from bridge.intake.reports import IntakeReports
from bridge.intake.smtp.server import SmtpServer, SmtpSettings
from bridge.quarantine.quarantine import Quarantine
from bridge.relay.monitored import RESULTS, MonitoredRelay
from bridge.relay.relay import Relay

Server = SmtpServer | MilterServer | HooksServer
Settings = SmtpSettings | MilterSettings | HooksSettings
ListenerKey = tuple[str, str, str]  # name, protocol, address

_AFTER_DEADLINE_S = 10.0
_KNOWN_S = 60.0  # without tests, what a mail has shown says nothing about the state a minute later


class Components:
    """Raises ConfigError when something that the configuration names cannot be used."""

    def __init__(self, conf: Config, core: Core) -> None:
        self.config = conf
        self._core = core
        self.quarantine = Quarantine(wiring.quarantine_place(conf, core.state))
        self.hops: list[MonitoredRelay] = []
        self.relay = wiring.relay(conf, self._monitor, partial(wiring.next_hop, on_late_answer=core.note_late_answer))
        self.scanner = wiring.scanner(conf)
        self.limit = wiring.limit(conf)
        self.api_callers = read_callers(conf)
        self.certificate_expiry = certificate_expiry.expiry_by_name(wiring.certificate_files(conf))
        self._used_tokens = wiring.used_tokens(conf, core.state)
        self._released_mail = ReleasedMail(wiring.release_tokens(conf, core.state), self._used_tokens)
        self._headers = wiring.header_editor(conf)
        if list_wiring.wanted_lists(conf):
            list_wiring.list_settings(conf)  # raises now if the API key cannot be read
        self.event_plans = event_plans(conf, core.state)
        feedback_wiring.learners(conf)  # raises now if its password cannot be read
        self.plans = [self._plan(listener) for listener in conf.listeners]
        core.metrics.next_hop_mails.start([hop.name for hop in self.hops], RESULTS)

    def is_up(self, hop: MonitoredRelay) -> bool | None:
        """Whether this next hop can be reached; None if that is not known, or not any more."""
        is_watched = self.config.relay is not None and self.config.relay.probe_interval > 0
        return hop.is_up if is_watched or hop.age_s < _KNOWN_S else None

    def _monitor(self, name: str, relay: Relay) -> Relay:
        metrics = self._core.metrics
        hop = MonitoredRelay(name, relay, lambda next_hop, result: count(metrics.next_hop_mails, next_hop, result))
        self.hops.append(hop)
        return hop

    def _plan(self, listener: Listener) -> ListenerPlan:
        settings: Settings
        if listener.protocol == "mta-hooks":
            settings = hooks_wiring.hooks_settings(
                self.config,
                listener,
                hooks_wiring.read_token(self.config, listener),
                hooks_wiring.make_ended(self._core.state),
            )
        elif listener.protocol == "milter":
            settings = wiring.milter_settings(self.config, listener)
        else:
            settings = wiring.smtp_settings(self.config, listener)
        return ListenerPlan(listener, settings, self._filter(listener), self._core)

    def _filter(self, listener: Listener) -> Filter:
        core = self._core
        return Filter(
            wiring.filter_settings(self.config, listener),
            scanner=self.scanner,
            admission=core.admission,
            headers=self._headers,
            quarantine=self.quarantine,
            relay=self.relay if listener.hands_on else None,
            report=core.report,
            trace=core.begin_trace,
            released_mail=self._released_mail,
            late=core.late,
            limit=self.limit,
            envelope_lists=list_wiring.envelope_lists(self.config, listener, core.list_refresh.copies),
            personal=personal_filter(self.config, core.personal),
            rates=core.rates,
        )

    @property
    def longest_s(self) -> float:
        """After this time, no mail that started with these components is still in processing."""
        return max(listener.deadline for listener in self.config.listeners) + _AFTER_DEADLINE_S

    async def close(self) -> None:
        try:
            if self.relay is not None:
                await self.relay.close()
        finally:
            self.scanner.close()
            self._used_tokens.close()
            await self.quarantine.close()


class ListenerPlan:
    """What a listener will be, before any running server is changed."""

    def __init__(self, listener: Listener, settings: Settings, filter_: Filter, core: Core) -> None:
        self.listener = listener
        self._settings = settings
        self._filter = filter_
        self._core = core

    @property
    def key(self) -> ListenerKey:
        """Two plans with the same key are the same listener before and after a reload."""
        return self.listener.name, self.listener.protocol, str(self.listener.address)

    def create(self, is_ahead: Callable[[], bool] | None) -> Server:
        reports, spool = self._reports(), self._core.spool
        if isinstance(self._settings, MilterSettings):
            return MilterServer(self._settings, self._filter, spool, is_ahead=is_ahead, reports=reports)
        if isinstance(self._settings, HooksSettings):
            return HooksServer(self._settings, self._filter, spool, is_ahead=is_ahead, reports=reports)
        return SmtpServer(self._settings, self._filter, spool, is_ahead=is_ahead, reports=reports)

    def _reports(self) -> IntakeReports:
        name, metrics = self.listener.name, self._core.metrics

        def refused(refusal: RefusedClient) -> None:
            count(metrics.refused_connections, name, refusal.reason)
            self._core.note_refusal(name, refusal)

        def saturated(refusal: RefusedClient) -> None:
            count(metrics.refused_early, name, refusal.stage)
            self._core.note_refusal(name, refusal)

        def too_many(refusal: RefusedClient) -> None:
            count(metrics.limits_hit, name, mail_rates.LIMIT)
            self._core.note_refusal(name, refusal)

        return IntakeReports(
            refused=refused,
            saturated=saturated,
            too_many=too_many,
            cancelled=lambda refusal: self._core.note_refusal(name, refusal),
            limit=lambda limit: count(metrics.limits_hit, name, limit),
        )

    def change(self, server: Server) -> None:
        """The running server follows this plan from now on."""
        if isinstance(server, MilterServer):
            assert isinstance(self._settings, MilterSettings)
            server.adopt(self._settings, self._filter)
        elif isinstance(server, HooksServer):
            assert isinstance(self._settings, HooksSettings)
            server.adopt(self._settings, self._filter)
        else:
            assert isinstance(self._settings, SmtpSettings)
            server.adopt(self._settings, self._filter)
