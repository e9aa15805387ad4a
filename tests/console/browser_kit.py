"""A real Chromium that looks at a real console, at two widths and in both themes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Role
from tests.console.console_kit import ConsoleProcess
from tests.node_packages import node_and_modules
from tests.requirements import find, need, unavailable

LIMIT_MS = 120_000  # for whatever a page waits for: also on a busy machine
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
# Name -> width and theme
LOOKS: dict[str, dict[str, Any]] = {
    f"{theme}-{name}": {"viewport": size, "color_scheme": theme}
    for theme in ("light", "dark")
    for name, size in (("wide", WIDE), ("narrow", NARROW))
}
QUICK_LOOKS = ("light-wide", "dark-narrow")  # each width and each theme once; the others are for `make test-long`
EACH_LOOK = [pytest.param(look, marks=[] if look == "light-wide" else pytest.mark.long, id=look) for look in LOOKS]


def each_page(names: Iterable[str]) -> list[Any]:
    """Every page in every look. `make test` has each of them in one, by turns, and `overflows` tries both widths."""
    return [
        pytest.param(name, look, marks=[] if look == quick else pytest.mark.long, id=f"{name}-{look}")
        for name, quick in zip(names, cycle(QUICK_LOOKS), strict=False)
        for look in LOOKS
    ]


@contextmanager
def chromium() -> Iterator[Any]:
    """Without windows if possible: the same engine in a third of the processor time for each page."""
    program = find("chromium-headless-shell") or find("chromium")
    if program is None:
        need("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window(
    browser: Any, console: ConsoleProcess, role: Role | None = Role.ADMIN, name: str = "ann", **look: Any
) -> Iterator[Any]:
    """A page that is signed in; fails if a script fails, the policy is violated or something is asked for elsewhere."""
    page, problems = _opened(browser, console, role, name, look)
    try:
        yield page
    finally:
        page.context.close()
    assert problems == []


@dataclass
class Windows:
    """The windows of a module, one for each look and role, which its tests use in turn.

    Chromium starts a process for each new one, which takes longer than to look at a page.
    """

    browser: Any
    console: ConsoleProcess
    _open: dict[tuple[str, Role], tuple[Any, list[str]]] = field(default_factory=dict)

    @contextmanager
    def look(self, look: str, role: Role = Role.ADMIN) -> Iterator[Any]:
        """As `window`."""
        if (look, role) not in self._open:
            self._open[look, role] = _opened(self.browser, self.console, role, "ann", LOOKS[look])
        page, problems = self._open[look, role]
        try:
            yield page
            assert problems == []
        except BaseException:
            del self._open[look, role]
            page.context.close()
            raise

    def close(self) -> None:
        for page, _ in self._open.values():
            page.context.close()


def _opened(
    browser: Any, console: ConsoleProcess, role: Role | None, name: str, look: dict[str, Any]
) -> tuple[Any, list[str]]:
    """The page, and the list of what goes wrong on it."""
    context = browser.new_context(
        base_url=f"http://127.0.0.1:{console.port}", timezone_id="Europe/Zurich", locale="en-GB", **look
    )
    if role is not None:
        token = console.signed_in(role, name=name).cookies[SESSION_COOKIE]
        cookie = {"name": SESSION_COOKIE, "value": token, "domain": "127.0.0.1", "path": "/"}
        context.add_cookies([{**cookie, "secure": True, "httpOnly": True, "sameSite": "Lax"}])
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if _is_bad(said) else None)
    own = f"http://127.0.0.1:{console.port}/"
    page.on(
        "request", lambda asked: problems.append(f"elsewhere: {asked.url}") if not asked.url.startswith(own) else None
    )
    return page, problems


def _is_bad(said: Any) -> bool:
    """An answer that is an error on purpose is reported, too."""
    return said.type in ("error", "warning") and "the server responded with a status of" not in said.text


def wrong_for_readers(page: Any) -> list[str]:
    """What axe finds, by WCAG 2.2 AA and its best practices; the contrast in both themes.

    The debugger runs it: the policy forbids other scripts.
    """
    if not page.evaluate("typeof axe === 'object'"):
        _, modules = node_and_modules(Path(__file__).parent / "node", "console-node")
        page.evaluate((modules / "axe-core" / "axe.min.js").read_text() + "; null")
    found: list[str] = page.evaluate(_VIOLATIONS, _TAGS)
    own, other = ("dark", "light") if page.evaluate(_IS_DARK) else ("light", "dark")
    _show(page, other)
    found += [f"{other}: {each}" for each in page.evaluate(_VIOLATIONS, _CONTRAST)]
    _show(page, own)
    return found


def _show(page: Any, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.evaluate("document.getAnimations().forEach(each => each.finish())")  # colours fade into each other


_IS_DARK = "matchMedia('(prefers-color-scheme: dark)').matches"
_TAGS = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
_CONTRAST = {"type": "rule", "values": ["color-contrast"]}  # the only one that the theme changes
# The page returns no more than we need: all results of all rules are megabytes. There is no axe in the frame of a
# preview that it could ask.
_VIOLATIONS = """async rules => {
    const options = {runOnly: rules, resultTypes: ['violations'], selectors: false, iframes: false};
    const found = await axe.run(document, options);
    return found.violations.flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.html.slice(0, 200)}`));
}"""


def overflows(page: Any) -> bool:
    """Whether the page must be scrolled sideways, in a wide window or on a telephone."""
    own, found = page.viewport_size, False
    for size in (NARROW, WIDE, own):
        page.set_viewport_size(size)
        found |= page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    return found
