"""Admission: may one more mail enter now?

The scanner slows down long before it refuses, so we slow callers first (linear delay from the
threshold to the limit) and answer 451 only at the limit. Knows only counts and the time; knows nothing
of SMTP, milter or HTTP, so that every intake gets the same answer. If this is wrong, the scanner is
overloaded, or mail is refused for no reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bridge.errors import Saturated

RUSH_S = 1.0  # for this long after all slots were taken, two mails are let in for each free slot
PATIENCE_S = 0.25  # if none of those let in has arrived in this time, they are slow or gone


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    max_in_processing: int = 20
    throttle_threshold: int = 20
    throttle_max_delay_s: float = 5.0


class SlotCount(Protocol):
    """Counts the mails in processing: of this process, or of all workers together."""

    @property
    def total(self) -> int:
        """The exact number."""

    def glance(self) -> int:
        """The number, as far as is known without waiting for other processes."""

    def take_one(self, limit: int) -> int | None:
        """Count one more mail and return the number before it; None, and no change, at the limit."""

    def give_back(self, count: int) -> None: ...


class OwnSlotCount:
    """The mails in processing of a single process."""

    def __init__(self) -> None:
        self.total = 0

    def glance(self) -> int:
        return self.total

    def take_one(self, limit: int) -> int | None:
        before = self.total
        if before >= limit:
            return None
        self.total = before + 1
        return before

    def give_back(self, count: int) -> None:
        self.total -= count


class Admission:
    """The slots: one for each mail in processing."""

    def __init__(self, settings: AdmissionSettings, slots: SlotCount | None = None) -> None:
        self.settings = settings
        self._slots = OwnSlotCount() if slots is None else slots
        self._full_at = float("-inf")  # when all slots were last seen taken
        self._on_their_way = 0  # let in at MAIL; their content has not arrived yet
        self._moved_at = float("-inf")  # when the last of them arrived

    @property
    def in_processing(self) -> int:
        return self._slots.total

    @property
    def is_full(self) -> bool:
        return self._slots.glance() >= self.settings.max_in_processing

    def glance(self) -> int:
        """Mail in processing, as far as is known without waiting; only `enter` is exact."""
        return self._slots.glance()

    def lets_in(self, limit: int, now: float) -> bool:
        """For MAIL: whether this mail is likely to find a slot when its content has arrived.

        In a rush, many mails compete for each slot that becomes free. If all of them were let in before one has taken
        it, the others would send their content for nothing. So two may be on their way to each free slot. Each one
        that arrives makes room for another, however long that takes on a busy machine; those that never arrive do
        not block the rest.
        """
        free = limit - self._slots.glance()
        if free <= 0:
            self._full_at = now
            return False
        if now - self._full_at > RUSH_S or now - self._moved_at > PATIENCE_S:
            self._on_their_way, self._moved_at = 0, now
        elif self._on_their_way >= 2 * free:
            return False
        self._on_their_way += 1
        return True

    def note_arrival(self, now: float) -> None:
        """A mail that was let in has arrived, or was refused before its content was sent."""
        if self._on_their_way:
            self._on_their_way -= 1
        self._moved_at = now

    def enter(self, is_pressed: Callable[[], bool] = lambda: False) -> float:
        """Take a slot and return the delay to wait before using it. Raises Saturated."""
        before = self._slots.take_one(self.settings.max_in_processing)
        if before is None:
            raise Saturated("the limit on mails being processed has been reached")
        return self.delay_after(before, is_pressed)

    def leave(self) -> None:
        self._slots.give_back(1)

    def delay(self, is_pressed: Callable[[], bool] = lambda: False) -> float:
        """How long the next mail waits: not at all below the threshold, the maximum at the limit.

        While the scanner reports pressure (YELLOW), the threshold counts as reached.
        """
        return self.delay_after(self.in_processing, is_pressed)

    def delay_after(self, in_processing: int, is_pressed: Callable[[], bool] = lambda: False) -> float:
        """The same for a mail that finds this many in processing."""
        limit, threshold = self.settings.max_in_processing, self.settings.throttle_threshold
        if in_processing < threshold and not is_pressed():  # nearly always
            return 0.0
        if threshold >= limit:  # throttle disabled: under pressure it applies from the first mail on
            threshold = 0 if is_pressed() else limit
        over = in_processing + 1 - threshold
        if threshold == limit or (over <= 0 and not is_pressed()):
            return 0.0
        return self.settings.throttle_max_delay_s * min(max(over, 1) / (limit - threshold), 1.0)
