"""A report: what a person says about a mail, and what became of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum

from bridge.mail.message import Message


class ReportKind(StrEnum):
    SPAM = "spam"
    HAM = "ham"

    @property
    def words(self) -> str:
        """As people say it: in the history, in the audit trail, on pages."""
        return "spam" if self is ReportKind.SPAM else "not spam"


class ReportState(StrEnum):
    LEARNED = "learned"  # rspamd or the scanning service has learned from it
    KNOWN = "known"  # it was learned before, or rspamd recognises such mail already
    NOTED = "noted"  # no learner is configured; it is in the history, and was mailed if there is an address
    REFUSED = "refused"  # noted, but nothing can learn from this mail
    WAITING = "waiting"  # the learner could not be reached; the daemon tries again
    ALREADY = "already"  # the same person has said this before
    FAILED = "failed"  # not reported: the person may try again


@dataclass(frozen=True, slots=True)
class Reported:
    """What became of one report; `text` is a sentence for the person."""

    mail_id: str
    text: str
    is_done: bool
    state: ReportState


@dataclass(frozen=True, slots=True)
class LearnableMail:
    """A reported mail, and what is known about it besides its content, which may be too large for memory."""

    content: Message = field(repr=False)  # closed by the caller
    reporter: str = ""
    sender: str = ""
    recipients: tuple[str, ...] = ()  # none: the envelope is unknown
    client: str = ""
    tenant: str = ""
    ggrid: str = ""

    def about(self) -> str:
        """Everything but the content and the reporter, to keep while the mail waits."""
        known = (self.sender, list(self.recipients[:1]), self.client, self.tenant, self.ggrid)
        return json.dumps(known)

    @classmethod
    def waiting(cls, content: Message, reporter: str, about: str) -> LearnableMail:
        if not about:  # stored by an older version
            return cls(content, reporter)
        sender, recipients, client, tenant, ggrid = json.loads(about)
        return cls(content, reporter, sender, tuple(recipients), client, tenant, ggrid)
