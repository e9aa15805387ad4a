"""One request of a user, after it was checked: what a page gets, and what it answers with."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from bridge.console import audit as audit_log
from bridge.console.checks import Refused
from bridge.console.queues import LargeMails, PersonTurns, Queue
from bridge.console.render import StaticFiles, show_bytes
from bridge.console.tokens import form_token
from bridge.digests.languages import NAMES, Language, language, preferred
from bridge.runtime.marked_text import N_
from bridge.runtime.tables import TablesFailed
from bridge.runtime.visible_text import visible, visible_lines
from bridge.user_pages.sources import UserSources

__all__ = ["Call", "Handler", "Pages", "Refused"]

log = logging.getLogger(__name__)

PAGES = "users"  # attempts and strangers are counted apart from the console's
_LATELY_S = 3600.0
_FEW = 3  # entries in the audit log about one link or mail, and reports of one mail by one person, in that time
_MANY = 30  # refused requests of one kind by one person who has signed in
_TRIES = 10  # releases of one mail by one person
_MOST = 500  # changes and sign-ins of one kind by one person; each is in the audit log
_MAX_KNOWN = 10_000

P = ParamSpec("P")
T = TypeVar("T")


# Sentences that a redirect may ask the next page to show, and no others.
NOTICES = {
    "released": N_("The mail was released. It is on its way to you."),
    "requested": N_("Your request has been received. Someone will review it."),
    "deleted": N_("Your copy was deleted."),
    "blocked": N_("From now on, mail from this sender is blocked for you."),
    "allowed": N_("From now on, mail from this sender is always delivered to you."),
    "removed": N_("The entry was removed."),
    "saved": N_("Your choice was saved."),
    "signed-out": N_("You are signed out."),
    "reported": N_("Thank you. We will learn from this."),
}


class Pages:
    """What all requests share: templates, static files, and how much of each kind of work may run at once."""

    def __init__(self, root_path: str) -> None:
        self.root_path = root_path
        self.static = StaticFiles()
        self.requests = PersonTurns()
        # A large mail takes three times its size in memory. Anyone with a digest's link can ask again and again.
        self.readers = Queue(CapacityLimiter(2), max_waiting=100)
        self.reading = PersonTurns(most=1, max_waiting=12)
        self.large_mails = LargeMails()
        # The next hop may be slow, and pages need threads, too; no person may take all of them.
        self.releasing = Queue(CapacityLimiter(10), max_waiting=10, max_per_person=3)
        # Learning from a report may take minutes, and each report has a mail in a file.
        self.reports = Queue(CapacityLimiter(4), max_waiting=20, max_per_person=3)
        self.sending: set[asyncio.Task[None]] = set()  # codes
        self.releases: set[asyncio.Task[Any]] = set()  # that are being carried out
        # Limits what the audit log records: otherwise, one person, or anybody with a link, could fill it and its disk.
        self.opened = RecentUses(_FEW)  # links
        self.seen = RecentUses(_FEW)  # mails, by a person
        self.refused = RecentUses(_MANY)
        self.changed = RecentUses(_MOST)
        self.tried = RecentUses(_TRIES)  # releases of a mail by a person: each is an event in the mail's story
        self.reported = RecentUses(_FEW)  # mails, by a person: each report sends a mail, and is learned from
        self._jinja = Environment(
            loader=PackageLoader("bridge.user_pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._jinja.filters |= {"visible": visible, "visible_lines": visible_lines, "bytes": show_bytes}
        self._jinja.globals |= {"url": self.url, "static": self._static, "LANGUAGES": NAMES}

    async def carry_out(self, release: Coroutine[Any, Any, T]) -> T:
        """Runs to its end, even if the request that asked for it is cancelled: mail that is sent cannot be recalled."""
        task = asyncio.create_task(release)
        self.releases.add(task)
        task.add_done_callback(self.releases.discard)
        return await asyncio.shield(task)

    async def finish(self, patience_s: float) -> None:
        """Wait for releases, so that their results are recorded."""
        if self.releases:
            await asyncio.wait(self.releases, timeout=patience_s)

    def url(self, path: str) -> str:
        return f"{self.root_path}{path}"

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        return self._jinja.get_template(template).render(values)

    def _static(self, name: str) -> str:
        return f"{self.url(f'/static/{name}')}?v={self.static.versions[name]}"


class RecentUses:
    """How often each thing was used recently, in this process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: OrderedDict[bytes, tuple[float, int]] = OrderedDict()  # by hash: since when, how often

    def is_one_of_few(self, thing: str) -> bool:
        key, now = hashlib.sha256(thing.encode("utf-8", "replace")).digest(), time.monotonic()
        since, count = self._times.pop(key, (now, 0))
        if now - since >= _LATELY_S:
            since, count = now, 0
        self._times[key] = since, count + 1
        if len(self._times) > _MAX_KNOWN:
            self._times.popitem(last=False)
        return count < self._most


@dataclass(slots=True)
class Note:
    """The result of an action, for the audit log."""

    detail: str = ""
    result: str = audit_log.DONE


@dataclass(slots=True)
class Call:
    request: Request
    sources: UserSources
    pages: Pages
    address: str  # the client's
    words: Language = field(init=False)
    person_or_none: str | None = None
    session: str = ""  # the secret of the session or of the form; never shown
    form: Mapping[str, str] = field(default_factory=dict)
    has_new_secret: bool = False
    link_of: str = ""  # the recipient of a valid link
    link_person: str = ""  # to whom that address belongs
    link_mail: str = ""
    has_audited: bool = False

    def __post_init__(self) -> None:
        """Use the language that the browser asks for, until the person is known."""
        offered = self.sources.settings.config.languages
        self.words = language(preferred(self.request.headers.get("accept-language", ""), offered))

    @property
    def person(self) -> str:
        assert self.person_or_none is not None
        return self.person_or_none

    @property
    def path(self) -> Mapping[str, str]:
        return self.request.path_params

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work that waits for a file or a database."""
        return await to_thread.run_sync(functools.partial(work, *args, **kwargs), abandon_on_cancel=True)

    async def read_mail(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work that takes a lot of memory, in threads that other pages do not wait for. Raises Refused."""
        queue, person = self.pages.readers, self.person_or_none or self.link_person
        with queue.place():
            async with self.pages.reading.turn(person), self.pages.large_mails.turn(size):
                return await to_thread.run_sync(functools.partial(work, *args, **kwargs), limiter=queue.limiter)

    async def send_report(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In threads that nothing else waits for; the caller has a place in the queue of reports."""
        limiter = self.pages.reports.limiter
        return await to_thread.run_sync(
            functools.partial(work, *args, **kwargs), limiter=limiter, abandon_on_cancel=True
        )

    async def choose_language(self) -> None:
        """The language that the person chose."""
        if self.person_or_none is not None:
            await self.speak_language_of(self.person_or_none)

    async def speak_language_of(self, person: str) -> None:
        stored = await self.run(self.sources.items.person, person)
        if stored.language in self.sources.settings.config.languages:
            self.words = language(stored.language)

    def speak(self, text: str, **values: Any) -> str:
        said = self.words.say(text)
        return said % values if values else said

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        notice = NOTICES.get(self.request.query_params.get("notice", ""), "")
        common = {
            "_": self.words.say,
            "ngettext": self.words.count,
            "language": self.words.code,
            "person": self.person_or_none,
            "form_token": form_token(self.session) if self.session else "",
            "notice": self.words.say(notice) if notice else "",
            "here": self.request.scope["console_path"],
        }
        return HTMLResponse(self.pages.render(template, {**common, **values}), status_code=status)

    def redirect(self, path: str, notice: str = "") -> Response:
        target = self.pages.url(path) + (f"?notice={notice}" if notice else "")
        return RedirectResponse(target, status_code=303)

    async def audit(
        self, action: str, *, mail: str = "", detail: str = "", result: str = audit_log.DONE, name: str = ""
    ) -> None:
        """Record it in the console's audit log. `name`: whose entry it is, if nobody has signed in."""
        self.has_audited = True
        who = f"user {self.person_or_none or name}"
        write = self.sources.audit.write
        await self.run(write, None, self.address, action, mail=mail, detail=detail, result=result, name=who)

    async def audit_stranger(
        self, action: str, *, detail: str = "", result: str = audit_log.REFUSED, name: str
    ) -> None:
        """For a visitor who has not signed in and has no valid link. `name`: the one that was typed."""
        self.has_audited = True
        write = self.sources.audit.write_stranger
        await self.run(write, self.address, action, detail=detail, result=result, name=f"user {name}", pages=PAGES)

    async def audit_seen(self, mail: str, name: str = "") -> None:
        """The first times that a person reads a mail."""
        self.has_audited = True
        if self.pages.seen.is_one_of_few(f"{self.person_or_none or self.link_person} {mail}"):
            await self.audit("viewed own held mail", mail=mail, name=name)

    async def audit_opened(self, link: str, *, mail: str = "", detail: str = "", name: str) -> None:
        """The first times that a link is opened: link scanners open each link again and again."""
        self.has_audited = True
        if self.pages.opened.is_one_of_few(link):
            await self.audit("opened a link", mail=mail, detail=detail, name=name)

    def check_number(self, person: str, action: str) -> None:
        """Limits a person's actions that the audit log records each time. Raises Refused after too many of them."""
        if not self.pages.changed.is_one_of_few(f"{person} {action}"):
            raise Refused(429, N_("Busy"), N_("This cannot be done at the moment. Try again later."), 3600)

    @asynccontextmanager
    async def audited(self, action: str, *, mail: str = "", detail: str = "", name: str = "") -> AsyncIterator[Note]:
        """An action that changes something: recorded in the audit log before it is done, with its result afterwards.

        If it cannot be recorded, it is not done; if the result cannot, the entry says that it was started. It also
        says so if the process stops in the meantime: the work may go on in its thread. Raises Refused after too many
        actions.
        """
        self.check_number(self.person_or_none or self.link_person, action)
        self.has_audited = True
        audit, note, started = self.sources.audit, Note(detail), audit_log.STARTED
        about = {"mail": mail, "detail": detail, "name": f"user {self.person_or_none or name}"}
        seq = await self.run(audit.write, None, self.address, action, result=started, **about)
        try:
            yield note
        except Exception as exc:
            note.result = audit_log.FAILED
            note.detail = f"{note.detail}: {exc}" if note.detail else str(exc)
            await self._finish(seq, note)
            raise
        await self._finish(seq, note)

    async def _finish(self, seq: int, note: Note) -> None:
        try:
            await self.run(self.sources.audit.finish, seq, note.result, note.detail)
        except TablesFailed as exc:
            log.warning("user pages: the result of audit entry %d cannot be recorded: %s", seq, exc)


Handler = Callable[[Call], Awaitable[Response]]
