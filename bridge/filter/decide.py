"""The one path of a mail: admit, scan, choose, carry out.

(Interface first; the body follows.)
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.api.scanning import AnalysisResult
from bridge.mail.action import Action
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mail, for the intake to render."""

    action: Action
    reply: Reply  # what an SMTP client reads; a milter uses it for reject and tempfail
    result: AnalysisResult | None = None  # None: no decision could be had
    stamp: tuple[tuple[str, str], ...] = ()  # header fields to add, in order (milter adds them itself)


class Filter:
    """One per listener: its policy, and the scanner, admission, relay and quarantine it shares."""

    deadline_s: float  # end of data to our reply
    header_prefix: str  # "X-Scan-": incoming fields with this prefix are stripped

    def closed(self) -> Reply | None:
        """The 451 for MAIL (or before 354) when saturation is already known, else None."""
        raise NotImplementedError

    async def process(self, tx: Transaction) -> Outcome:
        """Admit, scan, decide, carry out. Raises nothing but CancelledError; closes the message."""
        raise NotImplementedError
