"""One mail from a hook request: the same checks as a milter's, on content that arrives in one piece.

Content that cannot be kept is discarded while it arrives, and the refusal is the answer. Fields that only we may write
are found by their place in the header section, so that the mail server can be told to delete them; that is possible
only if every reader sees the same fields. Knows nothing of HTTP and JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from bridge.filter.policy import FORGED_FIELDS, TOO_MANY_FORGED
from bridge.intake.milter import codec
from bridge.intake.milter.mail import MAX_STRIPPED, Limits, Mail, declared_size
from bridge.mail.authentication_results import FIELD_LOWER
from bridge.mail.envelope import Recipient
from bridge.mail.header_fields import clean_names
from bridge.mail.message import Spool
from bridge.mail.reply import Reply


class HookMail(Mail):
    """Its envelope may become known before or after its content."""

    __slots__ = ("_names", "_own")

    def __init__(self, spool: Spool, limits: Limits) -> None:
        super().__init__("", (), spool, limits)
        self._in_head = False
        self._names: bytes | None = None  # see `fields`
        self._own: list[int] = []

    def set_sender(self, data: bytes) -> None:
        parsed = codec.parse_address(data)
        if isinstance(parsed, Reply):
            self.refuse(parsed)
            return
        self.sender, self.params = parsed
        if declared_size(self.params) > self._limits.max_message_size:
            self._refuse_size()

    def add_recipients(self, recipients: tuple[bytes, ...], refused: Callable[[str], Reply | None] | None) -> None:
        """All of them, or the mail is refused: nobody but its client could send it to the others."""
        for data in recipients:
            reply = self.add_recipient(data, refused)
            if reply is not None:
                if self.refusal is None:
                    self.refuse(reply)
                return self._note_recipients(recipients)
        return None

    def _note_recipients(self, recipients: tuple[bytes, ...]) -> None:
        """For the log: the recipients of a mail that is refused."""
        parsed = [codec.parse_address(data) for data in recipients[: self._limits.max_recipients]]
        self.recipients = [Recipient(*recipient) for recipient in parsed if not isinstance(recipient, Reply)]

    def complete(self, needs_fields: bool) -> None:
        """All of the content is here. `needs_fields`: the mail server is told which fields to delete."""
        self.end(b"")
        if self.refusal is not None or not needs_fields:
            return
        head = self.message.head()
        found = clean_names(head)
        if found is not None:
            self._names = b"\n".join(found)
            self._own = list(islice(self._own_of(self._names, head), MAX_STRIPPED + 1))
            if len(self._own) > MAX_STRIPPED:
                self._limits.on_hit("header")
                self.refuse(TOO_MANY_FORGED)
        elif self._limits.our_fields.search(head) is not None or self._has_own_results(head):
            self.refuse(FORGED_FIELDS)

    @property
    def fields(self) -> list[bytes] | None:
        """The names of all header fields in lower case; None: not certain.

        Kept in one piece until the answer: there may be a quarter of a million of them.
        """
        return None if self._names is None else self._names.splitlines()

    @fields.setter
    def fields(self, names: list[bytes] | None) -> None:
        self._names = None if names is None else b"\n".join(names)

    def our_fields(self) -> list[int]:
        """The places of fields that only we may write."""
        return self._own

    def _own_of(self, names: bytes, head: bytes) -> Iterator[int]:
        prefix, results = self._limits.prefix, self._limits.own_results
        are_own = iter(()) if results is None else results.own_of(head + b"\r\n")  # its last line may have no end
        place = position = 0
        for found in re.finditer(rb"^(?:(%b)$|%b)" % (FIELD_LOWER, re.escape(prefix)), names, re.MULTILINE):
            place += names.count(b"\n", position, found.start())
            position = found.start()
            if found[1] is None or next(are_own, False) or FIELD_LOWER.startswith(prefix):
                yield place

    def _has_own_results(self, head: bytes) -> bool:
        results = self._limits.own_results
        return results is not None and any(results.own_of(head))
