"""A report: what a person says about a mail, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReportKind(StrEnum):
    SPAM = "spam"
    HAM = "ham"

    @property
    def words(self) -> str:
        """As people say it: in the history, in the audit trail, on pages."""
        return "spam" if self is ReportKind.SPAM else "not spam"


class ReportState(StrEnum):
    LEARNED = "learned"  # rspamd has learned from it
    KNOWN = "known"  # rspamd had learned it before, or recognises such mail already
    NOTED = "noted"  # nobody is configured to learn; it is in the history, and was mailed if there is an address
    REFUSED = "refused"  # noted, but rspamd cannot learn from this mail
    WAITING = "waiting"  # rspamd could not be reached; the daemon tries again
    ALREADY = "already"  # the same person has said this before
    FAILED = "failed"  # not reported: the person may try again


@dataclass(frozen=True, slots=True)
class Reported:
    """What became of one report; `text` is a sentence for the person."""

    mail_id: str
    text: str
    is_done: bool
    state: ReportState
