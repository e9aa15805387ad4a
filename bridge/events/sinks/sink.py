"""What every sink has in common: it is given events in order, and reports the result of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bridge.events.outbox import Entry


class NotDelivered(Exception):
    """The receiver did not take an event. The text is for operators and never contains a secret.

    `blames_event`: the receiver was reached, so the event itself may be the cause.
    `pause_s`: how long the receiver wants to be left alone, at least.
    """

    def __init__(self, text: str, *, blames_event: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.blames_event = blames_event
        self.pause_s = pause_s


Results = Mapping[int, NotDelivered | None]  # by `seq`: None was delivered; an entry that is missing was not tried


class Sink(Protocol):
    batch: int  # events that are delivered together

    async def deliver(self, entries: Sequence[Entry]) -> Results:
        """Events about the same thing are sent in this order, and none of them after one that failed."""

    async def close(self) -> None: ...


def all_failed(entries: Sequence[Entry], error: NotDelivered) -> Results:
    """The first one failed, and the others were not tried."""
    return {entries[0].seq: error}
