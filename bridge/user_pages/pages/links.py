"""Links of a digest. A GET only ever shows a page with a button: link scanners follow every link. A POST acts.

The reason why a link is refused is in the audit log and in the log; the reader learns only that it does not work.
"""

from __future__ import annotations

import logging
import time

from starlette.responses import Response

from bridge.console.checks import Refused
from bridge.digests.signed_links import Act, Link, LinkRefused
from bridge.mail.address import comparable_address
from bridge.user_pages import copies
from bridge.user_pages.call import Call
from bridge.user_pages.pages import held, sign_in

log = logging.getLogger(__name__)


async def show(call: Call) -> Response:
    link = await _verified(call, is_use=False)
    if link.act is Act.ENTER:
        await call.audit_opened(call.path["token"], detail=str(link.act), name=link.recipient)
        return call.page("enter.html", address=link.recipient)
    copy = await copies.of_link(call, link)
    await call.audit_opened(call.path["token"], mail=link.mail, detail=str(link.act), name=link.recipient)
    values = await held.details(call, copy, has_text=False)
    return call.page("link.html", act=_act_now(call, link, copy), **values)


async def act(call: Call) -> Response:
    link = await _verified(call, is_use=True)
    async with call.pages.requests.turn(call.link_person):
        return await _act(call, link)


async def _act(call: Call, link: Link) -> Response:
    if link.act is Act.ENTER:
        return await _enter(call, link)
    copy = await copies.of_link(call, link)
    match link.act:
        case Act.RELEASE | Act.REQUEST:
            notice = await copies.release(call, copy)
        case Act.DELETE:
            notice = await copies.delete(call, copy)
        case Act.BLOCK:
            notice = await copies.list_sender(call, copy, "block")
        case Act.HAM | Act.SPAM:
            notice = await copies.report(call, copy, str(link.act))
        case Act.VIEW:
            await call.audit_seen(link.mail, link.recipient)
            return call.page("view.html", **await held.details(call, copy))
        case _:
            raise _not_working(call, is_expired=False)
    return call.page("done.html", outcome=notice)


async def show_unsubscribe(call: Call) -> Response:
    link = await _verified(call, is_use=False)
    if link.act is not Act.UNSUBSCRIBE:
        raise _not_working(call, is_expired=False)
    return call.page("unsubscribe.html", address=link.recipient, is_done=False)


async def unsubscribe(call: Call) -> Response:
    """Also by one click in a mail program, which sends no cookie: only ends the digests."""
    link = await _verified(call, is_use=True)
    if link.act is not Act.UNSUBSCRIBE:
        raise _not_working(call, is_expired=False)
    stored = await call.run(call.sources.items.person, link.recipient)
    if stored.schedule != "never":
        async with call.audited("chose a schedule", detail="never, through the link in a digest", name=link.recipient):
            await call.run(call.sources.items.choose, link.recipient, schedule="never")
    return call.page("unsubscribe.html", address=link.recipient, is_done=True)


async def _enter(call: Call, link: Link) -> Response:
    """Only as the person to whom it was sent: if the address has become an alias, its new owner is somebody else."""
    person = await call.run(call.sources.people.person_of, link.recipient)
    if person is None or person != comparable_address(link.recipient):
        raise _not_working(call, is_expired=True)
    return await sign_in.begin(call, person, "signed in with a link in a digest")


def _act_now(call: Call, link: Link, copy: copies.Copy) -> str:
    """The policy may have changed since the digest was sent."""
    if link.act in (Act.RELEASE, Act.REQUEST):
        return copies.may_release(copy)
    return str(link.act)


async def _verified(call: Call, *, is_use: bool) -> Link:
    try:
        link = await call.run(call.sources.maker.keys.verify, call.path["token"], time.time())
        person = await call.run(call.sources.people.person_of, link.recipient)
        call.link_of, call.link_person, call.link_mail = link.recipient, person or link.recipient, link.mail
        if person is not None:  # what they chose; otherwise, what the browser asks for
            await call.speak_language_of(person)
        return link
    except LinkRefused as exc:
        action = "used a link" if is_use else "opened a link"
        log.warning("link refused: from=%s why=%r", call.address, str(exc))
        # Both logs record only the first ones, so that nobody can fill them.
        if not await call.run(call.sources.attempts.admit, None, call.address, pages="link"):
            await call.audit_stranger(action, detail=str(exc), name="unknown")
        raise _not_working(call, is_expired=exc.is_expired) from None


def _not_working(call: Call, *, is_expired: bool) -> Refused:
    if is_expired:
        text = call.speak("This link has expired. Sign in to see the mail that is held for you.")
        return Refused(410, call.speak("The link does not work"), text)
    text = call.speak("This is not one of our links, or part of it is missing. Copy the whole link.")
    return Refused(404, call.speak("The link does not work"), text)
