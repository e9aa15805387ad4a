"""One mail, rebuilt from milter events as exactly as milter allows.

Milter sends header fields and body chunks, not the mail. We join `name:value` and CRLF again, add
the space after the colon where the mail server cannot send it, turn the bare line feeds of folded
fields back into CRLF, and stream everything into the same Message as SMTP's. Content that cannot
be kept (too large, no room, no disk) is discarded as it arrives, and the end of the mail is
answered with the refusal: content is never cut short and passed on as if it were complete.

Knows nothing of sockets or of how an answer is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bridge.errors import MessageTooLarge, ProtocolError, Saturated
from bridge.filter.pipeline import Filter
from bridge.filter.policy import NO_STORAGE, SATURATED, TOO_MANY_FORGED, UNCERTAIN_DOMAIN, reply_to_error
from bridge.intake.milter import codec
from bridge.intake.one_tenant import RecipientGroups
from bridge.mail.authentication_results import FIELD_LOWER, OwnResults
from bridge.mail.envelope import Envelope, Recipient, max_recipient_bytes
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply

MAX_STRIPPED = 500  # forged fields with our prefix in one mail; for each, the mail server searches the header
TOO_LARGE = reply_to_error(MessageTooLarge())

TOO_MANY_RECIPIENTS = Reply(452, "4.5.3", "Too many recipients")
_NO_RECIPIENT = Reply(451, "4.5.0", "No recipient was given")

_LF = ord("\n")
# Fields are collected and written together; more fields or more bytes than this are written immediately.
_MAX_COLLECTED, _LONG_RUN_BYTES = 64, 2048


class LimitSettings(Protocol):
    """The settings of a listener that limit its mail."""

    @property
    def max_message_size(self) -> int: ...

    @property
    def max_recipients(self) -> int: ...

    @property
    def groups(self) -> RecipientGroups: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one mail may be."""

    max_message_size: int
    max_recipients: int
    prefix: bytes  # of our own header fields, in lower case
    groups: RecipientGroups = field(default_factory=RecipientGroups)
    on_hit: Callable[[str], None] = lambda limit: None  # called with the limit that a mail exceeds
    may_be_another: Callable[[str], bool] = lambda address: False  # such a recipient is refused
    own_results: OwnResults | None = None  # of Authentication-Results; None: we do not write them
    our_fields: re.Pattern[bytes] = field(init=False)  # finds the names of fields with our prefix

    def __post_init__(self) -> None:
        pattern = re.compile(rb"^(%b[^:\r\n]*):" % re.escape(self.prefix), re.IGNORECASE | re.MULTILINE)
        object.__setattr__(self, "our_fields", pattern)

    @classmethod
    def of(cls, settings: LimitSettings, filter_: Filter, on_hit: Callable[[str], None]) -> Limits:
        """Those of one listener."""
        groups = settings.groups
        return cls(
            settings.max_message_size,
            settings.max_recipients,
            filter_.header_prefix.lower().encode("ascii"),
            groups,
            on_hit,
            may_be_another=partial(filter_.early.may_be_another, known=groups.known),
            own_results=filter_.own_results,
        )


class Mail:
    """Grows event by event, from MAIL to the end of the body."""

    __slots__ = ("_colon", "_head", "_in_head", "_is_own_result", "_limits", "_recipient_bytes", "_results_seen",
                 "forged", "is_as_written", "message", "params", "recipients", "refusal", "sender",
                 "size")  # fmt: skip

    def __init__(
        self, sender: str, params: tuple[str, ...], spool: Spool, limits: Limits, *, leading_space: bool = True
    ) -> None:
        self.sender = sender
        self.params = params
        self.recipients: list[Recipient] = []
        # Postfix tells us recipients of local programs without brackets, and after it has completed and rewritten them;
        # but it only removes a recipient that is named as it was written.
        self.is_as_written = True
        self._recipient_bytes = 0
        self.message = Message(spool)
        # Fields that only we may write: by lower-case name, their numbers among the fields of this name, from 1.
        self.forged: dict[bytes, list[int]] = {}
        self._results_seen = 0  # fields of the name Authentication-Results
        self._is_own_result = limits.own_results.reader() if limits.own_results is not None else None
        self.refusal: Reply | None = None
        self.size = 0
        self._limits = limits
        self._colon = b":" if leading_space else b": "
        self._head: list[bytes] = []  # collected fields, without their line ends
        self._in_head = True
        if params and declared_size(params) > limits.max_message_size:
            self._refuse_size()

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.sender, tuple(self.recipients), self.params)

    def refuse(self, reply: Reply) -> None:
        """Discard the content, and answer the mail with this reply."""
        self.refusal = reply
        self.close()

    def _refuse_size(self) -> None:
        self._limits.on_hit("max_message_size")
        self.refuse(TOO_LARGE)

    def close(self) -> None:
        self._head.clear()
        self.message.close()

    # --- recipients ------------------------------------------------------------------------------

    def add_recipient(self, data: bytes, refused: Callable[[str], Reply | None] | None = None) -> Reply | None:
        """Add a recipient, or return why not; the mail then continues without it.

        `refused` is called last, with the address, and may refuse it too.
        """
        if self.refusal is not None:
            return self.refusal
        most = self._limits.max_recipients
        if len(self.recipients) >= most or self._recipient_bytes >= max_recipient_bytes(most):
            self._limits.on_hit("max_recipients")
            return TOO_MANY_RECIPIENTS
        parsed = codec.parse_address(data)
        if isinstance(parsed, Reply):
            return parsed
        address, params = parsed
        if self._limits.may_be_another(address):
            return UNCERTAIN_DOMAIN
        if self.recipients and (reply := self._limits.groups.refusal(self.recipients[0].address, address)) is not None:
            return reply
        if refused is not None and (reply := refused(address)) is not None:
            return reply
        self.recipients.append(Recipient(address, params))
        self.is_as_written = self.is_as_written and data[:1] == b"<"
        self._recipient_bytes += len(data)
        return None

    # --- the header section ----------------------------------------------------------------------

    def add_fields(self, fields: list[bytes]) -> None:
        """Header fields that arrived together; each is name, NUL, value, NUL."""
        head, colon = self._head, self._colon
        try:
            for data in fields:
                name, value, rest = data.split(b"\0")
                if rest or not name:
                    raise ProtocolError("a header field has no name or is not terminated")
                head.append(name + colon + value)
        except ValueError:
            raise ProtocolError("a header field is not terminated") from None
        if self.refusal is not None:
            head.clear()
        elif len(head) > _MAX_COLLECTED or sum(map(len, fields)) > _LONG_RUN_BYTES:
            self._flush_head()

    def end_headers(self) -> None:
        """Write the blank line, once."""
        if self._in_head:
            self._in_head = False
            if self.refusal is None:
                self._head.append(b"")
                self._flush_head()

    def _flush_head(self) -> None:
        """Write the collected fields, and count those that only we may write."""
        self._head.append(b"")
        block = b"\r\n".join(self._head)
        if _LF in b"".join(self._head):  # Postfix and Sendmail send folded fields with bare line feeds
            block = block.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        self._head.clear()
        lower = block.lower()
        if self._limits.prefix in lower:
            self._count_forged(block)
        if self._limits.own_results is not None and FIELD_LOWER in lower:
            self._count_results(block, self._limits.own_results)
        if self.refusal is None:
            self._write_head(block)

    def _count_forged(self, block: bytes) -> None:
        for name in map(bytes.lower, self._limits.our_fields.findall(block)):
            numbers = self.forged.setdefault(name, [])
            numbers.append(len(numbers) + 1)
        self._limit_forged()

    def _count_results(self, block: bytes, own_results: OwnResults) -> None:
        for is_own in own_results.own_of(block, self._is_own_result):
            self._results_seen += 1
            if is_own:
                self.forged.setdefault(FIELD_LOWER, []).append(self._results_seen)
        self._limit_forged()

    def _limit_forged(self) -> None:
        if sum(map(len, self.forged.values())) > MAX_STRIPPED:
            self._limits.on_hit("header")
            self.refuse(TOO_MANY_FORGED)

    def _write_head(self, block: bytes) -> None:
        """A subclass may hold the header section back."""
        self._write(block)

    # --- the body --------------------------------------------------------------------------------

    def add_body(self, chunk: bytes) -> None:
        """The next piece of the body, as it was sent."""
        if self._in_head:
            self.end_headers()
        if chunk and self.refusal is None:
            self._write(chunk)

    def end(self, chunk: bytes) -> None:
        """The last piece: now the mail is complete, or refused."""
        if chunk or self._in_head:
            self.add_body(chunk)
        if self.refusal is None and not self.recipients:
            self.refuse(_NO_RECIPIENT)

    def _write(self, block: bytes) -> None:
        self.size += len(block)
        if self.size > self._limits.max_message_size:
            return self._refuse_size()
        try:
            self.message.write(block)
        except Saturated:
            self._limits.on_hit("max_bytes_in_processing")
            self.refuse(SATURATED)
        except OSError:  # the spool's disk: no space, no inodes, an I/O error
            self.refuse(NO_STORAGE)


def declared_size(params: tuple[str, ...]) -> int:
    """The value of SIZE=; 0 if it is missing or no number."""
    for param in params:
        name, _, value = param.partition("=")
        if name.upper() == "SIZE" and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
    return 0
