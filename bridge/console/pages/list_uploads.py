"""Files that replace or extend a list: sent, compared in the background, shown page by page, applied or cancelled."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from starlette.datastructures import UploadFile
from starlette.responses import Response

from bridge.api.lists import ListEntry, ListFileInfo
from bridge.console.call import Call, Refused
from bridge.console.checks import int_or
from bridge.console.list_difference import Kind
from bridge.console.pages import pending
from bridge.console.pages.lists import ALL, ListNote, category_of, copies_of, info_of, named, scope_of, to_list, why_not
from bridge.console.undoable_jobs import Action, Job
from bridge.console.uploads import MAX_DANGERS, Sent, Stage, Upload
from bridge.errors import BridgeError
from bridge.lists import files
from bridge.lists.batches import Tally
from bridge.lists.danger import Dangers
from bridge.lists.files import Format

MAX_FILE = 64 * 1024 * 1024  # bytes: more than a million entries
_MAX_WHOLE = 2 * 1024 * 1024  # bytes of formats that are read at once
_WHOLE = (Format.YAML, Format.JSON)
PER_PAGE = 100


async def upload(call: Call) -> Response:
    """Compare the file with the list. Nothing is changed before `apply`."""
    name, tenant = named(call)
    info = await info_of(call, name, tenant)
    file = call.files.get("file")
    if file is None:
        raise Refused(400, "No file", "Nothing was done: choose a file.")
    shown_name = (file.filename or "a file")[:100]
    kind = files.format_of(Path(shown_name))
    if kind in _WHOLE and (file.size or 0) > _MAX_WHOLE:
        text = f"JSON and YAML files may be at most {_MAX_WHOLE:,} bytes long; upload text, CSV or JSON lines instead."
        raise Refused(413, "Too large", text)
    call.audit_detail = f"{shown_name} for {name} of {tenant or 'the deployment'}"
    copy = await call.run(_copy, file)
    try:
        sent = Sent(call.person.key, info, tenant, call.form.get("prune") == "yes", copy, kind, shown_name)
        number = call.console.uploads.begin(_upload(call, sent), call.queues.list_files)
    except BaseException:
        copy.close()
        raise
    return call.redirect(f"/lists/uploads/{number}")


async def shown(call: Call) -> Response:
    """The progress so far, or the difference, page by page."""
    found = _found(call, call.path["number"])
    view, given = view_of(found), call.request.query_params
    kinds = [kind for kind in (Kind.ADD, Kind.UPDATE, Kind.DELETE) if view.counts[kind]]
    kind = next((each for each in kinds if each == given.get("show")), kinds[0] if kinds else Kind.ADD)
    start = int_or(given.get("at", ""), 0)
    entries = await call.run(_entries, found, kind, start) if view.stage is Stage.READY else []
    following = start + PER_PAGE if start + PER_PAGE < view.counts[kind] else 0
    problem = found.problem if found.failure is None else why_not(call, found.failure)
    values: dict[str, Any] = {
        "problem": problem,
        "kind": kind,
        "kinds": kinds,
        "start": start,
        "following": following,
        "entries": entries,
    }
    return call.page("list_upload.html", upload=found, number=call.path["number"], tenant=found.sent.tenant or ALL,
                     name=found.sent.info.name, counts=view.counts, stage=view.stage, Stage=Stage,
                     is_pending=_is_pending(found), max_dangers=MAX_DANGERS, **values)  # fmt: skip


def _entries(found: Upload, kind: Kind, start: int) -> list[ListEntry]:
    try:
        return found.difference.page(kind, start, PER_PAGE)
    except sqlite3.ProgrammingError:  # it was cancelled at this moment, in another window
        raise _gone() from None


async def cancel(call: Call) -> Response:
    number = call.form.get("upload", "")
    found = _found(call, number)
    if _is_pending(found):
        raise Refused(409, "Too late", "This upload is already being applied. Cancel it on the list's page.")
    call.console.uploads.remove(number)
    call.audit_detail = _about(found)
    return to_list(call, found.sent.info.name, found.sent.tenant)


async def apply(call: Call) -> Response:
    """After the undo period, in the background, with its progress among the pending actions."""
    number = call.form.get("upload", "")
    found = _found(call, number)
    if found.stage is not Stage.READY or not found.changes:
        text = "The file has not been compared with the list yet, or would change nothing. Nothing was done."
        raise Refused(409, "Not ready", text)
    if _is_pending(found):
        raise Refused(409, "Already started", "This upload is already being applied.")
    if found.dangers and call.form.get("sure") != "yes":
        raise Refused(409, "Not confirmed", "The file has dangerous entries: nothing was changed.")
    name, tenant, total = found.sent.info.name, found.sent.tenant, found.changes
    note = ListNote(call, "applied an uploaded list", _about(found))
    uploads = call.console.uploads

    async def run(job: Job) -> None:
        deleted, added, shown = Tally(), Tally(), ""
        problem = await pending.hindrance(call, job)
        if not problem and uploads.find(number, found.sent.owner) is not found:
            problem = "another file has taken its place"
        if not problem:
            found.stage = Stage.APPLYING
            try:
                async with call.queues.list_jobs:
                    problem, shown = await call.run(_applied, call, found, job, deleted, added)
            finally:
                copies_of(call).forget(name, tenant)
                uploads.remove(number)
        job.done, job.failed = deleted.confirmed + added.confirmed, 0
        for why in added.refused.values():
            job.fail(why)
        if problem:
            job.fail(shown or problem, total - job.done - len(added.refused))
        job.notes.append(f"{added.confirmed:,} added or changed, {deleted.confirmed:,} deleted.")
        await note.write(problem or (f"{len(added.refused)} refused" if added.refused else ""), job.notes[-1])

    async def dropped(job: Job) -> None:
        await note.write(f"not done, {pending.STOPPED}")

    action = Action(("Apply", "applied"), _about(found), total, ("change", "changes"), f"to {name}",
                    can_be_cancelled=True)  # fmt: skip
    found.job = pending.begin(call, action, run, dropped)
    return to_list(call, name, tenant)


def _applied(call: Call, found: Upload, job: Job, deleted: Tally, added: Tally) -> tuple[str, str]:
    """In a thread, with its own event loop, so that pages do not wait.

    Returns what is wrong, or "", and the version of it that this person may see.
    """

    def done(number: int) -> None:
        job.done += number

    try:
        problem = asyncio.run(found.apply(deleted, added, lambda: pending.hindered(call, job), done))
        return problem, problem
    except BridgeError as exc:
        return str(exc), why_not(call, exc)


def _upload(call: Call, sent: Sent) -> Upload:
    return Upload(sent, call.sources.list_settings, Dangers(call.sources.own_domains), category_of(call, sent.info))


def _copy(file: UploadFile) -> BinaryIO:
    """The form's own file exists only until the request ends."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - `Upload.prepare` closes it
    try:
        shutil.copyfileobj(file.file, copy)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return cast(BinaryIO, copy)


def _found(call: Call, number: str) -> Upload:
    """The person's own upload, for a list that they may still change. Raises Refused."""
    found = call.console.uploads.find(number, call.person.key)
    if found is None:
        raise _gone()
    scope_of(call, found.sent.tenant or ALL)  # which may have changed since
    return found


def _gone() -> Refused:
    text = "This upload has been applied or cancelled, or has expired. Upload the file again."
    return Refused(404, "No such file", text)


@dataclass(frozen=True, slots=True)
class View:
    """An upload at one moment: another thread continues to change it."""

    stage: Stage
    counts: Mapping[Kind, int]


def view_of(found: Upload) -> View:
    """The stage is read first: counts that were read before the last stage are not the final ones."""
    stage = found.stage
    add, update = found.difference.count(Kind.ADD), found.difference.count(Kind.UPDATE)
    return View(stage, {Kind.ADD: add, Kind.UPDATE: update, Kind.DELETE: found.deletions})


def _is_pending(found: Upload) -> bool:
    return found.job is not None and not found.job.is_over


def _about(found: Upload) -> str:
    sent: Sent = found.sent
    info: ListFileInfo = sent.info
    return f"{sent.file_name} for {info.name} of {sent.tenant or 'the deployment'}"
