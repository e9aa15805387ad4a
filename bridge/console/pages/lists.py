"""Lists: what is in them, and adding and deleting with the warnings of the command line.

A list belongs to one tenant or to the whole deployment. Users of named tenants can see and change only their
tenants' lists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from bridge.api.lists import ListEntry, ListFileInfo
from bridge.console import audit as audit_log
from bridge.console.call import Call, Refused
from bridge.console.checks import int_or
from bridge.console.pages import pending
from bridge.console.undoable_jobs import Action, Job
from bridge.console.url_part import from_part, to_part
from bridge.errors import BridgeError, ConfigError
from bridge.lists.batches import Tally
from bridge.lists.client import ListClient
from bridge.lists.danger import Dangers
from bridge.lists.errors import EntryRefused, ListFull, ListNotFound

PER_PAGE = 100
_MAX_ENTRIES = 500  # typed into the form
_MAX_ENTRY, _MAX_COMMENT = 1000, 1000
DONE_WORDS = ("added to a list", "deleted from a list", "applied an uploaded list")
NO_LISTS = "the lists cannot be used at the moment"
ALL = "all"  # in links: the lists of the deployment


async def overview(call: Call) -> Response:
    scopes = _scopes(call)
    tenant = scope_of(call, call.request.query_params.get("tenant", ""))
    problem, infos = "", []
    if call.sources.list_copies is not None:
        try:
            infos = await _infos(call, tenant)
        except BridgeError as exc:
            problem = why_not(call, exc)
    used = _used(call)
    return call.page("lists.html", infos=infos, problem=problem, scopes=scopes, tenant=tenant or ALL, used=used,
                     is_configured=call.sources.list_copies is not None)  # fmt: skip


async def entries(call: Call) -> Response:
    tenant = scope_of(call, call.request.query_params.get("tenant", ""))
    name = from_part(call.path["name"])
    call.audit_detail = f"{name} of {tenant or 'the deployment'}"
    return await _list_page(call, name, tenant)


async def add(call: Call) -> Response:
    name, tenant = named(call)
    info = await info_of(call, name, tenant)
    comment = call.form.get("comment", "").strip()[:_MAX_COMMENT]
    wanted = list(dict.fromkeys(filter(None, map(str.strip, call.form.get("entries", "").splitlines()))))
    mistake = _mistake(wanted, comment)
    if mistake:
        call.audit_failed, call.audit_detail = True, mistake
        return await _list_page(call, name, tenant, 400, mistake=mistake, typed=wanted, comment=comment)
    dangers = _dangers(call, info, wanted)
    if dangers and call.form.get("sure") != "yes":
        call.audit_failed, call.audit_detail = True, "not confirmed"
        return await _list_page(call, name, tenant, 409, dangers=dangers, typed=wanted, comment=comment)
    made = [ListEntry(entry, comment or f"by {call.person.name}, console") for entry in wanted]

    async def work(client: ListClient, tally: Tally) -> None:
        await client.add(name, made, tenant, keep_going=True, tally=tally)
        await copies_of(call).changed(name, tenant, [entry for entry in made if entry.entry not in tally.refused])

    return _begin(call, name, tenant, ("Add", "added", f"to {name}"), wanted, work)


async def delete(call: Call) -> Response:
    name, tenant = named(call)
    unwanted = [entry[:_MAX_ENTRY] for entry in call.form_lists.get("entry", []) if entry][:_MAX_ENTRIES]
    if not unwanted:
        raise Refused(400, "No entry is selected", "Nothing was deleted: select at least one entry.")
    await info_of(call, name, tenant)

    async def work(client: ListClient, tally: Tally) -> None:
        await client.delete(name, unwanted, tenant, tally=tally)
        await copies_of(call).changed(name, tenant, deleted=unwanted)

    return _begin(call, name, tenant, ("Delete", "deleted", f"from {name}"), unwanted, work)


def _begin(
    call: Call, name: str, tenant: str | None, words: tuple[str, str, str], entries: list[str],
    work: Callable[[ListClient, Tally], Awaitable[None]],
) -> Response:  # fmt: skip
    """Change a list when it can no longer be undone. `words`: what is done, its participle, and where."""
    about = f"{name} of {tenant or 'the deployment'}: {', '.join(entries[:20])}"
    note = ListNote(call, f"{words[1]} {words[2].partition(' ')[0]} a list", about)

    async def run(job: Job) -> None:
        tally, problem, shown = Tally(), await pending.hindrance(call, job), ""
        if not problem:
            try:
                async with ListClient(await call.run(call.sources.list_settings)) as client:
                    await work(client, tally)
            except BridgeError as exc:
                problem, shown = str(exc), why_not(call, exc)
                copies_of(call).forget(name, tenant)  # some entries may have been changed
        job.succeeded(number=tally.confirmed)
        for why in tally.refused.values():
            job.fail(why)
        if problem:
            job.fail(shown or problem, len(entries) - tally.confirmed - len(tally.refused))
        await note.write(problem or (f"{len(tally.refused)} refused" if tally.refused else ""))

    async def dropped(job: Job) -> None:
        await note.write(f"not done, {pending.STOPPED}")

    action = Action(words[:2], about, len(entries), ("entry", "entries"), words[2])
    pending.begin(call, action, run, dropped)
    return to_list(call, name, tenant)


@dataclass(frozen=True, slots=True)
class ListNote:
    """The entry in the audit log for a change that was made, or not made, after the request."""

    call: Call
    action: str
    about: str

    async def write(self, problem: str, done: str = "") -> None:
        call, result = self.call, audit_log.FAILED if problem else audit_log.DONE
        detail = ": ".join(filter(None, (problem, self.about, done)))
        write = partial(call.sources.audit.write, call.person, call.address, self.action)
        await pending.patiently(call, lambda: write(detail=detail, result=result))


# What a person may see


def _scopes(call: Call) -> list[str]:
    own = [tenant.uid for tenant in call.sources.config.tenants if call.person.may_see(tenant.uid)]
    others = sorted((call.person.tenants or frozenset()) - set(own))
    return [*([ALL] if call.person.sees_everything else []), *own, *others]


def scope_of(call: Call, given: str) -> str | None:
    """The tenant; None is the whole deployment. Raises Refused."""
    scopes = _scopes(call)
    wanted = given or (scopes[0] if scopes else "")
    if wanted not in scopes:
        raise Refused(404, "No such list", "There is no such list, or you do not have access to it.")
    return None if wanted == ALL else wanted


def named(call: Call) -> tuple[str, str | None]:
    return call.form.get("list", ""), scope_of(call, call.form.get("tenant", ""))


# The service


def why_not(call: Call, exc: BridgeError) -> str:
    """The reason as this person may see it: anyone may see that an entry is refused, or that a list is full or gone."""
    if isinstance(exc, EntryRefused | ListFull | ListNotFound):
        return str(exc)
    return call.reason(exc, NO_LISTS)


def copies_of(call: Call) -> Any:
    copies = call.sources.list_copies
    if copies is None:
        raise Refused(404, "No lists", "The List API is not configured.")
    return copies


async def _infos(call: Call, tenant: str | None) -> list[ListFileInfo]:
    """Raises BridgeError."""
    found: list[ListFileInfo] = await copies_of(call).infos(tenant)
    return found


async def info_of(call: Call, name: str, tenant: str | None) -> ListFileInfo:
    """Raises Refused."""
    copies_of(call)
    try:
        found = [info for info in await _infos(call, tenant) if info.name == name]
    except (BridgeError, ConfigError) as exc:
        raise Refused(502, "The lists cannot be read", f"{why_not(call, exc)}. Try again in a moment.") from exc
    if not found:
        raise Refused(404, "No such list", "There is no such list, or you do not have access to it.")
    return found[0]


async def _list_page(call: Call, name: str, tenant: str | None, status: int = 200, **more: Any) -> Response:
    given = call.request.query_params
    wanted, start = given.get("find", "").strip()[:_MAX_ENTRY], int_or(given.get("at", ""), 0)
    info = await info_of(call, name, tenant)
    try:
        copy = await copies_of(call).get(name, tenant)
    except BridgeError as exc:
        raise Refused(502, "The list cannot be read", f"{why_not(call, exc)}. Try again in a moment.") from exc
    found, following = await call.run(copy.page, wanted, start, PER_PAGE)
    values: dict[str, Any] = {"mistake": "", "dangers": {}, "typed": [], "comment": ""}
    return call.page(
        "list_entries.html", status, info=info, name=name, tenant=tenant or ALL, scopes=_scopes(call), entries=found,
        jobs=call.console.jobs.of(call.person.key), copy=copy, find=wanted, start=start, following=following,
        used=_used(call), **{**values, **more},
    )  # fmt: skip


def to_list(call: Call, name: str, tenant: str | None) -> Response:
    return call.redirect(f"/lists/{to_part(name)}?{urlencode({'tenant': tenant or ALL})}")


def _used(call: Call) -> Mapping[str, list[str]]:
    """What the listeners do with a list."""
    found: dict[str, list[str]] = {}
    for listener in call.sources.config.listeners:
        doors = listener.lists
        if doors is None:
            continue
        for word, names in (
            ("refuses their mail", doors.block),
            ("refuses mail to them", doors.block_recipients),
            ("does not scan their mail", doors.skip_scan),
        ):
            for name in names:
                found.setdefault(name, []).append(f"{listener.name} {word}")
    return found


# Entries


def _mistake(wanted: list[str], comment: str) -> str:
    if not wanted:
        return "Type at least one entry."
    if len(wanted) > _MAX_ENTRIES:
        return f"At most {_MAX_ENTRIES} entries can be typed; upload a file for more."
    if any(len(entry) > _MAX_ENTRY or not entry.isprintable() for entry in (*wanted, comment)):
        return "An entry or the comment is too long, or contains control characters."
    return ""


def _dangers(call: Call, info: ListFileInfo, wanted: list[str]) -> dict[str, str]:
    """Checks only additions, as `scanbridge lists add` does."""
    category = category_of(call, info)
    known = Dangers(call.sources.own_domains)
    return {entry: why for entry in wanted if known.may_be(entry) and (why := known.reason(category, entry))}


def category_of(call: Call, info: ListFileInfo) -> str:
    """The kind of entries in a list; the configuration may know better than the service."""
    lists = call.sources.config.lists
    kinds = lists.kinds if lists is not None else {}
    return str(kinds.get(info.name, info.category))
