"""Adaptive limit: how many mails at once does the scanner do well?

After Netflix's concurrency-limits: scans that take longer on average than they do when the scanner
has room are waiting inside it. The limit grows by a little room for a queue while the latency is
usual, and shrinks by the ratio of the two when it is not (gradient). A deadline that passed, or the
scanner's own word that it is full, takes a tenth off at once (AIMD).

What is usual cannot be learned under load, where the queue is part of every scan. So now and then,
for a few scans, the limit is a quarter: what they take is usual. Numbers only: no clock, no I/O.
Never above the operator's limit.
"""

from __future__ import annotations

from math import sqrt

_TOLERANCE = 1.5  # so much longer than usual is still usual
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
        self._limit = float(min(highest, max(lowest, 4)))  # from below: a scanner is easier to fill than to empty
        self._usual_s = 0.0
        self._now_s = 0.0
        self._until_probe = _PROBE_EVERY
        self._probe: list[float] | None = None

    @property
    def current(self) -> int:
        return int(self._limit if self._probe is None else max(self._limit / 4, self._lowest))

    def overload(self) -> None:
        """A scan came to nothing: its deadline passed, or the scanner said that it is full."""
        self._set(self._limit * _BACKOFF)

    def sample(self, seconds: float, in_processing: int) -> None:
        """One scan took so long, and began among so many."""
        if seconds <= 0:
            return
        if self._probe is not None:
            self._sample_probe(self._probe, seconds, in_processing)
            return
        self._now_s += (seconds - self._now_s) * (_AVERAGE if self._now_s else 1.0)
        self._usual_s = min(self._usual_s or self._now_s, self._now_s)
        if in_processing < self._limit / 2:  # nobody asks for more: the latency says nothing of the limit
            self._usual_s += (seconds - self._usual_s) * _AVERAGE
            return
        gradient = min(max(_TOLERANCE * self._usual_s / self._now_s, 0.5), 1.0)
        wanted = self._limit * gradient + sqrt(self._limit)
        weight = _SMOOTHING / sqrt(self._limit)  # as many scans end at once as the limit lets in
        self._set(self._limit * (1 - weight) + wanted * weight)
        self._until_probe -= 1
        if self._until_probe <= 0:
            self._probe = []

    def _sample_probe(self, probe: list[float], seconds: float, in_processing: int) -> None:
        if in_processing > self.current:  # it began before the probe
            return
        probe.append(seconds)
        if len(probe) >= _PROBE_SCANS:
            self._usual_s = self._now_s = sum(probe) / len(probe)
            self._probe, self._until_probe = None, _PROBE_EVERY

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, self._lowest), self._highest)
