"""Circuit: may this host get a mail now?

A host that fails gets no mail for a while, then a single one: a probe. The whole theory is the table
below; there is no I/O, and the clock is passed in.

    closed      mail goes to the host
    open        no mail, until the pause is over or the host answers a status request
    half open   one mail at a time may try; its result decides

A failed connection opens the circuit immediately: that costs the mail nothing, because another host
can take it. Other failures may be caused by the mail itself, so it takes several in a row. The pause
doubles with each failed probe, up to the status interval. Since an answered status request also ends
the pause, a host that has recovered gets mail within two of those intervals. A probe may be slow by itself, up to
its deadline: if the host answers status requests meanwhile, it is sent the test mail, which closes the circuit.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Event(StrEnum):
    SUCCESS = "success"  # a decision
    ALIVE = "alive"  # no decision, but a proper answer: 413, 401, 429
    FAILURE = "failure"  # 5xx, an unreadable answer, a reset
    UNREACHABLE = "unreachable"  # no connection, for a mail or a status request
    STATUS = "status"  # a status request was answered


# Python 3.11: looking up an enum member takes 0.3 us, more than 20 times per mail; drop with 3.11.
_CLOSED, _SUCCESS = State.CLOSED, Event.SUCCESS
_COUNT = "count"  # one more failure: closed until there are too many

TABLE: dict[tuple[State, Event], State | str] = {
    (State.CLOSED, Event.SUCCESS): State.CLOSED,
    (State.CLOSED, Event.ALIVE): State.CLOSED,
    (State.CLOSED, Event.FAILURE): _COUNT,
    (State.CLOSED, Event.UNREACHABLE): State.OPEN,
    (State.CLOSED, Event.STATUS): State.CLOSED,
    (State.OPEN, Event.SUCCESS): State.HALF_OPEN,  # a mail sent before it opened
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
MEMORY_S = 60.0  # an older failure does not count as consecutive
FIRST_PAUSE_S = 0.25


class Circuit:
    """One per host. For each mail: `admits`, `begin`, `feed` with the result; after a probe `release`."""

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

    @property
    def is_probing(self) -> bool:
        """Whether all other mail waits for the result of the probe."""
        return self._probing and self.state is not _CLOSED

    def begin(self) -> bool:
        """A mail is about to be sent to this host, after `admits`. Returns whether it is the probe."""
        if self.state is _CLOSED:
            return False
        self.state = State.HALF_OPEN
        self._probing = True
        return True

    def release(self) -> None:
        """The probe has ended. If it had no result (the client went away), the next mail is the probe."""
        self._probing = False

    def feed(self, event: Event, now: float) -> None:
        """Apply one event to the state."""
        if event is _SUCCESS and self.state is _CLOSED:  # the usual case: no table lookup
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
