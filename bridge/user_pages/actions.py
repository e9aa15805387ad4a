"""What the pages for users ask to be done. The command line knows how (`bridge.cli.digest`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bridge.quarantine.record import MailRecord


@dataclass(frozen=True, slots=True)
class ActionResult:
    """`text` is for the log and for operators."""

    is_done: bool
    text: str
    is_known: bool = True  # False: it may have been done
    was_done_before: bool = False


class UserActions(Protocol):
    """Each blocks. `by` is the person's address."""

    def release(self, mail: MailRecord, to: tuple[str, ...], by: str) -> ActionResult:
        """To these recipients alone, once; `to` in the spelling of the mail's envelope."""

    def delete(self, mail: MailRecord, by: str) -> ActionResult:
        """The whole mail: no recipient has a copy left."""


class Feedback(Protocol):
    """Raises BridgeError."""

    def __call__(self, kind: str, mail: MailRecord, who: str) -> None:
        """`kind` is spam or ham."""
