"""How a process of the service follows the lists that others change, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import delete, event, update

from bridge.service.database_calls import DatabaseCalls
from bridge.service.keys import KeyRing
from bridge.service.lists.follow import ListFollower
from bridge.service.lists.index import traits_of
from bridge.service.lists.store import GLOBAL, Entry, ListStore
from bridge.service.settings import ListDefinition
from bridge.service.store import Store, clock, list_entry, list_state
from bridge.testing import eventually
from tests.service.service_kit import SOON_S

LIST = "blocked-senders"


@contextmanager
def opened(url: str) -> Iterator[tuple[Store, ListStore]]:
    store = Store(url)
    store.open()
    try:
        yield store, ListStore(store, [])
    finally:
        store.close()


def add(lists: ListStore, *senders: str) -> None:
    lists.add(GLOBAL, LIST, [Entry(sender, sender) for sender in senders])


async def follow(url: str, trouble: Callable[[Store], None], sender: str) -> None:
    """Raises if a process that follows the lists does not match this sender after the trouble."""
    with opened(url) as (store, lists):
        follower = ListFollower(store, lists, KeyRing(store), frozenset())
        await follower.start()
        try:
            await asyncio.to_thread(trouble, store)
            traits = traits_of(sender, (), None, (), ())
            await eventually(lambda: follower.index.match(None, traits) == [LIST], sender, SOON_S)
        finally:
            await follower.stop()


async def test_an_addition_between_two_statements_of_a_reader_was_skipped(tmp_path, database):
    """PostgreSQL: if an entry was added and another removed while a process read the changes, it found the removal
    only, went on from its number, and did not match mail against the new entry until it was restarted."""
    url = database.replace("lists.sqlite", f"{tmp_path}/lists.sqlite")
    done: list[str] = []
    with opened(url) as (_, theirs):
        add(theirs, "old@x.example")

        def change(store: Store) -> None:
            def between(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
                if "FROM list_entry" in statement and not done:
                    done.append(statement)
                    add(theirs, "new@x.example")
                    theirs.delete(GLOBAL, LIST, ["old@x.example"])

            event.listen(store.engine, "after_cursor_execute", between)
            add(theirs, "first@x.example")

        await follow(url, change, "new@x.example")
    assert done, "nothing was changed between two statements"


async def test_an_entry_of_another_category_cost_all_other_entries(tmp_path):
    """A list had senders before its category became `network`: the service did not start, and a running process
    skipped what was added together with such an entry."""
    url = f"sqlite:///{tmp_path}/lists.sqlite"
    networks = ListDefinition(name="partners", displayName="", category="network", description="", maxSize=9)
    senders = networks.model_copy(update={"category": "sender"})
    with opened(url) as (store, theirs):
        before = ListStore(store, [senders])
        before.add(GLOBAL, "partners", [Entry("@old.example", "@old.example")])
        follower = ListFollower(store, ListStore(store, [networks]), KeyRing(store), frozenset())
        await follower.start()
        try:
            before.add(GLOBAL, "partners", [Entry("@new.example", "@new.example")])
            before.delete(GLOBAL, "partners", ["@old.example"])
            add(theirs, "spam@x.example")
            traits = traits_of("spam@x.example", (), None, (), ())
            await eventually(lambda: follower.index.match(None, traits) == [LIST], "the new entry", SOON_S)
        finally:
            await follower.stop()


async def test_a_database_that_hung_while_all_lists_were_read_again_was_not_noticed(tmp_path, monkeypatch, caplog):
    """The lists counted as current, and `/readyz` said that the service was ready. The start says why it waits."""
    hangs, released = threading.Event(), threading.Event()
    with opened(f"sqlite:///{tmp_path}/lists.sqlite") as (store, lists):
        add(lists, "one@x.example")
        everything = lists.everything

        def slow() -> Any:
            hangs.set()
            assert released.wait(SOON_S)
            return everything()

        monkeypatch.setattr(lists, "everything", slow)
        follower = ListFollower(store, lists, KeyRing(store), frozenset(), DatabaseCalls(answer_s=0.3))
        starting = asyncio.create_task(follower.start())
        await eventually(lambda: "the database does not answer" in caplog.text, "the log line", SOON_S)
        released.set()
        await starting
        try:
            await eventually(lambda: follower.current and not follower._trouble, "the first poll", SOON_S)
            hangs.clear()
            released.clear()
            follower._seen_at = -math.inf
            await eventually(hangs.is_set, "reading all lists", SOON_S)
            await eventually(lambda: not follower.current, "the hanging database to be noticed", SOON_S)
            released.set()
            await eventually(lambda: follower.current, "the end of it", SOON_S)
        finally:
            released.set()
            await follower.stop()


async def test_changes_after_an_older_database_was_restored_were_skipped(tmp_path, database):
    """Numbers that a process had seen before are reused: it skipped every change up to the highest of them."""
    url = database.replace("lists.sqlite", f"{tmp_path}/lists.sqlite")
    with opened(url) as (other, theirs):
        add(theirs, *(f"{number}@x.example" for number in range(10)))

        def restore(_store: Store) -> None:
            with other.writing() as connection:
                connection.execute(delete(list_entry))
                connection.execute(delete(list_state))
                connection.execute(update(clock).values(value=0))
            add(theirs, "new@x.example")

        await follow(url, restore, "new@x.example")
