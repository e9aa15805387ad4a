"""Remembers a SIGHUP that arrives before the process can reload its configuration.

Its default action ends the process, and systemd does not start it again: to `Restart=on-failure`, SIGHUP is an
ordinary end. Imports nothing large, because most of the time of a start is spent on imports.
"""

from __future__ import annotations

import signal


class EarlySignals:
    """From the moment that it is made until something else handles the signal."""

    def __init__(self) -> None:
        self.seen = False
        signal.signal(signal.SIGHUP, self._remember)

    def _remember(self, *_details: object) -> None:
        self.seen = True
