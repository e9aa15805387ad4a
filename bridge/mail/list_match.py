"""ListMatch: which list at the door a mail was on, and what that meant for it."""

from __future__ import annotations

from enum import StrEnum

from bridge.runtime.value import value


class ListAction(StrEnum):
    REFUSED = "refused"
    SKIPPED = "skipped"  # not scanned
    SHADOW_REFUSED = "shadow_refused"  # would have been; shadow mode only tells
    SHADOW_SKIPPED = "shadow_skipped"


@value
class ListMatch:
    """One match."""

    name: str  # of the list
    entry: str  # what in it matched
    action: ListAction
