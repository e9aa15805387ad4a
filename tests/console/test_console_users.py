"""The page for local users: what administrators can do with it, and what they cannot break."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge.console import database
from bridge.console.audit import Audit, AuditEntry
from bridge.console.database import ConsoleStore
from bridge.console.guard import SESSION_COOKIE
from bridge.console.pages.users import PER_PAGE
from bridge.console.roles import Role
from bridge.console.sessions import SignInLinks
from bridge.console.users import UserMistake, Users
from bridge.runtime.database import Database
from tests.console.browser_kit import EACH_LOOK, LOOKS, WIDE, overflows, window, wrong_for_readers
from tests.console.console_kit import PASSWORD, TENANT_A, Answer, Browser, World
from tests.postgresql import fresh_database, postgresql  # noqa: F401  a fixture

ALL = {"scope": "all"}


@pytest.fixture
def console(shared: World) -> Iterator[World]:
    """With one administrator, root, and no other users."""
    with closing(shared.console.store) as store, store.writing() as connection:
        connection.execute(database.users.delete())
    shared.console.add_user("root")
    yield shared


def users_of(world: World) -> dict[str, tuple[Role, frozenset[str] | None]]:
    with closing(world.console.store) as store:
        return {user.person.name: (user.person.role, user.person.tenants) for user in Users(store).listed()}


def last_entry(world: World) -> AuditEntry:
    with closing(world.console.store) as store:
        return Audit(store).find(limit=1)[0]


def signed_in_with_password(world: World, name: str, password: str = PASSWORD) -> Browser:
    browser = world.console.browser()
    assert browser.sign_in(name, password).status == 303
    return browser


def link_on(answer: Answer) -> str:
    """The path of the link on a page."""
    found = re.search(r"<code>http://[^/]+(/password/[\w-]+)</code>", answer.text)
    assert found is not None, answer.text
    return found[1]


def test_a_user_is_added_changed_and_removed(console: World) -> None:
    """Each step is in the audit log; who is changed has to sign in again."""
    admin = signed_in_with_password(console, "root")
    form = {"name": "jo", "role": "viewer", "scope": "some", "tenant": TENANT_A, "password": PASSWORD}
    assert admin.post("/users/actions/add", form).target == "/users?notice=user-added"
    assert users_of(console)["jo"] == (Role.VIEWER, frozenset({TENANT_A}))
    entry = last_entry(console)
    assert (entry.name, entry.action, entry.detail) == ("root", "added a user", f"jo: viewer, {TENANT_A}")
    assert "tenant a.example" in admin.get("/users").text and "never" in admin.get("/users").text
    user = signed_in_with_password(console, "jo")
    assert user.get("/users").status == 403
    form = {"name": "jo", "role": "releaser", **ALL}
    assert admin.post("/users/actions/change", form).target == "/users/jo?notice=user-changed"
    assert users_of(console)["jo"] == (Role.RELEASER, None) and user.get("/mail").status == 303
    user = signed_in_with_password(console, "jo")
    assert admin.post("/users/actions/password", {"name": "jo", "password": "another long one"}).status == 303
    assert user.get("/mail").status == 303 and console.console.browser().sign_in("jo").status == 403
    user = signed_in_with_password(console, "jo", "another long one")
    assert admin.post("/users/actions/remove", {"name": "jo"}).status == 400
    assert admin.post("/users/actions/remove", {"name": "jo", "sure": "yes"}).target == "/users?notice=user-removed"
    assert "jo" not in users_of(console) and user.get("/mail").status == 303
    assert last_entry(console).action == "removed a user" and admin.get("/users/jo").status == 404
    with closing(console.console.store) as store:
        assert all("another long" not in entry.detail for entry in Audit(store).find())


def test_the_last_administrator_stays(console: World) -> None:
    """With a role or mail that is less, or removed, nobody could undo it."""
    admin = signed_in_with_password(console, "root")
    admin.post("/users/actions/add", {"name": "half", "role": "admin", "scope": "some", "others": TENANT_A})
    for action, form in (
        ("remove", {"sure": "yes"}),
        ("change", {"role": "viewer", **ALL}),
        ("change", {"role": "admin", "scope": "some", "others": TENANT_A}),
    ):
        answer = admin.post(f"/users/actions/{action}", {"name": "root", **form})
        assert answer.status == 400 and "the last administrator" in answer.text
        assert users_of(console)["root"] == (Role.ADMIN, None) and last_entry(console).result == "failed"
    admin.post("/users/actions/add", {"name": "second", "role": "admin", **ALL, "password": PASSWORD})
    assert admin.post("/users/actions/remove", {"name": "root", "sure": "yes"}).status == 303
    assert set(users_of(console)) == {"half", "second"} and admin.get("/users").status == 303


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_administrators_cannot_remove_each_other(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """At the same moment: one of them stays."""
    place = Database.file(tmp_path / "console.sqlite")
    if kind == "postgresql":
        place = Database(fresh_database(request.getfixturevalue("postgresql")))
    with closing(ConsoleStore(place)) as store:
        names = [f"admin{number}" for number in range(6)]
        for name in names:
            Users(store).add(name, None, Role.ADMIN)

        def remove(name: str) -> bool:
            try:
                Users(store).remove(name, keep_admin=True)
            except UserMistake:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            assert sum(pool.map(remove, names)) == 5
        assert len(Users(store).listed()) == 1


def test_a_link_lets_a_user_choose_a_password_once(console: World) -> None:
    """It is not a sign-in link, opening it does nothing, and a bad password does not use it up."""
    admin = signed_in_with_password(console, "root")
    path = link_on(admin.post("/users/actions/add", {"name": "jo", "role": "viewer", **ALL}))
    token = path.rpartition("/")[2]
    assert token not in last_entry(console).detail and token not in console.console.log
    user = console.console.browser()
    assert user.get(path).status == user.get(path).status == 200
    assert user.post("/enter", {"token": token}).status == 403  # neither is the other
    with closing(console.console.store) as store:
        sign_in = SignInLinks(store).make("jo")
    assert user.post("/password", {"token": sign_in, "password": PASSWORD}).status == 403
    short = user.post("/password", {"token": token, "password": "short"})
    assert short.status == 400 and "A password must be 10 to 1000 characters long" in short.text
    assert user.post("/password", {"token": token, "password": PASSWORD}).target == "/sign-in?notice=password-chosen"
    assert last_entry(console).action == "set a password with a link" and last_entry(console).name == "jo"
    assert user.post("/password", {"token": token, "password": "another long one"}).status == 403
    user.cookies.clear()
    assert user.sign_in("jo").status == 303 and SESSION_COOKIE in user.cookies
    path = link_on(admin.post("/users/actions/link", {"name": "jo"}))
    admin.post("/users/actions/remove", {"name": "jo", "sure": "yes"})
    answer = user.post("/password", {"token": path.rpartition("/")[2], "password": PASSWORD})
    assert answer.status == 403 and "jo" not in users_of(console)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"name": "", "role": "viewer", **ALL}, "A name consists of"),
        ({"name": "<b>", "role": "viewer", **ALL}, "A name consists of"),
        ({"name": "root", "role": "viewer", **ALL}, "User root already exists"),
        ({"name": "jo", "role": "owner", **ALL}, "Choose a role"),
        ({"name": "jo", "role": "viewer"}, "Choose all mail, or at least one tenant"),
        ({"name": "jo", "role": "viewer", "scope": "some"}, "Choose all mail, or at least one tenant"),
        ({"name": "jo", "role": "viewer", "scope": "some", "others": "x"}, "A tenant must be a UUID"),
        ({"name": "jo", "role": "viewer", **ALL, "password": "short"}, "A password must be 10 to 1000 characters long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_adds_nobody(console: World, form: dict[str, Any], said: str) -> None:
    """The page says what is wrong and keeps what was typed, except for the password."""
    answer = console.console.signed_in().post("/users/actions/add", form)
    assert answer.status == 400 and said in html.unescape(answer.text)
    assert set(users_of(console)) == {"root"} and 'value="short"' not in answer.text


def test_many_users_have_pages(console: World) -> None:
    """Each is on exactly one."""
    with closing(console.console.store) as store, store.writing() as connection:
        rows = [{"name": f"u{number:03d}", "password": "", "role": "viewer", "tenants": "*", "made_at": 1.0}
                for number in range(PER_PAGE + 10)]  # fmt: skip
        connection.execute(database.users.insert(), rows)
    browser, path, seen = console.console.signed_in(), "/users", []
    while path:
        page = browser.get(path)
        seen += re.findall(r'href="/users/([^"?]+)"', page.text)
        following = re.search(r'<a href="([^"]+)" rel="next">', page.text)
        path = html.unescape(following[1]) if following else ""
    assert seen == ["root", *(f"u{number:03d}" for number in range(PER_PAGE + 10))]


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_pages_read_well_and_fit(console: World, browser: Any, look: str) -> None:
    """For readers of the screen, at both widths and in both themes."""
    console.console.add_user(
        "jo.the-longest-name-that-somebody-has@mail.example.org", Role.VIEWER, frozenset({TENANT_A})
    )
    with window(browser, console.console, **LOOKS[look]) as page:
        page.goto("/users")
        page.get_by_text("Add a user").first.click()
        assert not overflows(page) and wrong_for_readers(page) == []
        page.get_by_role("link", name="jo.the-longest").click()
        page.get_by_role("heading", name="Role and mail").wait_for()
        assert not overflows(page) and wrong_for_readers(page) == []
        page.get_by_role("button", name="Make a link").click()
        page.get_by_role("heading", name="A link for").wait_for()
        assert not overflows(page) and wrong_for_readers(page) == []
        link = page.locator("pre code").inner_text()
    with window(browser, console.console, None, **LOOKS[look]) as page:
        page.goto(link)
        page.get_by_role("heading", name="Choose a password").wait_for()
        assert not overflows(page) and wrong_for_readers(page) == []


def test_a_user_is_added_with_the_keyboard_alone(console: World, browser: Any) -> None:
    """From the menu to the link."""
    with window(browser, console.console, viewport=WIDE) as page:
        page.goto("/users")
        page.get_by_text("Add a user").first.focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("kim")
        page.keyboard.press("Tab")
        page.keyboard.type("releaser")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="A link for kim").wait_for()
    assert users_of(console)["kim"] == (Role.RELEASER, None)
