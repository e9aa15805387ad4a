"""A person's held mail: the list, one mail with its text made harmless, and what they can do with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import HTMLResponse, Response

from bridge.console.checks import Refused
from bridge.console.preview import document
from bridge.digests.findings import in_words
from bridge.digests.items import Item
from bridge.digests.listing import is_held_for
from bridge.digests.message import MAX_FINDING, MAX_SENDER, MAX_SUBJECT
from bridge.digests.message import shown as shown_text
from bridge.digests.requests import RELEASE, Request
from bridge.digests.why_held import reason_of, words_for
from bridge.errors import BridgeError
from bridge.mime.mail_text import Reading, html_of
from bridge.mime.mail_text import read as read_text
from bridge.quarantine.content import beginning
from bridge.quarantine.record import MailRecord
from bridge.quarantine.store import is_id
from bridge.runtime.marked_text import N_
from bridge.runtime.storable import is_storable
from bridge.user_pages import copies
from bridge.user_pages.call import Call
from bridge.user_pages.copies import Copy

_PER_PAGE = 50
_MAX_ROUNDS = 20  # reading rows that are not shown
_MAX_READ = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    subject: str
    sender: str
    time: str
    why: str
    to: str  # which of the person's addresses, if it is not the usual one
    may: str
    state: str  # held, released or requested


async def listed(call: Call) -> Response:
    sources = call.sources
    await call.run(sources.items.refresh, sources.quarantine, sources.people, is_quick=True)
    before = _cursor(call.request.query_params.get("before", ""))
    rows, following = await call.run(_rows, call, before)
    return call.page("held.html", rows=rows, following=following, is_first=before is None)


async def shown(call: Call) -> Response:
    copy = await copies.of_person(call, call.path["id"])
    values = await details(call, copy)
    await call.audit_seen(copy.mail.id)
    return call.page("mail.html", **values)


async def preview(call: Call) -> Response:
    """For the frame alone."""
    copy = await copies.of_person(call, call.path["id"])
    if not copy.may_read:
        raise copies.not_found(call)
    return HTMLResponse(await call.read_mail(copy.mail.size, lambda: document(html_of(_content(call, copy.mail)))))


async def release(call: Call) -> Response:
    return await _done(call, await copies.release(call, await copies.of_person(call, call.path["id"])))


async def delete(call: Call) -> Response:
    return await _done(call, await copies.delete(call, await copies.of_person(call, call.path["id"])))


async def block(call: Call) -> Response:
    return await _done(call, await copies.list_sender(call, await copies.of_person(call, call.path["id"]), "block"))


async def allow(call: Call) -> Response:
    return await _done(call, await copies.list_sender(call, await copies.of_person(call, call.path["id"]), "allow"))


async def report(call: Call) -> Response:
    copy = await copies.of_person(call, call.path["id"])
    return await _done(call, await copies.report(call, copy, call.form.get("kind", "")))


async def _done(call: Call, notice: str) -> Response:
    return call.redirect("/", notice=notice)


async def details(call: Call, copy: Copy, *, has_text: bool = True) -> dict[str, Any]:
    """What a page shows of one mail."""
    mail, zone = copy.mail, call.sources.settings.clock.zone
    reading, has_html, problem = None, False, ""
    if has_text and copy.may_read:
        try:
            reading, has_html = await call.read_mail(mail.size, _read, call, mail)
        except (BridgeError, OSError):
            problem = call.speak("The mail cannot be read at the moment. Try again later.")
    asked = await call.run(call.sources.requests.of, copy.person, [mail.id])
    return {
        "id": mail.id,
        "subject": shown_text(mail.subject, MAX_SUBJECT) or call.speak("(no subject)"),
        "sender": shown_text(mail.envelope.sender, MAX_SENDER) or call.speak("a mail server"),
        "recipients": ", ".join(copy.recipients),
        "time": call.words.time(mail.time.timestamp(), zone),
        "why": call.speak(copy.why),
        "reason": str(copy.reason),
        "findings": [shown_text(text, MAX_FINDING) for text in in_words(mail.reasons, call.words)],
        "size": mail.size,
        "may": copies.may_release(copy),
        "is_held": copy.is_held,
        "request": next((request.state for (kind, _, _), request in asked.items() if kind == RELEASE), ""),
        "may_delete": copy.may_delete,
        "may_block": call.sources.lists is not None and copies.may_block(copy) == "allow",
        "may_allow": copies.may_allow(copy) if call.sources.lists is not None else "nothing",
        "may_report": call.sources.feedback is not None,
        "may_be_ham": copies.may_be_ham(copy),
        "may_read": copy.may_read,
        "reading": reading,
        "has_html": has_html,
        "problem": problem,
    }


def _rows(call: Call, before: Item | None) -> tuple[list[Row], str]:
    """A page, and where the next one begins. Mail that is gone and copies for operators do not make it shorter."""
    rows: list[Row] = []
    for _ in range(_MAX_ROUNDS):
        items = call.sources.items.of(call.person, before=before, limit=_PER_PAGE)
        for item, row in zip(items, _rows_of(call, items), strict=True):
            before = item
            rows += [row] if row is not None else []
            if len(rows) == _PER_PAGE:
                break
        if len(rows) == _PER_PAGE or len(items) < _PER_PAGE:
            break
    has_more = before is not None and bool(call.sources.items.of(call.person, before=before, limit=1))
    return rows, f"{before.kept_at!r}-{before.mail}-{before.recipient}" if before is not None and has_more else ""


def _rows_of(call: Call, items: list[Item]) -> list[Row | None]:
    records = {mail.id: mail for mail in call.sources.quarantine.records([item.mail for item in items])}
    asked = call.sources.requests.of(call.person, list(records))
    return [_row(call, item, records.get(item.mail), asked) for item in items]


def _row(call: Call, item: Item, mail: MailRecord | None, asked: Mapping[tuple[str, str, str], Request]) -> Row | None:
    if mail is None or mail.is_copy or call.sources.people.person_of(item.recipient) != call.person:
        return None
    request = asked.get((RELEASE, item.mail, item.recipient))
    is_held = is_held_for(item.recipient, mail)
    return Row(
        id=mail.id,
        subject=shown_text(mail.subject, MAX_SUBJECT) or call.speak("(no subject)"),
        sender=shown_text(mail.envelope.sender, MAX_SENDER) or call.speak("a mail server"),
        time=call.words.time(item.kept_at, call.sources.settings.clock.zone),
        why=call.speak(words_for(reason_of(mail))),
        to="" if item.recipient == call.person else item.recipient,
        may=call.sources.settings.of(item.recipient).may(reason_of(mail)),
        state="released" if not is_held else request.state if request is not None else "held",
    )


def _read(call: Call, mail: MailRecord) -> tuple[Reading, bool]:
    """Its text, and whether it has HTML."""
    reading = read_text(_content(call, mail))
    return reading, bool(reading.html)


def _content(call: Call, mail: MailRecord) -> bytes:
    """As received."""
    return beginning(call.sources.quarantine.chunks(mail.id), _MAX_READ, mail.head_size)


def _cursor(text: str) -> Item | None:
    moment, _, rest = text.partition("-")
    mail, _, recipient = rest.partition("-")
    try:
        if text and not (math.isfinite(float(moment)) and is_id(mail) and is_storable(recipient)):
            raise ValueError("not one of our links")
        return Item(mail, recipient, float(moment)) if text else None
    except ValueError:
        raise Refused(404, N_("No such page"), N_("There is no page at this address.")) from None
