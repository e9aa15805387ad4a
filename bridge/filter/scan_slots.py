"""Slots: whether one more mail may be scanned now, and when its slot is released.

Combines three limits: the operator's (`admission`), the one learned from the scanner's latency
(`adaptive_limit`), and the scanner's own report that it is full. If a slot is not given back, the
bridge accepts less and less mail; if one is given back twice, the scanner gets more than it can take.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType

from bridge.errors import NoRoom, Saturated, ScanTimeout
from bridge.filter.adaptive_limit import AdaptiveLimit
from bridge.filter.admission import Admission
from bridge.filter.outcome import Record
from bridge.scanner.client import ScanGoesOn, Scanner


class Slots:
    """The slots as one listener sees them; admission, limit and scanner are shared by all listeners."""

    def __init__(self, admission: Admission, limit: AdaptiveLimit | None, scanner: Scanner) -> None:
        self._admission = admission
        self._limit = limit
        self._scanner = scanner
        self.is_adaptive = limit is not None

    def is_open_at_mail(self) -> bool:
        """Whether a mail is likely to find a slot when its content has arrived."""
        limit = self._admission.settings.max_in_processing
        if self._limit is not None:
            limit = min(limit, self._limit.current)
        # Ask the scanner first: a mail that is refused must not count as one that was let in.
        return not self._scanner.is_saturated() and self._admission.lets_in(limit, monotonic())

    def is_open_before_content(self) -> bool:
        if not self._is_full() and not self._scanner.is_saturated():
            return True
        self.note_arrival()
        return False

    def note_arrival(self) -> None:
        """A mail that was let in at MAIL has arrived, or was refused before its content was sent."""
        self._admission.note_arrival(monotonic())

    def _is_full(self) -> bool:
        admission = self._admission
        return admission.is_full or (self._limit is not None and admission.in_processing >= self._limit.current)

    def slot(self, record: Record, deadline: float) -> Slot:
        """For `async with`, around the scan of this mail."""
        return Slot(self, record, deadline)

    def enter(self) -> float:
        """Take a slot; returns the throttle's delay in seconds. Raises Saturated."""
        if self._scanner.is_saturated():
            raise Saturated("the scanner reports that it is full")
        if self._limit is not None and self._is_full():
            raise Saturated("the adaptive limit on mails being processed has been reached")
        self._admission.note_arrival(monotonic())
        return self._admission.enter(self._scanner.is_yellow)

    def leave(self) -> None:
        self._admission.leave()

    @property
    def in_processing(self) -> int:
        return self._admission.in_processing

    def learn(self, error: BaseException | None, scan_s: float, began_among: int) -> None:
        """Tell the adaptive limit how a scan ended."""
        assert self._limit is not None
        if error is None:
            self._limit.sample(scan_s, began_among)
        elif isinstance(error, NoRoom) or (isinstance(error, ScanTimeout) and error.others_pass):
            pass  # a mail that is large or slow by itself says nothing about the load
        elif isinstance(error, Saturated | ScanTimeout):
            self._limit.overload()


class Slot:
    """Holds a slot while its block runs, and records the times of waiting and scanning.

    If the scan continues after the block (`ScanGoesOn`), the slot belongs to it, and `Slots.leave` is called when
    it has ended.
    """

    __slots__ = ("_began_among", "_deadline", "_record", "_slots")

    def __init__(self, slots: Slots, record: Record, deadline: float) -> None:
        self._slots = slots
        self._record = record
        self._deadline = deadline
        self._began_among = 0

    async def __aenter__(self) -> None:
        delay_s = self._slots.enter()
        if delay_s:
            try:
                await self._throttle(delay_s)
            except BaseException:
                self._slots.leave()
                raise
        if self._slots.is_adaptive:
            self._began_among = self._slots.in_processing
        self._record.scan_at = monotonic()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        record = self._record
        record.scan_s = monotonic() - record.scan_at
        if not isinstance(error, ScanGoesOn):
            self._slots.leave()
        if self._slots.is_adaptive:
            self._slots.learn(error, record.scan_s, self._began_among)

    async def _throttle(self, delay_s: float) -> None:
        """Wait, but not beyond the deadline: answering the client in time comes before sparing the scanner."""
        record = self._record
        record.wait_at = monotonic()
        try:
            await asyncio.sleep(min(delay_s, max(self._deadline - record.wait_at, 0.0)))
        finally:
            record.wait_s = monotonic() - record.wait_at
