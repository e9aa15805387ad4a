"""How late the event loop runs its timers: the sign of a blocked or overloaded process."""

from __future__ import annotations

import asyncio

_STEP_S = 0.2
_STEPS = 75  # 15 s; together with the previous period, any scrape interval up to 15 s sees the worst value


class LoopLag:
    """`worst_s` is the worst lag of the current period and the one before it."""

    def __init__(self) -> None:
        self._previous_s = self._current_s = 0.0

    @property
    def worst_s(self) -> float:
        return max(self._previous_s, self._current_s)

    async def watch(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            for _ in range(_STEPS):
                due = loop.time() + _STEP_S
                await asyncio.sleep(_STEP_S)
                self._current_s = max(self._current_s, loop.time() - due)
            self._previous_s, self._current_s = self._current_s, 0.0
