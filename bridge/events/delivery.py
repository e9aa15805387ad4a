"""Delivery: takes events from the outbox to their sinks, from a thread with its own event loop.

One task per sink. A sink that fails is left alone for a while, longer each time, and loses nothing in the meantime: its
events stay in the outbox, in order. If the receiver answers but does not accept one event, that event is set aside and
the others are delivered. It becomes a dead letter only if the receiver has accepted others since, because a receiver
that accepts nothing is itself broken. Of all the processes that share the outbox, only one at a time delivers to a sink
(a lease). If this is wrong, a receiver that was unavailable for an hour has a gap, or one bad event stops all others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bridge.events.direct import DirectFile, Lines
from bridge.events.ocsf import to_ocsf
from bridge.events.outbox import LEASE_S, Entry, Failed, Outbox, OutboxError, SinkState
from bridge.events.sinks.sink import NotDelivered, Results, Sink
from bridge.runtime.lasting import lasting

log = logging.getLogger(__name__)

_IDLE_S = 1.0  # how soon events of other processes are noticed
_STATES_S = 2.0
_KEEP_DEAD_S = 30 * 86400.0
_BURY_S = 3600.0
_PATIENT_ATTEMPTS = 3  # with one event, before others get their turn
CLOSE_S = 5.0
_LAST_ROUND_S = 2.0
_dice = random.Random()  # noqa: S311 - nothing secret


@dataclass(frozen=True, slots=True)
class SinkPlan:
    name: str
    create: Callable[[], Sink]  # called in the thread
    is_ocsf: bool = False
    max_attempts: int = 12
    open_directly: Callable[[], Lines] | None = None  # a file of JSON lines for which only this process has events


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    plans: tuple[SinkPlan, ...]
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    aside_s: float = 30.0  # how long an event is set aside, at first ...
    longest_aside_s: float = 600.0  # a fifth more, by chance, is still below `outbox.LONGEST_ASIDE_S`


@dataclass(slots=True)
class Delivery:
    """`start`, `wake` when there is something new, `close` from a thread."""

    settings: DeliverySettings
    outbox: Outbox
    is_ours: Callable[[], bool] = lambda: True  # whether this process is the one that delivers
    on_delivered: Callable[[str, int], None] = lambda sink, number: None
    on_failed: Callable[[str], None] = lambda sink: None
    on_lost: Callable[[str, str, int], None] = lambda sink, reason, number: None
    states: list[SinkState] = field(default_factory=list)  # as of a few seconds ago
    problem: str = ""  # why the outbox cannot be read
    owner: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}")
    _states_at: float = 0.0
    _held: dict[str, float] = field(default_factory=dict)  # sink -> until when we may deliver to it
    _busy: set[str] = field(default_factory=set)  # sinks that are being delivered to
    _news: dict[str, asyncio.Event] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="event-delivery", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Call it when there are new events, from any thread."""
        self._call(self._spread_news)

    def close(self, limit_s: float = CLOSE_S) -> None:
        """An event that is being sent may be sent again by whoever delivers next."""
        self._call(self._request_stop)
        if self._thread is not None:
            self._thread.join(limit_s)
            self._thread = None

    def direct_files(self) -> dict[str, DirectFile]:
        """For the recorder, by sink."""
        return {
            plan.name: DirectFile(plan.open_directly(), partial(self._may_deliver, plan.name), self._counter(plan.name))
            for plan in self.settings.plans
            if plan.open_directly is not None
        }

    def _may_deliver(self, sink: str, for_s: float) -> bool:
        """From any thread."""
        return self._held.get(sink, 0.0) - time.monotonic() > for_s

    def _counter(self, sink: str) -> Callable[[int], None]:
        """Counts what was delivered, from any thread; the counters belong to this one."""
        return lambda number: self._call(lambda: self.on_delivered(sink, number))

    def _spread_news(self) -> None:
        for news in self._news.values():
            news.set()

    def _request_stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    @property
    def _is_stopping(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _call(self, function: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(function)
            except RuntimeError:  # the thread has ended
                pass

    # The thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            log.exception("events: unexpected error; delivery has stopped: restart scanbridge")
            self.problem = "an unexpected error; see the log"
        finally:
            self.outbox.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._news = {plan.name: asyncio.Event() for plan in self.settings.plans}
        self._loop = asyncio.get_running_loop()
        work = {plan.name: asyncio.create_task(self._serve(plan)) for plan in self.settings.plans}
        tending = asyncio.create_task(lasting(self._tend, "events"))
        await self._stop.wait()
        tending.cancel()
        for name, task in work.items():
            if name not in self._busy:
                task.cancel()
        await asyncio.wait(work.values(), timeout=_LAST_ROUND_S)  # so that what is being sent is not sent again
        for task in work.values():
            task.cancel()
        await asyncio.gather(tending, *work.values(), return_exceptions=True)
        try:
            if self._held:
                self.outbox.give_up_leases(self.owner)
        except OutboxError:
            pass  # it expires

    async def _tend(self) -> None:
        """Renew the leases, and keep the totals up to date."""
        buried_at = time.monotonic()
        while True:
            try:
                for plan in self.settings.plans:
                    self._hold(plan.name)
                names = {plan.name for plan in self.settings.plans}
                self.states = [state for state in self.outbox.states() if state.name in names]
                self._states_at = time.monotonic()
                if self._held and time.monotonic() - buried_at > _BURY_S:
                    buried_at = time.monotonic()
                    for sink, number in self.outbox.bury_old(time.time() - _KEEP_DEAD_S).items():
                        self.on_lost(sink, "expired", number)
                self._note("")
            except OutboxError as exc:
                self._note(str(exc))
                self.outbox.close()
            await asyncio.sleep(_STATES_S)

    def _hold(self, sink: str) -> bool:
        """Whether we may deliver to this sink. Raises OutboxError."""
        if not self.is_ours():
            self._held.pop(sink, None)
            return False
        now = time.monotonic()
        if self._held.get(sink, 0.0) - now < LEASE_S * 0.8:
            if self.outbox.hold_lease(sink, self.owner):
                self._held[sink] = now + LEASE_S
            else:
                self._held.pop(sink, None)
        return self._held.get(sink, 0.0) > now

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            log.error("events: the outbox cannot be read: %s", problem)
        self.problem = problem

    # One sink

    async def _serve(self, plan: SinkPlan) -> None:
        courier: Courier | None = None
        try:
            while not self._is_stopping:
                pause_s = _IDLE_S
                try:
                    if self._hold(plan.name):
                        courier = courier or Courier(plan, self.settings, plan.create(), self)
                        self._busy.add(plan.name)
                        pause_s = await courier.round()
                except OutboxError as exc:
                    self._note(str(exc))
                    self.outbox.close()
                except Exception:  # from a library: the other sinks must continue
                    log.exception("events: sink %s: unexpected error", plan.name)
                    pause_s = self.settings.longest_pause_s
                finally:
                    self._busy.discard(plan.name)
                await self._wait(plan.name, pause_s, is_failing=courier is not None and courier.failures > 0)
        finally:
            if courier is not None:
                await courier.sink.close()

    async def _wait(self, sink: str, pause_s: float, is_failing: bool) -> None:
        """Until there is something new, or we stop. A failing sink is left alone, unless an operator retries it."""
        news, began = self._news[sink], time.monotonic()
        if self._is_stopping:
            return
        if is_failing:
            end = began + pause_s
            while time.monotonic() < end and not self._is_retry(sink, began):  # noqa: ASYNC110 - a command asks
                await asyncio.sleep(min(max(end - time.monotonic(), 0.0), _IDLE_S))
        elif pause_s:
            try:
                async with asyncio.timeout(pause_s):
                    await news.wait()
            except TimeoutError:
                pass
        news.clear()

    def _is_retry(self, sink: str, since: float) -> bool:
        """Whether `scanbridge events retry` has cleared the problem that we recorded."""
        return self._states_at > since and any(state.name == sink and not state.problem for state in self.states)


class Courier:
    """Delivers to one sink, a round at a time."""

    def __init__(self, plan: SinkPlan, settings: DeliverySettings, sink: Sink, delivery: Delivery) -> None:
        self.sink = sink
        self.failures = 0  # rounds in a row in which nothing was delivered
        self._plan = plan
        self._settings = settings
        self._delivery = delivery
        self._outbox = delivery.outbox
        self._unsettled: tuple[list[int], list[Failed], str] | None = None

    async def round(self) -> float:
        """Deliver what is due. Returns how long to wait before the next round. Raises OutboxError."""
        self._settle()  # the last round, if that failed: otherwise its events would be delivered again
        entries = self._outbox.due(self._plan.name, self.sink.batch)
        if not entries:
            return _IDLE_S
        results = await self._deliver(entries)
        delivered = [seq for seq, error in results.items() if error is None]
        errors = {seq: error for seq, error in results.items() if error is not None}
        pause_s = self._judge(delivered, errors)
        self._unsettled = (delivered, [], str(next(iter(errors.values()), "")))  # even if the outbox fails now
        failed = self._failed(entries, errors, bool(delivered))
        # A dead letter holds nothing up.
        problem = next((failure.problem for failure in failed if not failure.is_dead), "")
        self._unsettled = (delivered, failed, problem)
        if delivered:
            self._delivery.on_delivered(self._plan.name, len(delivered))
        self._settle()
        return pause_s

    async def _deliver(self, entries: Sequence[Entry]) -> Results:
        """Up to the first event that cannot be converted: a newer version that shares the outbox may add types."""
        rendered: list[Entry] = []
        for entry in entries:
            try:
                rendered.append(self._rendered(entry))
            except (KeyError, TypeError, ValueError):
                if rendered:
                    break
                problem = f"this version of scanbridge cannot convert events of type {entry.type} to OCSF"
                return {entry.seq: NotDelivered(problem, blames_event=True)}
        return await self.sink.deliver(rendered)

    def _rendered(self, entry: Entry) -> Entry:
        if not self._plan.is_ocsf:
            return entry
        return Entry(entry.sink, entry.id, entry.type, entry.about, entry.time, to_ocsf(entry.body), entry.seq)

    def _settle(self) -> None:
        if self._unsettled is not None:
            self._outbox.settle(self._plan.name, *self._unsettled)
            self._unsettled = None

    def _judge(self, delivered: Sequence[int], errors: dict[int, NotDelivered]) -> float:
        if not errors:
            if self.failures:
                log.info("events: sink %s accepts events again", self._plan.name)
            self.failures = 0
            return 0.0
        first = next(iter(errors.values()))
        if not self.failures:
            log.warning("events: sink %s: %s", self._plan.name, first)
        self._delivery.on_failed(self._plan.name)
        self.failures = 1 if delivered else self.failures + 1
        longest = self._settings.longest_pause_s
        pause_s: float = min(self._settings.first_pause_s * 2 ** min(self.failures - 1, 20), longest)
        return max(pause_s * _dice.uniform(0.5, 1.0), *(error.pause_s for error in errors.values()))

    def _failed(self, entries: Sequence[Entry], errors: dict[int, NotDelivered], took_some: bool) -> list[Failed]:
        if not errors:
            return []
        by_seq = {entry.seq: entry for entry in entries}
        taken_at = next((state.delivered_at for state in self._outbox.states() if state.name == self._plan.name), 0.0)
        return [
            self._failure(by_seq[seq], error, took_some or 0 < by_seq[seq].failed_at <= taken_at)
            for seq, error in errors.items()
        ]

    def _failure(self, entry: Entry, error: NotDelivered, takes_others: bool) -> Failed:
        if not error.blames_event:
            return Failed(entry.seq, str(error))
        if takes_others and entry.strikes + 1 >= self._plan.max_attempts:
            log.error("events: sink %s refused event %s: %s", self._plan.name, entry.id, error)
            return Failed(entry.seq, str(error), is_strike=True, is_dead=True)
        attempts = entry.attempts + 1
        if attempts < _PATIENT_ATTEMPTS:
            return Failed(entry.seq, str(error), is_strike=takes_others)
        settings = self._settings
        aside_s = min(settings.aside_s * 2 ** min(attempts - _PATIENT_ATTEMPTS, 20), settings.longest_aside_s)
        next_at = time.time() + aside_s * _dice.uniform(0.8, 1.2)
        return Failed(entry.seq, str(error), next_at, is_strike=takes_others)
