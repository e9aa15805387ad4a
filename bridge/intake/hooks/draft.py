"""The dialect of draft-degennaro-mta-hooks-01: a request as a question, an outcome as changes to the request.

An answer consists of `set`, `add` and `delete` alone, because a client refuses any other key. Fields are added at the
end and deletions go from the last to the first, so that every number still means the same field after the other
changes. Draft -02 answers in another way and would need another module.
"""

from __future__ import annotations

from typing import Any, assert_never

from bridge.filter.outcome import Outcome
from bridge.filter.policy import CANNOT_HOLD, with_id
from bridge.intake.hooks import facts
from bridge.intake.hooks.facts import Found, Question, member
from bridge.intake.hooks.json_body import BadJson
from bridge.intake.hooks.mail import HookMail
from bridge.mail.action import Action
from bridge.mail.reply import Reply

VERSION = "1.0"
CONTENT = ("rawMessage",)
can_hold = True


def read(found: Found) -> Question:
    """Raises BadJson."""
    version = facts.text(member(found, "protocol"), "version")
    if version not in (None, VERSION):
        raise BadJson(f"only version {VERSION} of the protocol is supported")
    stage = facts.text(found, "stage")
    if not stage:  # everything else may be missing as well, and the mail must not pass unscanned
        raise BadJson("the stage is missing")
    sender, recipients = facts.envelope(member(found, "envelope"))
    return Question(
        stage,
        facts.client(member(found, "client"), member(found, "queue"), member(found, "auth")),
        facts.tls(member(found, "tls")),
        sender,
        recipients,
    )


def accept() -> Found:
    return _action("accept")


def refuse(reply: Reply) -> Found:
    response = {"code": reply.code, "message": message_of(reply)}
    if reply.status:
        response["enhancedCode"] = reply.status
    return {"set": [_set("/action", "reject"), _set("/response", response)]}


def answer(outcome: Outcome, mail_id: str, mail: HookMail, can_delete: bool) -> Found:
    match outcome.action:
        case Action.RELAY:
            return _changed("accept", outcome, mail, can_delete)
        case Action.REJECT | Action.TEMPFAIL:
            return refuse(outcome.reply)
        case Action.DISCARD | Action.QUARANTINE:
            return _action("discard")
        case Action.HOLD if can_hold:
            return _changed("quarantine", outcome, mail, can_delete)
        case Action.HOLD:
            return refuse(with_id(CANNOT_HOLD, mail_id))
        case unknown:
            assert_never(unknown)


def _action(name: str) -> Found:
    return {"set": [_set("/action", name)]}


def _set(path: str, value: object) -> Found:
    return {"path": path, "value": value}


def _changed(action: str, outcome: Outcome, mail: HookMail, can_delete: bool) -> Found:
    sets = [_set("/action", action)]
    added = [
        {"path": "/message/headers", "value": {"name": name, "value": unfolded(value)}} for name, value in outcome.stamp
    ]
    deleted: list[str] = []
    if can_delete:
        gone = set(mail.our_fields())
        for name, place, value in field_edits(outcome, mail):
            if value is None and place is not None:
                gone.add(place)
            elif value is not None and place is not None:
                sets.append(_set(f"/message/headers/{place}/value", unfolded(value)))
            elif value is not None:
                added.append({"path": "/message/headers", "value": {"name": name, "value": unfolded(value)}})
        deleted += [f"/message/headers/{place}" for place in sorted(gone, reverse=True)]
        removed = set(outcome.removed)
        places = [place for place, recipient in enumerate(mail.recipients) if recipient.address in removed]
        deleted += [f"/envelope/to/{place}" for place in reversed(places)]
    found: Found = {"set": sets}
    if added:
        found["add"] = added
    if deleted:
        found["delete"] = [{"path": path} for path in deleted]
    return found


def field_edits(outcome: Outcome, mail: HookMail) -> list[tuple[str, int | None, str | None]]:
    """The changes to the mail's own fields: a name, its place (None: there is no such field) and its new value."""
    if not outcome.edits or (fields := mail.fields) is None:
        return []
    edits: list[tuple[str, int | None, str | None]] = []
    ours = set(mail.our_fields())  # the scanner has seen the mail without them
    places: dict[bytes, list[int]] = {edit.name: [] for edit in outcome.edits}
    for place, name in enumerate(fields):
        if name in places and place not in ours:
            places[name].append(place)
    for edit in outcome.edits:
        found = places[edit.name]
        at = found[edit.number - 1] if edit.number <= len(found) else None
        edits.append((edit.name.decode("ascii").title(), at, edit.value))
    return edits


def unfolded(value: str) -> str:
    """A field's value as one line of characters that every encoder accepts."""
    line = " ".join(part.strip(" \t") for part in value.splitlines()) if not value.isprintable() else value
    return line.encode("utf-8", "replace").decode()


def message_of(reply: Reply) -> str:
    """The text of a reply as one line."""
    lines: list[Any] = reply.lines()
    return " / ".join(line.removeprefix(f"{reply.status} ") if reply.status else line for line in lines)
