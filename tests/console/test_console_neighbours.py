"""Another server of the same site, in the reader's browser: a web mailer, a wiki, a program on another port.

Browsers send our cookie with what it loads from us, because cookies know sites and not origins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Role
from bridge.console.routes import ROUTES
from bridge.testing import until
from tests.console.browser_kit import LIMIT_MS
from tests.console.console_kit import World
from tests.console.test_console_access import EXAMPLES
from tests.console.test_console_attacks import audited

PATHS = ("/quarantine/MAILA/download", "/quarantine/MAILA/html", "/quarantine/MAILA/source", "/mail/MAILA")


@contextmanager
def neighbour(page: str) -> Iterator[str]:
    """Serves a page at another port of the same host; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def opened(browser: Any, world: World, name: str) -> Any:
    """A window of somebody who is signed in to the console."""
    context = browser.new_context()
    token = world.console.signed_in(Role.VIEWER, name=name).cookies[SESSION_COOKIE]
    cookie = {"name": SESSION_COOKIE, "value": token, "domain": "127.0.0.1", "path": "/"}
    context.add_cookies([{**cookie, "secure": True, "httpOnly": True, "sameSite": "Lax"}])
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    return page


def test_a_neighbour_filled_the_audit_log_in_the_name_of_its_reader(shared: World, browser: Any) -> None:
    """It loads pages of the console as pictures, scripts and frames. It cannot read them, but they were looked at."""
    own = f"http://127.0.0.1:{shared.console.port}"
    loaded = "".join(
        f'<img src="{own}{path}"><script src="{own}{path}"></script><iframe src="{own}{path}"></iframe>'
        f'<object data="{own}{path}"></object>'
        f'<script>fetch("{own}{path}", {{mode: "no-cors", credentials: "include"}})</script>'
        for path in PATHS
    )
    with neighbour(f"<!DOCTYPE html><title>x</title>{loaded}") as url:
        page = opened(browser, shared, "framed")
        page.goto(url)
        until(lambda: len(audited(shared.console, name="framed")) >= len(PATHS), "the console to be asked")
        page.context.close()
    found = audited(shared.console, name="framed")
    assert {entry.result for entry in found} == {"refused"}, [(each.action, each.result) for each in found]


def test_a_link_from_another_site_leads_to_the_page(shared: World, browser: Any) -> None:
    """People send each other links."""
    own = f"http://127.0.0.1:{shared.console.port}"
    with neighbour(f'<!DOCTYPE html><title>x</title><a href="{own}/mail/MAILA">the mail</a>') as url:
        page = opened(browser, shared, "linked")
        page.goto(url)
        page.click("a")
        page.wait_for_url(f"{own}/mail/MAILA")
        assert page.title().startswith("Mail MAILA")
        page.context.close()


@pytest.mark.parametrize("row", [route.path for route in ROUTES if route.role is not None and not route.changes])
def test_no_page_is_loaded_by_another_site(shared: World, row: str) -> None:
    """Every row, whether it is in the audit log or not; a program that is no browser sends none of these fields."""
    path, browser = EXAMPLES["GET", row].path, shared.console.signed_in()
    for site in ("same-site", "cross-site"):
        for mode, dest in (("no-cors", "image"), ("navigate", "iframe"), ("cors", "empty"), (None, None)):
            fields = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}
            assert browser.get(path, **fields).status == 403, fields
