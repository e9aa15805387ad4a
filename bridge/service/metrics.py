"""The service's metrics: every name, its labels and its meaning, in one place.

Each service has its own registry, so that two services in one process do not share counts. Label
values are closed sets: decisions, names from the configuration, HTTP status codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bridge.api.scanning import Decision

# Duration of a scan, from the request's head to its answer; the bridge uses the same buckets for waits.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 300)


class Learning(Protocol):
    """What was learned from reports, and is in memory."""

    @property
    def votes(self) -> int: ...

    @property
    def weights(self) -> int: ...

    followed_at: float


class ServiceMetrics:
    def __init__(self, engines: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            "scanservice_decisions", "Mails analysed, by decision.", ["decision"], registry=self.registry
        )
        self._refused = Counter(
            "scanservice_refused", "submitEmail requests not answered with 200, by HTTP status.", ["status"],
            registry=self.registry,
        )  # fmt: skip
        self._failures = Counter(
            "scanservice_analyzer_failures", "Mails that an analyzer could not analyse: it failed or reached a limit.",
            ["analyzer"], registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "scanservice_scan_seconds", "Time from the header of a request to its answer.", buckets=BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self._engine_seconds = Histogram(
            "scanservice_analyzer_seconds", "Time that an engine took for a mail, whether it answered or not.",
            ["analyzer"], buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._jobs = Counter(
            "scanservice_jobs", "Jobs that this worker took from the queue, by result.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._reports = Counter(
            "scanservice_learning_reports", "Reports of mail, by result.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        for outcome in ("answered", "dropped", "returned"):
            self._jobs.labels(outcome)
        for outcome in ("learned", "known", "refused", "failed"):
            self._reports.labels(outcome)
        for decision in Decision:
            self._decisions.labels(str(decision))
        for status in (400, 401, 403, 408, 413, 415, 502, 503, 504, 507):
            self._refused.labels(str(status))
        self._gauges: dict[str, Gauge] = {}
        self.know_engines(["mime", *engines])
        self._known = {str(decision): self._decisions.labels(str(decision)) for decision in Decision}

    def know_engines(self, names: Iterable[str]) -> None:
        """Show their failures from the start, as 0."""
        for name in names:
            self._failures.labels(name)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge whose value is computed at each scrape; after a reload, by the new configuration's parts."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"scanservice_{name}", text, registry=self.registry)
        self._gauges[name].set_function(value)

    def show_reloads(self, last: Callable[[], tuple[bool, float]]) -> None:
        """Whether the last reload succeeded, and since when the configuration has been in use."""
        self.gauge("reload_success", "1 if the last reload succeeded, or if there was none.", lambda: last()[0])
        in_use = "When the configuration was loaded, in Unix time."
        self.gauge("config_time_seconds", in_use, lambda: last()[1])

    def show_learning(self, learned: Learning) -> None:
        self.gauge("learning_votes", "Votes that count, all tenants together.", lambda: learned.votes)
        self.gauge(
            "learning_weights", "Signals and senders whose weight has been changed by reports.", lambda: learned.weights
        )
        when = "Unix time at which the votes in memory were last compared with the database."
        self.gauge("learning_followed_time_seconds", when, lambda: learned.followed_at)

    def reported(self, outcome: str) -> None:
        self._reports.labels(outcome).inc()

    def decided(self, decision: Decision) -> None:
        self._known[decision].inc()

    def engine_failed(self, name: str) -> None:
        self._failures.labels(name).inc()

    def engine_took(self, name: str, seconds: float) -> None:
        self._engine_seconds.labels(name).observe(seconds)

    def job(self, outcome: str) -> None:
        self._jobs.labels(outcome).inc()

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def took(self, seconds: float) -> None:
        self._seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
