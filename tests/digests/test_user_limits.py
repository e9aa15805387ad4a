"""One user, or anybody with a link from a digest, harms neither the audit log nor other users."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.console.checks import Refused
from bridge.console.queues import PersonTurns
from bridge.digests.database import FILE, DigestStore
from bridge.digests.items import Items
from bridge.digests.requests import RELEASE, Requests
from bridge.digests.signed_links import Act, Link, LinkKeys
from bridge.runtime.database import Database
from bridge.testing import answer, result, until
from bridge.user_pages.call import Call, Pages, RecentUses
from bridge.user_pages.pages import links, sign_in
from tests.console.held_kit import holding
from tests.digests.digest_kit import users
from tests.digests.test_user_pages import signed_in

PLUS = {"recipient_delimiter": "+"}


def audited(directory: Path, action: str) -> int:
    with closing(sqlite3.connect(directory / "state" / "console.sqlite")) as database:
        found = database.execute("SELECT count(*) FROM console_audit WHERE action = ?", (action,)).fetchone()
    return int(found[0])


def link_path(directory: Path, act: Act, mail: str, recipient: str) -> str:
    keys = LinkKeys(directory / "state" / "digest-keys")
    return keys.sign(Link(act, int(time.time()) + 9999, mail, recipient))


def test_a_long_address_of_one_mail_took_the_page_of_choices_away(tmp_path: Path) -> None:
    """The sender chooses what follows the delimiter; a list has no address of that length."""
    with users(tmp_path, PLUS, late_decisions={"store": "off"}) as world:
        person = signed_in(world, "jane@a.example")
        world.scanner.reply = answer(200, result(decision="quarantine", verdict="spam", tags=["spam:bulk"]))
        address = f"jane+{'a' * 60}@a.example"
        with world.bridge.client() as client:
            client.begin(b"<x@client.example>", f"<{address}>".encode())
            assert client.say(b"Subject: x\r\n\r\nx\r\n.")[0].startswith(b"250")
        until(lambda: address in person.get("/").text, "the mail on her page")
        assert person.get("/choices").status == 200


def test_one_link_filled_the_audit_log(tmp_path: Path) -> None:
    """Unsubscribing twice changes nothing, and looking again and again is recorded a few times."""
    with users(tmp_path) as world:
        with holding(tmp_path) as put:
            put("HELD1", "jane@a.example")
        leave = f"/u/{link_path(tmp_path, Act.UNSUBSCRIBE, '', 'jane@a.example')}"
        view = f"/l/{link_path(tmp_path, Act.VIEW, 'HELD1', 'jane@a.example')}"
        browser = world.served.browser()
        for _ in range(6):
            form = b"List-Unsubscribe=One-Click"
            assert browser.ask("POST", leave, form, Origin=None, Sec_Fetch_Site=None).status == 200
            browser.get(view)
            assert browser.post(view).status == 200
        assert audited(tmp_path, "chose a schedule") == 1
        assert audited(tmp_path, "viewed own held mail") == 3


async def test_one_sign_in_link_filled_the_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a link works again and again, and each sign-in is recorded."""
    entries: list[str] = []

    async def audit(_call: Call, action: str, *, name: str) -> None:
        entries.append(name)

    monkeypatch.setattr(Call, "audit", audit)
    sources: Any = SimpleNamespace(
        settings=SimpleNamespace(config=SimpleNamespace(languages=["en"])),
        sessions=SimpleNamespace(begin=lambda person: "x"),
        page=SimpleNamespace(session_max=60.0),
    )
    request: Any = SimpleNamespace(headers={}, cookies={})
    pages = Pages("")
    pages.changed = RecentUses(2)
    for person in ("jane", "jane", "joe"):
        await sign_in.begin(Call(request, sources, pages, "192.0.2.1"), person, "signed in with a link in a digest")
    with pytest.raises(Refused, match="later"):
        await sign_in.begin(Call(request, sources, pages, "192.0.2.1"), "jane", "signed in with a link in a digest")
    assert entries == ["jane", "jane", "joe"]


def test_one_user_filled_the_audit_log(tmp_path: Path) -> None:
    """Mails that do not exist: the first refusals of an hour are recorded, whatever is asked for."""
    with users(tmp_path) as world:
        person = signed_in(world, "jane@a.example")
        for number in range(40):
            assert person.get(f"/mail/NONE{number}").status == 404
        assert audited(tmp_path, "asked for /mail/{id}") == 30


async def test_all_addresses_of_a_person_share_their_turns() -> None:
    """With a link for each of many addresses, one person took all places of those who read their mail."""
    link = Link(Act.VIEW, int(time.time()) + 9999, "HELD1", "jane+7@a.example")
    sources: Any = SimpleNamespace(
        settings=SimpleNamespace(config=SimpleNamespace(languages=["en"])),
        maker=SimpleNamespace(keys=SimpleNamespace(verify=lambda token, now: link)),
        people=SimpleNamespace(person_of=lambda recipient: "jane@a.example"),
        items=SimpleNamespace(person=lambda person: SimpleNamespace(language="")),
    )
    request: Any = SimpleNamespace(headers={}, path_params={"token": "x"})
    call = Call(request, sources, Pages(""), "192.0.2.1")
    await links._verified(call, is_use=True)
    call.pages.reading = PersonTurns(most=1, max_waiting=1)
    async with call.pages.reading.turn("jane@a.example"):  # one of her other addresses
        with pytest.raises(Refused):
            await call.read_mail(1, lambda: None)
    assert await call.read_mail(1, lambda: 7) == 7


def test_recent_uses_end_after_a_few() -> None:
    uses = RecentUses(2)
    assert [uses.is_one_of_few("a") for _ in range(3)] == [True, True, False]
    assert uses.is_one_of_few("b")


def test_requests_of_one_user_hid_those_of_all_others(tmp_path: Path) -> None:
    """The oldest of each person come first; and someone whose request was not stored is told so."""
    with closing(DigestStore(Database.file(tmp_path / "digests.sqlite"))) as store:
        requests = Requests(store, "")
        for number in range(210):
            asked = requests.ask(RELEASE, f"M{number}", "mallory@a.example", "mallory@a.example", "")
            assert (asked is not None) == (number < 200)
        assert requests.ask(RELEASE, "JANES", "jane@a.example", "jane@a.example", "")
        found = requests.waiting(limit=50)
    assert [each.person for each in found[:3]] == ["mallory@a.example", "jane@a.example", "mallory@a.example"]


@pytest.mark.parametrize("state", ["refused", None])
def test_a_request_that_was_not_stored_was_said_to_be_received(tmp_path: Path, state: str | None) -> None:
    facts: dict[str, Any] = {"verdict": "phishing", "tags": ["phishing:x"]}
    with users(tmp_path) as world:
        with holding(tmp_path) as put:
            put("HELD1", "jane@a.example", **facts)
        person = signed_in(world, "jane@a.example")
        until(lambda: "HELD1" in person.get("/").text, "the mail on her page")
        with closing(DigestStore(Database.file(tmp_path / "state" / FILE))) as store:
            requests = Requests(store, "")
            if state:
                assert person.post("/mail/HELD1/release").status == 303
                (asked,) = requests.waiting()
                assert requests.refuse(asked.seq, "ann") is not None
            else:
                for number in range(200):
                    assert requests.ask(RELEASE, f"M{number}", "jane@a.example", "jane@a.example", "")
        assert person.post("/mail/HELD1/release").status == (409 if state else 429)


def test_an_entry_for_an_address_without_held_mail_could_not_be_removed(tmp_path: Path) -> None:
    """It stayed in effect."""
    with users(tmp_path, PLUS, personal_lists={"allow_by": "users"}) as world:
        with holding(tmp_path) as put:
            put("HELD1", "jane+shop@a.example")
        person, other = signed_in(world, "jane@a.example"), signed_in(world, "jim@a.example")
        until(lambda: "HELD1" in person.get("/").text, "the mail on her page")
        assert person.post("/mail/HELD1/block").status == 303
        assert person.post("/mail/HELD1/delete").status == 303
        with closing(DigestStore(Database.file(tmp_path / "state" / FILE))) as store:
            Items(store, "").forget(time.time() + 1)
        assert "jane+shop@a.example" in person.get("/choices").text
        assert "jane+shop@a.example" not in other.get("/choices").text
