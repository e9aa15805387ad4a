"""Metrics: every name an operator can graph, declared once.

Names and labels are an interface; `docs/metrics.md` is made from this file. Label values come
from closed sets (listener names, actions, decisions, reasons), never from mail or strangers, and
every combination starts at 0, so that a rate over it works from the first scrape.

Counting happens in plain numbers (one thread, no locks), because it happens for every mail;
they become Prometheus families only when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, product

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
        """Every combination of these starts at 0."""
        self.values.update(dict.fromkeys(product(*label_values), 0.0))

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
        self.rows = {name: [0.0] * (len(BUCKETS) + 2) for name in listeners}

    def observe(self, listener: str, seconds: float) -> None:
        row = self.rows[listener]
        row[bisect_left(BUCKETS, seconds)] += 1
        row[-1] += seconds

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

    def family(self) -> Metric:
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in self.read():
            family.add_metric(labels, value)
        return family


class Metrics(Collector):
    """All of them. The daemon tells the levels where to look."""

    def __init__(self, listeners: Iterable[str]) -> None:
        names = tuple(listeners)
        self.mails = Count(
            "scanbridge_mails",
            "Mails that came to their end, by the service's decision and our action.",
            ("listener", "decision", "action"),
        )
        self.mails.start(names, DECISIONS, ACTIONS)
        self.replies = Count(
            "scanbridge_replies", "Replies to mails, by the first digit of the code.", ("listener", "code")
        )
        self.replies.start(names, CODES)
        self.mail_bytes = Count("scanbridge_mail_bytes", "Bytes of the mails that came to their end.", ("listener",))
        self.mail_bytes.start(names)
        self.failures = Count(
            "scanbridge_failures", "Mails that something went wrong with, by what it was.", ("reason",)
        )
        self.failures.start([reason for _, reason in FAILURES])
        self.refused_early = Count(
            "scanbridge_saturated_replies",
            "451s given before the mail travelled, at MAIL or before 354.",
            ("listener", "stage"),
        )
        self.refused_early.start(names, STAGES)
        self.refused_connections = Count(
            "scanbridge_connections_refused", "Connections turned away.", ("listener", "reason")
        )
        self.refused_connections.start(names, REFUSED_CONNECTIONS)
        self.log_lines_lost = Count("scanbridge_log_lines_lost", "Log lines that could not be written in time.", ())
        self.log_lines_lost.start()
        self.wait = Times("scanbridge_wait_seconds", "Time a mail waited in the throttle.")
        self.scan = Times("scanbridge_scan_seconds", "Time the scanner took.")
        self.relay = Times("scanbridge_relay_seconds", "Time the next hop took.")
        for times in (self.wait, self.scan, self.relay):
            times.start(names)
        self.connections = Level("scanbridge_connections", "Open connections.", ("listener",))
        self.in_processing = Level("scanbridge_in_processing", "Mails in processing.")
        self.in_processing_limit = Level("scanbridge_in_processing_limit", "Where saturation begins.")
        self.bytes_in_processing = Level("scanbridge_bytes_in_processing", "Bytes of the mails held.")
        self.bytes_limit = Level("scanbridge_bytes_in_processing_limit", "Where saturation begins.")
        self.scanner_status = Level(
            "scanbridge_scanner_status",
            "What the service says of itself: 0 GREEN, 1 YELLOW, 2 RED, -1 unknown.",
            ("host",),
        )
        self.scanner_in_flight = Level("scanbridge_scanner_in_flight", "Requests at this scanner host now.", ("host",))
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Everything declared above, in that order, and the version."""
        for part in vars(self).values():
            if isinstance(part, Count | Times | Level):
                yield part.family()
        yield InfoMetricFamily("scanbridge_build", "The running version.", value={"version": __version__})

    def record(self, record: Record) -> None:
        """Count one mail that came to its end."""
        listener, outcome = record.tx.session.listener, record.outcome
        self.mail_bytes.values[listener,] += record.size
        if record.error is not None:
            self.failures.values[reason_of(record.error),] += 1
        if outcome is None:
            self.mails.values[listener, "none", "cancelled"] += 1
            return
        decision = outcome.result.decision.value if outcome.result else "none"
        self.mails.values[listener, decision, outcome.action.value] += 1
        self.replies.values[listener, f"{outcome.reply.code // 100}xx"] += 1
        if record.scan_s:
            self.wait.observe(listener, record.wait_s)
            self.scan.observe(listener, record.scan_s)
        if record.relay_s:
            self.relay.observe(listener, record.relay_s)


def reason_of(error: BaseException) -> str:
    """The class of an error as a label, the same word in log and metrics."""
    return next(reason for kind, reason in FAILURES if isinstance(error, kind))
