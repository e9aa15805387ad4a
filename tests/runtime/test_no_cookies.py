"""No HTTP client of ours keeps a cookie."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import pytest

from bridge.events.outbox import Entry
from bridge.events.sinks.webhook import WebhookSettings, WebhookSink, read_secrets
from bridge.runtime.no_cookies import no_cookies

BRIDGE = Path(__file__).parents[2] / "bridge"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLawz"


class Tracker:
    """Sets a new large cookie with each answer."""

    def __init__(self) -> None:
        self.cookies: list[str | None] = []
        tracker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                tracker.cookies.append(self.headers["Cookie"])
                self.send_response(200)
                self.send_header("Set-Cookie", f"c{len(tracker.cookies)}={'x' * 4000}; Max-Age=99999999; Path=/")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    made = Tracker()
    thread = Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


async def test_a_receiver_of_events_filled_our_memory_with_cookies(tracker: Tracker) -> None:
    """And recognised us by those that we sent back."""
    sink = WebhookSink(WebhookSettings(tracker.url, read_secrets(SECRET), 5.0))
    for number in range(5):
        entry = Entry("siem", f"event-{number}", "mail", "", 1.0, b"{}")
        assert not (await sink.deliver([entry])).get(entry.seq)
    assert sink._client is not None and len(sink._client.cookies) == 0
    await sink.close()
    assert tracker.cookies == [None] * 5


def test_no_cookie_is_accepted_by_any_kind_of_client(tracker: Tracker) -> None:
    with httpx2.Client(cookies=no_cookies(), trust_env=False) as client:
        for _ in range(3):
            assert client.post(tracker.url, content=b"x").status_code == 200
        assert len(client.cookies) == 0
    assert tracker.cookies == [None] * 3


def test_every_client_is_made_without_cookies() -> None:
    """Also those that are added later."""
    made = []
    for path in BRIDGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("httpx2.AsyncClient", "httpx2.Client"):
                made.append((path, [ast.unparse(each.value) for each in node.keywords if each.arg == "cookies"]))
            elif isinstance(node, ast.Call):
                shortcuts = {f"httpx2.{verb}" for verb in ("get", "post", "put", "request", "stream", "delete")}
                assert ast.unparse(node.func) not in shortcuts, f"{path}: make a client"
    assert len(made) >= 6
    assert not [path for path, cookies in made if cookies != ["no_cookies()"]]
