"""Keeps the local copies of lists fresh, and makes every worker use the newest ones.

The fetching is done by another program (`bridge.lists.fetch`), so a list with a million entries costs
neither the event loop's time nor its memory. With several workers, one of them starts it. All of them
check once a second whether a copy was replaced, by that program or by `scanbridge lists refresh`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge.config.model import Config
from bridge.daemon import list_wiring
from bridge.daemon.systemd import environment_for_child
from bridge.lists import fetch
from bridge.lists.copies import Copies, Copy, Wanted
from bridge.observe.metrics import Metrics

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_RETRY_S = 30.0  # after a failure, or the interval if that is shorter
_LONGEST_S = 3600.0  # a refresh that takes longer is considered hung
_JITTER = 0.1  # so that many bridges do not refresh at the same moment
_random = random.Random()  # noqa: S311 - nothing secret

Rows = list[tuple[tuple[str, ...], float]]


class ListRefresh:
    """Call `start`, then `watch`, which runs until cancelled; a reload calls `adopt`."""

    def __init__(self, conf: Config, state: Path, metrics: Metrics, is_ours: Callable[[], bool]) -> None:
        self.copies = Copies(state / "lists")
        self._metrics = metrics
        self._is_ours = is_ours  # whether this process is the one that fetches
        self._reported: dict[str, str] = {}  # problems that are in the log
        self._sizes: dict[Wanted, tuple[int, int]] = {}
        self._conf = conf
        self._interval_s = self._not_before = 0.0
        metrics.list_entries.read = self._entries
        metrics.list_age.read = self._ages
        metrics.list_missing.read = self._missing
        self.adopt(conf)

    def adopt(self, conf: Config) -> None:
        """Use this configuration from now on: which lists there are, and how often they are refreshed."""
        self._conf = conf
        self._interval_s = _jittered(conf.lists.refresh) if conf.lists is not None else 0.0
        self._not_before = 0.0
        self.copies.want(list_wiring.wanted_lists(conf))
        for listener in conf.listeners:
            self._metrics.start_lists(listener.name, listener.lists.names if listener.lists else [])

    async def start(self) -> None:
        """Load the copies of the last run, before the first connection."""
        if self.copies.wanted:
            await asyncio.to_thread(self.copies.look)
            if missing := self.copies.missing():
                log.error("lists without a local copy are not enforced until they are fetched: %s", _named(missing))
            self._log_sizes()

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
        """Once a list is older than the interval: that one, and those that will be soon, in one run."""
        if time.monotonic() < self._not_before:
            return []
        ages = {wanted: self._age(wanted) for wanted in self.copies.wanted}
        if max(ages.values()) < self._interval_s:
            return []
        return [wanted for wanted, age in ages.items() if age > self._interval_s / 2]

    def _copy(self, wanted: Wanted) -> Copy | None:
        return self.copies.get(wanted.name, wanted.tenant)

    def _age(self, wanted: Wanted) -> float:
        copy = self._copy(wanted)
        return float("inf") if copy is None else copy.age_s

    # Refreshing

    async def _refresh(self, due: list[Wanted]) -> None:
        assert self._conf.lists is not None
        refresh_s = self._conf.lists.refresh
        try:
            problem = await self._run(fetch.dump(list_wiring.list_job(self._conf, self.copies.directory, due)))
        except Exception as exc:  # the next refresh may succeed
            log.exception("lists: could not start a refresh")
            problem = type(exc).__name__
        await asyncio.to_thread(self.copies.look)
        self._log_problems(problem)
        self._log_sizes()
        failed = bool(problem or self.copies.problems)
        self._metrics.list_refreshes.values["failed" if failed else "ok",] += 1
        self._interval_s = _jittered(refresh_s)
        retry_s = min(_RETRY_S, refresh_s) * _random.uniform(0.8, 1.2)
        self._not_before = time.monotonic() + (retry_s if failed else 0.0)

    async def _run(self, job: bytes) -> str:
        """Run the program to its end. Returns what went wrong for all lists, not for single ones."""
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "bridge.lists.fetch"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment_for_child(),
            start_new_session=True,  # Ctrl-C in a terminal must reach only us; we end the program
        )
        try:
            async with asyncio.timeout(_LONGEST_S):
                _, output = await program.communicate(job)
        except TimeoutError:
            return f"the refresh did not finish within {_LONGEST_S:.0f} s"
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        text = output.decode(errors="replace").strip()[-500:]
        if program.returncode in (0, 1):
            return text
        return f"the refresh process exited with code {program.returncode}: {text}"

    # What operators read

    def _log_problems(self, problem: str) -> None:
        """Log each problem once, and once when all of them are solved."""
        now = {**self.copies.problems, **({"": problem} if problem else {})}
        for name, text in now.items():
            if self._reported.get(name) != text:
                log.error("lists: refresh%s failed, keeping the last copy: %s", f" of {name}" if name else "", text)
        if self._reported and not now:
            log.info("lists: all copies are up to date again")
        self._reported = now

    def _log_sizes(self) -> None:
        for wanted in self.copies.wanted:
            copy = self._copy(wanted)
            size = (copy.table.about.count, copy.table.about.skipped) if copy else (0, 0)
            if copy is not None and self._sizes.get(wanted) != size:
                unusable = f", and {size[1]:,} that cannot be matched" if size[1] else ""
                log.info("list %s: %s entries%s, fetched %.0f s ago", wanted, f"{size[0]:,}", unusable, copy.age_s)
            self._sizes[wanted] = size

    def state(self) -> list[dict[str, Any]]:
        """For /status."""
        return [
            {
                "name": wanted.name,
                "tenant": wanted.tenant,
                "entries": copy.table.about.count if copy else None,
                "age_s": round(copy.age_s) if copy else None,
                "problem": self.copies.problems.get(str(wanted)),
            }
            for wanted in self.copies.wanted
            for copy in [self._copy(wanted)]
        ]

    def _entries(self) -> Rows:
        def entries(wanted: Wanted) -> float:
            copy = self._copy(wanted)
            return copy.table.about.count if copy else 0

        return self._by_name(entries, sum)

    def _ages(self) -> Rows:
        known = self._by_name(lambda wanted: age if (age := self._age(wanted)) != float("inf") else -1.0, max)
        return [(labels, age) for labels, age in known if age >= 0]

    def _missing(self) -> Rows:
        return self._by_name(lambda wanted: float(self._copy(wanted) is None), sum)

    def _by_name(self, value: Callable[[Wanted], float], together: Callable[[list[float]], float]) -> Rows:
        """One row per list name: the values of all tenants together."""
        found: dict[str, list[float]] = {}
        for wanted in self.copies.wanted:
            found.setdefault(wanted.name, []).append(value(wanted))
        return [((name,), together(values)) for name, values in found.items()]


def _jittered(interval_s: float) -> float:
    return interval_s * (1 + _JITTER * _random.uniform(-1, 1))


def _named(wanted: list[Wanted]) -> str:
    shown = ", ".join(map(str, wanted[:10]))
    return shown if len(wanted) <= 10 else f"{shown} and {len(wanted) - 10} more"
