"""Keeps the local copies of lists fresh, and every worker looking at the newest ones.

The work is done by another program (`bridge.lists.fetch`), so neither the event loop nor its memory
feels a million entries; one worker of several starts it. All of them look once a second whether a
copy was replaced, by that program or by `scanbridge lists refresh`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.lists import fetch
from bridge.lists.copies import Copies, Wanted
from bridge.observe.metrics import Metrics

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_RETRY_S = 30.0  # after a failure, or the interval if that is shorter
_LONGEST_S = 3600.0  # a refresh that takes longer does not end
_JITTER = 0.1  # many bridges must not come in step
_dice = random.Random()  # noqa: S311 - nothing secret
_NOT_THEIRS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


class ListKeeper:
    """`adopt` a configuration, `start`, then `watch` until cancelled."""

    def __init__(self, state: Path, metrics: Metrics, is_ours: Callable[[], bool]) -> None:
        self.copies = Copies(state / "lists")
        self._metrics = metrics
        self._is_ours = is_ours  # whether this process is the one that fetches
        self._conf: Config | None = None
        self._interval_s = 0.0
        self._not_before = 0.0
        self._said: dict[str, str] = {}
        self._sizes: dict[Wanted, tuple[int, int]] = {}
        metrics.list_entries.read = self._entries
        metrics.list_age.read = self._ages
        metrics.list_missing.read = self._missing

    def adopt(self, conf: Config) -> None:
        """At the start and after a reload: which lists, and how often."""
        self._conf = conf
        self.copies.want(wiring.wanted_lists(conf))
        for listener in conf.listeners:
            self._metrics.start_lists(listener.name, listener.lists.names if listener.lists else [])
        if conf.lists is not None:
            self._interval_s = conf.lists.refresh * (1 + _JITTER * _dice.uniform(-1, 1))
        self._not_before = 0.0

    async def start(self) -> None:
        """What the last run left is in force before the first connection."""
        if self.copies.wanted:
            await asyncio.to_thread(self.copies.look)
            if missing := self.copies.missing():
                log.error("lists without a local copy are not enforced until there is one: %s", _named(missing))
            self._tell_sizes()

    async def watch(self) -> None:
        refreshing: asyncio.Task[None] | None = None
        try:
            while True:
                if self.copies.wanted:
                    await asyncio.to_thread(self.copies.look)
                    if (refreshing is None or refreshing.done()) and self._is_ours() and (due := self._due()):
                        refreshing = asyncio.create_task(self._refresh(due))
                await asyncio.sleep(_LOOK_S)
        finally:
            if refreshing is not None:
                refreshing.cancel()
                await asyncio.gather(refreshing, return_exceptions=True)

    def _due(self) -> list[Wanted]:
        """What is older than the interval, with what will be soon: one stream after the other, once."""
        if time.monotonic() < self._not_before:
            return []
        ages = {one: self._age(one) for one in self.copies.wanted}
        if max(ages.values()) < self._interval_s:
            return []
        return [one for one, age in ages.items() if age > self._interval_s / 2]

    def _age(self, one: Wanted) -> float:
        copy = self.copies.get(one.name, one.tenant)
        return float("inf") if copy is None else copy.age_s

    async def _refresh(self, due: list[Wanted]) -> None:
        assert self._conf is not None and self._conf.lists is not None
        refresh_s = self._conf.lists.refresh
        try:
            trouble = await self._run(fetch.dump(wiring.list_job(self._conf, self.copies.directory, due)))
        except Exception as exc:  # the next time comes
            log.exception("lists: the refresh could not be started")
            trouble = type(exc).__name__
        await asyncio.to_thread(self.copies.look)
        self._tell_problems(trouble)
        self._tell_sizes()
        failed = bool(trouble or self.copies.problems)
        self._metrics.list_refreshes.values["failed" if failed else "ok",] += 1
        self._interval_s = refresh_s * (1 + _JITTER * _dice.uniform(-1, 1))
        self._not_before = time.monotonic() + (min(_RETRY_S, refresh_s) * _dice.uniform(0.8, 1.2) if failed else 0.0)

    async def _run(self, job: bytes) -> str:
        """Run the program to its end; what is wrong with more than single lists."""
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "bridge.lists.fetch"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is for us; we end it
        )
        try:
            async with asyncio.timeout(_LONGEST_S):
                _, said = await program.communicate(job)
        except TimeoutError:
            return f"it did not end within {_LONGEST_S:.0f} s"
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        if program.returncode in (0, 1):
            return said.decode(errors="replace").strip()[-500:]
        return f"its program ended with exit code {program.returncode}: {said.decode(errors='replace').strip()[-500:]}"

    # What operators read

    def _tell_problems(self, trouble: str) -> None:
        """Once for each, and once when it is over."""
        now = {**self.copies.problems, **({"": trouble} if trouble else {})}
        for name, text in now.items():
            if self._said.get(name) != text:
                log.error("lists: %scannot be refreshed, the last copy stays: %s", f"{name} " if name else "", text)
        if self._said and not now:
            log.info("lists: they are fresh again")
        self._said = now

    def _tell_sizes(self) -> None:
        for one in self.copies.wanted:
            copy = self.copies.get(one.name, one.tenant)
            size = (copy.table.about.count, copy.table.about.skipped) if copy else (0, 0)
            if copy is not None and self._sizes.get(one) != size:
                odd = f", and {size[1]:,} that cannot be matched" if size[1] else ""
                log.info("list %s: %s entries%s, seen %.0f s ago", one, f"{size[0]:,}", odd, copy.age_s)
            self._sizes[one] = size

    def state(self) -> list[dict[str, Any]]:
        """For /status."""
        return [
            {
                "name": one.name,
                "tenant": one.tenant,
                "entries": copy.table.about.count if copy else None,
                "age_s": round(copy.age_s) if copy else None,
                "problem": self.copies.problems.get(str(one)),
            }
            for one in self.copies.wanted
            for copy in [self.copies.get(one.name, one.tenant)]
        ]

    def _entries(self) -> list[tuple[tuple[str, ...], float]]:
        return self._by_name(lambda one: self._count(one), sum)

    def _ages(self) -> list[tuple[tuple[str, ...], float]]:
        known = self._by_name(lambda one: age if (age := self._age(one)) != float("inf") else -1.0, max)
        return [(labels, age) for labels, age in known if age >= 0]

    def _missing(self) -> list[tuple[tuple[str, ...], float]]:
        return self._by_name(lambda one: float(self.copies.get(one.name, one.tenant) is None), sum)

    def _count(self, one: Wanted) -> float:
        copy = self.copies.get(one.name, one.tenant)
        return copy.table.about.count if copy else 0

    def _by_name(
        self, value: Callable[[Wanted], float], together: Callable[[list[float]], float]
    ) -> list[tuple[tuple[str, ...], float]]:
        found: dict[str, list[float]] = {}
        for one in self.copies.wanted:
            found.setdefault(one.name, []).append(value(one))
        return [((name,), together(values)) for name, values in found.items()]


def _named(wanted: list[Wanted]) -> str:
    shown = ", ".join(map(str, wanted[:10]))
    return shown if len(wanted) <= 10 else f"{shown} and {len(wanted) - 10} more"
