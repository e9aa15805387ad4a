"""What operators see of digests in the console: requests that wait, and samples."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from bridge.console.roles import Role
from bridge.digests.database import FILE, DigestStore
from bridge.digests.requests import ALLOW, RELEASE, Requests
from bridge.lists.personal_store import FILE as PERSONAL_FILE
from bridge.lists.personal_store import PersonalLists
from bridge.runtime.database import Database
from bridge.testing import free_port
from tests.console.browser_kit import EACH_LOOK, LOOKS, chromium, overflows, window, wrong_for_readers
from tests.console.console_kit import TENANT_A, TENANT_B, TENANTS, Browser, ConsoleProcess, console_process
from tests.console.held_kit import CONTENT, hold
from tests.console.test_console_quarantine import wait_for_jobs
from tests.digests.digest_kit import Users, links, users


@dataclass
class World:
    users: Users
    console: ConsoleProcess

    def ask(self, mail: str, recipient: str, tenant: str, kind: str = RELEASE) -> str:
        """A request that waits; returns its number."""
        facts = {"verdict": "malware", "tags": ["malware:any"], "reasons": ["an attached page runs a script"]}
        hold(self.users.directory, mail, recipient, **facts)
        with closing(DigestStore(Database.file(self.users.directory / "state" / FILE))) as store:
            requests = Requests(store, "")
            assert requests.ask(kind, mail, recipient, recipient, tenant)
            return str(next(one.seq for one in requests.waiting() if one.mail == mail))

    def released(self) -> list[list[str]]:
        return [mail.recipients for mail in self.users.received()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory, port = tmp_path_factory.mktemp("requests"), free_port()
    sections = {"console": {"address": f"127.0.0.1:{port}", "undo_period": "1s"}, "tenants": TENANTS}
    digests = {"domains": ["a.example", "b.example"], "tenants": [{"uid": TENANT_B, "language": "fr"}]}
    with (
        users(directory, digests, **sections) as made,
        console_process(directory / "bridge.yml", port) as console,
    ):
        yield World(made, console)


def releaser(world: World, *tenants: str) -> Browser:
    return world.console.signed_in(Role.RELEASER, frozenset(tenants) if tenants else None, name="rita")


def test_a_releaser_sees_and_decides_the_requests_of_their_tenants(world: World) -> None:
    own, other = world.ask("REQA", "x@a.example", TENANT_A), world.ask("REQB", "x@b.example", TENANT_B)
    browser = releaser(world, TENANT_A)
    page = browser.get("/requests").text
    assert "x@a.example" in page and "x@b.example" not in page and "an attached page runs a script" in page
    for action in ("grant", "refuse"):
        assert browser.post(f"/requests/actions/{action}", {"request": other}).status == 404
    before = len(world.released())
    assert browser.post("/requests/actions/grant", {"request": own}).target == "/requests?notice=request-granted"
    assert world.released()[before:] == [["x@a.example"]]
    for action in ("grant", "refuse"):
        assert browser.post(f"/requests/actions/{action}", {"request": own}).status == 409
    assert releaser(world).post("/requests/actions/refuse", {"request": other}).status == 303
    assert len(world.released()) == before + 1


def test_a_granted_release_was_recorded_in_the_name_of_a_login(world: World) -> None:
    """In `actions.log`, `rita` is a login of the machine: a user of the console may have the same name."""
    request = world.ask("REQWHO", "who@a.example", TENANT_A)
    assert releaser(world).post("/requests/actions/grant", {"request": request}).status == 303
    actions = (world.users.directory / "state" / "quarantine" / "actions.log").read_text().splitlines()
    (done,) = [line for line in map(json.loads, actions) if line["id"] == "REQWHO"]
    assert (done["action"], done["by"]) == ("released", "console:rita")


def test_two_releasers_grant_at_the_same_moment(world: World) -> None:
    request = world.ask("REQTWO", "two@a.example", TENANT_A)
    before, answers = len(world.released()), []
    browsers = [releaser(world) for _ in range(4)]
    threads = [
        threading.Thread(
            target=lambda one=one: answers.append(one.post("/requests/actions/grant", {"request": request}).status)
        )
        for one in browsers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [303, 409, 409, 409]
    assert world.released()[before:] == [["two@a.example"]]


def test_everybody_who_may_release_a_mail_does_so_at_the_same_moment(world: World) -> None:
    """Its recipient, two operators in the console, and the command line; each mail is delivered once."""
    mails = [f"ALL{number}" for number in range(3)]
    for mail in mails:
        hold(world.users.directory, mail, f"{mail.lower()}@a.example", CONTENT.replace(b"hello", mail.encode()))
    digests, before = world.users.send_digests("--now"), len(world.released())
    work: list[Callable[[], object]] = []
    operator = releaser(world)
    with closing(DigestStore(Database.file(world.users.directory / "state" / FILE))) as store:
        requests = Requests(store, "")
        for mail in mails:
            address = f"{mail.lower()}@a.example"
            assert requests.ask(RELEASE, mail, address, address, TENANT_A)
        waiting = {request.mail: str(request.seq) for request in requests.waiting()}
    for mail in mails:
        link, user, another = (
            links(digests[f"{mail.lower()}@a.example"])[0],
            world.users.served.browser(),
            releaser(world),
        )
        user.get(link)
        work += [
            partial(user.post, link),
            partial(another.post, "/requests/actions/grant", {"request": waiting[mail]}),
            partial(world.users.command, "quarantine", "release", mail),
        ]
        assert operator.post("/quarantine/actions/release", {"mail": mail}).status == 303  # begins in a second
    with ThreadPoolExecutor(len(work)) as pool:
        list(pool.map(lambda press: press(), work))
    wait_for_jobs(operator)
    assert sorted(world.released()[before:]) == [[f"{mail.lower()}@a.example"] for mail in mails]


def test_what_cannot_be_done_waits_as_before(world: World) -> None:
    request = world.ask("REQFAIL", "fail@a.example", TENANT_A)
    rule = b"RCPT <fail@a.example>"
    world.users.next_hop.replies[rule] = b"451 4.3.0 later"
    assert releaser(world).post("/requests/actions/grant", {"request": request}).status == 409
    del world.users.next_hop.replies[rule]
    assert releaser(world).post("/requests/actions/grant", {"request": request}).status == 303
    gone = world.ask("REQGONE", "gone@a.example", TENANT_A)
    assert world.users.command("quarantine", "delete", "REQGONE", "--yes").returncode == 0
    assert "no longer in the quarantine" in releaser(world).get("/requests").text
    assert releaser(world).post("/requests/actions/grant", {"request": gone}).status == 409
    assert releaser(world).post("/requests/actions/refuse", {"request": gone}).status == 303


def test_an_allow_that_is_granted_is_an_entry_of_that_recipient(world: World) -> None:
    request = world.ask("REQALLOW", "allow@a.example", TENANT_A, ALLOW)
    before = len(world.released())
    assert releaser(world).post("/requests/actions/grant", {"request": request}).status == 303
    assert len(world.released()) == before  # the mail itself stays
    lists = PersonalLists(Database.file(world.users.directory / "state" / PERSONAL_FILE))
    (entry,) = lists.entries("allow@a.example")
    lists.close()
    assert (entry.kind, entry.sender, entry.by) == ("allow", "john@client.example", "console:rita")


def test_viewers_do_not_decide(world: World) -> None:
    request = world.ask("REQVIEW", "view@a.example", TENANT_A)
    browser = world.console.signed_in(Role.VIEWER)
    assert browser.get("/requests").status == 403
    assert "Requests" not in browser.get("/").text
    assert browser.post("/requests/actions/grant", {"request": request}).status == 403


def test_a_sample_in_every_language_and_of_every_tenant(world: World) -> None:
    browser = world.console.signed_in(Role.ADMIN)
    assert "3 mails are held for you" in browser.get("/digests/html").text
    assert "3 E-Mails werden" in browser.get("/digests/html?language=de").text
    assert f"tenant b.example ({TENANT_B})" in browser.get(f"/digests?tenant={TENANT_B}").text
    assert "3 mails are held" in browser.get("/digests/html?language=../x&tenant=nobody").text
    policy = browser.get("/digests/html").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "sandbox" in policy and "script-src" not in policy
    assert "unsafe-inline" not in browser.get("/digests").headers["content-security-policy"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_pages_read_well_and_fit(world: World, browser: Any, look: str) -> None:
    world.ask(f"LOOK{look.replace('-', '')}", f"{look}@a.example", TENANT_A)
    with window(browser, world.console, **LOOKS[look]) as page:
        for path in ("/requests", "/digests"):
            page.goto(path)
            assert wrong_for_readers(page) == [], path
            assert not overflows(page), path
