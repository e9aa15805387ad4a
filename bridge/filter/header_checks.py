"""What refuses a mail for its header section alone: a loop, fields that could hide forged ones, bare line ends.

If this is wrong, a mail travels in circles, or a reader trusts a field that the sender wrote in our name.
"""

from __future__ import annotations

from bridge.filter.headers import HeaderEditor
from bridge.filter.outcome import Record
from bridge.filter.policy import BARE, LONG_HEAD, LOOP
from bridge.mail.reply import Reply


class HeaderChecks:
    """For one listener. `keeps_refused`: after a queue, a mail with bare line ends is kept instead of being refused."""

    def __init__(self, headers: HeaderEditor, max_received: int, keeps_refused: bool) -> None:
        self._headers = headers
        self._max_received = max_received
        self._keeps_refused = keeps_refused

    def refuse(self, record: Record, head: bytes, lower: bytes) -> Reply | None:
        """The refusal, or None. `lower` is `head` in lower case."""
        message = record.tx.message
        if self._keeps_refused and not message.has_clean_lines:
            return BARE
        if count_received(lower) > self._max_received:
            record.limit = "max_received"
            return LOOP
        if self._headers.is_hidden(message, head, lower):
            record.limit = "header"
            return LONG_HEAD
        return None


def count_received(lower: bytes) -> int:
    """How many servers this mail has passed, by its header section in lower case."""
    return lower.count(b"\nreceived:") + lower.startswith(b"received:")
