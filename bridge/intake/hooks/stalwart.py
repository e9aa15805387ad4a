"""Stalwart's own dialect, which is older than the drafts: other names, and the mail as text instead of base64.

Written from Stalwart's documentation and source, which differ in places: `ehlo` or `helo`, `DATA` or `data`, "1.0" or
1, `enhancedStatus` or `enhanced_status`; all of them are accepted, and both spellings of the last are sent. Stalwart
turns bytes that are not UTF-8 into U+FFFD before it sends a mail, so what we scan may differ from what it delivers:
such a copy is recognised, and the listener's `lossy_content` says what becomes of the mail. It has no quarantine that
could be relied on: one version treats `quarantine` as discard, another delivers the mail with a mark. If this is
wrong, the scanner reads a different mail from the one that is delivered.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import assert_never

from bridge.filter.outcome import Outcome
from bridge.filter.policy import CANNOT_HOLD, with_id
from bridge.intake.hooks import facts
from bridge.intake.hooks.draft import field_edits, message_of, unfolded
from bridge.intake.hooks.facts import Found, Question, member
from bridge.intake.hooks.json_body import BadJson
from bridge.intake.hooks.mail import HookMail
from bridge.mail.action import Action
from bridge.mail.reply import Reply

CONTENT = ("message", "contents")
can_hold = False
_REPLACED = "\ufffd"
_EARLY_STAGES = ("connect", "ehlo", "auth")  # nothing is decided at these


def read(found: Found) -> Question:
    """Raises BadJson."""
    context = member(found, "context")
    version = member(context, "protocol").get("version")
    if version not in (None, 1, "1", "1.0"):
        raise BadJson("only version 1 of the protocol is supported")
    sender, recipients = facts.envelope(member(found, "envelope"))
    stage = (facts.text(context, "stage") or "").lower()
    if not stage:  # everything else may be missing as well, and the mail must not pass unscanned
        raise BadJson("the stage is missing")
    return Question(
        "" if stage in _EARLY_STAGES else stage,
        facts.client(member(context, "client"), member(context, "queue"), member(context, "sasl")),
        facts.tls(member(context, "tls")),
        sender,
        recipients,
    )


class TextContent:
    """A taker of the body, which is written below the header section that came before it."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._size = 0
        self._is_replaced = False

    def begin(self, kept: bytes) -> None:
        """Stalwart writes the header section before the body, in the same object."""
        try:
            fields = json.loads(kept.decode("utf-8") + '"}}')["message"]["headers"]
            head = "".join([_line(*field) for field in fields])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise BadJson("message.headers must be a list of fields, and come before message.contents") from None
        self._note(head + "\r\n")

    def take(self, block: bytes) -> None:
        try:
            self._note(self._decoder.decode(block))
        except UnicodeDecodeError:
            raise BadJson("the request is not UTF-8") from None

    def end(self) -> None:
        self.take(b"")
        if self._decoder.getstate()[0]:
            raise BadJson("the request is not UTF-8")

    def _note(self, text: str) -> None:
        data = text.encode()
        self._size += len(data)
        self._is_replaced = self._is_replaced or _REPLACED in text
        if data:
            self._write(data)

    def is_lossy(self, found: Found) -> bool:
        """Whether the mail is not certain to be the one that Stalwart delivers."""
        return self._is_replaced or member(found, "message").get("size") != self._size


def _line(name: str, value: str) -> str:
    """A value has the space after the colon, and the line end if Stalwart has not removed it."""
    return f"{name}:{value}" if value.endswith("\n") else f"{name}:{value}\r\n"


def accept() -> Found:
    return {"action": "accept"}


def refuse(reply: Reply) -> Found:
    said = {"status": reply.code, "message": message_of(reply), "disconnect": False}
    if reply.status:
        said |= {"enhancedStatus": reply.status, "enhanced_status": reply.status}
    return {"action": "reject", "response": said}


def answer(outcome: Outcome, mail_id: str, mail: HookMail, can_delete: bool) -> Found:
    match outcome.action:
        case Action.RELAY:
            return {"action": "accept", "modifications": list(_changes(outcome, mail, can_delete))}
        case Action.REJECT | Action.TEMPFAIL:
            return refuse(outcome.reply)
        case Action.DISCARD | Action.QUARANTINE:
            return {"action": "discard"}
        case Action.HOLD:
            return refuse(with_id(CANNOT_HOLD, mail_id))
        case unknown:
            assert_never(unknown)


def _changes(outcome: Outcome, mail: HookMail, can_delete: bool) -> list[Found]:
    """Fields are numbered among those of the same name, from 1; of each name, the last one is deleted first."""
    changes: list[Found] = []
    edits = field_edits(outcome, mail) if can_delete else []
    gone: dict[int, str | None] = dict.fromkeys(mail.our_fields() if can_delete else ())
    gone |= {place: value for _, place, value in edits if place is not None}
    if gone and (fields := mail.fields) is not None:
        numbers = _numbers(fields, gone)
        for place in sorted(gone, reverse=True):
            named = {"index": numbers[place], "name": fields[place].decode("ascii").title()}
            value = gone[place]
            if value is None:
                changes.append({"type": "deleteHeader", **named})
            else:
                changes.append({"type": "changeHeader", **named, "value": unfolded(value)})
    for name_, place_, value_ in edits:
        if place_ is None and value_ is not None:
            changes.append(_added(name_, value_))
    changes += [_added(name_, value_) for name_, value_ in outcome.stamp]
    if can_delete:
        changes += [{"type": "deleteRecipient", "value": address} for address in outcome.removed]
    return changes


def _numbers(fields: Sequence[bytes], places: Collection[int]) -> dict[int, int]:
    """The numbers of the fields at these places among those of the same name."""
    seen: Counter[bytes] = Counter()
    found: dict[int, int] = {}
    for place, name in enumerate(fields):
        seen[name] += 1
        if place in places:
            found[place] = seen[name]
    return found


def _added(name: str, value: str) -> Found:
    return {"type": "addHeader", "name": name, "value": unfolded(value)}
