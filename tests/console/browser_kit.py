"""A real Chromium that looks at a real console, at two widths and in both themes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Role
from tests.console.console_kit import ConsoleProcess
from tests.node_packages import node_and_modules
from tests.requirements import find, need, unavailable

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
# Name -> width and theme
LOOKS: dict[str, dict[str, Any]] = {
    f"{theme}-{name}": {"viewport": size, "color_scheme": theme}
    for theme in ("light", "dark")
    for name, size in (("wide", WIDE), ("narrow", NARROW))
}


@contextmanager
def chromium() -> Iterator[Any]:
    need("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find("chromium"), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window(browser: Any, console: ConsoleProcess, role: Role | None = Role.ADMIN, **look: Any) -> Iterator[Any]:
    """A page that is signed in; fails if a script fails, the policy is violated or something is asked for elsewhere."""
    context = browser.new_context(
        base_url=f"http://127.0.0.1:{console.port}", timezone_id="Europe/Zurich", locale="en-GB", **look
    )
    if role is not None:
        token = console.signed_in(role, name="ann").cookies[SESSION_COOKIE]
        cookie = {"name": SESSION_COOKIE, "value": token, "domain": "127.0.0.1", "path": "/"}
        context.add_cookies([{**cookie, "secure": True, "httpOnly": True, "sameSite": "Lax"}])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if _is_bad(said) else None)
    own = f"http://127.0.0.1:{console.port}/"
    page.on(
        "request", lambda asked: problems.append(f"elsewhere: {asked.url}") if not asked.url.startswith(own) else None
    )
    try:
        yield page
    finally:
        context.close()
    assert problems == []


def _is_bad(said: Any) -> bool:
    """An answer that is an error on purpose is reported, too."""
    return said.type in ("error", "warning") and "the server responded with a status of" not in said.text


def wrong_for_readers(page: Any) -> list[str]:
    """What axe finds, by WCAG 2.2 AA and its best practices. The debugger runs it: the policy forbids other scripts."""
    _, modules = node_and_modules(Path(__file__).parent / "node", "console-node")
    page.evaluate((modules / "axe-core" / "axe.min.js").read_text() + "; null")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("tags => axe.run(document, {runOnly: tags})", tags)
    return [f"{one['id']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]]


def overflows(page: Any) -> bool:
    """Whether the page must be scrolled sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
