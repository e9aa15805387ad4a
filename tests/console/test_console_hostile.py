"""Hostile mail in a real Chromium: no script runs, no request leaves, nothing covers or changes the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from bridge.console.preview import document, sanitised
from tests.console.browser_kit import EACH_LOOK, Windows, overflows
from tests.console.console_kit import World
from tests.console.held_kit import holding
from tests.console.hostile_mails import MARK, Hostile, corpus, deepest
from tests.console.test_console_quarantine import ids_on
from tests.long_cases import few
from tests.processor_time import fair_cpu_s

MAILS = {mail.name: mail for mail in corpus()}
ALLOWED = re.compile(r"</?([a-z0-9]+)((?: [a-z]+=\"[^\"]*\")*)>")
ATTRIBUTES = {"class", "alt", "colspan", "rowspan"}


@pytest.fixture(scope="module")
def besieged(shared: World) -> World:
    with holding(shared.console.directory) as put:
        for number, mail in enumerate(MAILS.values()):
            put(f"EVIL{number:03d}", content=mail.content, sender=mail.sender, tags=mail.tags)
    return shared


@pytest.fixture(scope="module")
def windows(browser: Any, besieged: World) -> Iterator[Windows]:
    with closing(Windows(browser, besieged.console)) as opened:
        yield opened


def id_of(name: str) -> str:
    return f"EVIL{list(MAILS).index(name):03d}"


# One mail of each kind of attack; `test_what_is_left_of_html` has all.
IN_A_BROWSER = {
    *("script-in-attribute", "remote-pictures", "style", "frames", "forms", "links", "mutation", "dialog", "huge"),
    *("fields-script", "encoded-words", "svg-mail", "nested"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_A_BROWSER else pytest.mark.long) for name in MAILS]
)
def test_a_hostile_mail_does_nothing(windows: Windows, name: str) -> None:
    """The window fails if a script fails, the policy is violated or something is asked for elsewhere."""
    with windows.look("light-wide") as page:
        page.goto(f"/quarantine/{id_of(name)}")
        assert page.title() == f"Quarantined mail {id_of(name)} · scanbridge"
        preview = page.locator("details.preview summary")
        if preview.count():
            preview.click()
            frame = page.locator("iframe").element_handle().content_frame()
            frame.wait_for_url("**/html")
            frame.wait_for_load_state()
            found = frame.evaluate(_WHAT_IS_THERE)
            assert found == {"bad": 0, "origin": "null", "title": "HTML of the mail"}
            _nothing_covers(page)
            _click_all(page, frame)
        page.goto(f"/quarantine/{id_of(name)}/source")
        assert page.title() == f"Source of {id_of(name)} · scanbridge"
        assert len(page.context.pages) == 1 and MARK not in page.title()


_WHAT_IS_THERE = """() => ({
    bad: document.querySelectorAll('script,iframe,object,embed,form,input,button,svg,math,link,base,video,audio,'
        + 'a,[href],[src],[style],[onclick],[onerror],[onload],body style,meta[http-equiv]').length,
    origin: window.origin,
    title: document.title,
})"""


def _nothing_covers(page: Any) -> None:
    """Whatever is on the page, it is itself that is hit where it is."""
    for selector in ("h1", ".brand", "[aria-current=page]", "button[data-key=r]"):
        hit = page.evaluate(
            """selector => {
                const element = document.querySelector(selector);
                element.scrollIntoView({block: 'center'});
                const box = element.getBoundingClientRect();
                const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
                return element === hit || element.contains(hit);
            }""",
            selector,
        )
        assert hit, selector


def _click_all(page: Any, frame: Any) -> None:
    """A reader who clicks everywhere goes nowhere."""
    before = page.url
    box = page.locator("iframe").bounding_box()
    for row in range(4):
        page.mouse.click(box["x"] + 40 + 20 * row, box["y"] + 20 + 25 * row)
    assert page.url == before and frame.url.endswith("/html")


@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_table_of_hostile_mails(windows: Windows, look: str) -> None:
    """Script in subjects, senders and tags is text, in both themes and at both widths."""
    with windows.look(look) as page:
        page.goto("/quarantine")
        assert page.title() == "Quarantine · scanbridge" and not overflows(page)
        assert page.locator("main script, main img, main [onerror]").count() == 0
        assert page.get_by_text("<script>document.title").count() > 0
        page.goto(f"/quarantine/{id_of('fields-script')}")
        assert not overflows(page)
        page.goto(f"/quarantine/{id_of('wide')}")
        assert not overflows(page)


def test_no_part_of_a_hostile_mail_is_in_a_link(besieged: World) -> None:
    """Addresses of pages are kept by browsers and proxies."""
    browser = besieged.console.signed_in()
    for mail_id in [*ids_on(browser.get("/quarantine").text)][:40]:
        for path in ("", "/source"):
            page = browser.get(f"/quarantine/{mail_id}{path}")
            links = re.findall(r'(?:href|src|action)="([^"]*)"', page.text)
            assert page.status == 200 and len(page.body) < 200_000
            assert all("evil.example" not in link and "script:" not in link for link in links)


@pytest.mark.parametrize(
    "mail", [*MAILS.values(), pytest.param(deepest(), marks=pytest.mark.long)], ids=lambda mail: mail.name
)
def test_what_is_left_of_html(mail: Hostile) -> None:
    """A short list of tags, and four attributes without addresses; and no more than fits."""
    html = mail.content.decode("utf-8", "replace")
    assert len(document(html)) < 200_000
    clean = sanitised(html)
    for tag, attributes in ALLOWED.findall(clean):
        assert tag not in ("script", "style", "a", "svg", "math", "form", "iframe")
        assert set(re.findall(r" ([a-z]+)=", re.sub(r'"[^"]*"', '""', attributes))) <= ATTRIBUTES
    left = ALLOWED.sub("", clean)
    assert "<" not in left.replace("&lt;", "")


@pytest.mark.parametrize("mark", ["\u202e", "&#x202e;", "\u2067", "&#8295;"])
def test_the_address_of_a_link_cannot_be_reversed(mark: str) -> None:
    """`moc.knab//:sptth` would read as another address."""
    left = sanitised(f"<p>{mark}<a href='https://evil.example/moc.knab//:sptth'>x</a></p>")
    assert "[https://evil.example/moc.knab//:sptth]" in left and left.startswith("<p>?")


def shown_within(limit_s: float, html: str) -> str:
    """What is shown of it; making that takes less processor time than the limit."""
    shown: list[str] = []
    assert fair_cpu_s(lambda: shown.append(document(html))) < limit_s
    return shown[0]


@pytest.mark.parametrize(
    "piece",
    few(
        [
            *("<div>", "<div></b>", "<b><p>", "<table><td><div></div>", "<div><table></div></table>"),
            *("<div><textarea></div></textarea>", '<div><br title="</div>">', "<div><object></div></object>"),
            *("<q><p></q></p>", "<span><div></span></div>", "<cite><ul></cite></ul>"),
        ],
        4,
    ),
)
def test_deep_html_took_half_a_minute(piece: str) -> None:
    """Cleaning takes time by the square of the depth, so such a mail is shown as text."""
    assert "<pre>" in shown_within(5, piece * 20_000)


@pytest.mark.parametrize("piece", ["<a href=https://x.example/?a=b>x</a> ", "<li>x", "<p>x", "<p><b>x</b>", "<br>x"])
def test_long_ordinary_pages_are_not_shown_as_text(piece: str) -> None:
    assert "<pre>" not in document(piece * 4000)


@pytest.mark.parametrize("piece", few(["</p>", "<li></li>", "<p>x</p>", "</br>"], 2))
def test_many_tags_within_deep_ones_took_seconds(piece: str) -> None:
    """Each looks through all elements that are open, so such a mail is shown as text."""
    assert "<pre>" in shown_within(1, "<div>" * 1990 + piece * 60_000)


@pytest.mark.parametrize(
    "attributes",
    [
        " ".join(f"a{number}" for number in range(30_000)),
        "/".join(f"a{number}" for number in range(30_000)),
        "".join(f"a{number}=''" for number in range(30_000)),
        " ".join(f'a{number}=">"' for number in range(20_000)),
        " ".join(f"a{number}='>' b{number}=\"'>\"" for number in range(10_000)),
        '="=">" ' + " ".join(f"<a{number}" for number in range(20_000)),
        'a="> > " ' + " ".join(f'b{number} c{number}="> > "' for number in range(10_000)),
    ],
    ids=["names", "slashes", "no spaces", "in quotes", "in both quotes", "a name of a quote", "quotes without one"],
)
def test_one_tag_with_many_attributes_took_seconds(attributes: str) -> None:
    """The parser compares each attribute with all before it, so such a mail is shown as text."""
    assert "<pre>" in shown_within(1, f"<p {attributes}>x</p>")


def test_many_words_between_tags_are_no_attributes() -> None:
    shown = document("<p title='a > b'>" + 'He said: "it\'s x=1 and y = 2". ' * 3000 + "</p><p class='a b c'>end</p>")
    assert "<pre>" not in shown and "end" in shown


FORMATTING = ["b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"]


@pytest.mark.parametrize(
    "opened",
    few(
        [
            "".join(f"<b id={number:x}>" for number in range(1900)),
            "".join(f"<{name}>" * 3 for name in FORMATTING),
            "".join(f"<{name}><table><td></{name}></td></table>" * 3 for name in FORMATTING),
            "".join(f"<{name}><title></{name}></title>" * 3 for name in FORMATTING),
            "".join(f"<{name}><p title='> </{name}>'>" * 3 for name in FORMATTING),
            "".join(f'<{name}><p x=y=\'" z="\'></{name}>">' * 3 for name in FORMATTING),
            "".join(f"<{name}><!--</{name}>-->" * 3 for name in FORMATTING),
        ],
        3,
    ),
    ids=["attributes", "all", "cells", "raw text", "attribute", "quotes", "comments"],
)
def test_formatting_that_is_not_closed_took_all_memory(opened: str) -> None:
    """The parser makes it again in each paragraph that follows: 20 GB of 250 kB."""
    assert "<pre>" in shown_within(4, f"<p>{opened}" + "</p><p>x" * 20_000)


def test_ordinary_formatting_is_shown() -> None:
    inside = "<font color=red><b class='x'>Hello</b> <a href='https://a.example/'>x</a></font>"
    shown = document(f"<table><tr><td>{inside}</td></tr></table>" * 2000)
    assert "<pre>" not in shown and "<b>Hello</b>" in shown and "[https://a.example/]" in shown
