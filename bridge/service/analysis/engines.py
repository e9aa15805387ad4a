"""Which engines the configuration asks for, analyzers of one's own among them."""

from __future__ import annotations

from bridge.service.analysis.authentication import AuthenticationAnalyzer
from bridge.service.analysis.clamav import ClamAvAnalyzer
from bridge.service.analysis.engine import Engine
from bridge.service.analysis.plugin import PluginAnalyzer
from bridge.service.analysis.rspamd import RspamdAnalyzer
from bridge.service.settings import Analyzers


def engines_of(settings: Analyzers) -> list[Engine]:
    """Raises ConfigError when an analyzer of one's own is not installed."""
    found = []
    if settings.clamav is not None:
        one = settings.clamav
        found.append(Engine("clamav", ClamAvAnalyzer(one), one.required, one.timeout))
    if settings.rspamd is not None:
        two = settings.rspamd
        found.append(Engine("rspamd", RspamdAnalyzer(two), two.required, two.timeout))
    if settings.authentication is not None and settings.authentication.dns:
        three = settings.authentication
        found.append(Engine("authentication", AuthenticationAnalyzer(three), three.required, three.timeout))
    for name, plugin in settings.plugins.items():
        found.append(Engine(name, PluginAnalyzer(name, plugin), plugin.required, None))
    return found
