"""The engines that the configuration enables, including custom analyzers."""

from __future__ import annotations

from bridge.mime.structure import Bounds
from bridge.service.analysis.authentication import AuthenticationAnalyzer
from bridge.service.analysis.clamav import ClamAvAnalyzer
from bridge.service.analysis.engine import Engine
from bridge.service.analysis.hook import HookAnalyzer
from bridge.service.analysis.icap import IcapAnalyzer
from bridge.service.analysis.plugin import PluginAnalyzer
from bridge.service.analysis.rspamd import RspamdAnalyzer
from bridge.service.analysis.spamassassin import SpamAssassinAnalyzer
from bridge.service.analyzer_settings import Analyzers, Mime


def engines_of(settings: Analyzers) -> list[Engine]:
    """Raises ConfigError if a custom analyzer is not installed."""
    engines = []
    if (clamav := settings.clamav) is not None:
        engines.append(Engine("clamav", ClamAvAnalyzer(clamav), clamav.required, clamav.timeout, scans_objects=True))
    if (rspamd := settings.rspamd) is not None:
        engines.append(Engine("rspamd", RspamdAnalyzer(rspamd), rspamd.required, rspamd.timeout))
    if (icap := settings.icap) is not None:
        engines.append(Engine("icap", IcapAnalyzer(icap), icap.required, None, reads_parts=True))
    if (spamd := settings.spamassassin) is not None:
        engines.append(Engine("spamassassin", SpamAssassinAnalyzer(spamd), spamd.required, spamd.timeout))
    bounds = Bounds(header_bytes=(settings.mime or Mime()).max_header_size)
    if (auth := settings.authentication) is not None and auth.dns:
        engines.append(Engine("authentication", AuthenticationAnalyzer(auth, bounds), auth.required, auth.timeout))
    for name, hook in settings.hooks.items():
        engines.append(Engine(name, HookAnalyzer(name, hook), hook.required, hook.timeout, reads_parts=True))
    for name, plugin in settings.plugins.items():
        engines.append(Engine(name, PluginAnalyzer(name, plugin), plugin.required, None))
    return engines
