"""An action on many mails, one after the other: each result is in the audit log, including what was not done.

Nothing is done that cannot be recorded: if the audit log cannot be written for a while, the rest is left alone, and the
job says so. If this is wrong, people believe that mail was released or deleted when it was not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bridge.console import audit as audit_log
from bridge.console.call import Call
from bridge.console.mail_actions import NOT_USABLE, Result
from bridge.console.pages import pending
from bridge.console.undoable_jobs import Job
from bridge.errors import BridgeError
from bridge.quarantine.record import MailRecord
from bridge.runtime.tables import TablesFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MailJob:
    call: Call
    action: str  # for the audit log
    turns: Sequence[Sequence[MailRecord]]
    work: Callable[[Sequence[MailRecord]], list[Result]]
    has_notes: bool  # the results are shown

    async def run(self, job: Job) -> None:
        for number, some in enumerate(self.turns):
            async with self.call.queues.mail_jobs:
                why = await pending.hindrance(self.call, job)
                results = [] if why else await self._done(some)
            if why:
                await self._leave(job, number, why)
                return
            are_recorded = [await self._note(job, result) for result in results]
            if not all(are_recorded) and number + 1 < len(self.turns):
                await self._leave(job, number + 1, pending.NO_DATABASE)
                return

    async def _done(self, some: Sequence[MailRecord]) -> list[Result]:
        try:
            return await self.call.run(self.work, some)
        except BridgeError as exc:
            return [Result(mail.id, str(exc), is_done=False, brief=NOT_USABLE) for mail in some]

    async def dropped(self, job: Job) -> None:
        await asyncio.to_thread(self._write, "", f"not done, {pending.STOPPED}: {job.action.about}", audit_log.FAILED)

    async def _note(self, job: Job, result: Result) -> bool:
        """Returns whether the audit log has it."""
        shown = result.shown_to(self.call.person)
        if result.is_done:
            job.succeeded(shown if self.has_notes else "")
        else:
            job.fail(f"{result.mail_id}: {shown}")
        return await self._record(result.mail_id, result.text, audit_log.DONE if result.is_done else audit_log.FAILED)

    async def _leave(self, job: Job, number: int, why: str) -> None:
        """From this turn on, nothing is done."""
        left = [mail.id for turn in self.turns[number:] for mail in turn]
        job.fail(f"{some_ids(left)}: {why}", len(left))
        await self._record("", f"not done, {why}: {some_ids(left)}", audit_log.FAILED)

    async def _record(self, mail_id: str, detail: str, result: str) -> bool:
        try:
            await pending.patiently(self.call, lambda: self._write(mail_id, detail, result))
        except TablesFailed as exc:
            entry = f"{self.action} by {self.call.person.name}: {mail_id or '-'}: {result}: {detail}"
            log.error("console: the audit log cannot be written (%s); not recorded: %s", exc, entry)
            return False
        return True

    def _write(self, mail_id: str, detail: str, result: str) -> None:
        call = self.call
        call.sources.audit.write(call.person, call.address, self.action, mail=mail_id, detail=detail, result=result)


def some_ids(ids: Iterable[str]) -> str:
    """How many, and the first of them."""
    all_ids = list(ids)
    more = f" and {len(all_ids) - 20} more" if len(all_ids) > 20 else ""
    return f"{len(all_ids)} {'mail' if len(all_ids) == 1 else 'mails'}: {', '.join(all_ids[:20])}{more}"
