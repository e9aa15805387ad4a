"""What becomes of a user's release when its request is cancelled, because the process stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.console.audit import DONE, STARTED, Audit
from bridge.console.checks import Refused
from bridge.console.database import ConsoleStore
from bridge.runtime.database import Database
from bridge.testing import eventually
from bridge.user_pages import copies
from bridge.user_pages.actions import ActionResult
from bridge.user_pages.call import Call, Pages

JANE = "jane@a.example"


class SlowNextHop:
    """Takes the mail, and answers later."""

    def __init__(self) -> None:
        self.has_it, self.may_answer = threading.Event(), threading.Event()

    def release(self, mail: object, to: tuple[str, ...], by: str) -> ActionResult:
        self.has_it.set()
        self.may_answer.wait()
        return ActionResult(is_done=True, text="delivered")


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    with closing(ConsoleStore(Database.file(tmp_path / "console.sqlite"))) as store:
        yield Audit(store)


def copy_of(mail: str, person: str = JANE) -> Any:
    settings = (SimpleNamespace(may=lambda reason: "release"),)
    return SimpleNamespace(
        mail=SimpleNamespace(id=mail),
        missing=(person,),
        recipients=(person,),
        person=person,
        reason=None,
        settings=settings,
    )


def call_for(audit: Audit, actions: SlowNextHop) -> Call:
    settings = SimpleNamespace(config=SimpleNamespace(languages=["en"]))
    request: Any = SimpleNamespace(headers={})
    sources: Any = SimpleNamespace(settings=settings, audit=audit, actions=actions)
    return Call(request, sources, Pages(""), "192.0.2.1")


async def test_a_release_is_recorded_although_its_request_was_cancelled(audit: Audit) -> None:
    """The audit log said that it had failed, and the mail arrived."""
    actions = SlowNextHop()
    call = call_for(audit, actions)
    request = asyncio.create_task(copies.release(call, copy_of("MAIL1")))
    await eventually(actions.has_it.is_set, "the next hop to have the mail")
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled() and [entry.result for entry in audit.find()] == [STARTED]
    stopping = asyncio.create_task(call.pages.finish(60))
    actions.may_answer.set()
    await stopping
    (entry,) = audit.find()
    assert (entry.result, entry.detail) == (DONE, f"to {JANE}: delivered") and not call.pages.releases


async def test_one_person_took_all_releases(audit: Audit) -> None:
    """With a slow next hop, ten clicks of one person kept everybody else from releasing mail."""
    actions = SlowNextHop()
    call = call_for(audit, actions)
    try:
        clicks = [asyncio.create_task(copies.release(call, copy_of(f"MAIL{number}"))) for number in range(10)]
        await eventually(lambda: sum(click.done() for click in clicks) == 7, "the others to be refused")
        other = asyncio.create_task(copies.release(call, copy_of("MAIL11", "joe@a.example")))
        await eventually(lambda: len(audit.find()) == 4, "the release of another person")
    finally:
        actions.may_answer.set()
    answers = await asyncio.gather(*clicks, return_exceptions=True)
    assert [answer for answer in answers if answer == "released"] == ["released"] * 3 and await other == "released"
    assert {answer.status for answer in answers if isinstance(answer, Refused)} == {429}


async def test_a_release_that_fails_is_tried_a_few_times(audit: Audit) -> None:
    """Each attempt is an event in the mail's story."""
    actions: Any = SimpleNamespace(release=lambda *_: ActionResult(is_done=False, text="452 full"))
    call, copy = call_for(audit, actions), copy_of("MAIL1")
    statuses = []
    for _ in range(12):
        with pytest.raises(Refused) as caught:
            await copies.release(call, copy)
        statuses.append(caught.value.status)
    assert statuses == [503] * 10 + [429] * 2 and len(audit.find()) == 10


async def test_an_action_that_is_cancelled_stays_started_in_the_audit_log(audit: Audit) -> None:
    """Its work may go on in a thread: nobody knows that it has failed."""
    call, begun = call_for(audit, SlowNextHop()), asyncio.Event()

    async def act() -> None:
        async with call.audited("did something"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(act())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert [entry.result for entry in audit.find()] == [STARTED]


async def test_who_changed_their_mind_again_and_again_flooded_those_who_learn(audit: Audit) -> None:
    """Spam, not spam, spam, ...: each time the mail was sent to `report_to`, with up to 50 MB, and learned from."""
    call, learned = call_for(audit, SlowNextHop()), []
    sources: Any = call.sources
    sources.feedback = lambda kind, mail, who: learned.append((kind, mail.id))
    for kind in ("spam", "ham", "spam"):
        assert await copies.report(call, copy_of("MAIL1"), kind) == "reported"
    with pytest.raises(Refused) as refused:
        await copies.report(call, copy_of("MAIL1"), "ham")
    assert refused.value.status == 429
    assert await copies.report(call, copy_of("MAIL2"), "ham") == "reported"
    assert learned == [("spam", "MAIL1"), ("ham", "MAIL1"), ("spam", "MAIL1"), ("ham", "MAIL2")]
