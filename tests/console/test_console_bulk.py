"""Much at once, in a real Chromium: all mails that match a search, and files that change a list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.console.pages.quarantine import PER_PAGE
from bridge.console.roles import Role
from bridge.testing import until
from tests.console.browser_kit import EACH_LOOK, LOOKS, WIDE, overflows, window, wrong_for_readers
from tests.console.console_kit import World, world
from tests.console.held_kit import held_ids, holding
from tests.lists.lists_kit import Service, running_service
from tests.requirements import library


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, service: Service) -> Iterator[World]:
    library("nh3", "console")
    lists = {"url": service.url, "api_key_file": str(service.key_file), "block_list": "large", "allow_list": "partners"}
    with world(tmp_path_factory.mktemp("console"), lists=lists) as made:
        with holding(made.console.directory) as put:
            for number in range(PER_PAGE + 5):
                put(f"BULK{number:03d}", sender=f"news-{number}@mailing.example")
            put("OTHER", sender="jo@partner.example")
        yield made


@pytest.mark.parametrize("look", EACH_LOOK)
@pytest.mark.long
def test_the_number_of_all_mails_is_shown_before_anything_happens(desk: World, browser: Any, look: str) -> None:
    """It reads well at both widths and in both themes; `Cancel` changes nothing."""
    with window(browser, desk.console, Role.RELEASER, **LOOKS[look]) as page:
        page.goto("/quarantine?sender=@mailing.example")
        assert page.get_by_role("button", name="Delete").is_disabled()
        page.get_by_label("all that match").check()
        assert not overflows(page) and wrong_for_readers(page) == []
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("heading", name=f"Delete {PER_PAGE + 5} mails?").wait_for()
        assert not overflows(page) and wrong_for_readers(page) == []
        page.get_by_role("link", name="Cancel").click()
        page.wait_for_url("**/quarantine?sender=%40mailing.example")  # the search is kept
        assert page.locator("[data-job]").count() == 0


def test_all_mails_that_match_with_the_keyboard_alone(desk: World, browser: Any) -> None:
    """Choose all, delete, confirm, and wait until it is done."""
    with window(browser, desk.console, Role.RELEASER, viewport=WIDE) as page:
        page.goto("/quarantine?sender=@mailing.example")
        tab_to(page, "[data-matching]")
        page.keyboard.press("Space")
        tab_to(page, "button[data-key=d]")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name=f"Delete {PER_PAGE + 5} mails?").wait_for()
        tab_to(page, "main button.danger")
        page.keyboard.press("Enter")
        page.get_by_text(f"Delete {PER_PAGE + 5} mails in").wait_for()
        page.get_by_text(f"{PER_PAGE + 5} of {PER_PAGE + 5} mails deleted").wait_for()
    assert held_ids(desk.console.directory) == {"OTHER"}


def tab_to(page: Any, selector: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"{selector} cannot be reached with the keyboard")


@pytest.mark.parametrize("look", EACH_LOOK)
@pytest.mark.long
def test_an_uploaded_file_is_shown_page_by_page(
    desk: World, browser: Any, service: Service, tmp_path: Path, look: str
) -> None:
    """After a reload, too; every state of the page reads well."""
    service.clear()
    service.add("notes", {"old": "", "kept": ""})
    (tmp_path / "good.txt").write_text(
        "kept # new comment\n" + "".join(f"entry {number:04d}\n" for number in range(250))
    )
    (tmp_path / "bad.jsonl").write_text("{\n[\n")
    with window(browser, desk.console, Role.RELEASER, **LOOKS[look]) as page:
        for name in ("bad.jsonl", "good.txt"):
            page.goto("/lists/notes")
            page.get_by_text("Add entries, or upload a file").click()
            page.locator("input[type=file]").set_input_files(tmp_path / name)
            page.get_by_label("delete entries that are not in the file").check()
            page.get_by_role("button", name="Show the difference").click()
            title = "cannot be used" if name == "bad.jsonl" else "What the file would change"
            page.get_by_role("heading", name=title).wait_for()
            assert not overflows(page) and wrong_for_readers(page) == []
        page.reload()
        assert page.get_by_text("+ entry 0099").is_visible() and not page.get_by_text("+ entry 0100").is_visible()
        page.get_by_role("link", name="More").click()
        page.get_by_text("+ entry 0100").wait_for()
        page.get_by_role("link", name=re.compile("To delete")).click()
        page.get_by_text("\u2212 old").wait_for()
        page.get_by_role("button", name="Apply").click()
        page.get_by_text("Apply 252 changes to notes in").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Undo"
        assert not overflows(page) and wrong_for_readers(page) == []
        page.keyboard.press("Enter")
        page.get_by_text("252 changes were not applied").first.wait_for()
    assert set(service.entries("notes")) == {"old", "kept"}


def test_a_list_shows_its_new_entries_when_they_are_there(desk: World, browser: Any, service: Service) -> None:
    """The page loads itself again, unless somebody is typing."""
    service.clear()
    with window(browser, desk.console, Role.RELEASER, viewport=WIDE) as page:
        page.goto("/lists/notes")
        page.get_by_text("Add entries, or upload a file").click()
        page.get_by_label("Entries, one per line").fill("fresh entry")
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_text("Add 1 entry to notes in").wait_for()
        page.get_by_role("cell", name="fresh entry", exact=True).wait_for()
        until(lambda: "fresh entry" in service.entries("notes"), "the entry")
