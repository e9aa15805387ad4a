"""Metrics: every name an operator can graph, declared once.

Names and labels are an interface; `docs/metrics.md` is made from this file. Label values come
from closed sets (listener names, actions, decisions, reasons), never from mail or strangers, and
every combination starts at 0, so that a rate over it works from the first scrape.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics

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

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter that nobody graphs

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 300)
DECISIONS = (*(str(d) for d in Decision), "none")  # none: no decision could be had
ACTIONS = (*(str(a) for a in Action), "cancelled")  # cancelled: the client went away
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


class Metrics:
    """One registry, filled by the daemon's parts."""

    def __init__(self, listeners: Iterable[str]) -> None:
        listeners = tuple(listeners)
        self.registry = CollectorRegistry(auto_describe=True)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=BUCKETS)
        self._mails = counter(
            "scanbridge_mails",
            "Mails that came to their end, by the service's decision and our action.",
            ["listener", "decision", "action"],
        )
        self._replies = counter(
            "scanbridge_replies", "Replies to mails, by the first digit of the code.", ["listener", "code"]
        )
        self._failures = counter(
            "scanbridge_failures", "Mails that something went wrong with, by what it was.", ["reason"]
        )
        self._bytes = counter("scanbridge_mail_bytes", "Bytes of the mails that came to their end.", ["listener"])
        self._wait = histogram("scanbridge_wait_seconds", "Time a mail waited in the throttle.", ["listener"])
        self._scan = histogram("scanbridge_scan_seconds", "Time the scanner took.", ["listener"])
        self._relay = histogram("scanbridge_relay_seconds", "Time the next hop took.", ["listener"])
        self.refused_early = counter(
            "scanbridge_saturated_replies",
            "451s given before the mail travelled, at MAIL or before 354.",
            ["listener", "stage"],
        )
        self.refused_connections = counter(
            "scanbridge_connections_refused", "Connections turned away.", ["listener", "reason"]
        )
        self.connections = gauge("scanbridge_connections", "Open connections.", ["listener"])
        self.in_processing = gauge("scanbridge_in_processing", "Mails in processing.")
        self.in_processing_limit = gauge("scanbridge_in_processing_limit", "Where saturation begins.")
        self.bytes_in_processing = gauge("scanbridge_bytes_in_processing", "Bytes of the mails held.")
        self.bytes_limit = gauge("scanbridge_bytes_in_processing_limit", "Where saturation begins.")
        self.scanner_status = gauge(
            "scanbridge_scanner_status",
            "What the service says of itself: 0 GREEN, 1 YELLOW, 2 RED, -1 unknown.",
            ["host"],
        )
        self.scanner_in_flight = gauge("scanbridge_scanner_in_flight", "Requests at this scanner host now.", ["host"])
        self.log_lines_lost = counter("scanbridge_log_lines_lost", "Log lines that could not be written in time.")
        Info("scanbridge_build", "The running version.", registry=self.registry).info({"version": __version__})
        self._per_listener = {name: _Children(self, name) for name in listeners}
        self._reasons = {reason: self._failures.labels(reason) for _, reason in FAILURES}

    def record(self, record: Record) -> None:
        """Count one mail that came to its end."""
        children = self._per_listener[record.tx.session.listener]
        outcome = record.outcome
        children.bytes.inc(record.size)
        if record.error is not None:
            self._reasons[reason_of(record.error)].inc()
        if outcome is None:
            children.mails["none", "cancelled"].inc()
            return
        decision = str(outcome.result.decision) if outcome.result else "none"
        children.mails[decision, str(outcome.action)].inc()
        children.replies[outcome.reply.code // 100].inc()
        if record.scan_s:
            children.wait.observe(record.wait_s)
            children.scan.observe(record.scan_s)
        if record.relay_s:
            children.relay.observe(record.relay_s)


class _Children:
    """The label sets of one listener, looked up once."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.mails = {(d, a): metrics._mails.labels(name, d, a) for d in DECISIONS for a in ACTIONS}
        self.replies = {code: metrics._replies.labels(name, f"{code}xx") for code in (2, 4, 5)}
        self.bytes = metrics._bytes.labels(name)
        self.wait = metrics._wait.labels(name)
        self.scan = metrics._scan.labels(name)
        self.relay = metrics._relay.labels(name)
        for stage in STAGES:
            metrics.refused_early.labels(name, stage)
        for reason in REFUSED_CONNECTIONS:
            metrics.refused_connections.labels(name, reason)
        metrics.connections.labels(name)


def reason_of(error: BaseException) -> str:
    """The class of an error as a label, the same word in log and metrics."""
    return next(reason for kind, reason in FAILURES if isinstance(error, kind))
