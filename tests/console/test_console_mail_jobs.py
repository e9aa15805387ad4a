"""Actions, also on many mails, while the console's database cannot be used."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import Response

from bridge.cli.console.mail_actions import _brief, _listed
from bridge.cli.quarantine.sender_lists import Addition
from bridge.console.audit import STARTED, Audit
from bridge.console.call import Call
from bridge.console.database import ConsoleStore, ConsoleStoreError
from bridge.console.guard import Guard
from bridge.console.mail_actions import NOT_USABLE, Result
from bridge.console.pages.lists import NO_LISTS, why_not
from bridge.console.pages.mail_jobs import MailJob
from bridge.console.queues import Queues
from bridge.console.roles import Person, Role
from bridge.console.route import Route
from bridge.console.undoable_jobs import Action, Job, Jobs
from bridge.errors import BridgeError, ConfigError, StoreError
from bridge.history.entry import LaterEvent
from bridge.lists.errors import EntryRefused, ListFull, ListsUnreachable
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.quarantine.record import MailRecord
from bridge.quarantine.store import MailLocked
from bridge.runtime.database import Database
from bridge.testing import eventually

IDS = [f"MAIL{number}" for number in range(5)]


class SometimesLocked(Audit):
    """Fails at these calls."""

    def __init__(self, store: ConsoleStore, failing: range) -> None:
        super().__init__(store)
        self.failing, self.calls = failing, 0

    def write(self, *args: Any, **kwargs: Any) -> int:
        self.calls += 1
        if self.calls in self.failing:
            raise ConsoleStoreError("the database is locked")
        return super().write(*args, **kwargs)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConsoleStore]:
    with closing(ConsoleStore(Database.file(tmp_path / "console.sqlite"))) as made:
        yield made


def made_call(audit: Audit, tenants: frozenset[str] | None = None) -> Any:
    console: Any = SimpleNamespace(jobs=Jobs(undo_s=0.0, pauses_s=(0.0, 0.0)), queues=Queues())
    sources = SimpleNamespace(audit=audit, users=SimpleNamespace(has=lambda person: True))
    console.sources = sources
    request: Any = None
    return Call(request, console, "192.0.2.1", Person("rita", Role.RELEASER, tenants))


def made_job(audit: Audit, done: list[str]) -> MailJob:
    call = made_call(audit)

    def work(mails: Any) -> list[Result]:
        done.extend(mail.id for mail in mails)
        return [Result(mail.id, "delivered", is_done=True) for mail in mails]

    turns: Any = [[SimpleNamespace(id=mail_id)] for mail_id in IDS]
    return MailJob(call, "released", turns, work, has_notes=False)


def new_job() -> Job:
    return Job("1", "rita", Action(("Release", "released"), "mails", len(IDS)), 0.0)


async def test_a_job_goes_on_after_the_audit_log_could_not_be_written_once(store: ConsoleStore) -> None:
    """The mails behind it were neither released nor counted, and the one before had no entry."""
    done: list[str] = []
    job, audit = new_job(), SometimesLocked(store, range(3, 4))
    await made_job(audit, done).run(job)
    assert done == IDS and (job.done, job.failed) == (5, 0)
    assert [entry.mail for entry in reversed(audit.find())] == IDS


async def test_a_job_says_what_it_left_alone_without_an_audit_log(
    store: ConsoleStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is done that cannot be recorded; what was done is in the log."""
    done: list[str] = []
    job, audit = new_job(), SometimesLocked(store, range(3, 100))
    with caplog.at_level(logging.ERROR):
        await made_job(audit, done).run(job)
    assert done == IDS[:3] and (job.done, job.failed) == (3, 2)
    assert job.problems == ["2 mails: MAIL3, MAIL4: the console's database cannot be used"]
    assert "not recorded: released by rita: MAIL2: done: delivered" in caplog.text


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        (ListsUnreachable("http://10.0.0.5:9081 cannot be reached"), "the lists cannot be changed at the moment"),
        (EntryRefused("x is not an address"), "x is not an address"),
        (ConfigError("the sender is empty"), "the sender is empty"),
    ],
)
def test_people_of_a_tenant_saw_where_the_lists_are(problem: BridgeError, shown: str) -> None:
    """Before a sender is added, and afterwards; those who see all mail are told everything."""
    addition = Addition(cast(MailRecord, SimpleNamespace(id="MAIL0")), None)
    addition.fail(problem)
    result = _listed(addition, "blocked-senders")
    assert (result.text, result.brief) == (
        f"not added to blocked-senders: {problem}", f"not added to blocked-senders: {shown}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("event", "text", "shown"),
    [
        ("reported as spam", "rspamd cannot be reached at 10.0.0.5", ""),
        ("release failed", "to jane@a.example: 10.0.0.5:25: timed out", "to jane@a.example"),
        ("released", "to jane@a.example: 250 Ok: queued on mx1.internal", "to jane@a.example"),
        ("digest sent", "to jane@a.example", "to jane@a.example"),
    ],
)
def test_people_of_a_tenant_saw_machines_in_what_happened_later(event: str, text: str, shown: str) -> None:
    assert LaterEvent(0.0, "MAIL0", event, "ann", text).without_internals() == LaterEvent(
        0.0, "MAIL0", event, "ann", shown
    )


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        (NextHopError(Reply(451, "4.4.1", "Try again"), "10.0.0.5:25: timed out"), "not released: 451 4.4.1 Try again"),
        (StoreError("/var/lib/secret: no space left"), f"not released: {NOT_USABLE}"),
        (ConfigError("relay.next_hop: 10.0.0.5"), f"not released: {NOT_USABLE}"),
        (MailLocked("somebody else is releasing it"), "not released: somebody else is releasing it"),
    ],
)
async def test_people_of_a_tenant_saw_machines_and_paths_in_failures(
    store: ConsoleStore, problem: BridgeError, shown: str
) -> None:
    """Of the next hop and the store, in the results of an action; those who see all mail, and the audit log, do."""
    text = f"not released: {problem}"
    for tenants, expected in ((frozenset({"t"}), shown), (None, text)):
        call, audit = made_call(Audit(store), tenants), Audit(store)
        result = Result("MAIL0", text, is_done=False, brief=_brief(text, problem))
        turns: Any = [[SimpleNamespace(id="MAIL0")]]
        job = new_job()
        await MailJob(call, "released", turns, lambda mails, result=result: [result], has_notes=True).run(job)
        assert job.problems == [f"MAIL0: {expected}"] and audit.find()[0].detail == text


@pytest.mark.parametrize(
    ("exc", "is_shown"),
    [
        (ListsUnreachable("https://10.0.0.6:8443 cannot be reached"), False),
        (ConfigError("lists.api_key_file: /etc/secret: no such file"), False),
        (ListFull("the list is full"), True),
        (EntryRefused("the service answered 400"), True),
    ],
)
def test_people_of_a_tenant_saw_the_address_of_the_lists(store: ConsoleStore, exc: BridgeError, is_shown: bool) -> None:
    """What concerns their list or entry is for them."""
    assert why_not(made_call(Audit(store), frozenset({"t"})), exc) == (str(exc) if is_shown else NO_LISTS)
    assert why_not(made_call(Audit(store)), exc) == str(exc)


async def test_slow_releases_took_every_thread(store: ConsoleStore) -> None:
    """With a slow next hop, lists and statistics waited for a few releases, and so did the results of other actions."""
    call, may_answer = made_call(Audit(store)), threading.Event()
    begun: list[str] = []

    def work(mails: Any) -> list[Result]:
        begun.append(mails[0].id)
        may_answer.wait()
        return [Result(mail.id, "delivered", is_done=True) for mail in mails]

    turns: Any = [[SimpleNamespace(id=mail_id)] for mail_id in IDS]
    made = [(new_job(), MailJob(call, "released", turns, work, has_notes=False)) for _ in range(50)]
    try:
        running = [asyncio.create_task(mail_job.run(job)) for job, mail_job in made]
        await eventually(lambda: len(begun) == 8, "the first releases")
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(lambda: "list") == "list"
            assert await call.run(lambda: "page") == "page"
        assert len(begun) == 8
    finally:
        may_answer.set()
    await asyncio.gather(*running)
    assert len(begun) == 250 and all(job.done == 5 for job, _ in made)


async def test_a_change_that_was_made_does_not_look_undone_without_its_audit_entry(
    store: ConsoleStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader got 503 and made the change again: a file was applied twice."""

    class Unfinished(Audit):
        def finish(self, seq: int, result: str, detail: str) -> None:
            raise ConsoleStoreError("the database is locked")

    async def change(call: Any) -> Response:
        made.append(call)
        return Response("made")

    async def run(work: Any, *args: Any, **kwargs: Any) -> Any:
        return work(*args, **kwargs)

    made: list[Any] = []
    audit = Unfinished(store)
    call: Any = SimpleNamespace(
        run=run, sources=SimpleNamespace(audit=audit), person=Person("rita", Role.RELEASER, None), address="192.0.2.1",
        path={}, audit_detail="", audit_failed=False,
    )  # fmt: skip
    nothing: Any = None
    route = Route("/changes", change, Role.RELEASER, changes=True, audit="changed something")
    response = await Guard(nothing, route)._audited(call)
    assert response.status_code == 200 and len(made) == 1
    assert [entry.result for entry in audit.find()] == [STARTED]
    assert "the result of audit entry 1 cannot be recorded" in caplog.text
