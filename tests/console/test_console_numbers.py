"""Scanning a file, and statistics."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from pathlib import Path

import pytest

from bridge.console.mail_counts import LastHour, MailCounter
from bridge.console.pages.scan import by_analyzer
from bridge.console.pages.statistics import columns
from bridge.console.roles import Role
from bridge.console.tenant_history import TenantHistory
from bridge.history.query import By, HistoryQuery, Sum
from bridge.history.sqlite import SqliteHistory
from bridge.testing import answer, result, until
from tests.console.console_kit import TENANT_A, TENANT_B, Answer, Browser, World, remember
from tests.console.held_kit import send_file

MAIL = (
    b"Subject: x\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\ntext\n"
    b'--b\nContent-Type: a/b; name="f.exe"\n\nx\n--b--\n'
)


def test_a_file_is_scanned(shared: World) -> None:
    """Decision, verdict, tags, scores per analyzer and the parts; nothing is delivered or kept."""
    tags = ["mime:executable", "mime:macro", "clamav:Eicar", "auth:spf-fail"]
    shared.scanner.reply = answer(200, result("quarantine", verdict="malware", tags=tags))
    browser = shared.console.signed_in(Role.VIEWER)
    before = len(shared.next_hop.mails)
    fields = {"sender": "a@b.example", "recipients": "c@a.example, d@a.example", "client": "192.0.2.1", "helo": "h"}
    page = send_file(browser, "/scan", "mail.eml", MAIL, **fields, tenant=TENANT_A)
    assert page.status == 200 and "The decision is: quarantine." in page.text and "malware" in page.text
    assert "f.exe" in page.text and ">12<" in page.text  # 8 + 4 of the analyzer `mime`
    sent = shared.scanner.submissions[-1]
    assert "c@a.example" in str(sent.parameters) and TENANT_A in str(sent.parameters)
    assert sent.email == MAIL.replace(b"\n", b"\r\n")
    assert len(shared.next_hop.mails) == before


async def test_every_open_window_counted_the_last_hour_again(tmp_path: Path) -> None:
    """Two hundred of them asked the history a hundred times a second; now, once for each set of tenants."""
    asked: list[frozenset[str] | None] = []

    class Counted(SqliteHistory):
        def count(self, by: By, query: HistoryQuery) -> list[Sum]:
            asked.append(query.tenants)
            return super().count(by, query)

    store, last_hour = Counted(tmp_path / "history.sqlite"), LastHour()
    own, other = frozenset({TENANT_A}), frozenset({TENANT_B})
    await asyncio.gather(*(last_hour.count(TenantHistory(store, tenants)) for tenants in (own, other) * 100))
    store.close()
    assert len(asked) < 10 and set(asked) == {own, other}


@pytest.mark.parametrize(
    "fields",
    [{"client": "x"}, {"tenant": "x"}, {"recipients": " ".join(["a@b"] * 101)}, {"sender": "a\x01b"}],
    ids=["client", "tenant", "recipients", "control"],
)
def test_a_mistake_in_the_envelope_is_said(shared: World, fields: dict[str, str]) -> None:
    """Nothing is scanned."""
    before = len(shared.scanner.submissions)
    page = send_file(shared.console.signed_in(), "/scan", "mail.eml", MAIL, **fields)
    assert page.status == 400 and 'class="problem"' in page.text and len(shared.scanner.submissions) == before


def test_people_of_a_tenant_saw_the_address_of_the_scanner(shared: World) -> None:
    """And the setting to change, if the scanner gave no decision."""
    shared.scanner.reply = answer(401, b"{}")
    pages = [
        send_file(shared.console.signed_in(Role.VIEWER, tenants), "/scan", "mail.eml", MAIL).text
        for tenants in (frozenset({TENANT_A}), None)
    ]
    assert ["the scanner cannot be used at the moment" in page for page in pages] == [True, False]
    assert ["scanner.token" in page for page in pages] == [False, True]


def test_people_of_a_tenant_scan_for_that_tenant(shared: World) -> None:
    """Never for another one."""
    browser = shared.console.signed_in(Role.VIEWER, frozenset({TENANT_A}))
    shared.scanner.reply = answer(200, result("deliver"))
    assert send_file(browser, "/scan", "mail.eml", MAIL, tenant=TENANT_B).status == 400
    assert send_file(browser, "/scan", "mail.eml", MAIL).status == 200
    assert TENANT_A in str(shared.scanner.submissions[-1].parameters)


def test_a_scanner_that_does_not_decide(shared: World) -> None:
    """The page says why, and shows the parts all the same."""
    shared.scanner.reply = answer(500, b"{}")
    page = send_file(shared.console.signed_in(), "/scan", "mail.eml", MAIL)
    assert page.status == 200 and "There is no decision." in page.text and "f.exe" in page.text


def test_scores_are_summed_per_analyzer() -> None:
    """The highest first; a tag that is there twice counts once."""
    scores = {"mime:a": 3.0, "mime:b": 2.0, "url:c": 1.0}
    found = list(by_analyzer(("url:c", "mime:b", "mime:a", "mime:a", "other"), scores))
    assert [(analyzer.name, analyzer.score) for analyzer in found] == [("mime", 5.0), ("url", 1.0), ("other", 0.0)]


def counted(browser: Browser, path: str) -> Answer:
    """The page, once everything is counted."""
    until(lambda: "Counted" in browser.get(path).text, "the mail to be counted")
    return browser.get(path)


async def test_who_came_back_days_later_got_the_numbers_of_days_ago(tmp_path: Path) -> None:
    """The last count was shown, however old it was, and nothing said that there would be a newer one."""
    go_on = threading.Event()

    class Slow(SqliteHistory):
        def count(self, by: By, query: HistoryQuery) -> list[Sum]:
            go_on.wait(60)
            return super().count(by, query)

    store, counter = Slow(tmp_path / "history.sqlite"), MailCounter()
    history = TenantHistory(store, None)
    go_on.set()
    first = await counter.count(history, None, "day")
    while counter._running:
        await asyncio.sleep(0.01)
    remember(store, ("NEW", ""))
    counter._kept.keep((None, "day"), first, -86400.0)  # counted a day ago
    go_on.clear()
    shown = await counter.count(history, None, "day")
    assert shown is first and shown.is_old and shown.mails == 0
    go_on.set()
    while (shown := await counter.count(history, None, "day")).is_old:
        await asyncio.sleep(0.01)
    assert shown.mails == 1 and shown.is_complete
    store.close()


def test_statistics_of_a_day_a_week_and_a_month(shared: World) -> None:
    """Of everybody's mail, or of one's own tenants'."""
    history = shared.console.history
    remember(history, *((f"STAT{number}", TENANT_A) for number in range(5)), sender="many@shop.example", tags="spam:x")
    history.close()
    for period in ("day", "week", "month"):
        page = counted(shared.console.signed_in(), f"/statistics?period={period}&zone=Europe/Zurich")
        assert page.status == 200 and "many@shop.example" in page.text and "spam:x" in page.text
        assert "Times are in Europe/Zurich" in page.text and len(page.body) < 200_000
        other = counted(shared.console.signed_in(Role.VIEWER, frozenset({TENANT_B})), f"/statistics?period={period}")
        assert other.status == 200 and "many@shop.example" not in other.text


def test_statistics_are_exported(shared: World) -> None:
    """As CSV without formulas, as JSON and as a picture without script."""
    history = shared.console.history
    remember(history, ("FORMULA", TENANT_A), tags="=cmd()|x,<script>")
    history.close()
    browser = shared.console.signed_in()
    table = browser.get("/statistics/export?by=tag&as=csv&period=day")
    assert table.headers["content-disposition"] == 'attachment; filename="mails-by-tag-day.csv"'
    rows = list(csv.reader(io.StringIO(table.text)))
    assert rows[0] == ["tag", "mails", "bytes"] and "'=cmd()|x" in [row[0] for row in rows]
    data = json.loads(browser.get("/statistics/export?by=sender&as=json&period=week").text)
    assert data["by"] == "sender" and data["rows"]
    picture = browser.get("/statistics/export?by=tag&as=svg&period=month")
    assert picture.headers["content-type"] == "image/svg+xml" and "<script>" not in picture.text
    other = shared.console.signed_in(Role.VIEWER, frozenset({TENANT_B})).get("/statistics/export?by=tag&as=csv")
    assert "cmd" not in other.text
    for query in ("by=subject&as=csv", "by=tag&as=html", "", "by=tag"):
        assert browser.get(f"/statistics/export?{query}").status == 400


@pytest.mark.parametrize("days", [1, 7])
def test_the_hour_that_comes_twice_broke_the_plot(days: int) -> None:
    """When summer time ends, its label has the zone behind it: every page of that day was an error."""
    hours = [f"2026-10-{25 - day:02d} {hour:02d}:00" for day in reversed(range(days)) for hour in range(24)]
    at = hours.index("2026-10-25 02:00")
    hours[at : at + 1] = ["2026-10-25 02:00 CEST", "2026-10-25 02:00 CET"]
    for first in range(4):  # each of them is marked once
        shown = columns([(label, 1, 1) for label in hours[first:]])
        assert sum(bool(column.mark) for column in shown) >= min(days, 4)


def test_columns_fit_into_the_plot() -> None:
    """The largest number reaches the top, and an hour without mail has no height."""
    found = columns([("2026-01-31 12:00", 0, 0), ("2026-01-31 13:00", 10, 0), ("2026-01-31 14:00", 5, 0)])
    assert [column.height for column in found] == [0, 150, 75] and found[1].y == 8 and found[1].parity == "even"
    assert found[0].mark == "Sat 12:00" and columns([]) == []
