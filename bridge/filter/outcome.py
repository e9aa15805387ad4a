"""What became of a mail: an `Outcome` for the intake, a `Record` for log, metrics and traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bridge.api.scanning import AnalysisResult
from bridge.errors import AmbiguousMail
from bridge.filter.changes import FieldEdit
from bridge.filter.headers import Fields
from bridge.filter.late.decisions import LateStatus
from bridge.mail.action import Action
from bridge.mail.list_match import ListMatch
from bridge.mail.reply import Reply
from bridge.mail.trace_context import Trace
from bridge.mail.transaction import Transaction
from bridge.runtime.value import value

AMBIGUOUS = "mime:ambiguous:"  # as the tags of the scanning service begin


@value
class Outcome:
    """What the intake tells its client."""

    action: Action
    reply: Reply  # what an SMTP client receives; a milter uses it for reject and tempfail
    result: AnalysisResult | None = None  # None: no decision
    stamp: Fields = ()  # header fields to add, in order (with a milter, the mail server adds them)
    replies: tuple[Reply, ...] = ()  # one per recipient, if the client receives them; otherwise `reply` is for all
    removed: tuple[str, ...] = ()  # with a milter: recipients that the mail server must remove
    edits: tuple[FieldEdit, ...] = ()  # for a milter's mail server: fields of the mail to change, in order


@dataclass(slots=True)
class Record:
    """What is reported about one mail when it is finished; the steps of the pipeline fill it in."""

    tx: Transaction
    size: int
    tenant: str | None = None
    outcome: Outcome | None = None  # None: the client went away
    error: BaseException | None = None
    wait_s: float = 0.0
    scan_s: float = 0.0
    relay_s: float = 0.0
    wait_at: float = 0.0  # when each of these began, monotonic; 0: never
    scan_at: float = 0.0
    relay_at: float = 0.0
    trace: Trace | None = None
    next_id: str = ""  # the next hop's queue id
    is_mixed: bool = False  # the next hop accepted the mail for some recipients only
    unsure: frozenset[int] = frozenset()  # recipients, by position: whether the next hop has accepted it is unknown
    accepted: frozenset[int] = frozenset()  # when the mail was cancelled, the next hop had accepted it for these
    next_replies: tuple[Reply, ...] = ()  # one per recipient, if several next hops accepted the mail
    relay_rule: str = ""  # the rule by which a mail was handed on that the next hop then refused
    unchecked: tuple[str, ...] = ()  # enforced lists of which there is no local copy yet
    is_stopped: bool = False  # it was not finished because the listener was closing
    message_id: str = ""  # from the mail's own header
    late: LateStatus | None = None
    would: Action | None = None  # shadow mode: the action that would have been taken
    listed: ListMatch | None = None  # the envelope list that the mail is on
    limit: str | None = None  # the limit that the mail exceeded and was refused for
    at: Literal["", "mail", "rcpt"] = ""  # refused before the content: the whole mail, or one recipient
    rule: str = ""  # the rule that decided, in shadow mode the one that would have: see `rule_names`
    unscanned: str = ""  # why the mail was handed on without a decision
    is_kept: bool = False  # it is in our quarantine, alone or as a copy
    doubts: tuple[str, ...] = ()  # why the structure of the mail is ambiguous, if the listener asks for it
    subject: bytes = b""  # from the mail's own header, as it is written there
    scanner: str = ""  # the URL of the host that was asked last
    answer: Outcome | None = None  # for the client, if this is the record of some of the recipients only

    @property
    def why(self) -> str:
        """For the log: the reasons why the mail is ambiguous, and the error."""
        if not self.doubts:
            return "" if self.error is None else str(self.error)
        doubts = ", ".join([f"{AMBIGUOUS}{doubt}" for doubt in self.doubts])
        if self.error is None or isinstance(self.error, AmbiguousMail):
            return doubts
        return f"{doubts}; {self.error}"
