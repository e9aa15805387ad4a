"""ListMatch: the envelope list that a mail is on, and what follows from it."""

from __future__ import annotations

from enum import StrEnum

from bridge.runtime.value import value


class ListAction(StrEnum):
    REFUSED = "refused"
    SKIPPED = "skipped"  # not scanned
    SHADOW_REFUSED = "shadow_refused"  # would have been refused; shadow mode only reports it
    SHADOW_SKIPPED = "shadow_skipped"
    BLOCKED = "blocked"  # by the recipient's own entry: withheld from this recipient alone
    ALLOWED = "allowed"  # by the recipient's own entry: handed on to this recipient alone


@value
class ListMatch:
    name: str  # of the list
    entry: str  # the entry that matched
    action: ListAction
