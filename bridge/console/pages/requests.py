"""What users ask for and may not do themselves: a releaser grants or refuses it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from bridge.console.call import Call, Refused
from bridge.console.checks import int_or
from bridge.console.mail_actions import NOT_USABLE
from bridge.console.pages.quarantine import by
from bridge.digests.requests import ALLOW, Request, Requests
from bridge.errors import BridgeError
from bridge.lists.personal_store import sender_of_mail
from bridge.mail.address import comparable_address
from bridge.quarantine.record import MailRecord


@dataclass(frozen=True, slots=True)
class Row:
    request: Request
    mail: MailRecord | None  # None: it has expired, or was deleted


async def listed(call: Call) -> Response:
    rows = await call.run(_rows, call)
    return call.page("requests.html", rows=rows, is_on=call.sources.requests is not None, ALLOW=ALLOW)


async def grant(call: Call) -> Response:
    """Takes the request first, so that two releasers do not both act; after a failure or a crash, it waits again."""
    requests, found = _requests(call), await _found(call)
    taken = await call.run(requests.take, found.seq, call.person.shown)
    if taken is None:
        raise _decided_before()
    try:
        call.audit_detail = await call.run_among_few(call.queues.grants, _carry_out, call, taken)
    except BridgeError as exc:
        await call.run(requests.reopen, found.seq)
        call.audit_detail = f"request {found.seq}: {exc}"
        why = str(exc) if isinstance(exc, Refused) else call.reason(exc, NOT_USABLE)
        raise Refused(409, "Not granted", f"{why}. The request is still waiting.") from exc
    await call.run(requests.settle, taken)
    return call.redirect("/requests", notice="request-granted")


async def refuse(call: Call) -> Response:
    requests, found = _requests(call), await _found(call)
    if await call.run(requests.refuse, found.seq, call.person.shown) is None:
        raise _decided_before()
    call.audit_detail = f"request {found.seq}: {found.kind} of {found.mail} for {found.recipient}"
    return call.redirect("/requests", notice="request-refused")


def _rows(call: Call) -> list[Row]:
    if call.sources.requests is None:
        return []
    waiting = call.sources.requests.waiting(call.tenants)
    mails = {mail.id: mail for mail in call.sources.quarantine.records([each.mail for each in waiting])}
    return [Row(each, mails.get(each.mail)) for each in waiting]


def _carry_out(call: Call, request: Request) -> str:
    """Returns what the audit log says. Raises BridgeError."""
    about = f"request {request.seq}: {request.kind} of {request.mail} for {request.recipient}"
    mail = call.sources.held(request.mail, call.tenants)
    if mail is None:
        raise Refused(409, "Not granted", "The mail is no longer in the quarantine")
    if request.kind == ALLOW:
        if call.sources.personal_lists is None:
            raise Refused(409, "Not granted", "There are no personal lists")
        sender = sender_of_mail(mail.envelope.sender)
        call.sources.personal_lists.allow(request.recipient, sender, by(call))
        return about
    to = tuple(each for each in mail.envelope.addresses if comparable_address(each) == request.recipient)
    if not to:
        raise Refused(409, "Not granted", "The mail does not have this recipient")
    done = call.sources.mail_actions.release([mail], by(call), to)[0]
    if not done.is_done:
        raise Refused(409, "Not granted", f"The mail was {done.shown_to(call.person)}")
    return f"{about}: {done.text}"


async def _found(call: Call) -> Request:
    """The request that is meant, if it belongs to one of the person's tenants."""
    found = await call.run(_requests(call).find, int_or(call.form.get("request", ""), 0))
    if found is None or (call.tenants is not None and found.tenant not in call.tenants):
        raise Refused(404, "No such request", "There is no such request, or you do not have access to it.")
    return found


def _requests(call: Call) -> Requests:
    if call.sources.requests is None:
        raise Refused(404, "No digests", "Digests are not configured.")
    return call.sources.requests


def _decided_before() -> Refused:
    return Refused(409, "Already decided", "Someone else has already granted or refused this request.")
