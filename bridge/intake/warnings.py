"""Warnings about a listener's clients: at most one line a second, so that a client cannot fill the disk."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

_EVERY_S = 1.0


class Warnings:
    """Called like a log function; the lines begin with the listener's name."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._warned_at = float("-inf")
        self._suppressed = 0

    def __call__(self, text: str, *args: object) -> None:
        now = time.monotonic()
        if now - self._warned_at < _EVERY_S:
            self._suppressed += 1
            return
        if self._suppressed:
            text, args = text + " (and %d more warnings)", (*args, self._suppressed)
        self._warned_at, self._suppressed = now, 0
        log.warning("listener %s: " + text, self._listener, *args)
