"""The console's copies of long lists: searched page by page, and up to date."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bridge.api.lists import ListEntry
from bridge.console.list_copies import Copy, ListCopies
from bridge.console.pages.lists import PER_PAGE
from bridge.errors import BridgeError
from bridge.lists.client import ListSettings
from tests.processor_time import cpu_s


def copy_of(entries: list[str]) -> Copy:
    return Copy.of(ListEntry(entry, f"comment of {entry}") for entry in entries)


def test_a_long_list_is_searched_page_by_page() -> None:
    """In any letter case, and never in comments; also where a block of the file ends."""
    copy = copy_of([f"User{number:07d}@Example.org" for number in range(60_000)])
    assert len(copy.names) > 2 * (1 << 20), "several blocks"
    found, following = copy.page("", 0, PER_PAGE)
    assert len(found) == PER_PAGE and found[0].entry == "User0000000@Example.org"
    more, _ = copy.page("", following, PER_PAGE)
    assert more[0].entry == f"User{PER_PAGE:07d}@Example.org"
    for number in (0, 23_456, 59_999):
        found, _ = copy.page(f"USER{number:07d}", 0, 5)
        name = f"User{number:07d}@Example.org"
        assert [(entry.entry, entry.comment) for entry in found] == [(name, f"comment of {name}")]
    walked, at = 0, 0
    while True:
        found, at = copy.page("example.ORG", at, 1000)
        walked += len(found)
        if not at:
            break
    assert walked == copy.count == 60_000
    for start in (1, 33, 10**9):  # a link from an older copy
        assert all(entry.entry.startswith("User") for entry in copy.page("", start, 5)[0])
    assert copy.page("comment of", 0, 5) == ([], 0)
    assert copy.page("nothing like it", 0, 5) == ([], 0)


def test_what_was_changed_meanwhile_is_on_the_page() -> None:
    """Until the list is read again."""
    copy = copy_of(["a", "b", "c"])
    copy.changes.note([ListEntry("aa", "new"), ListEntry("b", "changed")], ["c"])
    assert [(entry.entry, entry.comment) for entry in copy.page("", 0, 10)[0]] == [
        ("aa", "new"), ("b", "changed"), ("a", "comment of a"),
    ]  # fmt: skip


def test_an_added_entry_is_looked_up_without_reading_the_whole_list() -> None:
    """Each of up to 500 entries of a form was searched for in all of the list: 43 seconds with a million entries."""
    names = [f"{spelling}{number:06d}@example.org" for number in range(40_000) for spelling in ("user", "User")]
    copy = copy_of(names)
    assert all(copy.has(name) for name in (*names[:50], *names[40_000:40_050], *names[-50:]))
    others = [f"{word}{number:06d}@example.org" for number in range(100) for word in ("", "uSer", "use", "zz", "user1")]
    assert not any(copy.has(name) for name in (*others, "", "user", names[0][:-1], f"{names[-1]}x"))
    looking = cpu_s(lambda: [copy.has(name) for name in others])
    assert looking < 50 * cpu_s(lambda: copy.page("nothing like it", 0, 100)), "500 entries, and not 500 searches"
    copy.change([ListEntry(names[0], "again"), ListEntry("new", "")], [names[1], names[1], "nothing"])
    assert copy.count == len(names) and copy.has("new") and not copy.has(names[1])
    assert not copy_of([]).has("new")


def test_the_console_goes_on_while_it_looks_added_entries_up() -> None:
    """It looked them up in the event loop: no page, sign-in or job made progress."""
    copies, copy = ListCopies(lambda: pytest.fail("the copy is there")), copy_of(["a"])
    copies._copies["notes", None] = copy

    async def work() -> None:
        with copy.changes.lock:  # of this thread
            changing = asyncio.create_task(copies.changed("notes", None, [ListEntry("b", "")]))
            await asyncio.wait([changing], timeout=0.1)
            assert not changing.done() and copy.count == 1
        await changing
        assert copy.count == 2

    asyncio.run(work())


@pytest.mark.parametrize("problem", [OSError(28, "No space left"), BridgeError("the service does not answer")])
def test_a_list_that_cannot_be_copied_is_not_said_to_be_read(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It was being read for ever, nothing was logged, and each view of the page began the download again."""
    attempts, go_on = [], threading.Event()

    def failing() -> ListSettings:
        attempts.append("notes")
        go_on.wait()
        raise problem

    async def work() -> None:
        copies = ListCopies(failing)
        assert not (await copies.get("notes", None)).is_complete
        running = copies._running["notes", None]
        go_on.set()
        await asyncio.wait([running])
        for _ in range(3):
            with pytest.raises(BridgeError, match=r"cannot be copied|does not answer"):
                await copies.get("notes", None)
        assert len(attempts) == 1

    asyncio.run(work())
    assert str(problem) in caplog.text


def test_a_page_of_long_entries_stays_small() -> None:
    """It has fewer of them; the next page goes on."""
    copy = copy_of([f"{number:04d}{'x' * 900}" for number in range(300)])
    found, following = copy.page("", 0, PER_PAGE)
    assert 0 < len(found) < 50 and following
    more, _ = copy.page("", following, PER_PAGE)
    assert more[0].entry.startswith(f"{len(found):04d}x")


def test_odd_entries_are_found_as_they_are() -> None:
    """Control characters, which the file needs for itself, are spaces; anything else stays."""
    names = ["\u00dcber@example.org", "a\x1fb\x02c", "\U0001f600", "\udcff", " ", "\u0130stanbul"]
    copy = copy_of(names)
    found = {entry.entry for entry in copy.page("", 0, 100)[0]}
    assert found == {"\u00dcber@example.org", "a b c", "\U0001f600", "?", " ", "\u0130stanbul"}
    assert [entry.entry for entry in copy.page("\u00fcBER", 0, 9)[0]] == ["\u00dcber@example.org"]
