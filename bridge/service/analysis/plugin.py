"""Analyzers of one's own: Python entry points, found by name.

A plain one looks at mail in processes of its own, bounded in time and memory. One that is a
coroutine talks to somebody over the network, so it stays here in the event loop: its time is
bounded, its memory is not. Which of the two it is, a process finds out at the start: an analyzer
that takes too much to be made is never made here.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from dataclasses import asdict
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from bridge.errors import ConfigError
from bridge.service.analysis.engine import Findings, LimitReached, Mail
from bridge.service.analysis.workers import WorkerFailed, Workers
from bridge.service.scanning.upload import StoredMail
from bridge.service.settings import Plugin

ENTRY_POINTS = "scanbridge.analyzers"
MODULE = "bridge.service.analysis.plugin_process"
MAX_TAGS = 100
_TAG = re.compile(r"[^\s,\x00-\x1f\x7f-\x9f]{1,200}")  # tags stand in logs, separated by commas


class PluginFailed(Exception):
    """It gave no answer; the text is the type of its exception, never the exception's text."""


class PluginAnalyzer:
    def __init__(self, name: str, settings: Plugin) -> None:
        """Raises ConfigError when no installed package offers it."""
        found = list(entry_points(group=ENTRY_POINTS, name=name))
        if not found:
            raise ConfigError(f"analyzers.plugins.{name}: no installed package offers it as {ENTRY_POINTS}")
        self._name = name
        self._entry_point: EntryPoint = found[0]
        self._settings = settings
        setup = {"group": ENTRY_POINTS, "name": name, "options": settings.options, "timeout_s": settings.timeout}
        try:
            self._workers = Workers(MODULE, settings.processes, settings.memory, setup, may_log=True)
        except (TypeError, ValueError):  # YAML knows dates, and more
            raise ConfigError(f"analyzers.plugins.{name}.options: only what JSON can say") from None
        self._here: Any = None  # the analyzer, when it is one for the event loop

    async def start(self) -> None:
        """Raises ConfigError when it cannot be made."""
        try:
            said = await self._workers.start()
        except WorkerFailed:
            said = {"failed": "it ended its process, or took too long"}
        if "failed" in said:
            await self._workers.stop()
            raise ConfigError(f"analyzers.plugins.{self._name}: cannot be made: {said['failed']}")
        if said["async"]:
            await self._workers.stop()
            self._here = self._make()

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._settings.max_size:
            raise LimitReached("size")
        if self._here is None:
            assert isinstance(mail.stored, StoredMail)
            found = await self._workers.ask(mail.stored, _request(mail), self._settings.timeout, _read)
            if isinstance(found, Exception):
                raise found
            return found
        async with asyncio.timeout(self._settings.timeout):
            return _checked(await self._here.analyze(mail))

    async def close(self) -> None:
        await self._workers.stop()
        close = getattr(self._here, "close", None)
        if close is not None:
            result = close()
            if inspect.isawaitable(result):
                await result

    def _make(self) -> Any:
        try:
            return self._entry_point.load()(self._settings.options)
        except Exception as exc:
            raise ConfigError(f"analyzers.plugins.{self._name}: cannot be made: {type(exc).__name__}") from exc


def _request(mail: Mail) -> dict[str, Any]:
    return {"ggrid": mail.ggrid, "border": asdict(mail.request.border), "tenant_uid": mail.request.tenant_uid}


def _read(answer: dict[str, Any]) -> Findings | LimitReached | PluginFailed:
    """A process' answer. When this raises, the process is replaced: nobody knows how it is after that."""
    if answer.get("limit") == "memory":
        raise LimitReached("memory")
    if "limit" in answer:
        return LimitReached("own")
    if "failed" in answer:
        return PluginFailed(str(answer["failed"])[:100])
    try:
        return _checked(Findings(frozenset(answer["tags"]), answer["score"]))
    except PluginFailed as exc:
        return exc


def _checked(found: Any) -> Findings:
    if not isinstance(found, Findings):
        raise PluginFailed("not Findings")
    if not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in found.tags) or len(found.tags) > MAX_TAGS:
        raise PluginFailed("tags that are none")
    if not isinstance(found.score, int | float) or not math.isfinite(found.score):
        raise PluginFailed("a score that is no number")
    return found
