"""Users sign in with the console's OpenID Connect provider, by the address that it has verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bridge.console.audit import MAX_STRANGERS, OTHERS
from bridge.console.database import FILE, ConsoleStore
from bridge.console.sign_in_attempts import Attempts
from bridge.runtime.database import Database
from bridge.testing import free_port, until
from bridge.user_pages.pages import sign_in
from tests.console.held_kit import CONTENT, hold
from tests.console.test_console_oidc import ROLES, agree, back, guess, provider, provider_of_strangers
from tests.digests.digest_kit import Browser, Users, users


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    directory, port = tmp_path_factory.mktemp("oidc"), free_port()
    with provider(directory, f"http://127.0.0.1:{port}/sign-in/back") as issuer:
        console = {
            "address": f"127.0.0.1:{free_port()}",
            "oidc": {"issuer": issuer, "client_id": "public", "roles": ROLES, "label": "the test provider"},
        }
        (directory / "aliases").write_text("")
        page = {"page": {"address": f"127.0.0.1:{port}"}, "aliases_file": "aliases"}
        with users(directory, page, console=console) as made:
            yield made


def returned(browser: Browser, name: str) -> tuple[int, str, str]:
    begun = browser.get("/sign-in/provider")
    assert begun.status == 303, begun.text
    answer = back(browser, agree(begun.target, name))
    return answer.status, answer.target, answer.text


def test_a_verified_address_signs_its_owner_in(world: Users) -> None:
    """Ann is an administrator of the console: here she sees her own mail, and no more."""
    hold(world.directory, "ANN1", "ann@a.example", CONTENT.replace(b"hello", b"for ann"))
    hold(world.directory, "JIM1", "jim@a.example", CONTENT.replace(b"hello", b"for jim"))
    browser = world.served.browser()
    assert "Sign in with the test provider" in browser.get("/sign-in").text
    assert returned(browser, "ann")[:2] == (303, "/")
    listed = browser.get("/").text
    assert "for ann" in listed and "for jim" not in listed


@pytest.mark.parametrize("name", ["vic", "zoe", "nobody"])
def test_an_address_that_is_not_verified_or_not_ours_is_refused(world: Users, name: str) -> None:
    browser = world.served.browser()
    assert returned(browser, name)[0] == 403
    assert browser.get("/").target == "/sign-in"
    assert any(line.startswith("signed in with the provider||refused|") for line in world.audit())


def test_an_answer_is_used_once_and_in_the_browser_that_began(world: Users) -> None:
    browser = world.served.browser()
    target = agree(browser.get("/sign-in/provider").target, "ann")
    assert back(world.served.browser(), target).status == 403
    assert back(browser, target).status == 303
    assert back(browser, target).status == 403


def test_an_alias_signs_its_owner_in_who_finds_mail_that_was_read_before(world: Users) -> None:
    """The provider knows the person by another address than the one that their mail comes to."""
    hold(world.directory, "OWNER1", "owner@a.example", CONTENT.replace(b"hello", b"for the owner"))
    hold(world.directory, "LOGIN1", "ann@a.example", CONTENT.replace(b"hello", b"for the alias"))
    browser = world.served.browser()
    assert returned(browser, "ann")[:2] == (303, "/")
    until(lambda: "for the alias" in browser.get("/").text, "the list")  # it is read as Ann's
    aliases = world.directory / "aliases"
    aliases.write_text("ann@a.example owner@a.example\n")
    try:
        browser = world.served.browser()
        assert returned(browser, "ann")[:2] == (303, "/")
        until(lambda: "for the owner" in browser.get("/").text, "the list")
        assert world.command("digest", "preview", "--to", "owner@a.example").returncode == 0
        until(lambda: "for the alias" in browser.get("/").text, "the list")
    finally:
        aliases.write_text("")


def test_answers_that_no_provider_sent_do_not_fill_the_audit_log(world: Users) -> None:
    """Each GET of a stranger wrote an entry; now the first ones do, and the others are counted."""
    browser = world.served.browser()
    for _ in range(MAX_STRANGERS + 20):
        assert browser.get("/sign-in/back?code=x&state=y").status == 403
    entries = world.audit()
    assert sum(line.startswith("signed in with the provider||refused|") for line in entries) <= MAX_STRANGERS
    (others,) = [line for line in entries if line.startswith(OTHERS)]
    assert int(others.rpartition("|")[2].partition(" ")[0]) >= 20


def test_strangers_made_the_pages_ask_the_provider_without_end(tmp_path: Path) -> None:
    """They were told that there were too many attempts, after the provider had been asked."""
    with provider_of_strangers() as (issuer, asked):
        oidc = {"issuer": issuer, "client_id": "public", "roles": ROLES}
        with users(tmp_path, console={"address": f"127.0.0.1:{free_port()}", "oidc": oidc}) as made:
            with closing(ConsoleStore(Database.file(tmp_path / "state" / FILE))) as store:
                for _ in range(sign_in._MAX_PER_ADDRESS - 5):
                    assert Attempts(store).admit(None, "127.0.0.1", pages=sign_in._ASKED, max_per_address=300) == 0
            browser = made.served.browser()
            assert [guess(browser) for _ in range(8)] == [403] * 5 + [429] * 3
            assert len(asked) == 5


def test_answers_that_no_provider_sent_used_up_the_tries_of_codes(world: Users) -> None:
    """Any page can have a browser ask for that address, and so kept a whole office from signing in.

    The last test here: it uses up the tries of this address.
    """
    browser = world.served.browser()
    found = [browser.get("/sign-in/back?code=x&state=y").status for _ in range(sign_in._MAX_PER_ADDRESS + 1)]
    assert found[-1] == 429
    browser.get("/sign-in")
    assert browser.post("/sign-in/code", address="ann@a.example", code="000000").status == 403
    assert returned(browser, "ann")[:2] == (303, "/")  # nor those of real answers
