"""Counter, histogram and gauge: plain numbers that become Prometheus families only when scraped.

One thread counts, without locks, because it happens for every mail. `dump` gives numbers that another process
can add to its own: with several workers, one scrape shows the sum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 300)


@dataclass(slots=True)
class Counter:
    """Counts with `values[labels] += 1`."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def start(self, *label_values: Iterable[str]) -> None:
        """Create every combination of these label values at 0; existing ones keep their count."""
        for labels in product(*label_values):
            self.values.setdefault(labels, 0.0)

    def start_like(self, other: Counter) -> None:
        """Create the same series at 0."""
        self.values = dict.fromkeys(other.values, 0.0)

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
class Histogram:
    """Seconds, in one row of buckets per listener."""

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
class Gauge:
    """Read when scraped: `read` gives pairs of label values and value."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    read: Callable[[], Iterable[tuple[tuple[str, ...], float]]] = tuple
    combine: Callable[[Iterable[float]], float] = max  # of several workers' values; or sum, min

    def dump(self) -> list[Any]:
        return [[*labels, value] for labels, value in self.read()]

    def show(self, dumps: Iterable[list[Any]]) -> None:
        """Show these workers' values from now on."""
        found: dict[tuple[str, ...], list[float]] = {}
        for *labels, value in (row for dumped in dumps for row in dumped):
            found.setdefault(tuple(labels), []).append(value)
        combined = {labels: self.combine(values) for labels, values in found.items()}
        self.read = combined.items

    def family(self) -> Metric:
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in self.read():
            family.add_metric(labels, value)
        return family
