"""Quarantine: the mail that is held, page by page, and what is done with many of them at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from bridge.console import audit as audit_log
from bridge.console.call import Call, Refused
from bridge.console.jobs import Job, TooManyJobs
from bridge.console.mail_actions import Listing, Result
from bridge.console.pages.mail import DECISIONS, reader_zone
from bridge.console.roles import Tenants
from bridge.console.route import is_mail_id
from bridge.errors import BridgeError
from bridge.history.parameters import FILTERS, PAGE, value_of
from bridge.quarantine.index import Query
from bridge.quarantine.record import STATES, MailRecord
from bridge.quarantine.severity import worst_first
from bridge.runtime import moments

PER_PAGE = 100
MAX_CHOSEN = 500  # mails of one action
FIELDS = (
    *("recipient", "sender", "subject", "tag", "state", "since"),
    *("until", "client", "decision", "tenant", "listener"),
)
_REPAIR_S = 600.0  # how often the index is compared with the store
_NOTHING = "Choose at least one mail: nothing was done."


@dataclass(frozen=True, slots=True)
class Search:
    """What was typed, what it means, and what is wrong with it."""

    typed: Mapping[str, str]
    wanted: dict[str, Any] = field(default_factory=dict)
    mistakes: dict[str, str] = field(default_factory=dict)
    before: str = ""

    @property
    def has_more_fields(self) -> bool:
        """Whether one of the fields that are folded away is used."""
        return any(self.typed[name] for name in FIELDS[6:])

    @property
    def query(self) -> str:
        """To come back to this page."""
        given = {name: value for name, value in self.typed.items() if value}
        return urlencode({**given, "before": self.before} if self.before else given)


@dataclass(frozen=True, slots=True)
class Line:
    """One mail in the table."""

    mail: MailRecord
    tags: list[str]  # the worst first
    job: Job | None  # what is about to happen to it


async def quarantine(call: Call) -> Response:
    asked = read(call.request.query_params)
    call.audit_detail = ", ".join(f"{name}: {value}" for name, value in asked.typed.items() if value)
    found: list[MailRecord] = []
    if not asked.mistakes:
        found = await call.run(_look, call, asked)
    await _repair_sometimes(call)
    is_more, found = len(found) > PER_PAGE, found[:PER_PAGE]
    jobs = call.console.jobs.of(owner(call))
    under_way = {mail_id: job for job in reversed(jobs) if not job.is_over for mail_id in job.mails}
    scores = call.sources.tag_scores
    lines = [Line(mail, worst_first(mail.tags, scores), under_way.get(mail.id)) for mail in found]
    conf = call.sources.config
    return call.page(
        "quarantine.html",
        400 if asked.mistakes else 200,
        asked=asked,
        lines=lines,
        jobs=jobs,
        total=await _total(call),
        next=_next(call, asked, found) if is_more else "",
        states=STATES,
        decisions=DECISIONS,
        listeners=tuple(listener.name for listener in conf.listeners),
        tenants=tuple(tenant.uid for tenant in conf.tenants if call.person.may_see(tenant.uid)),
        has_lists=conf.lists is not None,
    )


async def jobs(call: Call) -> Response:
    """The part of the page that says what is under way."""
    return call.page("quarantine_jobs.html", jobs=call.console.jobs.of(owner(call)))


# Actions


async def release(call: Call) -> Response:
    return await _begin(call, ("Release", "released"), call.sources.mail_actions.release)


async def delete(call: Call) -> Response:
    return await _begin(call, ("Delete", "deleted"), call.sources.mail_actions.delete)


async def report(call: Call) -> Response:
    words = ("Report as not spam", "reported as not spam")
    return await _begin(call, words, call.sources.mail_actions.report)


async def report_spam(call: Call) -> Response:
    def work(mails: Sequence[MailRecord], by: str) -> list[Result]:
        return call.sources.mail_actions.report(mails, by, "spam")

    return await _begin(call, ("Report as spam", "reported as spam"), work)


async def block(call: Call) -> Response:
    return await _list_senders(call, "block")


async def allow(call: Call) -> Response:
    return await _list_senders(call, "allow")


async def undo(call: Call) -> Response:
    job = call.console.jobs.undo(owner(call), call.form.get("job", ""))
    if job is None:
        raise Refused(409, "Too late", "This was done already, or was taken back before.")
    call.audit_detail = f"{job.words[0].lower()}: {_mails(job.mails)}"
    return _back(call, "undone")


async def dismiss(call: Call) -> Response:
    call.console.jobs.dismiss(owner(call))
    return _back(call)


async def _list_senders(call: Call, what: str) -> Response:
    """Dangerous entries are shown first, with the reason, as the command line does."""
    is_sure = call.form.get("sure") == "yes"
    listing = Listing(what, call.form.get("domain") == "yes", is_sure)
    mails = await chosen(call)
    actions = call.sources.mail_actions
    try:
        plan = await call.run(actions.plan_listing, mails, by(call), listing)
    except BridgeError as exc:
        raise Refused(502, "The lists cannot be changed", f"{exc}. Nothing was done.") from exc
    if not plan.entries or (plan.dangers and not is_sure):
        call.audit_failed = True
        call.audit_detail = "not confirmed" if plan.dangers else "no sender can be added"
        return call.page("quarantine_confirm.html", 409, plan=plan, what=what, mails=mails, whole=listing.whole_domain,
                         back=call.form.get("back", ""), can_go_on=bool(plan.entries))  # fmt: skip

    def work(some: Sequence[MailRecord], who: str) -> list[Result]:
        return actions.list_senders(some, who, listing)

    verb = f"{what.capitalize()} the {'domains' if listing.whole_domain else 'senders'} of"
    done = f"{what}ed" + (" (domain)" if listing.whole_domain else " (sender)")
    return await _begin(call, (verb, done), work, mails)


async def _begin(
    call: Call,
    words: tuple[str, str],
    work: Callable[[Sequence[MailRecord], str], list[Result]],
    mails: Sequence[MailRecord] = (),
) -> Response:
    """Do it in ten seconds. The audit log has the order now, and the result of each mail then."""
    mails = mails or await chosen(call)
    person, address, who, audit = call.person, call.address, by(call), call.sources.audit

    def write(mail_id: str, detail: str, result: str) -> None:
        audit.write(person, address, words[1], mail=mail_id, detail=detail, result=result)

    async def run(job: Job) -> None:
        for mail in mails:  # one by one: a page of a mail shows its state, and a failure concerns one mail
            try:
                results = await asyncio.to_thread(work, [mail], who)
            except BridgeError as exc:
                results = [Result(mail.id, str(exc), is_done=False)]
            for result in results:
                state = audit_log.DONE if result.is_done else audit_log.FAILED
                await asyncio.to_thread(write, mail.id, result.text, state)
                if result.is_done:
                    job.succeeded(result.text if len(mails) == 1 else "")
                else:
                    job.fail(f"{mail.id}: {result.text}")

    async def dropped(job: Job) -> None:
        await asyncio.to_thread(write, "", f"not done, the console stopped: {_mails(job.mails)}", audit_log.FAILED)

    ids = tuple(mail.id for mail in mails)
    try:
        call.console.jobs.begin(owner(call), words, ids, run, dropped)
    except TooManyJobs:
        raise Refused(429, "Too many actions", "Wait until the earlier ones are done. Nothing was done.", 10) from None
    call.audit_detail = f"in 10 seconds: {_mails(ids)}"
    return _back(call)


async def chosen(call: Call) -> list[MailRecord]:
    """The mails that were chosen: those that are there, and that this person may see."""
    ids = list(dict.fromkeys(filter(is_mail_id, call.form_lists.get("mail", []))))
    if not ids:
        raise Refused(400, "No mail was chosen", _NOTHING)
    if len(ids) > MAX_CHOSEN:
        raise Refused(400, "Too many mails", f"At most {MAX_CHOSEN} mails can be chosen at once. Nothing was done.")

    def find() -> list[MailRecord | None]:
        return [call.sources.held(mail_id, call.tenants) for mail_id in ids]

    found = [mail for mail in await call.run(find) if mail is not None]
    if not found:
        raise Refused(404, "No such mail", "These mails are no longer there, or are not yours. Nothing was done.")
    return found


def owner(call: Call) -> str:
    """Whose jobs these are: a person of a provider may have the name of a local one."""
    return f"{call.person.provider}\n{call.person.name}"


def by(call: Call) -> str:
    """The person in the quarantine's own records, where logins of the machine are, too."""
    return f"console:{call.person.name}"


# Reading what was asked


def read(given: Mapping[str, str]) -> Search:
    """From the query string. A mistake is kept with its field, so that the page can show both."""
    typed = {name: given.get(name, "").strip()[:1000] for name in FIELDS}
    zone = reader_zone(given.get("zone", ""))
    asked = Search(typed, before=given.get("before", "")[:100])
    for name, text in typed.items():
        if not text:
            continue
        try:
            asked.wanted[name] = _value(name, text, zone)
        except ValueError as exc:
            asked.mistakes[name] = str(exc)
    try:
        if asked.before:
            value_of("before", asked.before, PAGE["before"])
            at, _, mail_id = asked.before.partition(":")
            asked.wanted["before"] = (float(at), mail_id)
    except ValueError:
        asked.mistakes["before"] = "the link to this page is damaged; search again"
    return asked


def _value(name: str, text: str, zone: Any) -> Any:
    """Raises ValueError."""
    if name in ("since", "until"):
        return moments.parse(text[:100], zone=zone)
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
        raise ValueError("control characters are not possible here")
    return text


def _look(call: Call, asked: Search) -> list[MailRecord]:
    return call.sources.quarantine.look(Query(**asked.wanted, tenants=call.tenants, limit=PER_PAGE + 1))


def _next(call: Call, asked: Search, found: list[MailRecord]) -> str:
    """The page after this one. Moments are written out: `2h` means something else by then."""
    typed = dict(asked.typed)
    for name in ("since", "until"):
        if name in asked.wanted:
            typed[name] = datetime.fromtimestamp(asked.wanted[name], UTC).isoformat()
    last = found[-1]
    return call.renderer.url("/quarantine", **typed, before=f"{last.time.timestamp()!r}:{last.id}")


def _back(call: Call, notice: str = "") -> Response:
    """To the page of the table from which the action came; only our own fields are kept."""
    given = dict(parse_qsl(call.form.get("back", "")[:8000], max_num_fields=50))
    kept = {name: given[name] for name in (*FIELDS, "before") if given.get(name)}
    query = urlencode(kept)
    return call.redirect(f"/quarantine?{query}" if query else "/quarantine", notice=notice)


async def _total(call: Call) -> int:
    """How many mails there are. Counting a large quarantine takes a while, and the number may then be a little old."""
    known = _totals.get(call.tenants)
    if known is not None and time.monotonic() < known[0]:
        return known[1]
    began = time.monotonic()
    number = await call.run(call.sources.quarantine.count, call.tenants)
    now = time.monotonic()
    if len(_totals) >= _MAX_TOTALS:
        _totals.clear()
    _totals[call.tenants] = (now + 50 * (now - began - _QUICK_S), number)
    return number


_totals: dict[Tenants, tuple[float, int]] = {}  # until when, and how many
_MAX_TOTALS, _QUICK_S = 1000, 0.05
_repaired_at = -_REPAIR_S


async def _repair_sometimes(call: Call) -> None:
    """In the background: the index lacks a mail if it failed while the mail was stored."""
    global _repaired_at
    now = time.monotonic()
    if now - _repaired_at >= _REPAIR_S:
        _repaired_at = now
        task = asyncio.create_task(asyncio.to_thread(call.sources.quarantine.repair))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


_tasks: set[asyncio.Task[None]] = set()


def _mails(ids: Iterable[str]) -> str:
    all_ids = list(ids)
    more = f" and {len(all_ids) - 20} more" if len(all_ids) > 20 else ""
    return f"{len(all_ids)} {'mail' if len(all_ids) == 1 else 'mails'}: {', '.join(all_ids[:20])}{more}"
