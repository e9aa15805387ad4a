"""Who may ask for what: every row of the route table, with every role, for one's own tenant and another one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.console.navigation import ENTRIES
from bridge.console.roles import Role
from bridge.console.route import About, Route
from bridge.console.routes import ROUTES
from tests.console.console_kit import TENANT_A, TENANT_B, Answer, Browser, World
from tests.long_cases import by_turns


@dataclass(frozen=True)
class Example:
    """A request that the row allows. `{id}` is a mail of tenant A."""

    path: str
    form: dict[str, Any] = field(default_factory=dict)
    expected: tuple[int, ...] = (200,)  # the answers to a user with access


# Every row needs one: add it with the row.
EXAMPLES: dict[tuple[str, str], Example] = {
    ("GET", "/static/{name}"): Example("/static/console.css"),
    ("GET", "/sign-in"): Example("/sign-in", expected=(200, 303)),
    ("POST", "/sign-in"): Example("/sign-in", {"name": "nobody", "password": "wrong"}, (403, 429)),
    ("GET", "/sign-in/provider"): Example("/sign-in/provider", expected=(404,)),  # none is configured
    ("GET", "/sign-in/back"): Example("/sign-in/back", expected=(404,)),
    ("GET", "/enter/{token}"): Example(f"/enter/{'x' * 43}"),
    ("POST", "/enter"): Example("/enter", {"token": "x" * 43}, (403,)),
    ("POST", "/sign-out"): Example("/sign-out", expected=(303,)),
    ("GET", "/"): Example("/"),
    ("GET", "/live"): Example("/live"),
    ("GET", "/mail"): Example("/mail"),
    ("GET", "/mail/{id}"): Example("/mail/MAILA"),
    ("GET", "/quarantine"): Example("/quarantine"),
    ("GET", "/quarantine/jobs"): Example("/quarantine/jobs"),
    ("GET", "/quarantine/{id}"): Example("/quarantine/MAILA"),
    ("GET", "/quarantine/{id}/html"): Example("/quarantine/MAILA/html"),
    ("GET", "/quarantine/{id}/source"): Example("/quarantine/MAILA/source"),
    ("GET", "/quarantine/{id}/download"): Example("/quarantine/MAILA/download"),
    ("POST", "/quarantine/actions/release"): Example("/quarantine/actions/release", {"mail": "NONE"}, (404,)),
    ("POST", "/quarantine/actions/delete"): Example("/quarantine/actions/delete", {"mail": "NONE"}, (404,)),
    ("POST", "/quarantine/actions/report"): Example("/quarantine/actions/report", {"mail": "NONE"}, (404,)),
    ("POST", "/quarantine/actions/report-spam"): Example("/quarantine/actions/report-spam", {"mail": "NONE"}, (404,)),
    ("POST", "/quarantine/actions/block"): Example("/quarantine/actions/block", {"mail": "NONE"}, (404,)),
    ("POST", "/quarantine/actions/allow"): Example("/quarantine/actions/allow", {"mail": "NONE"}, (404,)),
    ("POST", "/quarantine/actions/undo"): Example("/quarantine/actions/undo", {"job": "none"}, (409,)),
    ("POST", "/quarantine/actions/dismiss"): Example("/quarantine/actions/dismiss", expected=(303,)),
    ("GET", "/lists"): Example("/lists"),
    ("GET", "/lists/{name}"): Example("/lists/partners", expected=(404,)),
    ("POST", "/lists/actions/add"): Example("/lists/actions/add", {"list": "x"}, (404,)),
    ("POST", "/lists/actions/delete"): Example("/lists/actions/delete", {"list": "x", "entry": "y"}, (404,)),
    ("POST", "/lists/actions/upload"): Example("/lists/actions/upload", {"list": "x"}, (404,)),
    ("POST", "/lists/actions/apply"): Example("/lists/actions/apply", {"upload": "x"}, (404,)),
    ("GET", "/lists/uploads/{number}"): Example("/lists/uploads/x", expected=(404,)),
    ("POST", "/lists/actions/cancel"): Example("/lists/actions/cancel", {"upload": "x"}, (404,)),
    ("GET", "/scan"): Example("/scan"),
    ("POST", "/scan"): Example("/scan", expected=(400,)),
    ("GET", "/statistics"): Example("/statistics"),
    ("GET", "/statistics/export"): Example("/statistics/export?by=tag&as=csv"),
    ("GET", "/sessions"): Example("/sessions"),
    ("POST", "/sessions/revoke"): Example("/sessions/revoke", {"session": "0" * 12}, (404,)),
    ("GET", "/audit"): Example("/audit"),
    ("GET", "/password/{token}"): Example(f"/password/{'x' * 43}"),
    ("POST", "/password"): Example("/password", {"token": "x" * 43, "password": "a long password"}, (403, 429)),
    ("GET", "/users"): Example("/users"),
    ("GET", "/users/{name}"): Example("/users/nobody", expected=(404,)),
    ("POST", "/users/actions/add"): Example("/users/actions/add", {"name": "x"}, (400,)),
    ("POST", "/users/actions/change"): Example("/users/actions/change", {"name": "nobody"}, (404,)),
    ("POST", "/users/actions/password"): Example("/users/actions/password", {"name": "nobody"}, (404,)),
    ("POST", "/users/actions/link"): Example("/users/actions/link", {"name": "nobody"}, (404,)),
    ("POST", "/users/actions/remove"): Example("/users/actions/remove", {"name": "nobody"}, (404,)),
    ("GET", "/settings"): Example("/settings"),
    ("POST", "/settings/check"): Example("/settings/check"),
    ("POST", "/settings/reload"): Example("/settings/reload"),
    ("GET", "/requests"): Example("/requests"),
    ("POST", "/requests/actions/grant"): Example("/requests/actions/grant", {"request": "1"}, (404,)),
    ("POST", "/requests/actions/refuse"): Example("/requests/actions/refuse", {"request": "1"}, (404,)),
    ("GET", "/digests"): Example("/digests"),
    ("GET", "/digests/html"): Example("/digests/html", expected=(404,)),
}
PEOPLE = [(role, tenants) for role in Role for tenants in (None, frozenset({TENANT_A}), frozenset({TENANT_B}))]
ROWS = {f"{route.method} {route.path}": route for route in ROUTES}


def ask(browser: Browser, route: Route, example: Example, **headers: str | None) -> Answer:
    return (
        browser.post(example.path, example.form, **headers) if route.changes else browser.get(example.path, **headers)
    )


def example_of(route: Route) -> Example:
    return EXAMPLES[route.method, route.path]


def test_every_row_has_an_example() -> None:
    """A new row of the table is tested as soon as it is there."""
    assert {(route.method, route.path) for route in ROUTES} == set(EXAMPLES)
    assert len(ROWS) == len(ROUTES)


def test_the_menu_shows_pages_to_those_who_may_see_them() -> None:
    """An entry of the menu asks for the same role as its page."""
    pages = {route.path: route for route in ROUTES if not route.changes}
    for entry in ENTRIES:
        assert (entry.role, entry.all_tenants) == (pages[entry.path].role, pages[entry.path].all_tenants)


def _is_the_same_for_each_tenant(row: str, tenants: frozenset[str] | None) -> bool:
    """Where the path names no mail, it makes no difference which tenants a person has."""
    return tenants == {TENANT_B} and ROWS[row].about is About.NOTHING


@pytest.mark.parametrize(
    ("row", "role", "tenants"),
    [
        pytest.param(
            row,
            role,
            tenants,
            marks=pytest.mark.long if _is_the_same_for_each_tenant(row, tenants) else [],
            id=f"{role}-{len(tenants) if tenants else 'all'}{'-other' if tenants == {TENANT_B} else ''}-{row}",
        )
        for role, tenants in PEOPLE
        for row in ROWS
    ],
)
def test_each_row_is_for_its_roles_and_tenants(
    shared: World, row: str, role: Role, tenants: frozenset[str] | None
) -> None:
    """What a role may not do is refused by the server, whatever the page shows; other tenants' mail is not found."""
    route, example = ROWS[row], example_of(ROWS[row])
    answer = ask(shared.console.signed_in(role, tenants), route, example)
    if route.role is not None and (role < route.role or (route.all_tenants and tenants is not None)):
        assert answer.status == 403 and "Not allowed" in answer.text
    elif route.about is not About.NOTHING and tenants is not None and TENANT_A not in tenants:
        assert answer.status == 404 and "MAILA" not in answer.text.replace('href="/mail/MAILA"', "")
    else:
        assert answer.status in example.expected


@pytest.mark.parametrize("row", [row for row, route in ROWS.items() if route.role is not None])
def test_strangers_are_asked_to_sign_in(shared: World, row: str) -> None:
    """Without a session there is nothing but the sign-in page."""
    route = ROWS[row]
    answer = ask(shared.console.browser(), route, example_of(route))
    if route.changes or route.is_live:
        assert answer.status == 401
    else:
        assert answer.status == 303 and answer.target.startswith("/sign-in")


@pytest.mark.parametrize("row", ROWS)
def test_every_answer_has_the_header_fields(shared: World, row: str) -> None:
    """Nothing of a page may come from elsewhere, run inline, or be framed."""
    answer = ask(shared.console.signed_in(), ROWS[row], example_of(ROWS[row]))
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert "base-uri 'none'" in policy and "frame-ancestors" in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] in ("no-store", "public, max-age=31536000, immutable")
    assert answer.headers["referrer-policy"] == "same-origin"


def test_the_story_of_a_mail_does_not_mention_other_tenants(shared: World) -> None:
    """The same message came to three tenants: users of all tenants see all three mails, others only their own."""
    everything = shared.console.signed_in().get("/mail/MAILA").text
    assert "MAILB" in everything and "MAILNONE" in everything
    own = shared.console.signed_in(Role.ADMIN, frozenset({TENANT_A}))
    assert own.get("/mail/MAILA").status == 200
    for path in (
        "/mail/MAILA",
        "/mail",
        "/mail?what=MAILB",
        "/mail?recipient=b@example.org",
        f"/mail?tenant={TENANT_B}",
    ):
        page = own.get(path).text.replace("what=MAILB", "").replace('value="MAILB"', "")
        assert "MAILB" not in page and "MAILNONE" not in page


CHANGES = [row for row, route in ROWS.items() if route.changes]


FOREIGN: list[dict[str, str | None]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
    {"Origin": None, "Sec_Fetch_Site": "none"},
    {"Origin": None, "Sec_Fetch_Site": None},
]


@pytest.mark.parametrize(("row", "headers"), by_turns(CHANGES, FOREIGN), ids=str)
def test_a_form_of_another_site_does_nothing(shared: World, row: str, headers: dict[str, str | None]) -> None:
    """Even with the right token, which another site cannot have."""
    answer = ask(shared.console.signed_in(), ROWS[row], example_of(ROWS[row]), **headers)
    assert answer.status == 403 and "Not from this page" in answer.text


@pytest.mark.parametrize("row", CHANGES)
@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
def test_a_form_without_the_token_does_nothing(shared: World, row: str, token: str) -> None:
    """The token of another session is none either."""
    browser, route = shared.console.signed_in(), ROWS[row]
    answer = browser.post(example_of(route).path, {**example_of(route).form, "form_token": token})
    assert answer.status == 403 and "Form not accepted" in answer.text
    other = shared.console.signed_in().token
    answer = browser.post(example_of(route).path, {**example_of(route).form, "form_token": other})
    assert answer.status == 403 and "Form not accepted" in answer.text


@pytest.mark.parametrize("row", CHANGES)
def test_a_form_that_is_too_large_is_refused(shared: World, row: str) -> None:
    """By its announced size, and by its real size if none is announced."""
    route, browser = ROWS[row], shared.console.signed_in()
    big = {**example_of(route).form, "more": "x" * (route.max_bytes + 1)}
    assert browser.post(example_of(route).path, big).status == 413
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (route.max_bytes + 1, b"x" * (route.max_bytes + 1))
    chunked = browser.ask("POST", example_of(route).path, body, Content_Length=None, Transfer_Encoding="chunked")
    assert chunked.status == 413


@pytest.mark.parametrize("row", CHANGES)
def test_a_change_cannot_be_asked_for_with_get(shared: World, row: str) -> None:
    """A link or a picture in a mail could ask for it."""
    route = ROWS[row]
    if f"GET {route.path}" not in ROWS:
        assert shared.console.signed_in().get(example_of(route).path).status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9083", "127.0.0.1", "", "127.0.0.1:1"])
def test_another_host_name_is_not_answered(shared: World, host: str) -> None:
    """Another site may let its own name point at our address."""
    browser = shared.console.signed_in()
    assert browser.get("/", Host=host).status in (400, 421)
    assert browser.get("/", Host=f"localhost:{shared.console.port}").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../console.py", "/static/..%2f..%2fconsole.py", "/static/%2e%2e/guard.py", "/static//etc/passwd",
        "/static/", "/mail/../../etc/passwd", "/mail/..%2f..%2fetc%2fpasswd", "/mail/%00", "/mail/" + "A" * 65,
        "/nowhere", "//evil.example/", "/sign-in/", "/users/~ED~A0~80", "/users/~00", "/lists/~ED~A0~80",
    ],
)  # fmt: skip
def test_paths_lead_nowhere_else(shared: World, path: str) -> None:
    """No path reaches the file system, and no redirect leaves this host."""
    answer = shared.console.signed_in().get(path)
    assert answer.status == 404, answer.target
