"""Purge guard: may old mail be removed by this clock?

Quarantined mail is the only copy, and its age is known only by the clock. A machine that starts or resumes with a clock
that is a month ahead would remove everything at its first purge. So the automatic purge waits for a day, to give people
time to correct the clock, if the clock has moved against the monotonic clock since the last purge. It also waits if the
first purge of a process would take most of the mail, including the newest that was there when the process started.
Mail that has arrived since then proves nothing: its time comes from the same clock.

After that day, the clock is taken to be right: the machine was suspended, or the daemon was stopped for longer than the
retention. A purge that an operator orders (`scanbridge quarantine purge`) is not checked here.

The history and the console's audit log are deleted by age as well, and are checked for a jump of the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from bridge.errors import StoreError

_JUMP_S = 3600.0  # mail is removed at most this much too early: one purge interval; short pauses are common
_WAIT_S = 86400.0
_COARSE_S = 1.0  # the kernel gives files a time that is a few milliseconds old


class ClockInDoubt(StoreError):
    """Nothing is removed for now."""


class PurgeGuard:
    """For one process. `what` will happen later; `now`: how to have it done now."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        what: str = "old mail will be removed",
        now: str = ", or now with `scanbridge quarantine purge`",
    ) -> None:
        self._what, self._how_now = what, now
        self._clock = clock
        self._monotonic = monotonic
        self._started_at = clock()
        self._offset = clock() - monotonic()  # at the start, or at the last purge
        self._is_confirmed = False  # a purge of this process was not in doubt
        self._wait_until: float | None = None  # by the monotonic clock

    def check(self, kept_at: Collection[float], oldest: float) -> None:
        """Call this before removing what is older than `oldest` from a store with these times. Raises ClockInDoubt."""
        now = self._monotonic()
        doubt = self._jump(now) or self._emptying(kept_at, oldest)
        if doubt:
            if self._wait_until is None:
                self._wait_until = now + _WAIT_S
            if now < self._wait_until:
                hours = (self._wait_until - now) / 3600
                later = f"{self._what} in {hours:.0f} hours{self._how_now}"
                raise ClockInDoubt(f"{doubt}; check this machine's clock: {later}")
        self._wait_until = None
        self._is_confirmed = True
        self._offset = self._clock() - now

    def _jump(self, now: float) -> str:
        ahead_s = self._clock() - now - self._offset
        return f"the clock has moved ahead by {ahead_s:.0f} seconds" if ahead_s > _JUMP_S else ""

    def _emptying(self, kept_at: Collection[float], oldest: float) -> str:
        if self._is_confirmed:
            return ""
        before = [at for at in kept_at if at < self._started_at - _COARSE_S]
        old = sum(at < oldest for at in kept_at)
        if not before or max(before) >= oldest or old * 2 <= len(kept_at):
            return ""
        return f"{old} of {len(kept_at)} mails would be removed at once, including the newest one from before startup"
