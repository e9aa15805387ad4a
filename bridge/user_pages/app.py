"""The application for users: a route table behind one guard.

The guard checks the host, the session, and for changes the origin and the form token, in one place, and adds the header
fields to every answer. `pages.held` decides which mail is whose. If this is wrong, users see or release each other's
mail.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as PathRoute
from starlette.types import ASGIApp

from bridge.console import audit as audit_log
from bridge.console.app import BelowPath
from bridge.console.checks import Refused, check_host, check_origin, check_reader, read_form
from bridge.console.headers import page_headers, preview_headers, set_cookie, with_allowed_methods
from bridge.console.tokens import is_form_token, is_token, new_token
from bridge.console.trusted_proxies import client_address
from bridge.errors import BridgeError
from bridge.user_pages.call import Call, Handler, Pages
from bridge.user_pages.cookies import FORM_COOKIE, SESSION_COOKIE
from bridge.user_pages.pages import choices, held, links, sign_in
from bridge.user_pages.sources import UserSources

log = logging.getLogger(__name__)

_FORM_BYTES = 16 * 1024
_FORM_TIMEOUT_S = 20.0
_FORM_S = 3600


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    handler: Handler
    changes: bool = False  # POST with a form token; otherwise GET, which changes nothing
    is_open: bool = False  # nobody needs to have signed in
    is_one_click: bool = False  # RFC 8058: mail programs send it, without one of our pages
    is_preview: bool = False
    has_frame: bool = False

    @property
    def method(self) -> str:
        return "POST" if self.changes else "GET"


ROUTES: tuple[Route, ...] = (
    Route("/static/{name}", sign_in.static, is_open=True),
    Route("/sign-in", sign_in.form, is_open=True),
    Route("/sign-in", sign_in.ask_code, is_open=True, changes=True),
    Route("/sign-in/code", sign_in.use_code, is_open=True, changes=True),
    Route("/sign-in/provider", sign_in.to_provider, is_open=True),
    Route("/sign-in/back", sign_in.from_provider, is_open=True),
    Route("/l/{token}", links.show, is_open=True),
    Route("/l/{token}", links.act, is_open=True, changes=True),
    Route("/u/{token}", links.show_unsubscribe, is_open=True),
    Route("/u/{token}", links.unsubscribe, is_open=True, changes=True, is_one_click=True),
    Route("/", held.listed),
    Route("/mail/{id}", held.shown, has_frame=True),
    Route("/mail/{id}/html", held.preview, is_preview=True),
    Route("/mail/{id}/release", held.release, changes=True),
    Route("/mail/{id}/delete", held.delete, changes=True),
    Route("/mail/{id}/block", held.block, changes=True),
    Route("/mail/{id}/allow", held.allow, changes=True),
    Route("/mail/{id}/report", held.report, changes=True),
    Route("/choices", choices.show),
    Route("/choices", choices.save, changes=True),
    Route("/choices/remove", choices.remove, changes=True),
    Route("/sign-out", sign_in.sign_out, changes=True),
)


def create_app(sources: UserSources, pages: Pages) -> ASGIApp:
    paths: dict[str, list[Route]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, []).append(route)
    routes = [
        PathRoute(path, _by_method(sources, pages, rows), methods=[row.method for row in rows])
        for path, rows in paths.items()
    ]
    nowhere, wrong = (Guard(sources, pages, Route("/", page, is_open=True)) for page in (_nowhere, _wrong_method))
    app = Starlette(routes=routes, exception_handlers={404: nowhere.instead, 405: wrong.instead})
    app.router.redirect_slashes = False
    return BelowPath(app, sources.page.root_path)


def _by_method(sources: UserSources, pages: Pages, rows: list[Route]):  # type: ignore[no-untyped-def]
    guards = {row.method: Guard(sources, pages, row) for row in rows}

    async def answer(request: Request) -> Response:
        return await guards["GET" if request.method == "HEAD" else request.method](request)

    return answer


async def _nowhere(call: Call) -> Response:
    raise Refused(404, call.speak("No such page"), call.speak("There is no page at this address."))


async def _wrong_method(call: Call) -> Response:
    text = call.speak("This address cannot be used in this way. Go back and try again.")
    raise Refused(405, call.speak("Not possible here"), text)


@dataclass(slots=True)
class Guard:
    sources: UserSources
    pages: Pages
    route: Route

    async def instead(self, request: Request, exc: Exception) -> Response:
        """For requests that match no row."""
        return with_allowed_methods(await self(request), exc)

    async def __call__(self, request: Request) -> Response:
        call = Call(request, self.sources, self.pages, client_address(request, self.sources.page))
        try:
            response = await self._answer(call)
        except Refused as exc:
            response = _refusal(call, exc)
        except BridgeError as exc:
            log.warning("user pages: %s", exc)
            text = call.speak("This cannot be done at the moment. Try again later.")
            response = _refusal(call, Refused(503, call.speak("Not available"), text, 5))
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("user pages: unexpected error %s", number)
            text = call.speak(
                "An unexpected error occurred. Tell your administrator this number: %(number)s.", number=number
            )
            response = _refusal(call, Refused(500, call.speak("Something went wrong"), text))
        return self._with_headers(response)

    async def _answer(self, call: Call) -> Response:
        check_host(call.request, self.sources.page.origins)
        await self._find_session(call)
        await call.choose_language()
        if call.person_or_none is None and not self.route.is_open:
            return self._to_sign_in(call)
        if call.person_or_none is None or self.route.is_open:
            return await self._checked(call)
        async with self.pages.requests.turn(call.person) as has_waited:
            if has_waited and not await self._is_still_signed_in(call):
                return self._to_sign_in(call)
            return await self._checked(call)

    async def _is_still_signed_in(self, call: Call) -> bool:
        call.person_or_none = None
        await self._find_session(call)
        return call.person_or_none is not None

    def _to_sign_in(self, call: Call) -> Response:
        if self.route.changes:
            raise Refused(401, call.speak("Signed out"), call.speak("Your session has ended. Sign in again."))
        return call.redirect("/sign-in")

    async def _checked(self, call: Call) -> Response:
        try:
            if self.route.changes:
                await self._check_form(call)
            elif not self.route.is_open:
                check_reader(call.request)
            response = await self.route.handler(call)
        except Refused as exc:
            await _note_refused(call, self.route, exc)
            raise
        if call.has_new_secret:
            set_cookie(response, FORM_COOKIE, call.session, _FORM_S)
        return response

    async def _check_form(self, call: Call) -> None:
        origins, may_be_one_click = self.sources.page.origins, self.route.is_one_click
        if not may_be_one_click:
            check_origin(call.request, origins)
        form = await read_form(call.request, _FORM_BYTES, _FORM_TIMEOUT_S)
        call.form = {name: values[-1] for name, values in form.texts.items() if values}
        if may_be_one_click:
            if is_one_click(call.form):
                return
            check_origin(call.request, origins)
        self._check_token(call)

    async def _find_session(self, call: Call) -> None:
        token = call.request.cookies.get(SESSION_COOKIE, "")
        person = await call.run(self.sources.sessions.find, token) if token else None
        # An address may have become an alias, or have been excluded, since the sign-in.
        if person is not None and await call.run(self.sources.people.person_of, person) == person:
            call.person_or_none, call.session = person, token
            return
        secret = call.request.cookies.get(FORM_COOKIE, "")
        call.session = secret if is_token(secret) else ""
        if not call.session and self.route.is_open and not self.route.changes and "static" not in self.route.path:
            call.session, call.has_new_secret = new_token(), True

    def _check_token(self, call: Call) -> None:
        if not call.session or not is_form_token(call.form.get("form_token", ""), call.session):
            text = call.speak("The form has expired, or does not come from this page. Reload the page and try again.")
            raise Refused(403, call.speak("Form not accepted"), text)

    def _with_headers(self, response: Response) -> Response:
        is_page = response.status_code >= 400 or not self.route.is_preview
        headers = page_headers(has_frame=self.route.has_frame) if is_page else preview_headers()
        for name, value in headers.items():
            response.headers[name] = value
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers["X-Robots-Tag"] = "noindex"
        return response


def is_one_click(form: Mapping[str, str]) -> bool:
    """RFC 8058: exactly this field, and not one of ours."""
    return dict(form) == {"List-Unsubscribe": "One-Click"}


async def _note_refused(call: Call, route: Route, exc: Refused) -> None:
    """Of people who have signed in or have a valid link, only the first ones: nobody may fill the audit log."""
    if call.has_audited or not (call.person_or_none or call.link_of):
        return
    if call.person_or_none is None:
        is_recorded = call.pages.opened.is_one_of_few(call.path["token"])
    else:
        is_recorded = call.pages.refused.is_one_of_few(f"{call.person} {route.path}")
    if not is_recorded:
        return
    why, mail = HTTPStatus(exc.status).phrase, call.link_mail or call.path.get("id", "")
    await call.audit(f"asked for {route.path}", mail=mail, detail=why, result=audit_log.REFUSED, name=call.link_of)


def _refusal(call: Call, exc: Refused) -> Response:
    """Texts from outside these pages are still in English."""
    title, text = call.speak(exc.title), call.speak(exc.template, **exc.values)
    response = call.page("refused.html", exc.status, title=title, text=text)
    if exc.retry_after_s:
        response.headers["Retry-After"] = str(exc.retry_after_s)
    return response
