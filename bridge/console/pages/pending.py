"""Actions that can be undone for some seconds: how pages begin them, and the part of a page that shows them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import ceil
from typing import TypeVar

from starlette.responses import Response

from bridge.console.call import Call, Refused
from bridge.console.search import held_query, list_query
from bridge.console.undoable_jobs import Action, Job, OnDropped, TooManyJobs, Work
from bridge.console.url_part import from_part
from bridge.runtime.tables import TablesFailed

log = logging.getLogger(__name__)

T = TypeVar("T")
_LIST = "/lists/"
STOPPED = "the console stopped"
NO_DATABASE = "the console's database cannot be used"


async def shown(call: Call) -> Response:
    """The part of a page that shows pending and finished actions."""
    return call.page("jobs.html", jobs=call.console.jobs.of(call.person.key))


async def undo(call: Call) -> Response:
    job = call.console.jobs.undo(call.person.key, call.form.get("job", ""))
    if job is None:
        raise Refused(409, "Too late", "This has already been done or undone.")
    call.audit_detail = f"{job.action.words[0].lower()}: {job.action.about}"
    return back(call)


async def dismiss(call: Call) -> Response:
    call.console.jobs.dismiss(call.person.key)
    return back(call)


def begin(call: Call, action: Action, work: Work, dropped: OnDropped) -> Job:
    """Do it when it can no longer be undone. The audit log records the request now, and the result later."""
    jobs = call.console.jobs
    try:
        job = jobs.begin(call.person.key, call.session_label, action, work, dropped)
    except TooManyJobs:
        raise Refused(
            429, "Too many actions", "Wait until earlier actions have finished. Nothing was done.", ceil(jobs.undo_s)
        ) from None
    call.audit_detail = f"in {jobs.undo_s:g} seconds: {action.about}"
    return job


async def patiently(call: Call, ask: Callable[[], T]) -> T:
    """Use the console's database in a thread, several times if need be: a job must not end halfway.

    Raises TablesFailed.
    """
    for pause_s in call.console.jobs.pauses_s:
        try:
            return await asyncio.to_thread(ask)
        except TablesFailed as exc:
            log.warning("console: %s; retrying a pending action", exc)
        await asyncio.sleep(pause_s)
    return await asyncio.to_thread(ask)


async def hindrance(call: Call, job: Job) -> str:
    try:
        return await patiently(call, lambda: hindered(call, job))
    except TablesFailed:
        return NO_DATABASE


def hindered(call: Call, job: Job) -> str:
    """Why a job that is due must not be done or continued; "" if it may be. Asks the database."""
    if call.console.jobs.is_stopping:
        return STOPPED
    if job.is_cancelled:
        return "it was cancelled"
    if job.session and not call.sources.sessions.is_there(job.session):
        return "the session was ended"
    if not job.session and not call.sources.users.has(call.person):
        return "the user was removed or changed"
    return ""


def back(call: Call) -> Response:
    """To the page from which the action came; only our own fields are kept."""
    page, text = call.form.get("page", ""), call.form.get("back", "")
    if page.startswith(_LIST) and from_part(page.removeprefix(_LIST)):
        query = list_query(text)
    else:
        page, query = "/quarantine", held_query(text)
    return call.redirect(f"{page}?{query}" if query else page)
