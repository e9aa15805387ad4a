"""Custom analyzers: Python entry points, found by name.

A synchronous analyzer runs in separate processes, limited in time and memory. An asynchronous one
is expected to wait for the network, so it runs here in the event loop: its time is limited, its
memory is not. A separate process finds out which of the two it is, so that an analyzer that needs
too much time or memory to be created never affects this one.
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
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.worker_pool import WorkerFailed, WorkerPool
from bridge.service.engine_settings import Plugin

ENTRY_POINTS = "scanbridge.analyzers"
MODULE = "bridge.service.analysis.plugin_process"
MAX_TAGS = 100
_TAG = re.compile(r"[^\s,\x00-\x1f\x7f-\x9f]{1,200}")  # tags are logged, separated by commas


class PluginFailed(Exception):
    """The analyzer gave no answer; the text is the type of its exception, never the exception's text."""


class PluginAnalyzer:
    def __init__(self, name: str, settings: Plugin, entry_point: EntryPoint | None = None) -> None:
        """Raises ConfigError if no installed package provides the analyzer, and no `entry_point` is given."""
        found = [entry_point] if entry_point else list(entry_points(group=ENTRY_POINTS, name=name))
        if not found:
            raise ConfigError(
                f"analyzers.plugins.{name}: no installed package provides an entry point named {name} in the "
                f"{ENTRY_POINTS} group"
            )
        self._name = name
        self._entry_point: EntryPoint = found[0]
        self._settings = settings
        place = {"group": ENTRY_POINTS, "name": name, "value": self._entry_point.value}
        setup = {**place, "options": settings.options, "timeout_s": settings.timeout}
        try:
            self._workers = WorkerPool(MODULE, settings.processes, settings.memory, setup, may_log=True)
        except (TypeError, ValueError):  # YAML also has dates, for example
            raise ConfigError(
                f"analyzers.plugins.{name}.options: must contain only values that JSON can represent"
            ) from None
        self._async_analyzer: Any = None  # set if the analyzer runs in the event loop

    async def start(self) -> None:
        """Raises ConfigError if the analyzer cannot be created."""
        try:
            greeting = await self._workers.start()
        except WorkerFailed:
            greeting = {"failed": "its process ended or took too long"}
        if "failed" in greeting:
            await self._workers.stop()
            raise self._cannot_create(greeting["failed"])
        if greeting["async"]:
            await self._workers.stop()
            self._async_analyzer = self._create()

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._settings.max_size:
            raise LimitReached("size")
        if self._async_analyzer is None:
            assert isinstance(mail.stored, StoredMail)
            found = await self._workers.ask(mail.stored, _request(mail), self._settings.timeout, _read)
            if isinstance(found, Exception):
                raise found
            return found
        async with asyncio.timeout(self._settings.timeout):
            return checked(await self._async_analyzer.analyze(mail))

    async def close(self) -> None:
        await self._workers.stop()
        close = getattr(self._async_analyzer, "close", None)
        if close is not None:
            result = close()
            if inspect.isawaitable(result):
                await result

    def _create(self) -> Any:
        try:
            return self._entry_point.load()(self._settings.options)
        except Exception as exc:
            raise self._cannot_create(type(exc).__name__) from exc

    def _cannot_create(self, why: str) -> ConfigError:
        return ConfigError(f"analyzers.plugins.{self._name}: cannot create the analyzer: {why}")


def _request(mail: Mail) -> dict[str, Any]:
    return {"ggrid": mail.ggrid, "border": asdict(mail.request.border), "tenant_uid": mail.request.tenant_uid}


def _read(answer: dict[str, Any], _content: list[bytes]) -> Findings | LimitReached | PluginFailed:
    """A process's answer. If this raises, the process is replaced, because its state is unknown."""
    if answer.get("limit") == "memory":
        raise LimitReached("memory")
    if "limit" in answer:
        return LimitReached("own")
    if "failed" in answer:
        return PluginFailed(str(answer["failed"])[:100])
    try:
        return checked(Findings(frozenset(answer["tags"]), answer["score"]))
    except PluginFailed as exc:
        return exc


def checked(found: Any) -> Findings:
    if not isinstance(found, Findings):
        raise PluginFailed("the result is not a Findings object")
    if not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in found.tags) or len(found.tags) > MAX_TAGS:
        raise PluginFailed("invalid tags")
    if not all(isinstance(points, int | float) and math.isfinite(points) for points in (found.score, found.opinion)):
        raise PluginFailed("score is not a finite number")
    return found
