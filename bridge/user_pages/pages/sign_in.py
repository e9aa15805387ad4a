"""Signing in: with a code that is sent to the address, with the provider of the console, and signing out.

These pages do not reveal whether an address exists: the answer is the same in both cases, and takes as long.
"""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.responses import RedirectResponse, Response

from bridge.console import audit as audit_log
from bridge.console.checks import Refused
from bridge.console.headers import set_cookie
from bridge.console.oidc import LASTS_S, Provider, SignInRefused
from bridge.console.tokens import hash_of
from bridge.errors import BridgeError
from bridge.mail.address import comparable_address
from bridge.runtime.marked_text import N_
from bridge.user_pages.call import PAGES, Call
from bridge.user_pages.cookies import FORM_COOKIE, PROVIDER_COOKIE, SESSION_COOKIE
from bridge.user_pages.sign_in_codes import CODE_S

log = logging.getLogger(__name__)

_MAX_ADDRESS = 254
_MAX_PER_ADDRESS = 300  # in a quarter of an hour: a whole office may have one address
_MAX_SENDING = 100  # the next hop may be slow
# Any page can make a browser call us back. That must not use up the tries of the codes, nor, without the state, which
# only that browser has, those of sign-ins for which we ask the provider.
_PROVIDER, _ASKED = f"{PAGES} provider", f"{PAGES} provider asked"
_NO_ADDRESS = N_("The provider did not tell us your mail address.")
_NOT_OURS = N_("There is no quarantine for your mail address here.")
_NOT_SIGNED_IN = N_("The provider did not sign you in. Start again, or ask your administrator.")


async def static(call: Call) -> Response:
    response = call.pages.static.response(call.path["name"])
    if response is None:
        raise Refused(404, call.speak("No such page"), call.speak("There is no page at this address."))
    return response


async def form(call: Call) -> Response:
    if call.person_or_none is not None:
        return call.redirect("/")
    return _page(call)


async def ask_code(call: Call) -> Response:
    """Send a code, if the address is one of ours; what the page says does not depend on it."""
    address = call.form.get("address", "").strip()
    if not call.sources.page.sign_in_by_code:
        raise Refused(404, call.speak("No such page"), call.speak("There is no page at this address."))
    if "@" not in address or len(address) > _MAX_ADDRESS or not address.isprintable():
        return _page(call, 400, call.speak("Enter your full mail address."), address[:_MAX_ADDRESS])
    # By the address that was typed: if all addresses of a person had one count here, they could be told from others.
    await _admit(call, f"ask {comparable_address(address)}")
    await call.audit_stranger("asked for a code", result=audit_log.DONE, name=address)
    sending = call.pages.sending
    if len(sending) < _MAX_SENDING:
        task = asyncio.create_task(_send_code(call, address))  # not awaited: the time would tell if the address exists
        sending.add(task)
        task.add_done_callback(sending.discard)
    else:
        log.warning("user pages: too many codes are being sent; one was not sent")
    return call.page("code.html", address=address, problem="", minutes=round(CODE_S / 60))


async def use_code(call: Call) -> Response:
    address, code = call.form.get("address", "").strip()[:_MAX_ADDRESS], call.form.get("code", "")
    # By browser, not by person: a code belongs to one and has few tries, and strangers must not lock anybody out.
    attempt = f"code {hash_of(call.session)}"
    await _admit(call, attempt)
    person = await call.run(call.sources.people.person_of, address)
    is_right = await call.run(call.sources.codes.use, person or address, call.session, "".join(code.split())[:20])
    if person is None or not is_right:
        await call.audit_stranger("signed in with a code", detail="wrong code", name=address)
        problem = call.speak("The code is wrong or has expired.")
        return call.page("code.html", 403, address=address, problem=problem, minutes=round(CODE_S / 60))
    await call.run(call.sources.attempts.succeeded, attempt, call.address, pages=PAGES)
    return await begin(call, person, "signed in with a code")


async def to_provider(call: Call) -> Response:
    provider = _provider(call)
    begun = provider.begin("/")
    try:
        target = await provider.authorization_url(begun)
    except SignInRefused as exc:
        log.warning("user pages: sign-in with the provider failed: %s", exc)
        raise Refused(503, call.speak("Not signed in"), call.speak(_NOT_SIGNED_IN)) from exc
    response = RedirectResponse(target, status_code=303)
    set_cookie(response, PROVIDER_COOKIE, begun.cookie, round(LASTS_S))
    return response


async def from_provider(call: Call) -> Response:
    provider, answer, is_counted = _provider(call), call.request.query_params, False
    try:
        begun = provider.taken(call.request.cookies.get(PROVIDER_COOKIE, ""), answer.get("state", ""))
        await _admit(call, None, _ASKED)  # strangers come this far, and must not have us ask the provider without end
        is_counted = True
        person = await _person_of(call, await provider.claims(begun, answer))
    except SignInRefused as exc:
        if not is_counted:
            await _admit(call, None, _PROVIDER)
        await call.audit_stranger("signed in with the provider", detail=str(exc), name="unknown")
        why = str(exc) if str(exc) in (_NO_ADDRESS, _NOT_OURS) else _NOT_SIGNED_IN
        response = call.page("refused.html", 403, title=call.speak("Not signed in"), text=call.speak(why))
    else:
        await call.run(call.sources.attempts.succeeded, None, call.address, pages=_ASKED)
        response = await begin(call, person, "signed in with the provider")
    set_cookie(response, PROVIDER_COOKIE, "", 0)
    return response


async def sign_out(call: Call) -> Response:
    await call.audit("signed out")
    await call.run(call.sources.sessions.end, call.session)
    response = call.redirect("/sign-in", notice="signed-out")
    set_cookie(response, SESSION_COOKIE, "", 0)
    return response


async def begin(call: Call, person: str, action: str) -> Response:
    """Begin a session, and end the one that the browser had. Raises Refused after too many sign-ins."""
    call.check_number(person, action)
    if SESSION_COOKIE in call.request.cookies:
        await call.run(call.sources.sessions.end, call.request.cookies[SESSION_COOKIE])
    await call.audit(action, name=person)
    token = await call.run(call.sources.sessions.begin, person)
    response = call.redirect("/")
    set_cookie(response, SESSION_COOKIE, token, round(call.sources.page.session_max))
    set_cookie(response, FORM_COOKIE, "", 0)
    return response


async def _person_of(call: Call, claims: dict[str, object]) -> str:
    """By the address that the provider says it has verified. Raises SignInRefused."""
    email = claims.get("email")
    if not isinstance(email, str) or claims.get("email_verified") not in (True, "true"):
        raise SignInRefused(_NO_ADDRESS)
    person = await call.run(call.sources.people.person_of, comparable_address(email))
    if person is None:
        raise SignInRefused(_NOT_OURS)
    return person


async def _admit(call: Call, attempt: str | None, pages: str = PAGES) -> None:
    admit, limit = call.sources.attempts.admit, _MAX_PER_ADDRESS
    wait_s = await call.run(admit, attempt, call.address, pages=pages, max_per_address=limit)
    if wait_s:
        text = call.speak("There were too many attempts. Wait a few minutes.")
        raise Refused(429, call.speak("Too many attempts"), text, int(wait_s) + 1)


async def _send_code(call: Call, address: str) -> None:
    try:
        person = await call.run(call.sources.people.person_of, address)
        # All spellings and aliases of an address share one limit, about which the page says nothing.
        if person is None or await call.run(call.sources.attempts.admit, f"send {person}", None) > 0:
            return
        settings, minutes = call.sources.settings.of(person), round(CODE_S / 60)
        code = await call.run(call.sources.codes.make, person, call.session)
        values = {"code": code, "person": person, "minutes": minutes}
        make = call.sources.maker.note
        content = await call.run(make, person, settings, call.words, "code.txt", time.time(), **values)
        await call.sources.send(person, content)
    except BridgeError as exc:
        log.warning("user pages: a code could not be sent: to=%s error=%r", call.sources.redact(address), str(exc))


def _provider(call: Call) -> Provider:
    if call.sources.provider is None:
        raise Refused(404, call.speak("No such page"), call.speak("There is no page at this address."))
    return call.sources.provider


def _page(call: Call, status: int = 200, problem: str = "", address: str = "") -> Response:
    provider = call.sources.provider
    label = provider.settings.label if provider is not None else ""
    by_code = call.sources.page.sign_in_by_code
    return call.page("sign_in.html", status, problem=problem, address=address, oidc=label, by_code=by_code)
