"""The recorder: takes reports from the mail's path, and writes events to the outbox from a thread.

`put` only appends to a bounded queue: it is called for every mail. A thread makes the events and writes them in
batches; events for a file are written there at once if none waits for it (`direct`). A database that is slow, full,
locked or gone fills the queue; what does not fit is counted for each sink it was meant for, and mail continues. If this
is wrong, a slow database slows mail or takes all memory, or events are lost without a trace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import time as now

from bridge.events.direct import DirectFile
from bridge.events.event import Event, of_mail, types_of
from bridge.events.outbox import Entry, Limit, Outbox, OutboxError
from bridge.filter.outcome import Record
from bridge.mail.envelope import memory_weight
from bridge.observe.redaction import FULL, Redaction

log = logging.getLogger(__name__)

MAX_WAITING = 10_000  # reports in memory; twenty recipients weigh as much as a report
_BATCH = 500  # reports in one transaction
_BATCH_S = 0.2
_LONGEST_PAUSE_S = 5.0
CLOSE_S = 5.0

QUEUE, FULL_OUTBOX, STOP = "queue", "outbox", "stop"  # why an event was lost

OnLost = Callable[[str, str, int], None]  # sink, reason, number


def _weight(report: Record | Event) -> int:
    return 1 if isinstance(report, Event) else memory_weight(len(report.tx.envelope.recipients))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one sink wants."""

    sink: str
    types: frozenset[str]
    limit: Limit


@dataclass(frozen=True)
class RecorderSettings:
    plans: tuple[Plan, ...]
    source: str  # our host name
    redaction: Redaction = FULL
    max_waiting: int = MAX_WAITING
    batch_s: float = _BATCH_S

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The types that any sink wants."""
        return frozenset().union(*(plan.types for plan in self.plans))


@dataclass(slots=True)
class Recorder:
    """`start`, `put` from the event loop, `close` from a thread."""

    settings: RecorderSettings
    outbox: Outbox
    on_lost: OnLost = lambda sink, reason, number: None
    on_made: Callable[[str], None] = lambda type_: None
    on_written: Callable[[], None] = lambda: None
    direct: Mapping[str, DirectFile] = field(default_factory=dict)  # by sink
    problem: str = ""  # why the outbox cannot be written to now
    _queue: deque[tuple[float, Record | Event]] = field(default_factory=deque)
    _added: int = 0  # weights of what has entered the queue; changed by the event loop only
    _removed: int = 0  # and of what has left it; changed by the thread only
    _lost: Counter[str] = field(default_factory=Counter)  # by sink, not yet counted in the outbox
    _counting: threading.Lock = field(default_factory=threading.Lock)  # of what is lost, in both threads
    _stop: threading.Event = field(default_factory=threading.Event)
    _stop_by: float = 0.0
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def put(self, report: Record | Event) -> None:
        """Called for every mail, in the event loop."""
        if self._added - self._removed < self.settings.max_waiting:
            self._added += _weight(report)
            self._queue.append((now(), report))
        else:
            self._lose([report], QUEUE)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Write what is left, as far as the database allows within this time; the rest is lost and counted."""
        self._stop_by = time.monotonic() + limit_s
        self._stop.set()
        if self._thread is not None:
            self._thread.join(limit_s + 1)  # if a statement takes longer, the thread counts the loss or is cut off
            self._thread = None

    # The thread

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.settings.batch_s) or self._queue:
                while batch := self._next_batch():
                    self._write_or_lose(batch)
        finally:
            self.outbox.close()
            for file in self.direct.values():
                file.close()

    def _write_or_lose(self, batch: Sequence[Entry]) -> None:
        try:
            if left := self._left_for_outbox(batch):
                self._write(left)
        except Exception:  # caused by these events: they must not cost all later ones
            log.exception("events: unexpected error; %d events were lost", len(batch))
            for sink, number in Counter(entry.sink for entry in batch).items():
                with self._counting:
                    self._lost[sink] += number
                    self.on_lost(sink, QUEUE, number)

    def _left_for_outbox(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Without the events that could be written to their files at once: no other event of the sink waits."""
        with self._counting:
            has_lost = any(self._lost.values())  # the outbox must count them
        for sink, file in self.direct.items() if not has_lost else ():
            own = [entry for entry in entries if entry.sink == sink]
            try:
                is_written = bool(own) and not self.outbox.has_waiting(sink) and file.write(own)
            except OutboxError:
                self.outbox.close()
                break  # adding them to the outbox will report the reason
            if is_written:
                entries = [entry for entry in entries if entry.sink != sink]
        return entries

    def _next_batch(self) -> list[Entry]:
        """The events of the next reports; there are none for reports that no sink wants."""
        while self._queue:
            reports = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            self._removed += sum(_weight(report) for _, report in reports)
            if entries := [entry for at, report in reports for entry in self._entries(at, report)]:
                return entries
        return []

    def _entries(self, at: float, report: Record | Event) -> Iterator[Entry]:
        try:
            for event in self._events(at, report):
                self.on_made(event.type)
                body = event.to_json(self.settings.source)
                for plan in self.settings.plans:
                    if event.type in plan.types:
                        yield Entry(plan.sink, event.id, event.type, event.about, event.time, body)
        except Exception:  # one mail that cannot be described must not cost the events of all others
            log.exception("events: an event could not be created")
            self._lose([report], QUEUE)

    def _events(self, at: float, report: Record | Event) -> Iterator[Event]:
        if isinstance(report, Event):
            yield report
            return
        yield from of_mail(report, self.settings.wanted, self.settings.redaction, at)

    def _write(self, entries: Sequence[Entry]) -> None:
        """Tries until it succeeds or time is up; meanwhile, the queue fills."""
        limits = {plan.sink: plan.limit for plan in self.settings.plans}
        pause_s, again = 0.1, False
        while True:
            with self._counting:
                lost = Counter(self._lost)
            try:
                excess = self.outbox.add(entries, limits, lost, again=again)
            except OutboxError as exc:
                self._note(str(exc))
                self.outbox.close()
            else:
                with self._counting:
                    self._lost.subtract(lost)
                for sink, number in excess.items():
                    if number:
                        self.on_lost(sink, FULL_OUTBOX, number)
                self._note("")
                self.on_written()
                return
            again = True
            if self._stop.is_set() and time.monotonic() + pause_s > self._stop_by:
                self._give_up(entries)
                return
            if self._stop.wait(pause_s):
                time.sleep(min(pause_s, 0.1))  # the last attempts before shutdown
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _give_up(self, entries: Sequence[Entry]) -> None:
        for sink, number in Counter(entry.sink for entry in entries).items():
            self.on_lost(sink, STOP, number)
        reports = [report for _, report in self._queue]
        self._queue.clear()
        self._lose(reports, STOP)
        log.error("events: the outbox could not be written to before shutdown; %d events were lost", len(entries))

    def _lose(self, reports: Sequence[Record | Event], reason: str) -> None:
        for report in reports:
            types = [report.type] if isinstance(report, Event) else types_of(report)
            for plan in self.settings.plans:
                if number := sum(type_ in plan.types for type_ in types):
                    with self._counting:
                        self._lost[plan.sink] += number
                        self.on_lost(plan.sink, reason, number)

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            log.error("events: the outbox cannot be written to (%s); events are waiting in memory", problem)
        elif self.problem and not problem:
            log.info("events: the outbox can be written to again")
        self.problem = problem
