"""Signing in with a name and a password or with a link, and signing out.

Every sign-in begins a new session with a new id, and ends the one that the browser had.
"""

from __future__ import annotations

import re
from functools import partial

from starlette.responses import RedirectResponse, Response

from bridge.console.call import Call, Refused
from bridge.console.guard import FORM_COOKIE, SESSION_COOKIE
from bridge.console.headers import set_cookie
from bridge.console.roles import Person
from bridge.console.sessions import IsAllowed
from bridge.console.tokens import is_token, new_token
from bridge.console.users import Proven

_NEXT = re.compile(r"/[^/\\\x00-\x20\x7f][^\\\x00-\x20\x7f]*")
_WRONG = "The name or the password is wrong."


async def static(call: Call) -> Response:
    response = call.renderer.static.response(call.path["name"])
    if response is None:
        raise Refused(404, "No such file", "There is no such file.")
    return response


async def form(call: Call) -> Response:
    if call.person_or_none is not None:
        return call.redirect("/")
    has_users = bool(await call.run(call.sources.users.listed, limit=1))
    return _sign_in_page(call, has_users)


async def sign_in(call: Call) -> Response:
    """One attempt. A wrong name and a wrong password get the same answer, in the same time."""
    name = call.form.get("name", "").strip()
    wait_s, proven = await call.run_among_few(
        call.queues.passwords, _attempt, call, name, call.form.get("password", "")
    )
    if wait_s:
        raise _too_many(wait_s)
    if proven is None:
        return _sign_in_page(call, True, 403, _WRONG, name[:100])
    return await begin(call, proven.person, "signed in", next_page(call), proven.is_still_true)


def _attempt(call: Call, name: str, password: str) -> tuple[float, Proven | None]:
    """How long to wait before the next attempt, or the person; None if the sign-in failed."""
    sources = call.sources
    if wait_s := sources.attempts.admit(name, call.address):
        return wait_s, None
    proven = sources.users.verify(name, password)
    if proven is None:
        sources.audit.write_stranger(call.address, "signed in", name=name, detail="wrong name or password")
    else:
        sources.attempts.succeeded(name, call.address)
    return 0.0, proven


def _too_many(wait_s: float) -> Refused:
    minutes = max(1, round(wait_s / 60))
    text = f"There were too many attempts to sign in. Wait {minutes} {'minute' if minutes == 1 else 'minutes'}."
    return Refused(429, "Too many attempts", text, int(wait_s) + 1)


async def admit(call: Call, pages: str = "") -> None:
    """Count an attempt to sign in without a password. Raises Refused after too many."""
    counted = partial(call.sources.attempts.admit, None, call.address, pages=pages)
    if wait_s := await call.run_among_few(call.queues.links, counted):
        raise _too_many(wait_s)


async def note_refused(call: Call, action: str, why: str, *, is_counted: bool = False) -> None:
    """Record a failed sign-in without a password. Counted, so that nobody can fill the audit log. Raises Refused."""
    if not is_counted:
        await admit(call)
    write = partial(call.sources.audit.write_stranger, call.address, action, detail=why)
    await call.run_among_few(call.queues.links, write)


async def link(call: Call) -> Response:
    """The page of a sign-in link: a button, because a GET must not use the link up."""
    if not is_token(call.path["token"]):
        raise Refused(404, "No such page", "There is no page at this address.")
    return with_form_cookie(call, "enter.html", token=call.path["token"])


async def enter(call: Call) -> Response:
    person = await call.run_among_few(call.queues.links, call.sources.links.use, call.form.get("token", ""))
    if person is None:
        await note_refused(call, "signed in with a link", "used before, too old, or not a link")
        text = (
            "This link has already been used, or has expired. The command `scanbridge console link` creates a new one."
        )
        raise Refused(403, "The link does not work", text)
    return await begin(call, person, "signed in with a link", "/", Proven(person).is_still_true)


async def sign_out(call: Call) -> Response:
    call.console.jobs.signed_out(call.session_label)
    await call.run(call.sources.sessions.end, call.session)
    response = call.redirect("/sign-in", notice="signed-out")
    set_cookie(response, SESSION_COOKIE, "", 0)
    return response


async def begin(
    call: Call, person: Person, action: str, following: str, is_allowed: IsAllowed | None = None
) -> Response:
    """Begin a session and continue."""
    if SESSION_COOKIE in call.request.cookies:
        call.console.jobs.signed_out(call.session_label)
        await call.run(call.sources.sessions.end, call.request.cookies[SESSION_COOKIE])
    browser = call.request.headers.get("user-agent", "")
    token = await call.run(call.sources.sessions.begin, person, call.address, browser, is_allowed)
    if not token:
        await note_refused(call, action, f"{person.name} was removed or changed in the meantime")
        raise Refused(403, "Not signed in", "This user has just been removed or changed. Sign in again.")
    await call.run(call.sources.audit.write, person, call.address, action)
    response = RedirectResponse(call.renderer.url(safe_page(following)), status_code=303)
    set_cookie(response, SESSION_COOKIE, token, round(call.sources.console.session_max))
    set_cookie(response, FORM_COOKIE, "", 0)
    return response


def next_page(call: Call) -> str:
    """The page that was asked for before the sign-in: one of ours, never another site."""
    return safe_page(call.form.get("next", "") or call.request.query_params.get("next", ""))


def safe_page(wanted: str) -> str:
    return wanted if len(wanted) < 1000 and _NEXT.fullmatch(wanted) else "/"


def _sign_in_page(call: Call, has_users: bool, status: int = 200, problem: str = "", name: str = "") -> Response:
    oidc = call.sources.console.oidc
    values = {"has_users": has_users, "problem": problem, "next": next_page(call), "name": name}
    return with_form_cookie(call, "sign_in.html", status, oidc=oidc.label if oidc else "", **values)


def with_form_cookie(call: Call, template: str, status: int = 200, **values: object) -> Response:
    is_new = not call.session
    call.session = call.session or new_token()
    response = call.page(template, status, **values)
    if is_new:
        set_cookie(response, FORM_COOKIE, call.session, 3600)
    return response
