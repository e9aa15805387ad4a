"""Quarantine, lists, scans and statistics in a real Chromium: the jobs of a Monday morning, also without a mouse."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge.console.roles import Role
from bridge.history.entry import Kind, Row
from bridge.testing import answer, result, until
from tests.console.browser_kit import EACH_LOOK, LOOKS, Windows, each_page, overflows, window, wrong_for_readers
from tests.console.console_kit import TENANT_A, World, patient_console, remember, world
from tests.console.held_kit import held_ids, hold, holding
from tests.history.history_kit import mail
from tests.lists.lists_kit import Service, running_service
from tests.requirements import library

# With SCREENSHOTS=directory, pictures for the documents are made: `make console-pictures`.
SCREENSHOTS = os.environ.get("SCREENSHOTS")
INVOICE = (
    b"Subject: Your invoice 4711 is overdue\r\nFrom: Billing <billing@partner.example>\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: multipart/alternative; boundary=c\r\n\r\n"
    b"--c\r\nContent-Type: text/plain\r\n\r\nDear customer,\r\n\r\nplease pay invoice 4711 today.\r\n"
    b"--c\r\nContent-Type: text/html\r\n\r\n<h1>Invoice</h1><p>Please "
    b"<a href='http://evil.example/pay'>pay <b>now</b></a></p>"
    b"<img src='http://evil.example/p.gif' alt='logo'><script>alert(1)</script>\r\n--c--\r\n"
    b'--b\r\nContent-Type: application/pdf; name="invoice.pdf.exe"\r\nContent-Transfer-Encoding: base64\r\n\r\n'
    b"TVqQAAMAAAAEAAAA\r\n--b--\r\n"
)
# Name -> path
PAGES = {
    "quarantine": "/quarantine",
    "quarantine-none": "/quarantine?subject=nothing-like-this",
    "quarantine-groups": "/quarantine?view=groups",
    "quarantine-mistake": "/quarantine?since=bogus",
    "quarantine-mail": "/quarantine/INVOICE",
    "quarantine-source": "/quarantine/INVOICE/source",
    "lists": "/lists",
    "list": "/lists/large",
    "scan": "/scan",
    "statistics": "/statistics?period=day",
    "statistics-month": "/statistics?period=month",
}


PICTURES = {
    "quarantine": "light-wide",
    "quarantine-groups": "light-wide",
    "quarantine-mail": "dark-wide",
    "scan-result": "light-wide",
    "statistics": "light-wide",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        running.add("large", {f"sender{number:03d}@bulk.example": "campaign of May" for number in range(250)})
        yield running


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, service: Service) -> Iterator[World]:
    library("nh3", "console")
    lists = {"url": service.url, "api_key_file": str(service.key_file), "block_list": "large", "allow_list": "partners"}
    with world(tmp_path_factory.mktemp("console"), lists=lists) as made:
        directory = made.console.directory
        with holding(directory) as put:
            for number in range(30):
                subject = f"Subject: Offer {number}: cheap watches for everybody who acts today\r\n\r\nx\r\n"
                put(f"OFFER{number:03d}", content=subject.encode(), sender=f"bounce-{number}@mailing.example")
            tags = ["malware:eicar", "mime:executable", "url:mismatch", "auth:spf-fail"]
            put("INVOICE", content=INVOICE, sender="billing@partner.example", tags=tags, verdict="malware")
        history = made.console.history
        history.append(list(_yesterday()))
        for number, (action, decision) in enumerate([("relay", "deliver")] * 6 + [("quarantine", "quarantine")] * 3):
            sender = f"sender{number % 4}@client.example"
            remember(
                history, (f"S{number}", TENANT_A), action=action, decision=decision, sender=sender, tags="spam:bulk"
            )
        history.close()
        reader = made.console.signed_in()
        until(lambda: "data-reload" not in reader.get("/lists/large").text, "the list to be read: its page reloads")
        yield made


def _yesterday() -> Iterator[tuple[Kind, Row]]:
    """More in working hours than at night: so that a plot of a day has something to show."""
    for hour, mails in enumerate([1, 0, 0, 1, 2, 6, 14, 21, 18, 12, 9, 17, 20, 16, 11, 7, 4, 3, 2, 2, 1, 1]):
        for number in range(mails):
            action, decision = ("reject", "bounce") if number % 7 == 3 else ("relay", "deliver")
            at, sender = time.time() - 3600 * (23 - hour), f"team{number % 3}@partner.example"
            yield mail(
                number, id=f"Y{hour:02d}{number:02d}", tenant=TENANT_A, at=at, action=action, decision=decision,
                sender=sender, tags="spam:gtube" if action == "reject" else "",
            )  # fmt: skip


@pytest.fixture(scope="module")
def windows(browser: Any, desk: World) -> Iterator[Windows]:
    with closing(Windows(browser, desk.console)) as opened:
        yield opened


def picture(page: Any, name: str, look: str) -> None:
    """For the documents: some pages, each in one look."""
    if SCREENSHOTS and PICTURES.get(name) == look:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SCREENSHOTS) / f"console-{name}.png", full_page=False)


@pytest.mark.parametrize(("name", "look"), each_page(PAGES))
def test_each_page_reads_well_and_fits(windows: Windows, name: str, look: str) -> None:
    """For people who use a screen reader, at both widths; with enough contrast in both themes."""
    with windows.look(look) as page:
        page.goto(PAGES[name])
        if name.startswith("statistics"):  # which loads itself again
            page.get_by_text("Times are in Europe/Zurich").wait_for()
        for preview in page.locator("details.preview summary").all():
            preview.click()
            page.frame_locator("iframe").get_by_text("Please").wait_for()
        assert not overflows(page)
        assert wrong_for_readers(page) == []
        picture(page, name, look)


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_quarantine_with_the_keyboard_alone(desk: World, browser: Any, look: str) -> None:
    """Choose two, release them, take it back; delete one; open another, and come back."""
    directory = desk.console.directory
    with (
        patient_console(desk) as patient,
        window(browser, patient, Role.RELEASER, f"keys-{look}", **LOOKS[look]) as page,
    ):
        page.goto("/quarantine?subject=offer")
        _tab_to(page, "input[form=bulk]")
        first = page.evaluate("document.activeElement.value")
        page.keyboard.press("x")
        page.keyboard.press("j")
        page.keyboard.press("Space")
        assert page.get_by_text("2 selected").is_visible()
        page.keyboard.press("r")
        page.wait_for_url("**/quarantine?subject=offer")
        page.get_by_text("Release 2 mails in").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Undo"
        page.keyboard.press("Enter")
        page.get_by_text("Undone: 2 mails were not released").wait_for()
        assert page.evaluate("document.activeElement.matches('input[form=bulk]')")  # not at the top of the page again
        assert not (directory / "state" / "quarantine" / f"{first}.releases").exists()
    with window(browser, desk.console, Role.RELEASER, f"keys-{look}", **LOOKS[look]) as page:
        page.goto("/quarantine?subject=offer")
        _tab_to(page, "input[form=bulk]")
        page.keyboard.press("ArrowDown")
        third = page.evaluate("document.activeElement.value")
        page.keyboard.press("d")
        page.get_by_text("Delete 1 mail in").wait_for()
        page.get_by_text("1 of 1 mail deleted").wait_for()
        assert third not in held_ids(directory)
        _tab_to(page, "input[form=bulk]")
        page.keyboard.press("ArrowDown")
        chosen = page.evaluate("document.activeElement.value")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/quarantine/{chosen}?back=subject%3Doffer")
        page.go_back()


def _tab_to(page: Any, selector: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"{selector} cannot be reached with the keyboard")


def test_a_block_that_affects_far_more_mail_is_asked_about(desk: World, browser: Any, service: Service) -> None:
    """The page that asks reads well, and cancelling changes nothing."""
    hold(desk.console.directory, "FROMGMAIL", sender="somebody@gmail.com")
    with window(browser, desk.console, Role.RELEASER, "careful", **LOOKS["dark-narrow"]) as page:
        page.goto("/quarantine/FROMGMAIL")
        page.get_by_label("whole domain").check()
        page.get_by_role("button", name="Block sender").click()
        page.get_by_text("This affects far more than these mails.").wait_for()
        assert wrong_for_readers(page) == [] and not overflows(page)
        page.get_by_role("link", name="Cancel").click()
        page.get_by_role("heading", name="Quarantine", exact=True).wait_for()
        assert "@gmail.com" not in service.entries("large", TENANT_A)


@pytest.mark.parametrize("look", EACH_LOOK)
def test_monday_morning(desk: World, browser: Any, service: Service, look: str) -> None:
    """Look through the quarantine, release one, block a campaign: with the mouse."""
    wanted, domain = f"WANTED{look.replace('-', '')}", f"{look}.example"
    hold(desk.console.directory, wanted, content=INVOICE.replace(b"4711 today", look.encode()))
    for number in range(3):
        content = f"Subject: Campaign of {look}: {number}\r\n\r\nx\r\n".encode()
        hold(desk.console.directory, f"{wanted}{number}", content=content, sender=f"bounce-{number}@{domain}")
    with window(browser, desk.console, Role.RELEASER, f"monday-{look}", **LOOKS[look]) as page:
        page.goto("/quarantine")
        if not page.get_by_label("Subject").is_visible():  # folded on a narrow screen
            page.locator("[data-finder] > summary").click()
        page.get_by_label("Subject").fill(f"campaign of {look}")
        page.get_by_role("button", name="Search").click()
        page.get_by_text("3 mails match").wait_for()
        page.get_by_text("Select all", exact=True).click()
        page.get_by_label("whole domain").check()
        page.get_by_role("button", name="Block sender").click()
        page.get_by_text("Block the domains of 3 mails").wait_for()
        page.goto(f"/quarantine/{wanted}")
        page.get_by_role("button", name="Release").click()
        page.get_by_text("1 of 1 mail released").wait_for()
        until(lambda: f"@{domain}" in service.entries("large", TENANT_A), "the campaign to be blocked")
        assert any(f"invoice {look}".encode() in bytes(mail.content) for mail in desk.next_hop.mails)


@pytest.mark.parametrize("look", EACH_LOOK)
def test_a_file_is_scanned_when_it_is_chosen(desk: World, windows: Windows, tmp_path: Path, look: str) -> None:
    """Dropping it is the same as choosing it."""
    tags = ["mime:executable", "mime:double-extension", "url:mismatch", "clamav:Eicar"]
    desk.scanner.reply = answer(200, result("quarantine", verdict="malware", tags=tags))
    (tmp_path / "mail.eml").write_bytes(INVOICE)
    with windows.look(look, Role.VIEWER) as page:
        page.goto("/scan")
        page.locator("input[type=file]").set_input_files(tmp_path / "mail.eml")
        page.get_by_role("button", name="Scan", exact=True).click()
        page.get_by_text("The decision is: quarantine.").wait_for()
        assert page.get_by_text("invoice.pdf.exe").is_visible() and not overflows(page)
        assert wrong_for_readers(page) == []
        picture(page, "scan-result", look)
        page.goto("/scan")
        page.evaluate(
            """() => {
                const data = new DataTransfer();
                data.items.add(new File(['Subject: dropped\\\\r\\\\n\\\\r\\\\nx'], 'dropped.eml'));
                document.querySelector('[data-drop]').dispatchEvent(new DragEvent('drop', {dataTransfer: data}));
            }"""
        )
        page.get_by_text("The decision is: quarantine.").wait_for()


@pytest.mark.parametrize("look", EACH_LOOK)
def test_lists_are_searched_changed_and_uploaded(
    desk: World, browser: Any, service: Service, tmp_path: Path, look: str
) -> None:
    """With the difference on the page before anything is changed."""
    old, fresh = f"sender{40 + list(LOOKS).index(look):03d}@bulk.example", f"fresh-{look}@bulk.example"
    (tmp_path / "list.txt").write_text(f"sender001@bulk.example\n{fresh}\n")
    with window(browser, desk.console, Role.RELEASER, f"lists-{look}", **LOOKS[look]) as page:
        page.goto("/lists")
        page.get_by_role("link", name="large").click()
        page.get_by_label("Find").fill(old.partition("@")[0].upper())
        page.get_by_role("button", name="Search").click()
        assert page.get_by_text(old).is_visible()
        page.get_by_label(f"Select {old}").check()
        page.get_by_role("button", name="Delete the selected entries").click()
        page.get_by_text("Delete 1 entry from large in").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Undo" and wrong_for_readers(page) == []
        page.get_by_text("1 of 1 entry deleted from large").wait_for()
        page.get_by_text("Add entries, or upload a file").click()
        page.get_by_label("Entries, one per line").fill("@gmail.com")
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_text("gmail.com is a large mail provider").wait_for()
        assert wrong_for_readers(page) == []
        page.locator("input[type=file]").set_input_files(tmp_path / "list.txt")
        page.get_by_role("button", name="Show the difference").click()
        page.get_by_text(f"+ {fresh}").wait_for()
        assert fresh not in service.entries("large") and wrong_for_readers(page) == []
        page.get_by_role("button", name="Apply").click()
        page.get_by_text("Apply 1 change to large in").wait_for()
        page.get_by_text("1 added or changed, 0 deleted.").wait_for()
    kept = service.entries("large")
    assert fresh in kept and old not in kept and "@gmail.com" not in kept


@pytest.mark.parametrize("look", EACH_LOOK)
def test_statistics_in_the_readers_zone(desk: World, browser: Any, look: str) -> None:
    """A link leads to the same numbers; a file can be taken along."""
    with window(browser, desk.console, Role.VIEWER, **LOOKS[look]) as page:
        page.goto("/statistics")
        page.get_by_text("Times are in Europe/Zurich").wait_for()
        page.get_by_role("link", name="Week").click()
        page.get_by_text("in the last week").wait_for()
        with page.expect_download() as started:
            page.get_by_role("link", name="Mails by sender as CSV").click()
        assert "sender0@client.example" in Path(started.value.path()).read_text()
