"""The daemon's events: a recorder and a delivery while the configuration has sinks, and nothing otherwise.

A reload starts new ones next to the old ones and lets those finish in a thread, so mail never waits for a database
or a receiver. Every worker records; the first one delivers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from bridge.daemon.event_wiring import EventPlans
from bridge.events.delivery import Delivery
from bridge.events.event import EventType
from bridge.events.outbox import Outbox, SinkState
from bridge.events.recorder import Recorder
from bridge.observe.metrics import Metrics

Rows = Iterable[tuple[tuple[str, ...], float]]


class Events:
    """`recorder` is None when there are no sinks; `Core.report` checks it for every mail."""

    def __init__(self, metrics: Metrics, is_ours: Callable[[], bool]) -> None:
        self.recorder: Recorder | None = None
        self._delivery: Delivery | None = None
        self._is_ours = is_ours
        self._metrics = metrics
        self._closing: list[threading.Thread] = []
        metrics.events_waiting.read = lambda: self._rows(lambda state: state.waiting)
        metrics.events_waiting_bytes.read = lambda: self._rows(lambda state: state.size_bytes)
        metrics.events_oldest.read = lambda: self._rows(_age_s)
        metrics.events_dead.read = lambda: self._rows(lambda state: state.dead)

    def adopt(self, plans: EventPlans | None) -> None:
        """Use these sinks from now on. Never blocks."""
        self._retire()
        if plans is None:
            return
        metrics = self._metrics
        metrics.start_events((plan.name for plan in plans.delivery.plans), map(str, EventType))
        self._delivery = Delivery(
            plans.delivery,
            Outbox(plans.place),
            is_ours=self._is_ours,
            on_delivered=lambda sink, number: _count(metrics.events_delivered.values, (sink,), number),
            on_failed=lambda sink: _count(metrics.events_failed.values, (sink,)),
            on_lost=self._lost,
        )
        self.recorder = Recorder(
            plans.recorder,
            Outbox(plans.place),
            on_lost=self._lost,
            on_made=lambda type_: _count(metrics.events.values, (str(type_),)),
            on_written=self._delivery.wake,
            direct=self._delivery.direct_files(),
        )
        self._delivery.start()
        self.recorder.start()

    def _lost(self, sink: str, reason: str, number: int) -> None:
        _count(self._metrics.events_lost.values, (sink, reason), number)

    def _retire(self) -> None:
        recorder, delivery, self.recorder, self._delivery = self.recorder, self._delivery, None, None
        self._closing = [thread for thread in self._closing if thread.is_alive()]
        if recorder is not None and delivery is not None:
            thread = threading.Thread(target=_close, args=(recorder, delivery), name="events-close", daemon=True)
            thread.start()
            self._closing.append(thread)

    async def close(self) -> None:
        """Write what is left to the outbox; it is delivered now, or after the next start."""
        self._retire()
        for thread in self._closing:
            while thread.is_alive():  # noqa: ASYNC110 - bounded by the limits of both
                await asyncio.sleep(0.01)

    # What operators read

    def state(self) -> list[dict[str, Any]]:
        """For /status."""
        return [
            {
                "name": state.name,
                "waiting": state.waiting,
                "dead": state.dead,
                "lost": state.lost,
                "oldest_s": round(_age_s(state)),
                "problem": state.problem,
            }
            for state in (self._delivery.states if self._delivery is not None else [])
        ]

    @property
    def problem(self) -> str:
        """Why the outbox cannot be used; "" if it can."""
        if self.recorder is None or self._delivery is None:
            return ""
        return self.recorder.problem or self._delivery.problem

    def _rows(self, value: Callable[[SinkState], float]) -> Rows:
        return [((state.name,), value(state)) for state in (self._delivery.states if self._delivery else [])]


def _close(recorder: Recorder, delivery: Delivery) -> None:
    recorder.close()
    delivery.close()


def _age_s(state: SinkState) -> float:
    return max(time.time() - state.oldest_at, 0.0) if state.oldest_at else 0.0


def _count(values: dict[tuple[str, ...], float], labels: tuple[str, ...], number: int = 1) -> None:
    values[labels] = values.get(labels, 0.0) + number
