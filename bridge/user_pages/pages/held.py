"""A person's held mail: the list, one mail with its text made harmless, and what they can do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import HTMLResponse, Response

from bridge.console.checks import Refused
from bridge.console.preview import document
from bridge.digests.items import Item
from bridge.digests.message import MAX_SENDER, MAX_SUBJECT, is_held_for
from bridge.digests.message import shown as shown_text
from bridge.digests.reasons import reason_of, words_for
from bridge.digests.requests import RELEASE
from bridge.errors import BridgeError
from bridge.mime.mail_text import Reading, html_of
from bridge.mime.mail_text import read as read_text
from bridge.quarantine.content import beginning
from bridge.quarantine.record import MailRecord
from bridge.user_pages import copies
from bridge.user_pages.call import Call
from bridge.user_pages.copies import Copy

_PER_PAGE = 50
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
    items = await call.run(sources.items.of, call.person, before=before, limit=_PER_PAGE + 1)
    rows = await call.run(_rows, call, items[:_PER_PAGE])
    following = ""
    if len(items) > _PER_PAGE:
        last = items[_PER_PAGE - 1]
        following = f"{last.kept_at!r}-{last.mail}"
    return call.page("held.html", rows=rows, following=following, is_first=before is None)


async def shown(call: Call) -> Response:
    copy = await copies.of_person(call, call.path["id"])
    values = await details(call, copy)
    await call.audit("saw own held mail", mail=copy.mail.id)
    return call.page("mail.html", **values)


async def preview(call: Call) -> Response:
    """For the frame alone."""
    copy = await copies.of_person(call, call.path["id"])
    if not copy.settings.users.preview:
        raise copies.not_found(call)
    return HTMLResponse(await call.read_mail(lambda: document(html_of(_content(call, copy.mail)))))


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
    may_read = copy.settings.users.preview
    reading, has_html, problem = None, False, ""
    if has_text and may_read:
        try:
            reading, has_html = await call.read_mail(_read, call, mail)
        except (BridgeError, OSError):
            problem = call.speak("The mail cannot be read now. Try again later.")
    asked = await call.run(call.sources.requests.of, copy.person, [mail.id])
    users = copy.settings.users
    return {
        "id": mail.id,
        "subject": shown_text(mail.subject, MAX_SUBJECT) or call.speak("(no subject)"),
        "sender": shown_text(mail.envelope.sender, MAX_SENDER) or call.speak("a mail server"),
        "recipients": ", ".join(copy.recipients),
        "time": call.words.time(mail.time.timestamp(), zone),
        "why": call.speak(copy.why),
        "reason": str(copy.reason),
        "size": mail.size,
        "may": copies.may_release(call, copy),
        "is_held": copy.is_held,
        "request": next((one.state for (kind, _, _), one in asked.items() if kind == RELEASE), ""),
        "may_delete": users.delete,
        "may_block": call.sources.lists is not None and copies.may_block(copy) == "allow",
        "may_allow": copies.may_allow(copy) if call.sources.lists is not None else "nothing",
        "may_report": call.sources.feedback is not None,
        "may_be_ham": copies.may_be_ham(copy),
        "may_read": may_read,
        "reading": reading,
        "has_html": has_html,
        "problem": problem,
    }


def _rows(call: Call, items: list[Item]) -> list[Row]:
    records = {mail.id: mail for mail in call.sources.quarantine.records([item.mail for item in items])}
    asked = call.sources.requests.of(call.person, list(records))
    rows = []
    for item in items:
        mail = records.get(item.mail)
        if mail is None or mail.is_copy:
            continue
        is_held = is_held_for(item.recipient, mail)
        request = asked.get((RELEASE, item.mail, item.recipient))
        rows.append(
            Row(
                id=mail.id,
                subject=shown_text(mail.subject, MAX_SUBJECT) or call.speak("(no subject)"),
                sender=shown_text(mail.envelope.sender, MAX_SENDER) or call.speak("a mail server"),
                time=call.words.time(item.kept_at, call.sources.settings.clock.zone),
                why=call.speak(words_for(reason_of(mail))),
                to="" if item.recipient == call.person else item.recipient,
                may=call.sources.settings.of(item.recipient).may(reason_of(mail)),
                state="released" if not is_held else request.state if request is not None else "held",
            )
        )
    return rows


def _read(call: Call, mail: MailRecord) -> tuple[Reading, bool]:
    """Its text, and whether it has HTML."""
    content = _content(call, mail)
    return read_text(content), bool(html_of(content))


def _content(call: Call, mail: MailRecord) -> bytes:
    """As received."""
    return beginning(call.sources.quarantine.chunks(mail.id), _MAX_READ)[mail.head_size :]


def _cursor(text: str) -> tuple[float, str] | None:
    moment, _, mail = text.partition("-")
    try:
        return (float(moment), mail) if text else None
    except ValueError:
        raise Refused(404, "No such page", "There is no such page.") from None
