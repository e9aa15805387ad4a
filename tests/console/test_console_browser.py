"""Every page in a real Chromium: it works, reads well for everyone, and fits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge.console.audit import Audit
from bridge.console.roles import Person, Role
from bridge.console.sessions import SignInLinks
from bridge.testing import until
from tests.console.browser_kit import (
    EACH_LOOK,
    LOOKS,
    NARROW,
    WIDE,
    Windows,
    each_page,
    overflows,
    window,
    wrong_for_readers,
)
from tests.console.console_kit import PASSWORD, TENANT_A, World, remember
from tests.console.held_kit import hold

# With SCREENSHOTS=directory, pictures for the documents are made: `make console-pictures`.
SCREENSHOTS = os.environ.get("SCREENSHOTS")
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
KINDS = [
    ("relay", "deliver", "", "policy.deliver", "Minutes of the meeting", "kim@partner.example", "jane@example.org"),
    ("quarantine", "quarantine", "malware:eicar,mime:executable", "policy.quarantine", "Your invoice 2026-118",
     "billing@invoices.example", "accounts@example.org\njo@example.org"),
    ("reject", "bounce", "spam:gtube", "policy.bounce", "You have won", "prize@lottery.example", "info@example.org"),
    ("discard", "drop", "spam:bulk", "policy.drop", "Cheap watches", "news@bulk.example", "sales@example.org"),
    ("tempfail", "undecided", "", "policy.undecided", "Re: contract", "legal@partner.example", "jo@example.org"),
]  # fmt: skip
VERDICTS = {"relay": "clean", "quarantine": "malware", "reject": "spam", "discard": "spam", "tempfail": ""}
# Name -> path. The audit log has what the others leave there, and the mail what the overview sends for its picture.
PAGES = {
    "audit": "/audit",
    "mail": "/mail",
    "mail-none": "/mail?what=nothing-like-this",
    "mail-mistake": "/mail?since=bogus",
    "story": "/mail/KIND0001",
    "story-hostile": "/mail/HOSTILE",
    "sessions": "/sessions",
    "users": "/users",
    "settings": "/settings",
    "refused": "/nowhere",
    "overview": "/",
}
# Who did what with which mail, and the detail: for the picture of the audit log.
DONE = [
    ("ann", "signed in", "", ""),
    ("ann", "searched the quarantine", "", "since: yesterday"),
    ("sam", "signed in", "", ""),
    ("sam", "viewed a quarantined mail", "KIND0001", ""),
    ("sam", "requested a release", "KIND0001", "to jo@example.org"),
    ("jo", "searched mail", "", "recipient: accounts@example.org"),
    ("jo", "viewed the story of a mail", "KIND0001", ""),
    ("ann", "added a user", "", f"jo: viewer, {TENANT_A}"),
    ("ann", "ran the check", "", "1 warning"),
    ("ann", "reloaded", "", "the new configuration is in use"),
]


# Only those that the documents show.
PICTURED = {
    "overview-light", "overview-dark", "mail-light", "mail-dark-narrow", "story-light", "users-light", "audit-light",
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(shared: World) -> World:
    """Mails of every kind, some of them hostile."""
    store = shared.console.history
    remember(store, ("HOSTILE", TENANT_A), subject=HOSTILE, sender=f"{HOSTILE}@client.example", tags=HOSTILE)
    for number, values in enumerate(KINDS * 4):
        names = ("action", "decision", "tags", "rule", "subject", "sender", "recipients")
        chosen = {**dict(zip(names, values, strict=True)), "message_id": f"<{number}@client.example>"}
        remember(store, (f"KIND{number:04d}", TENANT_A), verdict=VERDICTS[values[0]], **chosen)
    store.close()
    tags = ["malware:eicar", "mime:executable"]
    hold(shared.console.directory, "KIND0001", "jo@example.org", sender="billing@invoices.example", tags=tags)
    people = {"ann": Person("ann", Role.ADMIN), "jo": Person("jo", Role.VIEWER, frozenset({TENANT_A}))}
    people["sam"] = Person("sam", Role.RELEASER)
    for person in people.values():
        shared.console.add_user(person.name, person.role, person.tenants)
    with closing(shared.console.store) as opened:
        for name, action, mail, detail in DONE:
            Audit(opened).write(people[name], "192.0.2.17", action, mail=mail, detail=detail)
        Audit(opened).write(None, "203.0.113.9", "signed in", name="root", detail="wrong password", result="refused")
    shared.send()
    return shared


@pytest.fixture(scope="module")
def windows(browser: Any, filled: World) -> Iterator[Windows]:
    with closing(Windows(browser, filled.console)) as opened:
        yield opened


def photographed(page: Any, name: str) -> None:
    if SCREENSHOTS and name in PICTURED:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(SCREENSHOTS) / f"console-{name}.png"), full_page=False)


def _send_some(page: Any, world: World) -> None:
    """So that the numbers on the picture are not all zero."""
    for number in range(40):
        decision = ("deliver", "deliver", "deliver", "quarantine", "bounce", "drop")[number % 6]
        world.send(decision=decision, verdict="spam" if number % 6 > 2 else "clean")
    numbers = "() => [...document.querySelectorAll('.number')].some((part) => Number.parseFloat(part.innerText) > 50)"
    page.wait_for_function(numbers)
    page.locator(".plot").wait_for()


@pytest.mark.parametrize(("name", "look"), each_page(PAGES))
def test_every_page_reads_well_and_fits(windows: Windows, filled: World, name: str, look: str) -> None:
    """axe finds nothing, nothing runs or is asked for elsewhere, and nothing must be scrolled sideways."""
    with windows.look(look) as page:
        page.goto(PAGES[name])
        if name == "overview":
            page.get_by_text("Live: these numbers change as mail arrives.").wait_for()
            if SCREENSHOTS:
                _send_some(page, filled)
        assert wrong_for_readers(page) == []
        assert not overflows(page) and "run" not in page.title().split()
        photographed(page, f"{name}-{look.removesuffix('-wide')}")


@pytest.mark.parametrize("size", [pytest.param(WIDE, marks=pytest.mark.long), NARROW], ids=["wide", "narrow"])
def test_somebody_signs_in_looks_for_a_mail_and_signs_out(browser: Any, filled: World, size: dict[str, int]) -> None:
    """With the keyboard alone."""
    name = f"kim{size['width']}"
    filled.console.add_user(name)
    with window(browser, filled.console, None, viewport=size) as page:
        page.goto("/mail")
        assert wrong_for_readers(page) == [] and not overflows(page)
        page.keyboard.type(name)
        page.keyboard.press("Tab")
        page.keyboard.type(PASSWORD)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Mail", exact=True).wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        if size == NARROW:  # where the search is folded
            page.locator("[data-finder] > summary").focus()
            page.keyboard.press("Enter")
        page.get_by_label("Words in the subject").focus()
        page.keyboard.type("invoi*")
        page.keyboard.press("Enter")
        page.wait_for_url("**/mail?subject=invoi*")  # without the fields that are empty: the link can be sent on
        rows = page.locator("tbody tr")
        assert rows.count() == 4
        rows.first.get_by_role("link").focus()
        page.keyboard.press("Enter")
        page.get_by_text("decided", exact=True).wait_for()
        assert "Rule policy.quarantine applied" in page.locator("li.rule").inner_text()
        page.get_by_role("button", name="Sign out").focus()
        page.keyboard.press("Enter")
        page.get_by_text("You are signed out.").wait_for()


def test_times_are_in_the_readers_zone_with_the_exact_value(browser: Any, filled: World) -> None:
    """The title has the zone's time and UTC."""
    with window(browser, filled.console) as page:
        page.goto("/mail/MAILA")
        time = page.locator("li.rule time")
        assert re.fullmatch(r"\d{1,2} [A-Z][a-z]+,? (at )?\d\d:\d\d:\d\d\.\d{3}", time.inner_text())
        assert "Central European" in time.get_attribute("title") or "CET" in time.get_attribute("title")
        assert time.get_attribute("datetime") in time.get_attribute("title")


def test_pages_work_without_a_script(browser: Any, filled: World) -> None:
    """Times are in UTC then, and the overview is as of its loading."""
    with window(browser, filled.console, java_script_enabled=False) as page:
        page.goto("/")
        assert page.get_by_text("These numbers were current when the page was loaded.").is_visible()
        page.goto("/mail")
        assert "UTC" in page.locator("time").first.inner_text()


def test_the_overview_changes_as_mail_comes(browser: Any, filled: World) -> None:
    """Without loading the page again; it says so when the session has ended."""
    with window(browser, filled.console) as page:
        page.goto("/")
        page.get_by_text("Live: these numbers change as mail arrives.").wait_for()
        before = page.locator("p.hint", has_text="since startup").inner_text()
        filled.send()
        page.wait_for_function(
            "before => ![...document.querySelectorAll('p.hint')].some(hint => hint.innerText === before)", arg=before
        )
        assert "Mail is being accepted, scanned and delivered." in page.locator(".sentence").inner_text()


def test_a_link_signs_in_with_one_click(browser: Any, filled: World) -> None:
    """The page of the link submits itself."""
    filled.console.add_user("lin", Role.VIEWER)
    store = filled.console.store
    token = SignInLinks(store).make("lin")
    store.close()
    with window(browser, filled.console, None) as page:
        page.goto(f"/enter/{token}")
        page.get_by_role("heading", name="Overview").wait_for()
        assert "lin" in page.locator(".who").inner_text()


def test_the_page_of_a_sign_in_link_reads_well(browser: Any, filled: World) -> None:
    """As it is seen if the script that submits it does not arrive."""
    filled.console.add_user("lou", Role.VIEWER)
    store = filled.console.store
    token = SignInLinks(store).make("lou")
    store.close()
    with window(browser, filled.console, None, viewport=NARROW) as page:
        page.route("**/*.js*", lambda route: route.fulfill(body="", content_type="text/javascript"))
        page.goto(f"/enter/{token}")
        page.get_by_role("button", name="Sign in").wait_for()
        assert wrong_for_readers(page) == [] and not overflows(page)


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_check_and_the_reload_have_buttons(browser: Any, filled: World, look: str) -> None:
    """Both show their result, and both are in the audit log."""
    with window(browser, filled.console, **LOOKS[look]) as page:
        page.goto("/settings")
        page.get_by_role("button", name="Reload the daemon").click()
        page.get_by_text("The new configuration is in use.").wait_for()
        page.get_by_role("button", name="Check the configuration").click()
        page.get_by_role("heading", name="What the check found").wait_for()
        assert wrong_for_readers(page) == []

        def audit() -> str:
            page.goto("/audit")
            return str(page.locator("tbody").inner_text())

        assert "ran the check" in (shown := audit()) and "reloaded" in shown
        until(lambda: "the new configuration is in use" in audit(), "the result of the reload")


def test_pages_print_without_the_menu(browser: Any, filled: World) -> None:
    """On paper there is the content alone."""
    with window(browser, filled.console) as page:
        page.goto("/mail/MAILA")
        page.emulate_media(media="print")
        assert not page.locator(".side").is_visible() and page.locator(".timeline").is_visible()
