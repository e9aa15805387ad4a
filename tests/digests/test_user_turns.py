"""Many requests of one person to the pages for users: the others do not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from bridge.console.checks import Refused
from bridge.console.queues import PersonTurns
from bridge.testing import eventually
from bridge.user_pages.app import Guard, Route
from bridge.user_pages.call import Call, Pages
from bridge.user_pages.cookies import SESSION_COOKIE

MANY = 60  # more than there are threads


def sources(signed_in: dict[str, str]) -> Any:
    """Sessions by their cookies, and nothing else."""
    return SimpleNamespace(
        page=SimpleNamespace(origins={"http://127.0.0.1"}, public_url=None, trusted_proxies=[]),
        sessions=SimpleNamespace(find=signed_in.get),
        people=SimpleNamespace(person_of=lambda person: person),
        items=SimpleNamespace(person=lambda person: SimpleNamespace(language="en")),
        settings=SimpleNamespace(config=SimpleNamespace(languages=["en"])),
    )


def asks(guard: Guard, cookie: str) -> asyncio.Task[Response]:
    headers = [(b"host", b"127.0.0.1"), (b"cookie", f"{SESSION_COOKIE}={cookie}".encode())]
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/", "console_path": "/", "query_string": b"", "headers": headers,
        "path_params": {}, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http",
    }  # fmt: skip
    return asyncio.create_task(guard(Request(scope)))  # type: ignore[arg-type]


async def test_slow_pages_of_one_person_made_everybody_wait() -> None:
    """All pages share forty threads. Requests that wait end with the session."""
    signed_in, may_end, begun = {"jane": "jane@a.example", "jim": "jim@a.example"}, threading.Event(), 0
    known, pages = sources(signed_in), Pages("")

    async def slow(call: Call) -> Response:
        nonlocal begun
        begun += 1
        await call.run(may_end.wait)
        return PlainTextResponse("shown")

    async def quick(call: Call) -> Response:
        return PlainTextResponse(await call.run(lambda: call.person))

    waiting = [asks(Guard(known, pages, Route("/", slow)), "jane") for _ in range(MANY)]
    try:
        await eventually(lambda: begun >= PersonTurns().most, "the pages to begin")
        async with asyncio.timeout(60):
            assert (await asks(Guard(known, pages, Route("/", quick)), "jim")).body == b"jim@a.example"
        await eventually(lambda: pages.requests._requests.total() == MANY, "the others to wait")
        del signed_in["jane"]
    finally:
        may_end.set()
    statuses = [(await each).status_code for each in waiting]
    assert (statuses.count(200), statuses.count(303)) == (PersonTurns().most, MANY - PersonTurns().most)


async def test_who_had_a_link_kept_everybody_else_from_reading_mail() -> None:
    """Two mails are read at a time, and a hundred requests may wait: all of them with one link."""
    pages, may_end = Pages(""), threading.Event()

    def read(recipient: str) -> asyncio.Task[bool]:
        call = Call(Request({"type": "http", "headers": []}), sources({}), pages, "127.0.0.1")
        call.link_person = recipient
        return asyncio.create_task(call.read_mail(0, may_end.wait))

    try:
        stolen, other = [read("jane@a.example") for _ in range(100)], read("jim@a.example")
        await eventually(lambda: sum(each.done() for each in stolen) == 88, "the others to be refused")
        assert not other.done()
    finally:
        may_end.set()
    answers = await asyncio.gather(*stolen, return_exceptions=True)
    assert answers.count(True) == 12 and await other
    assert {answer.status for answer in answers if isinstance(answer, Refused)} == {429}


async def test_mail_that_takes_long_to_read_kept_everybody_else_from_reading_mail() -> None:
    """One person's requests took both threads, and were ahead of everybody else's in the queue."""
    pages, may_end = Pages(""), threading.Event()

    def read(person: str, work: Callable[[], bool]) -> asyncio.Task[bool]:
        call = Call(Request({"type": "http", "headers": []}), sources({}), pages, "127.0.0.1")
        call.person_or_none = person
        return asyncio.create_task(call.read_mail(0, work))

    slow = [read("jane@a.example", may_end.wait) for _ in range(12)]
    try:
        await eventually(lambda: pages.readers.limiter.borrowed_tokens > 0, "the first to be read")
        async with asyncio.timeout(60):
            assert await read("jim@a.example", lambda: True)
        assert not any(each.done() for each in slow)
    finally:
        may_end.set()
    assert all(await asyncio.gather(*slow))


async def test_two_large_mails_were_in_memory_at_the_same_time() -> None:
    """Each takes a few times its size. Small mail does not wait for them."""
    pages, may_end, begun = Pages(""), threading.Event(), 0

    def work() -> bool:
        nonlocal begun
        begun += 1
        return may_end.wait()

    def read(person: str, size: int, work: Callable[[], bool]) -> asyncio.Task[bool]:
        call = Call(Request({"type": "http", "headers": []}), sources({}), pages, "127.0.0.1")
        call.person_or_none = person
        return asyncio.create_task(call.read_mail(size, work))

    large = [read(f"{name}@a.example", 49 * 1024 * 1024, work) for name in ("jane", "joe", "jill")]
    try:
        await eventually(lambda: begun > 0, "the first to be read")
        async with asyncio.timeout(60):
            assert await read("jim@a.example", 1000, lambda: True)
        assert begun == 1
    finally:
        may_end.set()
    assert all(await asyncio.gather(*large)) and begun == 3
