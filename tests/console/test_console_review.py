"""Reviewing the quarantine: groups of mails, mail of one sender, reports, and pages that can be read and printed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from bridge.api.lists import ListEntry
from bridge.console.audit import Audit
from bridge.console.list_copies import ListCopies
from bridge.console.render import show_browser
from bridge.console.roles import Role
from tests.console.browser_kit import NARROW, WIDE, overflows, window, wrong_for_readers
from tests.console.console_kit import TENANT_A, TENANT_B, World, patient_console, remember, world
from tests.console.held_kit import CONTENT, held_ids, hold, holding, run
from tests.console.test_console_quarantine import audited, ids_on, wait_for_jobs
from tests.lists.lists_kit import Service, running_service
from tests.requirements import library

PHISHER = "security@phish.example"
GROUPED = CONTENT.replace(b"hello", b"grouped")
# How many lines the text of each cell takes.
LINES = """cells => cells.filter((cell) => cell.textContent.trim()).map((cell) => {
    let node = cell;
    while (node.firstElementChild) node = node.firstElementChild;
    const range = document.createRange();
    range.selectNodeContents(node);
    return range.getClientRects().length;
})"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, service: Service) -> Iterator[World]:
    """Eight mails of one sender, four of one domain and two of another tenant; reports are sent."""
    library("nh3", "console")
    lists = {"url": service.url, "api_key_file": str(service.key_file), "block_list": "large", "allow_list": "partners"}
    directory = tmp_path_factory.mktemp("console")
    with world(directory, {"report_to": "not-spam@lab.example"}, lists=lists) as made:
        with holding(directory) as put:
            for number in range(8):
                tags = ["spam:phishing", "url:mismatch"]
                put(f"PHISH{number}", f"user{number}@a.example", GROUPED, PHISHER, tags=tags)
            for number in range(4):
                put(f"NEWS{number}", content=GROUPED, sender=f"news{number}@shop.example", tags=["spam:bulk"])
            for number in range(2):
                put(f"THEIRS{number}", f"jim{number or ''}@b.example", GROUPED, "partner@client.example")
        history = made.console.history
        remember(history, ("MAILA", TENANT_A))
        history.close()
        yield made


def groups_on(text: str) -> dict[str, tuple[str, int]]:
    """Name, and where it leads to and how many mails it has."""
    found = re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)</a></td>\s*<td data-label="Mails" class="num">(\d+)</td>', text)
    return {name: (link.replace("&amp;", "&"), int(mails)) for link, name, mails in found}


def test_groups_lead_to_their_mails_without_an_address_in_the_link(desk: World) -> None:
    """Also together with a filter."""
    browser = desk.console.signed_in(Role.RELEASER)
    groups = groups_on(browser.get("/quarantine?view=groups&subject=grouped").text)
    assert {name: mails for name, (_, mails) in groups.items()} == {
        PHISHER: 8, "spam:phishing": 8, "spam:bulk": 6, "@shop.example": 4, "partner@client.example": 2,
    }  # fmt: skip
    link = groups[PHISHER][0]
    assert "phish.example" not in link
    page = browser.get(link)
    assert sorted(ids_on(page.text)) == [f"PHISH{number}" for number in range(8)] and "8 mails match" in page.text
    one = browser.get(f"{link}&recipient=user3@a.example")
    assert ids_on(one.text) == ["PHISH3"] and "1 mail matches" in one.text
    assert "phish.example" not in audit_details(desk, "searched the quarantine")[0]
    link = groups["@shop.example"][0]
    assert sorted(ids_on(browser.get(link).text)) == [f"NEWS{number}" for number in range(4)] and "shop" not in link
    assert "No two of these mails" in browser.get("/quarantine?view=groups&recipient=jim@b.example").text
    assert "No mail matches" in browser.get("/quarantine?view=groups&subject=nothing-like-this").text


def audit_details(desk: World, action: str) -> list[str]:
    with closing(desk.console.store) as store:
        return [entry.detail for entry in Audit(store).find(action=action)]


def test_a_group_of_another_tenant_is_not_shown(desk: World) -> None:
    """Neither its sender nor its mails."""
    browser = desk.console.signed_in(Role.RELEASER, frozenset({TENANT_B}))
    assert groups_on(browser.get("/quarantine?view=groups").text) == {
        "partner@client.example": (ANY, 2),
        "spam:bulk": (ANY, 2),
    }
    assert PHISHER not in browser.get("/quarantine?view=groups").text
    for name in ("PHISH1", "@PHISH1"):
        assert browser.get(f"/quarantine?like={name}").status == 404
    refused = browser.get("/quarantine?like=PHISH1")
    assert refused.status == 404 and PHISHER not in refused.text and ids_on(refused.text) == []
    assert browser.get("/quarantine?like=NOSUCH").text == refused.text


def test_mail_is_reported_to_an_address_as_an_attachment(desk: World) -> None:
    """A whole mail, as RFC 5322 wants it, that says who reported what; and the audit log has it."""
    content = CONTENT.replace(b"hello", b"wrongly held")
    hold(desk.console.directory, "REPORTED", content=content, ggrid="11111111-2222-4333-8444-555555555555")
    before = len(desk.next_hop.mails)
    browser = desk.console.signed_in(Role.RELEASER, name="rita")
    assert browser.post("/quarantine/actions/report", {"mail": "REPORTED"}).status == 303
    assert "reported as not spam: sent to not-spam@lab.example" in wait_for_jobs(browser)
    (sent,) = desk.next_hop.mails[before:]
    report = message_from_bytes(bytes(sent.content), policy=policy.default)
    assert (report["To"], report["Subject"]) == ("not-spam@lab.example", "Not spam: REPORTED")
    assert report["From"].startswith("scanbridge@") and report["Date"] and report["Message-ID"]
    assert report["Auto-Submitted"] == "auto-generated"
    text = report.get_body(("plain",)).get_content()
    assert "console:rita" in text and "11111111-2222-4333-8444-555555555555" in text
    (attached,) = report.iter_attachments()
    assert attached.get_content() == content and attached.get_content_type() == "application/octet-stream"
    assert audited(desk, "REPORTED")[0] == ("reported as not spam", "done", "REPORTED")
    assert "REPORTED" in held_ids(desk.console.directory)


def test_a_report_that_cannot_be_sent_is_said_to_have_failed(tmp_path: Path) -> None:
    """The next hop refuses it: nothing is noted as reported."""
    with world(tmp_path, {"report_to": "not-spam@lab.example"}) as made:
        hold(tmp_path, "REFUSED")
        made.next_hop.replies[b"RCPT"] = b"550 5.1.1 no such user"
        browser = made.console.signed_in(Role.RELEASER)
        browser.post("/quarantine/actions/report", {"mail": "REFUSED"})
        said = wait_for_jobs(browser)
        assert "not reported" in said and "tone-bad" in said
        assert audited(made, "REFUSED")[0][1] == "failed"


@pytest.mark.long
def test_a_campaign_is_blocked_and_deleted(desk: World, browser: Any, service: Service) -> None:
    """From its group: the page says which entry went to which list, and leads there."""
    sender = "campaign@evil.example"
    for number in range(8):
        hold(desk.console.directory, f"EVIL{number}", sender=sender, tags=["spam:evil"])
    with window(browser, desk.console, Role.RELEASER, viewport=WIDE) as page:
        page.goto("/quarantine")
        page.get_by_role("link", name="Group by sender and reason").click()
        page.get_by_role("link", name=sender).click()
        page.get_by_text("8 mails match").wait_for()
        page.get_by_text("Select all", exact=True).click()
        page.get_by_role("button", name="Block sender").click()
        page.get_by_text(f"{sender} was added to large for the tenant {TENANT_A}.").wait_for()
        assert wrong_for_readers(page) == [] and not overflows(page)
        page.get_by_text("Select all", exact=True).click()
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("8 of 8 mails deleted").wait_for()
        page.get_by_text("The mail that this link refers to is no longer in the quarantine").wait_for()
        assert page.locator(".problem").count() == 0  # the mails of the group were deleted: that is no mistake
        page.get_by_text("1 earlier action", exact=True).click()
        page.get_by_role("link", name="Show the list").click()
        page.get_by_role("cell", name=sender, exact=True).wait_for()
        page.locator(".lead", has_text="1 entry for tenant a.example").wait_for()
        page.get_by_label(f"Select {sender}").check()
        page.get_by_role("button", name="Delete the selected entries").click()
        page.get_by_text("The list is empty for tenant a.example").wait_for()
        assert "0 entries" in page.locator(".lead").inner_text()
    assert not {mail for mail in held_ids(desk.console.directory) if mail.startswith("EVIL")}
    assert sender not in service.entries("large", TENANT_A)


def test_the_way_back_keeps_the_search(desk: World, browser: Any) -> None:
    """From a mail, and after an action on it; the link has what was typed and nothing else."""
    with (
        patient_console(desk) as patient,
        window(browser, patient, Role.RELEASER, viewport=WIDE) as page,
    ):
        page.goto("/quarantine")
        page.get_by_label("Tag").fill("spam:bulk")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url("**/quarantine?tag=spam%3Abulk")
        page.locator("tbody .subject a").first.click()
        page.get_by_role("heading", name="Structure").wait_for()
        page.locator(".back a").click()
        page.wait_for_url("**/quarantine?tag=spam%3Abulk")
        page.locator("tbody .subject a").first.click()
        page.get_by_role("button", name="Report as not spam").click()
        page.wait_for_url("**/quarantine?tag=spam%3Abulk")
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("Undone: 1 mail was not reported as not spam.").wait_for()
        assert page.get_by_label("Tag").input_value() == "spam:bulk"


def test_a_mail_is_one_line_of_the_table(desk: World, browser: Any) -> None:
    """Also with many tags: a screen shows a dozen mails or more."""
    hold(desk.console.directory, "TAGGED", sender="x" * 60 + "@long.example", tags=[f"url:tag-{n}" for n in range(9)])
    with window(browser, desk.console, viewport=WIDE) as page:
        page.goto("/quarantine")
        heights = page.evaluate("[...document.querySelectorAll('.held tbody tr')].map((row) => row.offsetHeight)")
        assert max(heights) <= 44
        top = page.evaluate("document.querySelector('.held tbody tr').getBoundingClientRect().top")
        assert (WIDE["height"] - top) / max(heights) >= 12


def test_the_quarantine_is_printed_with_its_columns(desk: World, browser: Any) -> None:
    """Each cell below its heading, and whole addresses."""
    with window(browser, desk.console, viewport={"width": 760, "height": 1000}) as page:
        page.goto("/quarantine")
        page.emulate_media(media="print")
        heads, cells = (
            page.evaluate(
                "which => [...document.querySelector(which).children].filter((cell) => cell.offsetWidth)"
                ".map((cell) => Math.round(cell.getBoundingClientRect().left))",
                f".held {part} tr",
            )
            for part in ("thead", "tbody")
        )
        assert heads == cells and len(heads) == 6
        assert not page.get_by_role("button", name="Release").is_visible() and not overflows(page)
        clipped = (
            "[...document.querySelectorAll('.held td.clip')].filter((cell) => cell.scrollWidth > cell.clientWidth + 1)"
        )
        assert page.evaluate(f"{clipped}.length") == 0


def test_the_audit_log_breaks_no_words(desk: World, browser: Any) -> None:
    """Roles, addresses and ids are on one line each."""
    desk.console.signed_in(Role.RELEASER, name="rita").get("/quarantine/NEWS1")
    with window(browser, desk.console, viewport=WIDE) as page:
        page.goto("/audit")
        for label in ("Role", "From", "Mail"):
            cells = page.locator(f"td[data-label={label}]")
            lines = cells.evaluate_all(LINES)
            assert lines and max(lines) == 1, label


def test_on_a_telephone_the_mails_come_first(desk: World, browser: Any) -> None:
    """The search is folded unless it is used, and a mail takes few lines."""
    with window(browser, desk.console, viewport=NARROW) as page:
        page.goto("/quarantine")
        assert not page.get_by_label("Recipient").is_visible()
        heights = page.evaluate("[...document.querySelectorAll('.held tbody tr')].map((row) => row.offsetHeight)")
        assert max(heights) <= 140 and not overflows(page)
        page.get_by_text("Search", exact=True).first.click()
        page.get_by_label("Sender").fill("@shop.example")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url("**/quarantine?sender=*")
        assert page.get_by_label("Sender").is_visible() and wrong_for_readers(page) == []


def test_on_a_telephone_the_menu_shows_that_it_goes_on(desk: World, browser: Any) -> None:
    """It fades out at its end, and its last entry gets out of the fade. Before, nothing said that there is more."""
    with window(browser, desk.console, viewport=NARROW) as page:
        page.goto("/")
        menu = page.locator(".side nav")
        assert menu.evaluate("menu => menu.scrollWidth > menu.clientWidth")
        assert menu.evaluate("menu => getComputedStyle(menu).maskImage") != "none"
        menu.evaluate("menu => menu.scrollTo(menu.scrollWidth, 0)")
        last, frame = menu.get_by_role("link").last.bounding_box(), menu.bounding_box()
        assert last["x"] + last["width"] <= frame["x"] + frame["width"] - 47  # the fade: 3rem


def test_a_dangerous_entry_can_be_corrected(desk: World, browser: Any) -> None:
    """What was typed is still in the form."""
    with window(browser, desk.console, Role.RELEASER, viewport=WIDE) as page:
        page.goto("/lists/large")
        page.get_by_text("Add entries, or upload a file").click()
        page.get_by_label("Entries, one per line").fill("spam@bad.example\n@gmail.com")
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_text("gmail.com is a large mail provider").wait_for()
        assert page.get_by_label("Entries, one per line").input_value() == "spam@bad.example\n@gmail.com"


def test_a_slow_check_says_that_it_runs(desk: World, browser: Any) -> None:
    """And cannot be started twice."""
    with window(browser, desk.console, viewport=WIDE) as page:
        page.goto("/settings")
        pressed = """button => {
            button.click();
            return new Promise((done) => setTimeout(() => done([button.textContent, button.disabled]), 50));
        }"""
        assert page.get_by_role("button", name="Check the configuration").evaluate(pressed) == ["Checking…", True]
        page.get_by_role("heading", name="What the check found").wait_for()
        assert page.get_by_role("button", name="Check the configuration").is_enabled()


def test_a_copy_of_a_list_counts_what_was_changed(service: Service) -> None:
    """An entry that was there already, or was not there, changes nothing."""
    service.add("notes", {"one": "", "two": ""})
    numbers = []

    async def work() -> None:
        copies = ListCopies(service.settings)
        async with asyncio.timeout(60):
            while not (await copies.get("notes", None)).is_complete:
                await asyncio.sleep(0.01)
        numbers.append((await copies.get("notes", None)).count)
        await copies.changed("notes", None, [ListEntry("two", "again"), ListEntry("three", "")], ["one", "nothing"])
        numbers.append((await copies.get("notes", None)).count)
        await copies.changed("notes", None, deleted=["two"])
        numbers.append((await copies.get("notes", None)).count)

    run(work())
    assert numbers == [2, 2, 1]


@pytest.mark.parametrize(
    ("agent", "shown"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox 140 on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/130.0.0.0 Safari/537.36 Edg/130.0", "Edge 130 on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1", "Safari 18 on iOS"),
        ("Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/130.0.0.0 Mobile", "Chrome 130 on Android"),
        ("curl/8.0", "curl/8.0"),
        ("", ""),
    ],
)  # fmt: skip
def test_browsers_have_names(agent: str, shown: str) -> None:
    """In the list of sessions."""
    assert show_browser(agent) == shown
