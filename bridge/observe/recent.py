"""The outcome of the last mails: are all of them deferred, and does the quarantine store mail?

A few values, kept for the status page. Metrics have the numbers; a rate cannot say what happened to the last mail.
"""

from __future__ import annotations

from collections import deque

from bridge.errors import StoreError
from bridge.filter.outcome import Record
from bridge.mail.action import Action
from bridge.observe.metrics import reason_of

LAST = 20  # mails


class RecentMails:
    def __init__(self) -> None:
        self.last: deque[tuple[float, str]] = deque(maxlen=LAST)  # when it arrived (monotonic), why it was deferred
        self.quarantine_problem = ""  # of the last mail that was to be stored
        self.quarantine_at = 0.0

    def note(self, record: Record) -> None:
        """Called for every mail."""
        outcome = record.outcome
        if outcome is None or record.at:
            return
        action, error, at = outcome.action, record.error, record.tx.received_at
        if action is Action.TEMPFAIL:
            self.last.append((at, record.rule if error is None else reason_of(error)))
        else:
            self.last.append((at, ""))
        if error is None:
            if action is Action.QUARANTINE:
                self.quarantine_problem = ""
        elif isinstance(error, StoreError):
            self.quarantine_problem, self.quarantine_at = str(error), at
