"""One release with everything that follows from it: the audit trail, the history, the event sinks.

Used by `scanbridge quarantine release` and by the console.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.cli.later_notes import RELEASE_FAILED, RELEASE_UNSURE, RELEASED, RELEASED_IN_PART
from bridge.cli.quarantine.session import Session
from bridge.cli.terminal import say
from bridge.errors import BridgeError
from bridge.mail.next_hop import NextHopError
from bridge.quarantine.locks import MAX_HELD
from bridge.quarantine.record import MailRecord
from bridge.quarantine.release import NotRecorded, ReleaseRequest, ReleaseUncertain, release
from bridge.relay.relay import Mixed, Relay
from bridge.runtime.threads import finish_in_thread

_UNSURE = "unsure: the whole mail was sent, but the next hop's answer was lost; check the next hop's log"


@dataclass(frozen=True, slots=True)
class Released:
    """What happened: a sentence, and the error if it was not released to everyone."""

    text: str
    problem: BridgeError | None = None
    is_unsure: bool = False  # recipients may have it although it failed


async def release_all(
    session: Session,
    mails: Sequence[MailRecord],
    relay: Relay,
    order: ReleaseRequest,
    report: Callable[[MailRecord, Released], None],
) -> None:
    """A few at a time, over connections that are kept for the next mail. `report` is called as soon as one is done.

    When cancelled, or if `report` fails, it starts no other release, and finishes those that it has started: their
    recipients may already have the mail.
    """
    waiting = deque(mails)

    async def work() -> None:
        try:
            while waiting:
                mail = waiting.popleft()
                report(mail, await release_one(session, mail, relay, order))
        except Exception:  # such as an output that nobody reads any more
            waiting.clear()
            raise

    async def work_together() -> None:
        """Unlike in a TaskGroup, an error in one does not cancel the others."""
        ended = await asyncio.gather(*(work() for _ in range(MAX_HELD)), return_exceptions=True)
        for problem in filter(None, ended):
            raise problem

    working = asyncio.create_task(work_together())
    with session.later.together():
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            waiting.clear()
            say("interrupted: finishing the mails that are being sent; press Ctrl-C again to abandon them", err=True)
            await working
            raise


async def release_one(session: Session, mail: MailRecord, relay: Relay, order: ReleaseRequest) -> Released:
    """Never raises a BridgeError: the result says what happened."""
    try:
        delivered = await release(session.quarantine, mail.id, relay, order)
    except BridgeError as exc:
        is_partial = isinstance(exc, Mixed) and exc.accepted > 0
        if is_partial:
            await finish_in_thread(_tell_sinks, session, mail.id, order.by)
        if isinstance(exc, NotRecorded):
            return _not_recorded(session, mail, order, exc)
        is_unsure = isinstance(exc, NextHopError) and exc.may_be_delivered
        if isinstance(exc, NextHopError):
            event = RELEASE_UNSURE if is_unsure else RELEASED_IN_PART if is_partial else RELEASE_FAILED
            session.note_release(event, mail, order.to, str(exc if is_partial else exc.reply))
        text = "released to only some of the recipients" if is_partial else "not released"
        return Released(f"{_UNSURE if is_unsure else text}: {exc}", exc, is_unsure or isinstance(exc, ReleaseUncertain))
    session.note_release(RELEASED, mail, order.to, str(delivered.reply))
    await finish_in_thread(_tell_sinks, session, mail.id, order.by)
    return Released(f"released: {delivered.reply}")


def _not_recorded(session: Session, mail: MailRecord, order: ReleaseRequest, exc: NotRecorded) -> Released:
    """The store does not know it, so the audit trail and the history have to."""
    failure = RELEASE_UNSURE if exc.may_be_delivered else RELEASE_FAILED
    session.note_release(RELEASED if exc.reply.is_success else failure, mail, order.to, str(exc.reply))
    text = "unsure" if exc.may_be_delivered else "not released"
    return Released(f"{text}: {exc}; the state of the mail is now `interrupted`", exc, is_unsure=exc.may_be_delivered)


def _tell_sinks(session: Session, mail_id: str, by: str) -> None:
    """Our last attempt shows which recipients have the mail now; another machine may have recorded one since."""
    if not session.config.events:
        return
    from bridge.daemon.event_wiring import report_release
    from bridge.events.event import Release

    try:
        mail = session.quarantine.read(mail_id)
        ours = (each for each in reversed(mail.releases) if each.reply and each.by == by)
        last = next(ours, mail.releases[-1])
        got_it = last.to if last.is_done else tuple(address for address in last.to if address in last.delivered)
        made = Release(mail_id, mail.envelope.sender, got_it, last.by, last.reply, mail.listener, mail.tenant)
        problem = report_release(session.config, session.state, made)
    except BridgeError as exc:
        problem = str(exc)
    if problem:
        say(f"{mail_id}: released, but no event could be queued for the sinks: {problem}", err=True)
