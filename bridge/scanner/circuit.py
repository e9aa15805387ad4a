"""Circuit: may this host get a mail now?

A host that fails is left alone for a while, then one mail tries it: a probe. The whole theory is the
table below; there is no I/O, and the clock is passed in.

    closed      mail goes to the host
    open        no mail, until the pause is over or the host's status answers
    half open   one mail at a time may try; its end decides

A host that cannot be connected to opens its circuit at once: that costs the mail nothing, for another
host can take it. Other failures may be the mail's own fault, so it takes several in a row. The pause
doubles with each probe that fails, up to the status interval: together with the status, which ends
the pause, a host that is back gets mail within two of those intervals.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Event(StrEnum):
    SUCCESS = "success"  # a decision
    ALIVE = "alive"  # no decision, but for a reason: 413, 401, 429
    FAILURE = "failure"  # 5xx, nonsense, reset
    UNREACHABLE = "unreachable"  # no connection, for a mail or for the status
    STATUS = "status"  # its status was answered


_CLOSED, _SUCCESS = State.CLOSED, Event.SUCCESS  # nearly every mail's; an enumeration takes its time to find them
_COUNT = "count"  # a failure more: closed until there are too many

TABLE: dict[tuple[State, Event], State | str] = {
    (State.CLOSED, Event.SUCCESS): State.CLOSED,
    (State.CLOSED, Event.ALIVE): State.CLOSED,
    (State.CLOSED, Event.FAILURE): _COUNT,
    (State.CLOSED, Event.UNREACHABLE): State.OPEN,
    (State.CLOSED, Event.STATUS): State.CLOSED,
    (State.OPEN, Event.SUCCESS): State.HALF_OPEN,  # a mail from before it opened
    (State.OPEN, Event.ALIVE): State.OPEN,
    (State.OPEN, Event.FAILURE): State.OPEN,
    (State.OPEN, Event.UNREACHABLE): State.OPEN,
    (State.OPEN, Event.STATUS): State.HALF_OPEN,
    (State.HALF_OPEN, Event.SUCCESS): State.CLOSED,
    (State.HALF_OPEN, Event.ALIVE): State.CLOSED,
    (State.HALF_OPEN, Event.FAILURE): State.OPEN,
    (State.HALF_OPEN, Event.UNREACHABLE): State.OPEN,
    (State.HALF_OPEN, Event.STATUS): State.HALF_OPEN,
}

FAILURES_TO_OPEN = 3
MEMORY_S = 60.0  # a failure longer ago than this is no part of a row
FIRST_PAUSE_S = 0.25


class Circuit:
    """One per host. A mail asks `admits`, says `begin`, feeds what it learned, and a probe says `release`."""

    def __init__(self, longest_pause_s: float) -> None:
        self.state = State.CLOSED
        self._longest_pause_s = longest_pause_s
        self._pause_s = min(FIRST_PAUSE_S, longest_pause_s)
        self._until = 0.0
        self._failures = 0
        self._failed_at = 0.0
        self._probing = False

    def admits(self, now: float) -> bool:
        """Whether a mail may go to this host."""
        if self.state is State.CLOSED:
            return True
        return not self._probing and (self.state is State.HALF_OPEN or now >= self._until)

    def begin(self) -> bool:
        """A mail goes to this host, which was found to admit one. Whether it is the probe."""
        if self.state is _CLOSED:
            return False
        self.state = State.HALF_OPEN
        self._probing = True
        return True

    def release(self) -> None:
        """The probe has ended, whatever it told; if nothing (the client went away), the next one may try."""
        self._probing = False

    def feed(self, event: Event, now: float) -> None:
        """Something was learned of the host."""
        if event is _SUCCESS and self.state is _CLOSED:  # nearly every mail
            self._failures = 0
            return
        before, after = self.state, TABLE[self.state, event]
        if after is _COUNT:
            after = self._count(now)
        if after is State.OPEN and before is not State.OPEN:
            self._open(before, now)
        elif after is State.CLOSED and before is not State.CLOSED:
            self._failures = 0
            self._pause_s = min(FIRST_PAUSE_S, self._longest_pause_s)
        self.state = State(after)

    def _count(self, now: float) -> State:
        self._failures = 1 if now - self._failed_at > MEMORY_S else self._failures + 1
        self._failed_at = now
        return State.OPEN if self._failures >= FAILURES_TO_OPEN else State.CLOSED

    def _open(self, before: State, now: float) -> None:
        if before is State.HALF_OPEN:
            self._pause_s = min(self._pause_s * 2, self._longest_pause_s)
        self._until = now + self._pause_s
