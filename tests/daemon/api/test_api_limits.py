"""What a query may cost: places, time, memory; a database that is off, gone or locked; and mail beside all of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from bridge.daemon.http_api import answers
from bridge.daemon.http_api.failures import ApiError
from bridge.daemon.http_api.query_queue import Queries, QueryLimits
from bridge.history.entry import Kind, Row
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.testing import RunningBridge, eventually, until
from tests.daemon.api.api_kit import ALL, BOTH, ONLY_A, ask, bridge, mails, pages, send
from tests.postgresql import PostgreSql, fresh_database
from tests.processes import children, command_line

HISTORY, STATS, MAIL = "/api/v1/history", "/api/v1/stats?by=sender", "/api/v1/mails/1A1E3F3139AF066FEF9"


def test_without_a_history_the_answer_says_so(tmp_path: Path) -> None:
    """503, for every question and only after the token was checked; the other pages and mail go on."""
    with bridge(tmp_path, {"history": {"enabled": False}}) as running:
        for path in (HISTORY, STATS, MAIL):
            refused = ask(running.admin_port, path)
            assert (refused.status, refused.json["error"]) == (503, "history_off")
            assert "history.enabled" in refused.json["message"]
            assert ask(running.admin_port, path, "wrong").status == 401
        assert send(running).startswith("250 ")
        assert ask(running.admin_port, "/readyz").status == 200


def test_a_removed_directory_is_an_empty_history_that_begins_again(tmp_path: Path) -> None:
    """Nothing has to be restarted."""
    with bridge(tmp_path) as running:
        send(running, subject="before")
        mails(running.admin_port, 1)
        shutil.rmtree(tmp_path / "state" / "history")
        assert ask(running.admin_port, HISTORY).json == {"mails": [], "next": None}
        assert ask(running.admin_port, STATS).json["sums"] == []
        assert ask(running.admin_port, MAIL).status == 404
        send(running, subject="after")
        (mail,) = mails(running.admin_port, 1)
        assert mail["subject"] == "after"


def test_a_history_that_cannot_be_read_is_reported_without_its_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """503 with Retry-After; paths and errors of the database are for the log. A directory is no segment."""
    with bridge(tmp_path) as running:
        damaged = tmp_path / "state" / "history" / "1700000000000-1900000000000-00000000.sqlite"
        send(running)
        mails(running.admin_port, 1)
        damaged.mkdir()
        for path in (HISTORY, STATS, MAIL):
            refused = ask(running.admin_port, path)
            assert (refused.status, refused.json["error"]) == (503, "history_unavailable")
            assert refused.headers["retry-after"] == "5"
            assert damaged.name not in refused.json["message"]
        assert damaged.name in caplog.text
        damaged.rmdir()
        assert ask(running.admin_port, HISTORY).status == 200


def test_a_database_that_is_gone_costs_answers_and_no_mail(tmp_path: Path, fragile_postgresql: PostgreSql) -> None:
    """503 while it is away, and the same daemon answers when it is back."""
    url = fresh_database(fragile_postgresql.url)
    with bridge(tmp_path, {"state_database": url, "late_decisions": {"store": "memory"}}) as running:
        send(running)
        mails(running.admin_port, 1)
        fragile_postgresql.stop()
        try:
            refused = ask(running.admin_port, HISTORY)
            assert (refused.status, refused.json["error"]) == (503, "history_unavailable")
            assert send(running).startswith("250 ")
        finally:
            fragile_postgresql.start()
        until(lambda: ask(running.admin_port, HISTORY).status == 200, "the database")
        mails(running.admin_port, 2)


@pytest.mark.long
def test_queries_of_a_locked_database_are_bounded_in_number_and_time(tmp_path: Path, postgresql: str) -> None:
    """Some run, some wait, the rest is refused at once; all are answered soon, and mail does not notice."""
    url = fresh_database(postgresql)
    with bridge(tmp_path, {"state_database": url, "late_decisions": {"store": "memory"}}) as running:
        send(running)
        mails(running.admin_port, 1)
        with locked(url), ThreadPoolExecutor(40) as threads:
            asked = [threads.submit(ask, running.admin_port, HISTORY, ALL) for _ in range(36)]
            until(lambda: sum(each.done() for each in asked) >= 10, "refusals")
            for _ in range(20):
                assert send(running).startswith("250 ")
            assert ask(running.admin_port, "/readyz").status == 200
            assert not all(each.done() for each in asked)  # so none of this waited for a query
            found = [each.result(60) for each in asked]
        counted = Counter((answer.status, answer.json["error"]) for answer in found)
        assert counted[429, "too_many_queries"] >= 10
        assert counted[503, "saturated"] + counted[503, "query_timeout"] == 36 - counted[429, "too_many_queries"]
        assert counted[503, "query_timeout"] >= 2
        assert all("retry-after" in answer.headers or answer.json["error"] == "query_timeout" for answer in found)
        until(lambda: ask(running.admin_port, HISTORY).status == 200, "an answer")


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Nobody can read or write the history."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.begin() as connection:
            connection.execute(text("LOCK TABLE history_mail IN ACCESS EXCLUSIVE MODE"))
            yield
    finally:
        engine.dispose()


def test_mail_is_not_delayed_by_many_queries(tmp_path: Path) -> None:
    """Eight clients that ask without a pause: mail still takes milliseconds, and every answer is right."""
    with bridge(tmp_path) as running:
        with running.client() as client:
            client.open()
            for _ in range(300):
                client.mail()
        mails(running.admin_port, 300, limit=1000)
        quiet = _mail_times(running, 60)
        stop, statuses = threading.Event(), Counter[int]()

        def keep_asking(number: int) -> None:
            path = (f"{HISTORY}?limit=300", STATS, f"{HISTORY}?subject=x&tag=a:*", MAIL)[number % 4]
            while not stop.is_set():
                statuses[ask(running.admin_port, path, (ALL, ONLY_A, BOTH)[number % 3]).status] += 1

        threads = [threading.Thread(target=keep_asking, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: statuses.total() > 20, "queries")
        busy = _mail_times(running, 60)
        stop.set()
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 404, 503}
        assert statistics.median(busy) < max(0.5, 20 * statistics.median(quiet))


def _mail_times(running: RunningBridge, count: int) -> list[float]:
    times = []
    with running.client() as client:
        client.open()
        for _ in range(count):
            began = time.monotonic()
            assert client.mail().startswith(b"250 ")
            times.append(time.monotonic() - began)
    return times


# A scripted searcher, which answers as the test wants: `sleep` never, `exit` not at all, anything else at once

SCRIPT = """
import json, sys, time
sys.stdin.readline()
for line in sys.stdin:
    about = json.loads(line)["about"]
    if about == "sleep":
        time.sleep(60)
    if about == "exit":
        sys.exit(3)
    if about == "nonsense":
        print("nonsense", flush=True)
        continue
    head = {"error": about, "message": "on purpose"} if about.startswith(("history_", "query_")) else {}
    print(json.dumps({**head, "size": len(about)}), about, sep="\\n", end="", flush=True)
"""
PROGRAM = (sys.executable, "-c", SCRIPT)


@asynccontextmanager
async def scripted(limits: QueryLimits) -> AsyncIterator[Callable[[str, str], Coroutine[None, None, str]]]:
    """A function that asks with a token and returns the answer, or the error."""
    queries = Queries(dict, limits, PROGRAM)

    async def run(token: str, about: str) -> str:
        try:
            return (await queries.run(token, {"about": about})).decode()
        except ApiError as exc:
            return exc.body["error"]

    try:
        yield run
    finally:
        await queries.close()


def test_a_query_that_takes_too_long_is_ended() -> None:
    """Its process is killed, and its place is free at once."""

    async def play() -> None:
        async with scripted(QueryLimits(running=1, running_per_token=1, wait_s=0.2, max_s=3.0)) as run:
            slow, own, other = await asyncio.gather(run("a", "sleep"), run("a", "x"), run("b", "x"))
            assert slow == "query_timeout"
            assert own == "saturated"  # its own place is taken
            assert other == "saturated"  # all places are taken
            assert await run("b", "quick") == "quick"

    asyncio.run(play())
    assert scripts() == 0


def test_one_token_leaves_room_for_others() -> None:
    """A tenant with slow queries does not stop those of another tenant; a client that goes away frees its place."""

    async def play() -> None:
        async with scripted(QueryLimits(running=2, running_per_token=1, waiting_per_token=2)) as run:
            slow, waiting, leaving = (asyncio.create_task(run("a", about)) for about in ("sleep", "first", "second"))
            assert await run("b", "quick") == "quick"
            assert await run("a", "too many") == "too_many_queries"
            for task in (leaving, slow):
                task.cancel()
                await asyncio.wait({task})
            assert await waiting == "first"
            assert await run("a", "again") == "again"

    asyncio.run(play())
    assert scripts() == 0


def test_a_search_that_fails_is_answered_and_the_next_one_works() -> None:
    """Whether its process ends, talks nonsense, reports an error or cannot be started."""

    async def play() -> None:
        async with scripted(QueryLimits(running=1, running_per_token=1)) as run:
            for about in ("exit", "nonsense", "history_unavailable"):
                assert await run("a", about) == "history_unavailable"
                assert await run("a", "fine") == "fine"
            assert await run("a", "query_too_large") == "query_too_large"
        queries = Queries(dict, program=("/nothing/there",))
        with pytest.raises(ApiError) as raised:
            await queries.run("a", {"about": "x"})
        assert raised.value.body["error"] == "history_unavailable"
        await queries.close()

    asyncio.run(play())
    assert scripts() == 0


def test_an_idle_process_ends() -> None:
    """Nobody asks at night; and the next question starts one again."""

    async def play() -> None:
        async with scripted(QueryLimits(idle_s=0.1)) as run:
            assert scripts() == 0
            assert await run("a", "x") == "x"
            assert scripts() == 1
            await eventually(lambda: scripts() == 0, "the process to end")
            assert await run("a", "y") == "y"

    asyncio.run(play())


def scripts() -> int:
    """How many of our own processes run the script."""
    return sum("json.loads(line)" in command_line(pid) for pid in children(os.getpid()))


@pytest.mark.long
def test_a_search_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    """A month of senders that all differ: the process that counts them is limited, and says so."""
    store = SqliteHistory(tmp_path / "state" / "history")
    blank = dict.fromkeys(Row._fields, "") | {"size": 1, "mails": 1, "more": None} | _seconds()
    kind = Kind(*[""] * len(Kind._fields))
    now = time.time()

    def row(number: int) -> Row:
        return Row(**blank | {"at": now - number / 100, "id": f"{number}", "sender": f"{number:0150000}@x.example"})

    for first in range(0, 1500, 50):
        store.append([(kind, row(number)) for number in range(first, first + 50)])
    store.close()
    with bridge(tmp_path) as running:
        refused = ask(running.admin_port, STATS)
        assert (refused.status, refused.json["error"]) == (503, "query_too_large"), refused.body[:500]
        assert ask(running.admin_port, HISTORY, limit=1).status == 200
        assert send(running).startswith("250 ")


def test_a_page_of_very_large_entries_ends_early(tmp_path: Path) -> None:
    """A thousand mails with a thousand recipients each do not fit into one answer; following `next` shows them all."""
    store = SqliteHistory(tmp_path)
    recipients = "\n".join(f"{number:0200}@example.org" for number in range(1000))
    blank = dict.fromkeys(Row._fields, "") | {"size": 1, "mails": 1, "more": None, "recipients": recipients}
    for first in range(0, 100, 10):
        rows = [
            Row(**blank | {"at": 1.0 + number, "id": f"ID{number}"} | _seconds()) for number in range(first, first + 10)
        ]
        store.append([(Kind(*[""] * len(Kind._fields)), row) for row in rows])
    seen, cursor = [], ""
    while True:
        found = _decoded(answers.page(store, HistoryQuery(limit=1000, before=cursor)))
        assert 0 < len(found["mails"]) < 60
        seen += [mail["id"] for mail in found["mails"]]
        if found["next"] is None:
            break
        cursor = found["next"]
    assert seen == [f"ID{number}" for number in reversed(range(100))]
    store.close()


def _seconds() -> dict[str, float]:
    return {name: 0.0 for name in Row._fields if name.endswith("_s")}


def _decoded(body: bytes) -> dict[str, list[dict[str, str]]]:
    assert len(body) < 10_000_000
    found: dict[str, list[dict[str, str]]] = json.loads(body)
    return found


def test_all_pages_of_one_tenant_among_others(tmp_path: Path) -> None:
    """A token of two tenants pages through both in the order of time."""
    with bridge(tmp_path) as running:
        for number in range(12):
            send(running, f"{number}@{'abc'[number % 3]}.example")
        every = mails(running.admin_port, 12)
        both = [mail for page in pages(running.admin_port, 3, BOTH) for mail in page]
        theirs = [mail for mail in every if "tenant" in mail]
        for mail in theirs:
            del mail["scanner"]  # an internal host
        assert both == theirs and len(both) == 8
