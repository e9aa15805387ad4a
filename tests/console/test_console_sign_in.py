"""Signing in: users, passwords, sessions, links, and everything that is refused."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import product

import pytest
from click.testing import CliRunner
from sqlalchemy import delete, update

from bridge.cli import main
from bridge.console import database
from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Role
from bridge.console.sessions import SignInLinks
from bridge.console.sign_in_attempts import MAX_PER_ADDRESS, MAX_PER_USER, Attempts
from tests.console.console_kit import PASSWORD, TENANT_A, World


@pytest.fixture
def own(shared: World) -> World:
    """Without users, sessions and attempts of earlier tests."""
    with closing(shared.console.store) as store, store.writing() as connection:
        for table in database.metadata.tables.values():
            connection.execute(delete(table))
    return shared


NAMES, PASSWORDS = ("admin", "root", "demo", "scanbridge"), ("admin", "", "scanbridge", "password")


@pytest.mark.parametrize(
    "guesses",
    [list(zip(NAMES, PASSWORDS, strict=True)), pytest.param(list(product(NAMES, PASSWORDS)), marks=pytest.mark.long)],
    ids=["each", "all"],
)
def test_the_first_start_says_how_to_make_a_user(own: World, guesses: list[tuple[str, str]]) -> None:
    """There is no default password."""
    command = f"scanbridge console -c {own.console.config} user add NAME --role admin"
    assert f"no user can sign in yet: add one with `{command}`" in own.console.log
    assert f"no users; add one with `{command}`" in own.console.command("user", "list").stderr
    assert "scanbridge console user add NAME --role admin" in own.console.browser().get("/sign-in").text
    for name, password in guesses:
        if own.console.browser().sign_in(name, password).status == 303:
            pytest.fail(f"{name} could sign in with {password!r}")


def test_a_user_signs_in_and_out(own: World) -> None:
    """The command adds the user; the session ends with the sign-out, also on the server."""
    done = own.console.command("user", "add", "ann", "--role", "admin", input=f"{PASSWORD}\n")
    assert done.returncode == 0 and PASSWORD not in done.stdout + done.stderr
    browser = own.console.browser()
    assert browser.get("/mail?what=x").target == "/sign-in?next=%2Fmail%3Fwhat%3Dx"
    browser.get("/sign-in")
    form = {"name": "ann", "password": PASSWORD, "next": "/audit"}
    answer = browser.post("/sign-in", form)
    assert (answer.status, answer.target) == (303, "/audit")
    session = browser.cookies[SESSION_COOKIE]
    assert browser.get("/audit").status == 200
    assert browser.post("/sign-out").target == "/sign-in?notice=signed-out"
    assert SESSION_COOKIE not in browser.cookies
    browser.cookies[SESSION_COOKIE] = session
    assert browser.get("/audit").status == 303
    assert PASSWORD not in own.console.log and session not in own.console.log


def test_the_cookie_cannot_be_read_by_a_script_or_set_by_another_site(own: World) -> None:
    """Browsers keep the name's promises: Secure, Path=/, no Domain."""
    own.console.add_user("ann")
    browser = own.console.browser()
    raw = browser.sign_in("ann").headers["set-cookie"]
    assert raw.startswith("__Host-scanbridge") and "HttpOnly" in raw and "Secure" in raw and "Path=/" in raw
    assert "SameSite=lax" in raw and "Domain" not in raw


@pytest.mark.parametrize(
    "target", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:x", "/\n"]
)
def test_a_sign_in_does_not_lead_to_another_site(own: World, target: str) -> None:
    """`next` is a page of ours or nothing."""
    own.console.add_user("ann")
    browser = own.console.browser()
    browser.get("/sign-in")
    assert browser.post("/sign-in", {"name": "ann", "password": PASSWORD, "next": target}).target == "/"


def test_a_session_that_was_planted_is_not_used(own: World) -> None:
    """Session fixation: the id is always new, and the one that the browser had ends."""
    own.console.add_user("ann")
    victim, attacker = own.console.browser(), own.console.signed_in(Role.VIEWER, name="attacker")
    planted = attacker.cookies[SESSION_COOKIE]
    victim.cookies[SESSION_COOKIE] = planted
    victim.sign_in("ann")
    assert victim.cookies[SESSION_COOKIE] != planted
    assert attacker.get("/").status == 303
    chosen = "A" * 43
    victim = own.console.browser()
    victim.cookies[SESSION_COOKIE] = chosen
    assert victim.get("/").status == 303
    victim.get("/sign-in")
    assert victim.sign_in("ann").status == 303 and victim.cookies[SESSION_COOKIE] != chosen


def test_a_wrong_password_and_an_unknown_name_get_the_same_answer(own: World) -> None:
    """Nobody learns which names exist."""
    own.console.add_user("ann")
    wrong, unknown = own.console.browser().sign_in("ann", "no"), own.console.browser().sign_in("zoe", "no")
    assert wrong.status == unknown.status == 403
    assert "The name or the password is wrong." in wrong.text and "The name or the password is wrong." in unknown.text


def test_attempts_are_limited_for_each_user(own: World) -> None:
    """After ten wrong passwords the right one is not tried either; another user is not affected, a restart no help."""
    own.console.add_user("ann")
    own.console.add_user("bob")
    for _ in range(MAX_PER_USER):
        assert own.console.browser().sign_in("ann", "wrong").status == 403
    answer = own.console.browser().sign_in("ann")
    assert answer.status == 429 and int(answer.headers["retry-after"]) > 60
    assert own.console.browser().sign_in("bob").status == 303
    with closing(own.console.store) as store, store.writing() as connection:
        connection.execute(update(database.attempts).values(at=time.time() - 1000))
    assert own.console.browser().sign_in("ann").status == 303


def test_attempts_are_limited_for_each_address(own: World) -> None:
    """Also if each attempt names another user, and all come at once."""
    own.console.add_user("ann")
    with closing(own.console.store) as store:
        for number in range(MAX_PER_ADDRESS - 5):
            assert Attempts(store).admit(f"somebody{number}", "127.0.0.1") == 0
    statuses = [own.console.browser().sign_in(f"user{number}", "wrong").status for number in range(7)]
    assert statuses == [403] * 5 + [429] * 2
    assert own.console.browser().sign_in("ann").status == 429


def test_a_session_ends(own: World) -> None:
    """After a while without use, and after a fixed time in any case; watching the live page is not use."""
    for column, age_s in (("used_at", 3601), ("begun_at", 12 * 3600 + 1)):
        browser = own.console.signed_in()
        assert browser.get("/sessions").status == 200
        with closing(own.console.store) as store, store.writing() as connection:
            connection.execute(update(database.sessions).values({column: time.time() - age_s}))
        answer = browser.get("/sessions")
        assert answer.status == 303 and "session-over" in answer.target
        assert browser.get("/live").status == 401


def test_sessions_are_listed_and_revoked(own: World) -> None:
    """Everyone ends their own; an administrator ends all; nobody else can."""
    ann, bob, admin = (own.console.signed_in(role, name=name) for role, name in (
        (Role.VIEWER, "ann"), (Role.VIEWER, "bob"), (Role.ADMIN, "root")))  # fmt: skip
    page = ann.get("/sessions").text
    assert "ann" in page and "bob" not in page
    label_of_bob = _label(bob.get("/sessions").text)
    assert ann.post("/sessions/revoke", {"session": label_of_bob}).status == 404
    assert bob.get("/sessions").status == 200
    assert "bob" in admin.get("/sessions").text
    assert admin.post("/sessions/revoke", {"session": label_of_bob}).status == 303
    assert bob.get("/sessions").status == 303


def _label(page: str) -> str:
    return page.split('name="session" value="')[1][:12]


def test_changing_or_removing_a_user_ends_their_sessions(own: World) -> None:
    """Also if they are signed in at that moment."""
    own.console.add_user("ann")
    for words in (("user", "password", "ann"), ("user", "remove", "ann")):
        browser = own.console.browser()
        password = PASSWORD if words[1] == "password" else "another long one"
        assert browser.sign_in("ann", password).status == 303
        done = own.console.command(*words, input="another long one\n")
        assert done.returncode == 0, done.stderr
        assert browser.get("/sessions").status == 303
    assert own.console.browser().sign_in("ann", "another long one").status == 403


def test_a_link_signs_in_once(own: World) -> None:
    """Looking at the page does not use it up; using it twice does not work, nor after its time."""
    own.console.add_user("ann", Role.RELEASER)
    url = own.console.command("link", "ann").stdout.strip()
    assert url.startswith(f"http://127.0.0.1:{own.console.port}/enter/")
    token = url.rpartition("/")[2]
    browser = own.console.browser()
    assert browser.get(f"/enter/{token}").status == 200 and browser.get(f"/enter/{token}").status == 200
    assert browser.post("/enter", {"token": token}).target == "/"
    assert "releaser" in browser.get("/sessions").text
    other = own.console.browser()
    other.get(f"/enter/{token}")
    assert other.post("/enter", {"token": token}).status == 403
    with closing(own.console.store) as store:
        late = SignInLinks(store).make("ann", lasts_s=-1)
    assert other.post("/enter", {"token": late}).status == 403
    assert token not in own.console.log
    assert "last signed in" in own.console.command("user", "list").stdout  # before, only a password counted


def test_users_are_listed_with_role_and_tenants(own: World) -> None:
    """Never with their passwords."""
    own.console.add_user("ann", Role.VIEWER, frozenset({TENANT_A}))
    shown = own.console.command("user", "list").stdout
    assert shown == f"ann\tviewer\t{TENANT_A}\tnever signed in\n"


@pytest.mark.parametrize(
    ("words", "typed", "said"),
    [
        (("user", "add", "ann", "--role", "admin"), "short\n", "a password must be 10 to 1000 characters long"),
        (("user", "add", "ann", "--role", "admin"), "aaaaaaaaaaaa\n", "too easy to guess"),
        (("user", "add", "a b", "--role", "admin"), "long enough it is\n", "a name consists of letters, digits"),
        (("user", "add", "ann", "--role", "king"), "long enough it is\n", "'king' is not one of"),
        (("user", "add", "ann", "--role", "viewer", "--tenant", "x"), "long enough it is\n", "a tenant must be a UUID"),
        (("user", "remove", "zoe"), "", "there is no user zoe"),
        (("user", "password", "zoe"), "long enough it is\n", "there is no user zoe"),
        (("link", "zoe"), "", "there is no user zoe"),
    ],
)
def test_mistakes_are_explained(own: World, words: tuple[str, ...], typed: str, said: str) -> None:
    """Nothing is changed."""
    done = own.console.command(*words, input=typed)
    assert done.returncode in (1, 2) and said in done.stderr


def test_a_password_of_another_encoding_is_explained(own: World) -> None:
    """Such as one from a script in ISO 8859-1."""
    words = ["console", "user", "add", "ann", "--role", "admin", "-c", str(own.console.config)]
    done = CliRunner().invoke(main, words, input="ein langes Paßwort\n".encode("iso-8859-1"))
    assert done.exit_code == 1 and "standard input is not UTF-8 text" in done.output
    assert own.console.command("user", "list").stdout == ""
