"""Quarantine: the mail in it, page by page, and actions on many mails at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from bridge.console.call import Call, Refused
from bridge.console.checks import int_or
from bridge.console.mail_actions import Listing, ListPlan, Result
from bridge.console.pages import pending
from bridge.console.pages.lists import why_not
from bridge.console.pages.mail_jobs import MailJob, some_ids
from bridge.console.quarantine_groups import group
from bridge.console.route import is_mail_id
from bridge.console.search import DECISIONS, HELD_FIELDS, Search, held_query, reader_zone
from bridge.console.undoable_jobs import Action, Job
from bridge.console.url_part import to_part
from bridge.errors import BridgeError
from bridge.history.parameters import FILTERS, value_of
from bridge.quarantine.index_search import Query
from bridge.quarantine.record import STATES, MailRecord
from bridge.quarantine.worst_tags_first import worst_first

PER_PAGE = 50
MAX_CHOSEN = 500  # mails of one action
MAX_MATCHING = 5000  # mails of one action on all that match
MAX_GROUPED = 1000  # mails in which groups are looked for
DONE_WORDS = ("released", "deleted", "reported as not spam")
_VISIBLE = 6  # of the fields
_MAX_IN_LINKS = 200
_NOTHING = "Nothing was done: select at least one mail."


@dataclass(frozen=True, slots=True)
class HeldSearch(Search):
    """A search in the quarantine."""

    like: str = ""  # the id of a mail, so that the link has no address: mail from its sender or, with @, its domain

    @property
    def parameters(self) -> dict[str, str]:
        """For links to this search."""
        typed = {name: value for name, value in self.typed.items() if value}
        return {**typed, "sender": "", "like": self.like} if self.like else typed

    @property
    def is_filtered(self) -> bool:
        return bool(self.parameters)

    @property
    def query(self) -> str:
        """To come back to this page."""
        given = {**self.parameters, "before": self.before}
        return urlencode({name: value for name, value in given.items() if value})

    @property
    def exact_query(self) -> str:
        """All pages of this search, with exact times."""
        given = self.for_next_page(self.parameters)
        return urlencode({name: value for name, value in given.items() if value})

    @property
    def short_query(self) -> str:
        """The same, for a link in each line of the table; a long one would be repeated a hundred times."""
        return self.query if len(self.query) <= _MAX_IN_LINKS else ""


@dataclass(frozen=True, slots=True)
class Line:
    """One mail in the table."""

    mail: MailRecord
    tags: list[str]  # the worst first
    job: Job | None  # what is about to happen to it


async def quarantine(call: Call) -> Response:
    asked = read(call.request.query_params)
    call.audit_detail = ", ".join(f"{name}: {value}" for name, value in asked.parameters.items() if value)
    await _like(call, asked)
    is_gone = asked.mistakes.pop("like", None) is not None  # nobody's mistake: its mails may just have been deleted
    if call.request.query_params.get("view") == "groups" and not asked.mistakes and not is_gone:
        return await _grouped(call, asked)
    found: list[MailRecord] = []
    if not asked.mistakes and not is_gone:
        found = await call.run(_look, call, asked)
    call.console.held_counts.repair_sometimes(call.sources.quarantine)
    is_more, found = len(found) > PER_PAGE, found[:PER_PAGE]
    jobs = call.console.jobs.of(call.person.key)
    under_way = {mail_id: job for job in reversed(jobs) if not job.is_over for mail_id in job.action.mails}
    scores = call.sources.tag_scores
    lines = [Line(mail, worst_first(mail.tags, scores), under_way.get(mail.id)) for mail in found]
    conf = call.sources.config
    return call.page(
        "quarantine.html",
        400 if asked.mistakes else 404 if is_gone else 200,
        asked=asked,
        is_gone=is_gone,
        lines=lines,
        is_whole=not is_more and not asked.before,
        jobs=jobs,
        total=await call.console.held_counts.total(call.sources.quarantine, call.tenants),
        next=_next(call, asked, found) if is_more else "",
        states=STATES,
        decisions=DECISIONS,
        listeners=tuple(listener.name for listener in conf.listeners),
        tenants=tuple(tenant.uid for tenant in conf.tenants if call.person.may_see(tenant.uid)),
        has_lists=conf.lists is not None,
    )


async def _grouped(call: Call, asked: HeldSearch) -> Response:
    """What the mails have in common: the first step of a review."""
    found = await call.run(_look, call, asked, MAX_GROUPED)
    return call.page(
        "quarantine_groups.html",
        asked=asked,
        number=len(found),
        is_all=len(found) < MAX_GROUPED,
        groups=await call.run(group, found, call.sources.tag_scores),
        total=await call.console.held_counts.total(call.sources.quarantine, call.tenants),
    )


# Actions


async def release(call: Call) -> Response:
    """To recipients who may have it, after a release whose result is unknown, only if the person says so."""
    work = partial(call.sources.mail_actions.release, even_if_unsure=call.form.get("unsure") == "yes")
    return await _begin(call, ("Release", DONE_WORDS[0]), work)


async def delete(call: Call) -> Response:
    return await _begin(call, ("Delete", DONE_WORDS[1]), call.sources.mail_actions.delete)


async def report(call: Call) -> Response:
    return await _begin(call, ("Report as not spam", DONE_WORDS[2]), call.sources.mail_actions.report)


async def report_spam(call: Call) -> Response:
    def work(mails: Sequence[MailRecord], by: str) -> list[Result]:
        return call.sources.mail_actions.report(mails, by, "spam")

    return await _begin(call, ("Report as spam", "reported as spam"), work)


async def block(call: Call) -> Response:
    return await _list_senders(call, "block")


async def allow(call: Call) -> Response:
    return await _list_senders(call, "allow")


async def _list_senders(call: Call, what: str) -> Response:
    """Dangerous entries are shown first, with the reason, as the command line does."""
    is_sure = call.form.get("sure") == "yes"
    listing = Listing(what, call.form.get("domain") == "yes", is_sure)
    verb = f"{what.capitalize()} the {'domains' if listing.whole_domain else 'senders'} of"
    mails = await chosen(call)
    if _is_unconfirmed(call, mails):
        return _confirmation(call, verb, mails)
    actions = call.sources.mail_actions
    try:
        plan = await call.run(actions.plan_listing, mails, by(call), listing)
    except BridgeError as exc:
        raise Refused(502, "The lists cannot be changed", f"{why_not(call, exc)}. Nothing was done.") from exc
    if not plan.entries or (plan.dangers and not is_sure):
        call.audit_failed = True
        call.audit_detail = "not confirmed" if plan.dangers else "no sender can be added"
        return call.page("quarantine_confirm.html", 409, plan=plan, what=what, whole=listing.whole_domain,
                         fields=_fields(call, mails), can_go_on=bool(plan.entries), back=_back(call))  # fmt: skip

    def work(some: Sequence[MailRecord], who: str) -> list[Result]:
        try:
            return actions.list_senders(some, who, listing)
        finally:
            _forget_copies(call, plan)

    done = f"{what}ed" + (" (domain)" if listing.whole_domain else " (sender)")
    tenants = {tenant for _, tenant in plan.entries}
    see = f"/lists/{to_part(plan.list_name)}?tenant={tenants.pop() or 'all'}" if len(tenants) == 1 else "/lists"
    return await _begin(call, (verb, done), work, mails, see)


def _forget_copies(call: Call, plan: ListPlan) -> None:
    """So that the page of the list shows its new entries at once."""
    for tenant in {tenant for _, tenant in plan.entries}:
        if call.sources.list_copies is not None:
            call.sources.list_copies.forget(plan.list_name, tenant or None)


async def _begin(
    call: Call,
    words: tuple[str, str],
    work: Callable[[Sequence[MailRecord], str], list[Result]],
    mails: Sequence[MailRecord] = (),
    see: str = "",
) -> Response:
    """Do it when it can no longer be undone. The audit log records the request now, and the result for each mail later.

    `see` is the page of a list, if senders are added to it.
    """
    mails = mails or await chosen(call)
    if _is_unconfirmed(call, mails):
        return _confirmation(call, words[0], mails)
    # One by one: a page of a mail shows its state, and a failure concerns one mail. Senders are listed together: the
    # mails of a campaign have one entry.
    turns = [mails] if see else [[mail] for mail in mails]
    made = MailJob(call, words[1], turns, lambda some: work(some, by(call)), has_notes=bool(see) or len(mails) == 1)
    ids = tuple(mail.id for mail in mails)
    action = Action(words, some_ids(ids), len(ids), mails=ids, see=see, can_be_cancelled=not see and len(ids) > 1)
    pending.begin(call, action, made.run, made.dropped)
    return pending.back(call)


async def chosen(call: Call) -> list[MailRecord]:
    """The mails that were chosen: those that are there, and that this person may see."""
    if call.form.get("all") == "yes":
        return await _matching(call)
    ids = list(dict.fromkeys(filter(is_mail_id, call.form_lists.get("mail", []))))
    if not ids:
        raise Refused(400, "No mail is selected", _NOTHING)
    if len(ids) > MAX_CHOSEN:
        raise Refused(400, "Too many mails", f"At most {MAX_CHOSEN} mails can be selected at a time. Nothing was done.")

    def find() -> list[MailRecord | None]:
        return [call.sources.held(mail_id, call.tenants) for mail_id in ids]

    found = [mail for mail in await call.run(find) if mail is not None]
    if not found:
        raise Refused(
            404, "No such mail", "These mails no longer exist, or you do not have access to them. Nothing was done."
        )
    return found


# All that match, whatever is on the page


async def _matching(call: Call) -> list[MailRecord]:
    """The newest mails that match the search; once they have been shown, without those that arrived later."""
    asked = read(dict(parse_qsl(held_query(call.form.get("matching", "")))))
    await _like(call, asked)
    newest = read({"before": call.form.get("newest", "")[:100]})
    if asked.mistakes or newest.mistakes:
        raise Refused(400, "Invalid search", "Go back and search again. Nothing was done.")
    found = await call.run(_look, call, asked, MAX_MATCHING)
    if last := newest.wanted.get("before"):
        found = [mail for mail in found if (mail.time.timestamp(), mail.id) <= last]
    if not found:
        raise Refused(404, "No such mail", "No mail matches the search any more. Nothing was done.")
    return found


def _is_unconfirmed(call: Call, mails: Sequence[MailRecord]) -> bool:
    """Whether the number of mails has to be shown first: it is larger than the page says, or was never shown."""
    return call.form.get("all") == "yes" and len(mails) > int_or(call.form.get("number", ""), 0)


def _confirmation(call: Call, verb: str, mails: Sequence[MailRecord]) -> Response:
    call.audit_failed, call.audit_detail = True, f"not confirmed: {some_ids(mail.id for mail in mails)}"
    asked = read(dict(parse_qsl(held_query(call.form.get("matching", "")))))
    return call.page(
        "quarantine_matching.html", 409, verb=verb, mails=mails, is_limited=len(mails) >= MAX_MATCHING,
        filters=asked.parameters, fields=_fields(call, mails), path=call.request.scope["console_path"],
        back=_back(call),
    )  # fmt: skip


def _fields(call: Call, mails: Sequence[MailRecord]) -> list[tuple[str, str]]:
    """What a form must send again, so that it is about the same mails."""
    given = [(name, call.form[name]) for name in ("back", "domain", "unsure") if call.form.get(name)]
    if call.form.get("all") != "yes":
        return [*given, *(("mail", mail.id) for mail in mails)]
    newest = f"{mails[0].time.timestamp()!r}:{mails[0].id}"
    matching = call.form.get("matching", "")
    return [*given, ("all", "yes"), ("matching", matching), ("newest", newest), ("number", str(len(mails)))]


def _back(call: Call) -> str:
    """The search that the mails were chosen from, for those who cancel."""
    query = held_query(call.form.get("back", ""))
    return call.renderer.url("/quarantine") + (f"?{query}" if query else "")


def by(call: Call) -> str:
    """The person's name in the quarantine's own records, which also contain logins of this machine."""
    return f"console:{call.person.signature}"


# Reading what was asked for


def read(given: Mapping[str, str]) -> HeldSearch:
    """From the query string."""
    typed = {name: given.get(name, "").strip()[:1000] for name in HELD_FIELDS}
    like = given.get("like", "") if is_mail_id(given.get("like", "").removeprefix("@")) else ""
    asked = HeldSearch(typed, _VISIBLE, given.get("before", "")[:100], like=like)
    asked.interpret(_value, reader_zone(given.get("zone", "")))
    if asked.before and "before" not in asked.mistakes:
        at, _, mail_id = asked.before.partition(":")
        asked.wanted["before"] = (float(at), mail_id)
    return asked


def _value(name: str, text: str) -> Any:
    """Raises ValueError."""
    if name == "state":
        if text not in STATES:
            raise ValueError(f"expected one of {', '.join(STATES)}")
        return text
    if name == "client":
        value_of(name, text, FILTERS[name])
        return text
    if name == "sender" and text == "<>":
        return ""
    if any(ord(char) < 32 or char == "\x7f" for char in text):
        raise ValueError("control characters are not allowed here")
    return text


async def _like(call: Call, asked: HeldSearch) -> None:
    """Search for the sender of a mail that a link names."""
    if not asked.like:
        return
    mail = await call.run(call.sources.held, asked.like.removeprefix("@"), call.tenants)
    if mail is None:
        asked.mistakes["like"] = "the mail that this link refers to is no longer in the quarantine"
        return
    sender = mail.envelope.sender
    if asked.like.startswith("@"):
        sender = f"@{sender.rpartition('@')[2]}"
    asked.wanted["sender"], asked.typed["sender"] = sender, sender or "<>"


def _look(call: Call, asked: HeldSearch, limit: int = PER_PAGE + 1) -> list[MailRecord]:
    return call.sources.quarantine.look(Query(**asked.wanted, tenants=call.tenants, limit=limit))


def _next(call: Call, asked: HeldSearch, found: list[MailRecord]) -> str:
    """The page after this one."""
    typed, last = asked.for_next_page(asked.parameters), found[-1]
    return call.renderer.url("/quarantine", **typed, before=f"{last.time.timestamp()!r}:{last.id}")
