"""Many requests of one person: the others do not wait for them, and they end with the session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from bridge.cli.console import wiring
from bridge.console.app import create_console
from bridge.console.call import Call
from bridge.console.console import Console
from bridge.console.guard import SESSION_COOKIE, Guard
from bridge.console.queues import PersonTurns
from bridge.console.roles import Person, Role
from bridge.console.route import Route
from bridge.testing import eventually
from tests.console.test_console_patience import configuration
from tests.requirements import library

MANY = 60  # more than there are threads


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    for name in ("argon2", "authlib", "jinja2", "nh3", "pyzipper"):
        library(name, "console")
    sources = wiring.sources(configuration(tmp_path), tmp_path / "bridge.yml")
    with closing(sources.store), closing(sources.history):
        yield create_console(sources)
        await sources.quarantine.close()


class Visitor:
    def __init__(self, console: Console, name: str) -> None:
        self.sessions = console.sources.sessions
        self.cookie = self.sessions.begin(Person(name, Role.VIEWER), "127.0.0.1", "test")

    def asks(self, guard: Guard) -> asyncio.Task[Response]:
        headers = [(b"host", b"127.0.0.1:9083"), (b"cookie", f"{SESSION_COOKIE}={self.cookie}".encode())]
        scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": "/x", "console_path": "/x", "query_string": b"",
            "headers": headers, "path_params": {}, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 9083),
            "scheme": "http",
        }  # fmt: skip
        return asyncio.create_task(guard(Request(scope)))  # type: ignore[arg-type]


class Search:
    """A page whose search takes until `may_end`."""

    def __init__(self) -> None:
        self.may_end, self.begun = threading.Event(), 0

    async def __call__(self, call: Call) -> Response:
        self.begun += 1
        await call.run(self.may_end.wait)
        return PlainTextResponse("found")


async def page(call: Call) -> Response:
    return PlainTextResponse(await call.run(lambda: "shown"))


async def test_slow_searches_of_one_person_made_everybody_wait(console: Console) -> None:
    """All pages share forty threads, and each request needs one to find its session."""
    search, greedy, other = Search(), Visitor(console, "greedy"), Visitor(console, "other")
    searching = [greedy.asks(Guard(console, Route("/x", search))) for _ in range(MANY)]
    try:
        await eventually(lambda: search.begun >= PersonTurns().most, "the searches to begin")
        async with asyncio.timeout(60):
            assert (await other.asks(Guard(console, Route("/x", page)))).body == b"shown"
        assert search.begun == PersonTurns().most
    finally:
        search.may_end.set()
    assert {(await each).body for each in searching} == {b"found"}
    assert not console.queues.requests._turns


async def test_requests_that_wait_end_with_their_session(console: Console) -> None:
    """It may be ended because somebody else has it."""
    search, thief = Search(), Visitor(console, "thief")
    searching = [thief.asks(Guard(console, Route("/x", search))) for _ in range(MANY)]
    try:
        await eventually(lambda: search.begun >= PersonTurns().most, "the searches to begin")
        await eventually(lambda: console.queues.requests._requests.total() == MANY, "the others to wait")
        thief.sessions.end(thief.cookie)
    finally:
        search.may_end.set()
    answers = [await each for each in searching]
    assert [answer.status_code for answer in answers].count(200) == search.begun == PersonTurns().most
    assert [answer.status_code for answer in answers].count(303) == MANY - PersonTurns().most


async def test_requests_that_nobody_waits_for_any_more_filled_the_memory(console: Console) -> None:
    """A client that goes away leaves its request behind: it could send any number of them."""
    search, gone = Search(), Visitor(console, "gone")
    most = PersonTurns().max_waiting
    searching = [gone.asks(Guard(console, Route("/x", search))) for _ in range(most + 20)]
    try:
        await eventually(lambda: sum(each.done() for each in searching) == 20, "those beyond the limit to be refused")
        assert {each.result().status_code for each in searching if each.done()} == {429}
    finally:
        search.may_end.set()
    assert [(await each).status_code for each in searching].count(200) == most
