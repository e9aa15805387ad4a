"""Adaptive limit: how many mails at once does the scanner do well?

After Netflix's concurrency-limits (Gradient2): the long average of the scanner's latency is what it
is used to, a single scan tells how it is now. While both agree, the limit grows by a little room for
a queue; when scans take longer than usual, mail is waiting in there, and the limit shrinks by the ratio
of the two. A deadline that passed, or the scanner's own word that it is full, takes a tenth off at once.
Numbers only: no clock, no I/O. Never above the operator's limit.
"""

from __future__ import annotations

from math import sqrt

_LONG = 600  # scans that make the long average
_WARM = 10  # of them the first are averaged plainly
_TOLERANCE = 1.5  # so much longer than usual is still usual
_SMOOTHING = 0.2
_BACKOFF = 0.9


class AdaptiveLimit:
    """`sample` each scan, read `current`."""

    def __init__(self, highest: int, lowest: int = 1) -> None:
        self._highest = float(highest)
        self._lowest = float(min(lowest, highest))
        self._limit = float(min(highest, max(lowest, 4)))  # from below: a scanner is easier to fill than to empty
        self._long_s = 0.0
        self._samples = 0

    @property
    def current(self) -> int:
        return int(self._limit)

    def overload(self) -> None:
        """A scan came to nothing: its deadline passed, or the scanner said that it is full."""
        self._set(self._limit * _BACKOFF)

    def sample(self, seconds: float, in_processing: int) -> None:
        """One scan took so long, and began among so many."""
        if seconds <= 0:
            return
        self._learn(seconds)
        if in_processing < self._limit / 2:  # nobody asks for more: the latency says nothing of the limit
            return
        gradient = min(max(_TOLERANCE * self._long_s / seconds, 0.5), 1.0)
        wanted = self._limit * gradient + sqrt(self._limit)
        self._set(self._limit * (1 - _SMOOTHING) + wanted * _SMOOTHING)

    def _learn(self, seconds: float) -> None:
        self._samples += 1
        weight = 1 / self._samples if self._samples <= _WARM else 2 / (_LONG + 1)
        self._long_s += (seconds - self._long_s) * weight
        if self._long_s > 2 * seconds:  # much quicker than it used to be: do not take a minute to notice
            self._long_s *= 0.95

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, self._lowest), self._highest)
