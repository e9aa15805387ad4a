"""Results that take a while to get, kept for all who ask. The caller says how long each is fresh."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class KeptResults(Generic[K, V]):
    """The latest result for each key; if there are too many keys, the first ones are forgotten."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._kept: dict[K, tuple[float, V]] = {}  # until when it is fresh, on the monotonic clock

    def keep(self, key: K, result: V, fresh_s: float) -> None:
        self._kept.pop(key, None)
        while len(self._kept) >= self._max_keys:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (time.monotonic() + fresh_s, result)

    def latest(self, key: K) -> V | None:
        """However old it is."""
        return self._kept[key][1] if key in self._kept else None

    def fresh(self, key: K) -> V | None:
        return self.latest(key) if key in self._kept and time.monotonic() < self._kept[key][0] else None
