"""The guard: everything that is checked and added around a page, in one place, from its row of the route table.

In this order: the host that was asked for, the session, the origin and the form token of a change, the role, the
tenant, the mail that is meant. Then the audit log, the page, and the header fields of its answer. No page can forget
any of it. If this is wrong, a page is open to the wrong people, or to other sites.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import ExitStack
from dataclasses import dataclass, replace
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from bridge.console import audit as audit_log
from bridge.console.call import Call, Refused
from bridge.console.checks import check_host, check_origin, check_reader, read_form
from bridge.console.console import Console
from bridge.console.headers import page_headers, preview_headers, sample_headers
from bridge.console.roles import Person, Role
from bridge.console.route import About, Route, is_mail_id
from bridge.console.tenant_history import TenantHistory
from bridge.console.tokens import is_form_token
from bridge.console.trusted_proxies import client_address
from bridge.errors import BridgeError, StoreError
from bridge.history.entry import MailEntry
from bridge.history.query import HistoryQuery, made_at
from bridge.history.store import HistoryError
from bridge.runtime.tables import TablesFailed

log = logging.getLogger(__name__)

# Browsers accept such a cookie only with Secure and Path=/, and only from this host: no other site can set it.
SESSION_COOKIE = "__Host-scanbridge"
FORM_COOKIE = "__Host-scanbridge-form"  # before the sign-in, for the form token
_MAX_ENTRIES = 200
_NEAR_S = 86_400.0
_FILE_S = 300.0  # for a form with a file


@dataclass(slots=True)
class Guard:
    console: Console
    route: Route

    async def __call__(self, request: Request) -> Response:
        """The answer with its header fields, whatever happens."""
        call = Call(request, self.console, client_address(request, self.console.sources.console))
        try:
            response = await self._answer(call)
        except Refused as exc:
            response = _refusal(call, exc)
        except (HistoryError, TablesFailed, StoreError) as exc:
            log.warning("console: %s", exc)
            what = "The console's own database" if isinstance(exc, TablesFailed) else "The history or the quarantine"
            text = f"{what} cannot be used at the moment. Try again; the console's log says why."
            response = _refusal(call, Refused(503, "Not available", text, 5))
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("console: unexpected error %s", number)
            why = f"An unexpected error occurred. The console's log has the details, under the number {number}."
            response = _refusal(call, Refused(500, "Something went wrong", why))
        return self._with_headers(response)

    async def _answer(self, call: Call) -> Response:
        check_host(call.request, call.sources.console.origins)
        await self._find_session(call)
        if self.route.role is not None and call.person_or_none is None:
            return self._to_sign_in(call)
        if call.person_or_none is None or self.route.role is None:
            return await self._checked(call)
        async with call.queues.requests.turn(call.person.key) as has_waited:
            if has_waited and not await self._is_still_signed_in(call):
                return self._to_sign_in(call)
            return await self._checked(call)

    async def _checked(self, call: Call) -> Response:
        with ExitStack() as place:
            try:
                if self.route.changes:
                    check_origin(call.request, call.sources.console.origins)
                elif self.route.role is not None:
                    check_reader(call.request)
                self._check_role(call)  # before the form, which may be large
                if self.route.max_files:  # until the response is made: the file is on disk until then
                    place.enter_context(call.queues.files.place(call.person.key))
                if self.route.changes:
                    await self._read_form(call)
                    self._check_token(call)
                await self._find_mail(call)
            except Refused as exc:
                await self._note_refused(call, exc)
                raise
            return await self._audited(call)

    # Who it is

    async def _find_session(self, call: Call) -> None:
        token = call.request.cookies.get(SESSION_COOKIE, "")
        found = await call.run(call.sources.sessions.find, token, is_use=not self.route.is_live) if token else None
        if found is not None and _may_be_signed_in(call, found.person):
            call.person_or_none, call.session, call.session_label = found.person, token, found.label
        elif self.route.role is None:
            call.session = call.request.cookies.get(FORM_COOKIE, "")

    async def _is_still_signed_in(self, call: Call) -> bool:
        call.person_or_none = None
        await self._find_session(call)
        return call.person_or_none is not None

    def _to_sign_in(self, call: Call) -> Response:
        if self.route.changes or self.route.is_live:
            raise Refused(401, "Signed out", "Your session has ended. Sign in again; nothing was done.")
        here = call.request.scope["console_path"]
        query = call.request.url.query
        wanted = quote(f"{here}?{query}" if query else here, safe="")
        target = call.renderer.url("/sign-in")
        has_ended = SESSION_COOKIE in call.request.cookies
        parameters = [f"next={wanted}"] if here != "/" else []
        parameters += ["notice=session-over"] if has_ended else []
        return RedirectResponse(f"{target}?{'&'.join(parameters)}" if parameters else target, status_code=303)

    def _check_role(self, call: Call) -> None:
        route, person = self.route, call.person_or_none
        if route.role is None or person is None:
            return
        if not person.may(route.role):
            call.audit_detail = f"needs the role {route.role}"
            text = f"You are signed in as {person.name} with the {person.role} role; this needs the {route.role} role."
            raise Refused(403, "Not allowed", text)
        if not person.may(route.role, all_tenants=route.all_tenants):
            call.audit_detail = "needs access to all tenants"
            raise Refused(403, "Not allowed", "Only people who may see the mail of all tenants can do this.")

    async def _note_refused(self, call: Call, exc: Refused) -> None:
        """People who have signed in; strangers could fill the log."""
        if call.person_or_none is None:
            return
        action, mail = self.route.audit or f"asked for {self.route.path}", call.path.get("id", "")
        write, detail, refused = call.sources.audit.write, call.audit_detail or exc.text, audit_log.REFUSED
        await call.run(write, call.person, call.address, action, mail=mail, detail=detail, result=refused)

    # What it is about

    async def _find_mail(self, call: Call) -> None:
        if self.route.about is About.NOTHING:
            return
        mail_id = call.path["id"]
        found: object = None
        if is_mail_id(mail_id):
            match self.route.about:
                case About.MAIL:
                    found = call.mails = await call.run(_entries, call.history, mail_id)
                case About.HELD:
                    found = call.held = await call.run(call.sources.held, mail_id, call.tenants)
        if not found:
            text = "There is no such mail, or you do not have access to it."
            raise Refused(404, "No such mail", text)

    # The form

    async def _read_form(self, call: Call) -> None:
        route = self.route
        limit_s = _FILE_S if route.max_files else call.sources.console.form_timeout
        form = await read_form(call.request, route.max_bytes, limit_s, route.max_files)
        call.form_lists, call.files = form.texts, form.files
        call.form = {name: values[-1] for name, values in call.form_lists.items() if values}

    def _check_token(self, call: Call) -> None:
        if not call.session or not is_form_token(call.form.get("form_token", ""), call.session):
            text = "The form has expired, or does not belong to your session. Reload the page and try again."
            raise Refused(403, "Form not accepted", text)

    # The page

    async def _audited(self, call: Call) -> Response:
        """Changes are recorded in the audit log before they are made; what is only shown, once it has been found."""
        route, audit = self.route, call.sources.audit
        if not route.audit:
            return await route.handler(call)
        mail = call.path.get("id", "")
        if not route.changes:
            result = audit_log.FAILED
            try:
                response = await route.handler(call)
                result = audit_log.DONE
            except Refused as exc:
                call.audit_detail = call.audit_detail or exc.text
                raise
            finally:
                detail = call.audit_detail
                await call.run(
                    audit.write, call.person, call.address, route.audit, mail=mail, detail=detail, result=result
                )
            return response
        if route.role is None:  # a sign-in writes its own entry: only there is it known who signs in
            return await route.handler(call)
        person, started = call.person, audit_log.STARTED
        seq = await call.run(audit.write, person, call.address, route.audit, mail=mail, result=started)
        result = audit_log.FAILED
        try:
            response = await route.handler(call)
            result = audit_log.FAILED if call.audit_failed else audit_log.DONE
        except BridgeError as exc:
            call.audit_detail = call.audit_detail or str(exc)
            raise
        finally:
            await _finish(call, seq, result)
        return response

    def _with_headers(self, response: Response) -> Response:
        headers = page_headers(has_frame=self.route.has_frame)
        if response.status_code < 400 and self.route.is_preview:
            headers = preview_headers()
        elif response.status_code < 400 and self.route.is_sample:
            headers = sample_headers()
        for name, value in headers.items():
            response.headers[name] = value
        response.headers.setdefault("Cache-Control", "no-store")
        return response


def _may_be_signed_in(call: Call, person: Person) -> bool:
    """Local users are signed out when they are changed; the rights of other people are in the configuration."""
    provider = call.sources.provider
    return not person.provider or (provider is not None and provider.grants(person))


async def _finish(call: Call, seq: int, result: str) -> None:
    """Does not undo the action: if the result cannot be recorded, the entry says that it was started."""
    try:
        await call.run(call.sources.audit.finish, seq, result, call.audit_detail)
    except TablesFailed as exc:
        log.warning("console: the result of audit entry %d cannot be recorded: %s", seq, exc)


def _entries(history: TenantHistory, mail_id: str) -> list[MailEntry]:
    """All entries of one mail, the oldest first: it has several if its recipients belong to several tenants."""
    query = HistoryQuery(id=mail_id, limit=_MAX_ENTRIES)
    made = made_at(mail_id)  # the id tells when it was made, so that not the whole history is searched
    near = replace(query, since=made - _NEAR_S, until=made + _NEAR_S) if made is not None else query
    return (history.find(near) or (history.find(query) if near is not query else []))[::-1]


def _refusal(call: Call, exc: Refused) -> Response:
    home = call.person_or_none is not None and call.person_or_none.role >= Role.VIEWER
    response = call.page("refused.html", exc.status, title=exc.title, text=exc.text, is_signed_in=home)
    if exc.retry_after_s:
        response.headers["Retry-After"] = str(exc.retry_after_s)
    return response
