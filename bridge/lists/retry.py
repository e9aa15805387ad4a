"""Retries: how long to wait before a request is sent again, and when to give up.

Every operation of the List API is idempotent, so all can be retried. The delay doubles each time,
with full jitter so that many clients do not return in step; a Retry-After takes precedence. The limit
is a time, not a number of attempts, because that is easier for an operator to reason about. Knows
the clock and random numbers, nothing about HTTP.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_dice = random.Random()  # noqa: S311 - not used for secrets


@dataclass(frozen=True, slots=True)
class RetrySettings:
    patience_s: float = 60.0  # from the first failure of a request until it is given up
    first_delay_s: float = 0.5
    max_delay_s: float = 15.0


class Patience:
    """The patience with one request: `delay` says how long to wait before the next attempt."""

    def __init__(self, settings: RetrySettings) -> None:
        self._settings = settings
        self._failures = 0
        self._until: float | None = None

    def waited(self, now: float) -> float:
        """Seconds since the first failure."""
        return now - self._until + self._settings.patience_s if self._until is not None else 0.0

    def delay(self, now: float, retry_after_s: float | None = None) -> float | None:
        """Seconds to wait, or None to give up. `now` is the time of any monotonic clock, but always of the same one."""
        if self._until is None:
            self._until = now + self._settings.patience_s
        ceiling = min(self._settings.max_delay_s, self._settings.first_delay_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        jitter = _dice.random()
        delay = ceiling * jitter
        if retry_after_s is not None:
            delay = max(retry_after_s * (1 + jitter / 10), delay)
        return delay if now + delay <= self._until else None


def parse_retry_after(value: str | None, now: float | None = None) -> float | None:
    """The seconds in a Retry-After header, which is a number or a date; None if it is neither."""
    if not value:
        return None
    if value.strip().isascii() and value.strip().isdigit() and len(value) < 10:
        return float(value)
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    wait = moment - (time.time() if now is None else now)
    return max(0.0, wait) if math.isfinite(wait) else None
