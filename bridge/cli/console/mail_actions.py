"""Actions of the console on quarantined mail: those of `scanbridge quarantine`, on behalf of the signed-in user.

They run in threads of the console, each with its own event loop: the quarantine blocks, and no page must wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bridge.cli.quarantine.releasing import release_one
from bridge.cli.quarantine.sender_lists import Addition, Job
from bridge.cli.quarantine.session import Session
from bridge.cli.reporting import Reporter
from bridge.console.mail_actions import NOT_USABLE, Listing, ListPlan, Result
from bridge.daemon import list_wiring, wiring
from bridge.errors import BridgeError, ConfigError
from bridge.feedback.report import ReportKind
from bridge.lists.client import ListClient
from bridge.mail.next_hop import NextHopError
from bridge.quarantine.quarantine import MailLocked, MailNotFound
from bridge.quarantine.record import MailRecord
from bridge.quarantine.release import AlreadyReleased, ReleaseRequest, ReleaseUncertain
from bridge.relay.relay import Relay

T = TypeVar("T")
_LISTS_PATIENCE_S = 10.0
_WAIT_S = 10.0  # while somebody else releases the same mail


@dataclass(frozen=True, slots=True)
class ConsoleMailActions:
    session: Session

    def release(
        self, mails: Sequence[MailRecord], by: str, to: tuple[str, ...] = (), *, even_if_unsure: bool = False
    ) -> list[Result]:
        session = self._of(by)
        tokens = wiring.release_tokens(session.config, session.state)
        order = ReleaseRequest(session.by, to=to, even_if_unsure=even_if_unsure, tokens=tokens, wait_s=_WAIT_S)

        async def work() -> list[Result]:
            relay = self._relay()
            try:
                found = []
                for mail in mails:
                    done = await release_one(session, mail, relay, order)
                    brief = "" if done.problem is None else _brief(done.text, done.problem)
                    found.append(Result(mail.id, done.text, done.problem is None, brief))
                return found
            finally:
                await relay.close()

        return _in_loop(work())

    def delete(self, mails: Sequence[MailRecord], by: str) -> list[Result]:
        session, found = self._of(by), []
        for mail in mails:
            try:
                session.quarantine.remove(mail.id)
            except BridgeError as exc:
                text = f"not deleted: {exc}"
                found.append(Result(mail.id, text, is_done=False, brief=_brief(text, exc)))
            else:
                session.note_removal(mail, is_purge=False)
                found.append(Result(mail.id, "deleted"))
        return found

    def report(self, mails: Sequence[MailRecord], by: str, kind: str = "ham") -> list[Result]:
        reporter = Reporter.of(self._of(by))
        try:
            found = [reporter.report(ReportKind(kind), mail, self._of(by).by) for mail in mails]
        finally:
            reporter.close()
        return [Result(each.mail_id, each.text, each.is_done, brief=each.text.partition(": ")[0]) for each in found]

    def plan_listing(self, mails: Sequence[MailRecord], by: str, listing: Listing) -> ListPlan:
        job = self._job(mails, by, replace(listing, force=False))
        self._with_lists(lambda client: job.prepare(client, reads_list=False))
        plan = ListPlan(job.list_name)
        for each in job.additions:
            if each.danger:
                plan.dangers[each.entry] = each.danger
            elif each.problem:
                plan.problems.append(Result(each.mail.id, each.problem, is_done=False, brief=each.brief))
            if each.entry and (each.entry, each.tenant or "") not in plan.entries:
                plan.entries.append((each.entry, each.tenant or ""))
        return plan

    def list_senders(self, mails: Sequence[MailRecord], by: str, listing: Listing) -> list[Result]:
        job = self._job(mails, by, listing)

        async def work(client: ListClient) -> None:
            await job.prepare(client)
            if not any(each.danger for each in job.additions):
                await job.carry_out(client)

        self._with_lists(work)
        return [_listed(each, job.list_name) for each in job.additions]

    # Private.

    def _of(self, by: str) -> Session:
        return replace(self.session, operator=by)

    def _relay(self) -> Relay:
        relay = wiring.relay(self.session.config)
        if relay is None:
            raise ConfigError("no next hop is configured: set relay.next_hop")
        return relay

    def _job(self, mails: Sequence[MailRecord], by: str, listing: Listing) -> Job:
        lists = self.session.config.lists
        if lists is None:
            raise ConfigError("the List API is not configured: add lists: {url: ..., api_key_file: ...}")
        name = lists.block_list if listing.what == "block" else lists.allow_list
        additions = [Addition(mail, mail.tenant or None) for mail in mails]
        return Job(self._of(by), lists, listing.what, name, additions, listing.whole_domain, listing.force)

    def _with_lists(self, work: Any) -> None:
        settings = list_wiring.list_settings(self.session.config, _LISTS_PATIENCE_S)

        async def run() -> None:
            async with ListClient(settings) as client:
                await work(client)

        _in_loop(run())


def _brief(text: str, problem: BridgeError) -> str:
    """What a next hop answered, and what concerns the mail alone, may be shown to everybody."""
    if isinstance(problem, AlreadyReleased | ReleaseUncertain | MailNotFound | MailLocked):
        return text
    why = problem.reply if isinstance(problem, NextHopError) else NOT_USABLE
    return f"{text.partition(': ')[0]}: {why}"


def _listed(each: Addition, list_name: str) -> Result:
    if each.problem or not (each.added or each.is_there):
        other = "another entry is dangerous"
        text, brief = (f"not added to {list_name}: {why or other}" for why in (each.problem, each.brief))
        return Result(each.mail.id, text, is_done=False, brief=brief)
    scope = f" for the tenant {each.tenant}" if each.tenant else ""
    return Result(each.mail.id, f"{each.entry} {'was added to' if each.added else 'was already on'} {list_name}{scope}")


def _in_loop(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
