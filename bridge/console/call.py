"""One request, after it was checked: what a page gets, and what it answers with."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from anyio import to_thread
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from bridge.console.checks import Refused
from bridge.console.console import Console
from bridge.console.navigation import navigation
from bridge.console.queues import Queue, Queues
from bridge.console.render import NOTICES, Renderer
from bridge.console.roles import Person, Tenants
from bridge.console.sources import Sources
from bridge.console.tenant_history import TenantHistory
from bridge.console.tokens import form_token
from bridge.history.entry import MailEntry

__all__ = ["Call", "Handler", "Refused"]

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """Pages read this and nothing else: no cookie, no header, no raw body."""

    request: Request
    console: Console
    address: str  # the client's
    person_or_none: Person | None = None
    session: str = ""  # its id, for the form token; never shown
    session_label: str = ""
    form: Mapping[str, str] = field(default_factory=dict)  # the last value of each field
    form_lists: Mapping[str, list[str]] = field(default_factory=dict)  # all values: check boxes
    files: Mapping[str, UploadFile] = field(default_factory=dict)
    mails: list[MailEntry] = field(default_factory=list)  # `About.MAIL`: the entries with the id in the path
    held: Any = None  # `About.HELD`: the quarantined mail with the id in the path
    audit_detail: str = ""  # what the audit log adds to the action; a page may add to it
    audit_failed: bool = False  # the page could not do it

    @property
    def sources(self) -> Sources:
        return self.console.sources

    @property
    def renderer(self) -> Renderer:
        return self.console.renderer

    @property
    def person(self) -> Person:
        """Only for a route that has a role."""
        assert self.person_or_none is not None
        return self.person_or_none

    @property
    def tenants(self) -> Tenants:
        """Whose mail may be shown: it goes into every query of the quarantine; `history` adds it by itself."""
        return self.person.tenants

    @property
    def queues(self) -> Queues:
        return self.console.queues

    @property
    def path(self) -> Mapping[str, str]:
        """The parts of the path that vary."""
        return self.request.path_params

    @property
    def history(self) -> TenantHistory:
        """The history of this person's mail."""
        return TenantHistory(self.sources.history, self.tenants)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work that waits for a file or a database."""
        return await to_thread.run_sync(functools.partial(work, *args, **kwargs), abandon_on_cancel=True)

    async def run_among_few(self, queue: Queue, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work that takes a lot of memory or time, in threads that other pages do not wait for. Raises Refused."""
        with queue.place():
            return await to_thread.run_sync(functools.partial(work, *args, **kwargs), limiter=queue.limiter)

    async def read_mail(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One mail of each person at a time, and one large mail. Raises Refused."""
        async with self.queues.reading.turn(self.person.key), self.queues.large_mails.turn(size):
            return await self.run_among_few(self.queues.readers, work, *args, **kwargs)

    def reason(self, exc: Exception, instead: str) -> str:
        """Why something failed. It may name machines, paths and settings, which people of named tenants do not see."""
        if self.person.sees_everything:
            return str(exc)
        log.warning("console: %s: %s", instead, exc)
        return instead

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """A whole page, from a file in `templates`."""
        here = self.request.scope["console_path"]
        common = {
            "person": self.person_or_none,
            "form_token": form_token(self.session) if self.session else "",
            "navigation": navigation(self.person_or_none, here, has_digests=self.sources.digests is not None),
            "here": here,
            "tenant_name": self.sources.tenant_name,
            "notice": NOTICES.get(self.request.query_params.get("notice", ""), ""),
        }
        return self.renderer.page(template, status, {**common, **values})

    def redirect(self, path: str, notice: str = "") -> Response:
        """To another page of ours. `notice` is one of `render.NOTICES`, shown on top of it."""
        target = self.renderer.url(path)
        if notice:
            target += f"{'&' if '?' in target else '?'}notice={notice}"
        return RedirectResponse(target, status_code=303)


Handler = Callable[[Call], Awaitable[Response]]
