"""Adaptive limit: how many mails can the scanner process well at the same time?

After Netflix's concurrency-limits: if scans take longer on average than they do when the scanner has
room, they are waiting inside it. While the latency is normal, the limit grows by a little room for a
queue; otherwise it shrinks by the ratio of the two latencies (gradient). A missed deadline, or the
scanner's own report that it is full, takes a tenth off immediately (AIMD).

The normal latency cannot be learned under load, where the queue is part of every scan. So now and then
the limit drops to a quarter for a few scans, and their latency is taken as normal. Numbers only: no
clock, no I/O. Never above the operator's limit.
"""

from __future__ import annotations

from math import sqrt

_TOLERANCE = 1.5  # up to this factor, a latency counts as normal
_SMOOTHING = 0.2
_BACKOFF = 0.9
_AVERAGE = 0.1  # weight of one scan
_PROBE_EVERY = 2000  # scans under load
_PROBE_SCANS = 10


class AdaptiveLimit:
    """`sample` each scan, read `current`."""

    def __init__(self, highest: int, lowest: int = 1) -> None:
        self._highest = float(highest)
        self._lowest = float(min(lowest, highest))
        self._limit = float(min(highest, max(lowest, 4)))  # start low: a scanner is easier to fill than to empty
        self._normal_s = 0.0
        self._average_s = 0.0
        self._until_probe = _PROBE_EVERY
        self._probe: list[float] | None = None

    @property
    def current(self) -> int:
        return int(self._limit if self._probe is None else max(self._limit / 4, self._lowest))

    def overload(self) -> None:
        """A scan missed its deadline, or the scanner reported that it is full."""
        self._set(self._limit * _BACKOFF)

    def sample(self, seconds: float, in_processing: int) -> None:
        """One scan took `seconds`; it began with `in_processing` mails in processing."""
        if seconds <= 0:
            return
        if self._probe is not None:
            self._sample_probe(self._probe, seconds, in_processing)
            return
        self._average_s += (seconds - self._average_s) * (_AVERAGE if self._average_s else 1.0)
        self._normal_s = min(self._normal_s or self._average_s, self._average_s)
        if in_processing < self._limit / 2:  # low load: the latency says nothing about the limit
            self._normal_s += (seconds - self._normal_s) * _AVERAGE
            return
        gradient = min(max(_TOLERANCE * self._normal_s / self._average_s, 0.5), 1.0)
        wanted = self._limit * gradient + sqrt(self._limit)
        weight = _SMOOTHING / sqrt(self._limit)  # about as many scans end together as the limit allows
        self._set(self._limit * (1 - weight) + wanted * weight)
        self._until_probe -= 1
        if self._until_probe <= 0:
            self._probe = []

    def _sample_probe(self, probe: list[float], seconds: float, in_processing: int) -> None:
        if in_processing > self.current:  # it began before the probe
            return
        probe.append(seconds)
        if len(probe) >= _PROBE_SCANS:
            self._normal_s = self._average_s = sum(probe) / len(probe)
            self._probe, self._until_probe = None, _PROBE_EVERY

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, self._lowest), self._highest)
