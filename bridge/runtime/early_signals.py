"""SIGHUP, whose default action ends a process: none of our processes may end because of it.

systemd does not start such a process again: to `Restart=on-failure`, SIGHUP is an ordinary end. `systemctl kill -s HUP`
and `pkill -HUP` send it to every process, including those that have no configuration to reload. Imports nothing large,
because imports take most of the time of a start.
"""

from __future__ import annotations

import signal


class EarlySignals:
    """Remembers one that arrives before the process can act on it: from now until something else handles it."""

    def __init__(self) -> None:
        self.seen = False
        signal.signal(signal.SIGHUP, self._remember)

    def _remember(self, *_details: object) -> None:
        self.seen = True


def ignore_hangup() -> None:
    """For a process that cannot reload anything, and for one that stops: otherwise its exit code would not be 0."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
