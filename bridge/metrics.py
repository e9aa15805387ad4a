"""Metrics: every name an operator can graph, declared once.

Names and labels are an interface; `docs/metrics.md` is made from this file. Label values come
from closed sets (listener names, actions, decisions, reasons), never from mail or strangers, and
every combination starts at 0, so that a rate over it works from the first scrape.

Counting happens in plain numbers (one thread, no locks), because it happens for every mail;
they become Prometheus families only when somebody scrapes. With several workers each counts for
itself; `snapshot` and `add` carry the numbers to whichever of them is scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bridge import __version__
from bridge.api.scanning import Decision
from bridge.errors import (
    MessageTooLarge,
    NextHopError,
    Saturated,
    ScanMalformed,
    ScanRefused,
    ScanTimeout,
    ScanUnavailable,
    StoreError,
)
from bridge.filter.decide import Record
from bridge.filter.late import Late, Scan
from bridge.mail.action import Action

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 300)
DECISIONS = (*(d.value for d in Decision), "none")  # none: no decision could be had
ACTIONS = (*(a.value for a in Action), "cancelled")  # cancelled: the client went away
CODES = ("2xx", "4xx", "5xx")
FAILURES: tuple[tuple[type[BaseException], str], ...] = (
    (Saturated, "saturated"),
    (ScanTimeout, "deadline"),
    (ScanRefused, "refused"),
    (ScanMalformed, "malformed"),
    (ScanUnavailable, "unavailable"),
    (MessageTooLarge, "too_large"),
    (NextHopError, "next_hop"),
    (StoreError, "quarantine"),
    (BaseException, "internal"),
)
REFUSED_CONNECTIONS = ("limit", "client_limit", "untrusted")
STAGES = ("mail", "data")


@dataclass(slots=True)
class Count:
    """A counter: `values[labels] += 1`."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def start(self, *label_values: Iterable[str]) -> None:
        """Every combination of these starts at 0, unless it has begun to count."""
        for labels in product(*label_values):
            self.values.setdefault(labels, 0.0)

    def dump(self) -> list[Any]:
        return [[*labels, value] for labels, value in self.values.items() if value]

    def add(self, dumped: list[Any]) -> None:
        for *labels, value in dumped:
            self.values[tuple(labels)] = self.values.get(tuple(labels), 0.0) + value

    def family(self) -> Metric:
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


@dataclass(slots=True)
class Times:
    """A histogram of seconds, one row of buckets per listener."""

    name: str
    text: str
    rows: dict[str, list[float]] = field(default_factory=dict)  # counts per bucket, +Inf, then the sum

    def start(self, listeners: Iterable[str]) -> None:
        for name in listeners:
            self.rows.setdefault(name, [0.0] * (len(BUCKETS) + 2))

    def observe(self, listener: str, seconds: float) -> None:
        row = self.rows[listener]
        row[bisect_left(BUCKETS, seconds)] += 1
        row[-1] += seconds

    def dump(self) -> dict[str, list[float]]:
        return {listener: row for listener, row in self.rows.items() if any(row)}

    def add(self, dumped: dict[str, list[float]]) -> None:
        self.start(dumped)
        for listener, row in dumped.items():
            self.rows[listener] = [a + b for a, b in zip(self.rows[listener], row, strict=True)]

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.text, labels=["listener"])
        bounds = [*(str(float(bound)) for bound in BUCKETS), "+Inf"]
        for listener, row in self.rows.items():
            buckets = list(zip(bounds, accumulate(row[:-1]), strict=True))
            family.add_metric([listener], buckets, sum_value=row[-1])
        return family


@dataclass(slots=True)
class Level:
    """A gauge, read from the parts when somebody scrapes: `read` gives (label values, value)."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    read: Callable[[], Iterable[tuple[tuple[str, ...], float]]] = tuple
    added_up: bool = False  # over all workers; else the highest is the value of all

    def dump(self) -> list[Any]:
        return [[*labels, value] for labels, value in self.read()]

    def show(self, dumps: Iterable[list[Any]]) -> None:
        """From now on, what these workers said."""
        found: dict[tuple[str, ...], float] = {}
        for *labels, value in (row for dumped in dumps for row in dumped):
            key = tuple(labels)
            known = found.get(key)
            found[key] = value if known is None else known + value if self.added_up else max(known, value)
        self.read = found.items

    def family(self) -> Metric:
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in self.read():
            family.add_metric(labels, value)
        return family


class Metrics(Collector):
    """All of them. The daemon tells the levels where to look."""

    def __init__(self, listeners: Iterable[str] = ()) -> None:
        self.mails = Count(
            "scanbridge_mails",
            "Mails that came to their end, by the service's decision and our action.",
            ("listener", "decision", "action"),
        )
        self.replies = Count(
            "scanbridge_replies", "Replies to mails, by the first digit of the code.", ("listener", "code")
        )
        self.mail_bytes = Count("scanbridge_mail_bytes", "Bytes of the mails that came to their end.", ("listener",))
        self.failures = Count(
            "scanbridge_failures", "Mails that something went wrong with, by what it was.", ("reason",)
        )
        self.failures.start([reason for _, reason in FAILURES])
        self.late_mails = Count(
            "scanbridge_late_mails",
            "Mails that late decisions had to do with: answered by one (hit), deferred again while the scan runs "
            "(running), deferred while the scan goes on (awaited).",
            ("late",),
        )
        self.late_mails.start(list(Late))
        self.late_scans = Count(
            "scanbridge_late_scans", "Scans that went on after the deadline, by how they ended.", ("end",)
        )
        self.late_scans.start(list(Scan))
        self.shadow_mails = Count(
            "scanbridge_shadow_mails", "Mails in shadow mode, by what would have been done.", ("listener", "would")
        )
        self.refused_early = Count(
            "scanbridge_saturated_replies",
            "451s given before the mail travelled, at MAIL or before 354.",
            ("listener", "stage"),
        )
        self.refused_connections = Count(
            "scanbridge_connections_refused", "Connections turned away.", ("listener", "reason")
        )
        self.log_lines_lost = Count("scanbridge_log_lines_lost", "Log lines that could not be written in time.", ())
        self.log_lines_lost.start()
        self.wait = Times("scanbridge_wait_seconds", "Time a mail waited in the throttle.")
        self.scan = Times("scanbridge_scan_seconds", "Time the scanner took.")
        self.relay = Times("scanbridge_relay_seconds", "Time the next hop took.")
        self._declare_levels()
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(self)
        self.start(listeners)

    def _declare_levels(self) -> None:
        self.connections = Level("scanbridge_connections", "Open connections.", ("listener",), added_up=True)
        self.in_processing = Level("scanbridge_in_processing", "Mails in processing.")
        self.in_processing_limit = Level("scanbridge_in_processing_limit", "Where saturation begins.")
        self.adaptive_limit = Level(
            "scanbridge_in_processing_adaptive_limit", "Where the adaptive limit is now; absent when it is not in use."
        )
        self.late_running = Level("scanbridge_late_scans_running", "Scans that went on and still run.", added_up=True)
        self.bytes_in_processing = Level("scanbridge_bytes_in_processing", "Bytes of the mails held.")
        self.bytes_limit = Level("scanbridge_bytes_in_processing_limit", "Where saturation begins.")
        self.scanner_status = Level(
            "scanbridge_scanner_status",
            "What the service says of itself: 0 GREEN, 1 YELLOW, 2 RED, -1 unknown.",
            ("host",),
        )
        self.scanner_circuit = Level(
            "scanbridge_scanner_circuit",
            "Whether this host gets mail: 0 closed (it does), 1 half open (one mail tries it), 2 open (it does not).",
            ("host",),
        )
        self.scanner_in_flight = Level(
            "scanbridge_scanner_in_flight", "Requests at this scanner host now.", ("host",), added_up=True
        )
        self.workers = Level("scanbridge_workers", "Processes that take mail.", added_up=True)
        self.workers_silent = Level(
            "scanbridge_workers_silent", "Workers that did not answer this scrape; their last known numbers are in it."
        )
        self.worker_restarts = Count(
            "scanbridge_worker_restarts", "Workers started in place of one that ended unasked.", ()
        )
        self.worker_restarts.start()
        self.reload_success = Level(
            "scanbridge_config_reload_success", "1 if the last reading of the configuration succeeded, else 0."
        )
        self.reload_time = Level(
            "scanbridge_config_reload_time_seconds", "When the configuration in force was read, Unix time."
        )

    def start(self, listeners: Iterable[str]) -> None:
        """All series of these listeners are there, from 0."""
        names = tuple(listeners)
        self.mails.start(names, DECISIONS, ACTIONS)
        self.replies.start(names, CODES)
        self.mail_bytes.start(names)
        self.shadow_mails.start(names, [a.value for a in Action])
        self.refused_early.start(names, STAGES)
        self.refused_connections.start(names, REFUSED_CONNECTIONS)
        for times in (self.wait, self.scan, self.relay):
            times.start(names)

    def snapshot(self) -> dict[str, Any]:
        """Plain numbers, for another process."""
        return {name: part.dump() for name, part in self._parts()}

    def add(self, snapshot: dict[str, Any]) -> None:
        """Another process' counts and times on top of ours. Levels pass away with their process."""
        for name, part in self._parts():
            if name in snapshot and not isinstance(part, Level):
                part.add(snapshot[name])

    def merged(self, others: Sequence[dict[str, Any]]) -> Metrics:
        """These numbers and the others', as one."""
        whole, snapshots = Metrics(), [self.snapshot(), *others]
        whole.start(labels[0] for labels in self.mail_bytes.values)
        for snapshot in snapshots:
            whole.add(snapshot)
        for name, part in whole._parts():
            if isinstance(part, Level):
                part.show(snapshot.get(name, []) for snapshot in snapshots)
        return whole

    def _parts(self) -> list[tuple[str, Count | Times | Level]]:
        return [(name, part) for name, part in vars(self).items() if isinstance(part, Count | Times | Level)]

    def collect(self) -> Iterator[Metric]:
        """Everything declared above, in that order, and the version."""
        for _, part in self._parts():
            yield part.family()
        yield InfoMetricFamily("scanbridge_build", "The running version.", value={"version": __version__})

    def record(self, record: Record) -> None:
        """Count one mail that came to its end."""
        listener, outcome = record.tx.session.listener, record.outcome
        self.mail_bytes.values[listener,] += record.size
        if record.error is not None:
            self.failures.values[reason_of(record.error),] += 1
        if record.late is not None:
            self.late_mails.values[record.late.value,] += 1
        if outcome is None:
            self.mails.values[listener, "none", "cancelled"] += 1
            return
        decision = outcome.result.decision.value if outcome.result else "none"
        self.mails.values[listener, decision, outcome.action.value] += 1
        if record.would is not None:
            self.shadow_mails.values[listener, record.would.value] += 1
        self.replies.values[listener, f"{outcome.reply.code // 100}xx"] += 1
        if record.scan_s:
            self.wait.observe(listener, record.wait_s)
            self.scan.observe(listener, record.scan_s)
        if record.relay_s:
            self.relay.observe(listener, record.relay_s)


def reason_of(error: BaseException) -> str:
    """The class of an error as a label, the same word in log and metrics."""
    return next(reason for kind, reason in FAILURES if isinstance(error, kind))
