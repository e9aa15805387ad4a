"""What became of a mail: for the intake to render, and for the log and the metrics to tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bridge.api.scanning import AnalysisResult
from bridge.filter.headers import Fields
from bridge.filter.late.decisions import Late
from bridge.mail.action import Action
from bridge.mail.listed import Listed
from bridge.mail.reply import Reply
from bridge.mail.trace import Trace
from bridge.mail.transaction import Transaction
from bridge.runtime.value import value


@value
class Outcome:
    """What became of a mail, for the intake to render."""

    action: Action
    reply: Reply  # what an SMTP client reads; a milter uses it for reject and tempfail
    result: AnalysisResult | None = None  # None: no decision could be had
    stamp: Fields = ()  # header fields to add, in order (a milter has the mail server add them)
    replies: tuple[Reply, ...] = ()  # for each recipient his own, where the client reads them; else `reply` is for all


@dataclass(slots=True)
class Record:
    """What the log and the metrics are told about one mail, when it is over."""

    tx: Transaction
    size: int
    tenant: str | None = None
    outcome: Outcome | None = None  # None: the client went away
    error: BaseException | None = None
    wait_s: float = 0.0
    scan_s: float = 0.0
    relay_s: float = 0.0
    wait_at: float = 0.0  # when each of them began, monotonic; 0: not at all
    scan_at: float = 0.0
    relay_at: float = 0.0
    trace: Trace | None = None
    next_id: str = ""  # the next hop's queue id
    is_mixed: bool = False  # the next hop took it for some recipients only
    message_id: str = ""  # as the mail's own header has it
    late: Late | None = None
    would: Action | None = None  # shadow mode: what would have been done
    listed: Listed | None = None  # the list at the door that it was on
    limit: str | None = None  # the limit that it passed, and was refused for
    at: Literal["", "mail", "rcpt"] = ""  # refused before it came, the whole of it or one recipient
