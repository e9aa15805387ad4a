"""How late the event loop turns: what a blocked or overloaded process looks like from outside."""

from __future__ import annotations

import asyncio

_STEP_S = 0.2
_STEPS = 75  # 15 s: with the span before it, every scrape interval up to that sees the worst


class Lag:
    """`worst_s` is that of this span of time and the one before it."""

    def __init__(self) -> None:
        self._before = self._now = 0.0

    @property
    def worst_s(self) -> float:
        return max(self._before, self._now)

    async def watch(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            for _ in range(_STEPS):
                due = loop.time() + _STEP_S
                await asyncio.sleep(_STEP_S)
                self._now = max(self._now, loop.time() - due)
            self._before, self._now = self._now, 0.0
