"""Which engines the configuration asks for, analyzers of one's own among them."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from typing import Any

from bridge.errors import ConfigError
from bridge.service.analysis.authentication import AuthenticationAnalyzer
from bridge.service.analysis.clamav import ClamAvAnalyzer
from bridge.service.analysis.engine import Engine, Findings, LimitReached, Mail
from bridge.service.analysis.rspamd import RspamdAnalyzer
from bridge.service.settings import Analyzers, Plugin

ENTRY_POINTS = "scanbridge.analyzers"
THREADS = 8


def engines_of(settings: Analyzers) -> list[Engine]:
    """Raises ConfigError when an analyzer of one's own is not installed or cannot be made."""
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
        found.append(Engine(name, OwnAnalyzer(_load(name, plugin), plugin), plugin.required, plugin.timeout))
    return found


class OwnAnalyzer:
    """Somebody's analyzer: a coroutine is awaited, a plain function runs in a thread."""

    def __init__(self, analyzer: Any, settings: Plugin) -> None:
        self._analyzer = analyzer
        self._max_size = settings.max_size
        # Threads of its own: if it hangs, it takes them from nobody else.
        self._threads = ThreadPoolExecutor(THREADS, "plugin")

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._max_size:
            raise LimitReached("size")
        if inspect.iscoroutinefunction(self._analyzer.analyze):
            found = await self._analyzer.analyze(mail)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._threads, self._analyzer.analyze, mail)
        if not isinstance(found, Findings):
            raise TypeError("an analyzer must return Findings")
        return found

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        close = getattr(self._analyzer, "close", None)
        if close is not None:
            result = close()
            if inspect.isawaitable(result):
                await result


def _load(name: str, plugin: Plugin) -> Any:
    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        raise ConfigError(f"analyzers.plugins.{name}: no installed package offers it as {ENTRY_POINTS}")
    try:
        return found[0].load()(plugin.options)
    except Exception as exc:
        raise ConfigError(f"analyzers.plugins.{name}: cannot be made: {type(exc).__name__}") from exc
