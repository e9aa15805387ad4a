"""The outcome of the latest mails: are all of them deferred or rejected, and does the quarantine store mail?

A few values, kept for the status page. The metrics have the numbers, but a rate does not say what happened to the
latest mail.
"""

from __future__ import annotations

from collections import deque

from bridge.errors import StoreError
from bridge.filter.outcome import Record
from bridge.mail.action import Action
from bridge.mail.next_hop import NextHopError
from bridge.observe.metrics import reason_of

LAST = 20  # mails
# Python 3.11: looking up an enum member takes 0.3 us (`bridge/scanner/circuit.py`).
_TEMPFAIL, _QUARANTINE = Action.TEMPFAIL, Action.QUARANTINE


class RecentMails:
    def __init__(self) -> None:
        # When it arrived (monotonic), why it was deferred, and the next hop's refusal: None if it was not asked.
        self.last: deque[tuple[float, str, str | None]] = deque(maxlen=LAST)
        self.quarantine_problem = ""  # of the latest mail that was to be stored
        self.quarantine_at = 0.0

    def note(self, record: Record) -> None:
        """Called for every mail."""
        outcome = record.outcome
        if outcome is None or record.at:
            return
        action, error, at = outcome.action, record.error, record.tx.received_at
        deferred = "" if action is not _TEMPFAIL else record.rule if error is None else reason_of(error)
        self.last.append((at, deferred, _refusal(error) if record.relay_at else None))
        if error is None:
            if action is _QUARANTINE:
                self.quarantine_problem = ""
        elif isinstance(error, StoreError):
            self.quarantine_problem, self.quarantine_at = str(error), at


def _refusal(error: BaseException | None) -> str:
    """Code and status of a 5xx in the next hop's own words; not its text, which may contain addresses."""
    if not isinstance(error, NextHopError) or not error.reply.is_foreign or error.reply.code < 500:
        return ""
    if any(reply.is_success for reply in error.replies):  # some recipients have the mail
        return ""
    return f"{error.reply.code} {error.reply.status}".rstrip()
