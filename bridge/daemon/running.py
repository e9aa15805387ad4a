"""What is running now: the core, the current components, and the listeners.

Status pages, gauges and housekeeping look at this object, and a reload changes it, in one step.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.daemon.addresses import addresses
from bridge.daemon.components import Components, ListenerKey, Server
from bridge.daemon.core import Core
from bridge.daemon.listeners import Listeners
from bridge.scanner.client import Scanner


class Running:
    def __init__(self, core: Core, components: Components, listeners: Listeners) -> None:
        self.core = core
        self.listeners = listeners
        self._components = components

    @property
    def components(self) -> Components:
        return self._components

    @property
    def config(self) -> Config:
        return self._components.config

    @property
    def scanner(self) -> Scanner:
        return self._components.scanner

    @property
    def saturation(self) -> tuple[bool, bool]:
        """Whether new mail is refused because of our own limit, and because the scanner is full."""
        admission, limit = self.core.admission, self.components.limit
        is_full = admission.is_full or (limit is not None and admission.in_processing >= limit.current)
        return is_full, self.scanner.is_saturated()

    def switch_to(self, components: Components, opened: Mapping[ListenerKey, Server]) -> list[Server]:
        """Use these components from now on. Returns the servers of listeners that are not configured any more."""
        conf, core = components.config, self.core
        self._components = components
        removed = self.listeners.adopt(components.plans, opened)
        core.admission.settings = wiring.admission_settings(conf)
        core.spool.limit, core.spool.memory_per_mail, core.spool.directory = wiring.spool_settings(conf)
        core.rates.limit = conf.limits.max_mails_per_client_per_minute
        core.worker.sockets.keep_only(addresses(conf))
        core.list_refresh.adopt(conf)
        core.events.adopt(components.event_plans)
        return removed
