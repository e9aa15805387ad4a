"""SIGHUP, whose default action ends a process: none of our processes may end because of it.

systemd does not start such a process again: for `Restart=on-failure`, SIGHUP is a clean exit. `systemctl kill -s HUP`
and `pkill -HUP` send it to every process, including those that have no configuration to reload. Imports nothing large,
because imports take up most of the startup time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class EarlySignals:
    """Remembers one that arrives before the process can act on it; later ones are passed on to its event loop.

    The same handler stays from the start to the stop. With `add_signal_handler`, one SIGHUP had two effects: uvloop's
    wake-up socket still contained it when the handler was set, although it had been remembered here.
    """

    def __init__(self) -> None:
        self.seen = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._act: Callable[[], None] = lambda: None
        signal.signal(signal.SIGHUP, self._remember)

    def pass_to(self, act: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Call `act`, now if one was remembered, and in this loop for each one from now on."""
        self._act, self._loop = act, loop
        self._pass_on()

    def ignore(self) -> None:
        """The process is stopping: SIGHUP is ignored until it has ended."""
        ignore_hangup()
        self.seen = False

    def _remember(self, *_details: object) -> None:
        self.seen = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        if self.seen:
            self.seen = False  # first: `act` must follow one that arrives meanwhile
            self._act()


def ignore_hangup() -> None:
    """For a process that cannot reload anything, and for one that stops: otherwise its exit code would not be 0."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
