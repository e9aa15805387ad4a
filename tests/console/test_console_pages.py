"""What the pages show: the overview, the search, stories, settings; and the console beside a daemon in trouble."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from bridge.console.audit import Audit
from bridge.console.checks import Refused
from bridge.console.held_counts import HeldCounts
from bridge.console.live import Live, Picture
from bridge.console.pages.mail import PER_PAGE, read
from bridge.console.pages.overview import sentence_of
from bridge.console.roles import Role
from bridge.console.streams import MAX_OF_PERSON, MAX_OF_SESSION, MAX_OPEN, Streams
from bridge.observe.cluster_view import Nodes
from bridge.observe.redaction import Redaction
from bridge.quarantine.quarantine import Quarantine
from bridge.runtime.endpoints import Endpoint
from bridge.testing import eventually, free_port, until
from tests.console.console_kit import TENANT_A, TENANT_B, Browser, World, console_process, remember, world
from tests.console.held_kit import hold
from tests.daemon.process_kit import scanbridge, write_config

# Overview

QUIET = {"problems": [], "warnings": [], "ready": True, "saturated_by": []}


@pytest.mark.parametrize(
    ("data", "tone", "text"),
    [
        (QUIET, "good", "Mail is being accepted, scanned and delivered."),
        ({**QUIET, "warnings": ["list x is stale"]}, "warn", "Mail is being accepted, scanned and delivered."),
        (
            {**QUIET, "saturated_by": ["limit"]},
            "warn",
            "Mail is being scanned, but more is arriving than can be processed.",
        ),
        ({**QUIET, "ready": False}, "bad", "Mail is not being accepted."),
        ({**QUIET, "problems": ["NOT SCANNING: token refused; all mail is being deferred"]}, "bad", "Not scanning."),
        (None, "bad", "Unknown: the daemon does not answer."),
    ],
)
def test_the_first_sentence_says_whether_mail_is_scanned(data: dict[str, Any] | None, tone: str, text: str) -> None:
    """The worst comes first."""
    said = sentence_of(Picture(0.0, data), "127.0.0.1:9082")
    assert (said.tone, said.text) == (tone, text)


def test_the_overview_has_scanners_next_hops_and_the_limit(shared: World) -> None:
    """For people who see everything."""
    shared.send()
    page = shared.console.signed_in(Role.VIEWER).get("/").text
    assert shared.scanner.url in page and shared.next_hop.url in page
    assert re.search(r"In processing.*?0<small> of 20", page, re.DOTALL)
    for word in ("deliver", "quarantine", "bounce", "drop", "undecided"):
        assert f"</svg>\n{word}</span>" in page


def test_the_overview_showed_the_quarantine_of_a_minute_ago(shared: World) -> None:
    """The daemon counts once a minute; its page of the quarantine had another number at the same time."""
    admin = shared.console.signed_in()
    for number in range(2):
        hold(shared.console.directory, f"FRESH{number}", "jane@a.example")
        here = re.search(r"([\d,]+) mails are here", admin.get("/quarantine").text)
        assert here is not None
        tile = f'In the quarantine</span><span class="number">{here[1]}</span>'
        until(lambda tile=tile: tile in admin.get("/").text, "the number on the overview")


async def test_the_overview_does_not_wait_for_a_slow_quarantine() -> None:
    """It shows the last number meanwhile, and one count is under way at a time."""
    counts, answer_now = HeldCounts(), threading.Event()
    asked: list[None] = []

    class SlowQuarantine:
        def count(self, tenants: object) -> int:
            asked.append(None)
            answer_now.wait(60)
            return 7

    slow = cast(Quarantine, SlowQuarantine())
    assert [await counts.recent(slow), await counts.recent(slow)] == [None, None]
    await eventually(lambda: len(asked) == 1, "the count to begin")
    answer_now.set()
    assert counts._counting is not None
    await counts._counting
    assert await counts.recent(slow) == 7 and len(asked) == 1


def test_the_overview_shows_all_nodes_of_a_cluster(tmp_path: Path) -> None:
    """The one that does not answer first; people of one tenant see none of them."""
    gone = f"127.0.0.1:{free_port()}"
    with world(tmp_path, cluster={kind: [gone] for kind in ("bridges", "workers", "nats", "haproxy")}) as made:
        viewer = made.console.signed_in(Role.VIEWER)
        all_gone = "0 of 1 bridge, 0 of 1 worker, 0 of 1 NATS server, 0 of 1 HAProxy ready."
        until(lambda: all_gone in viewer.get("/").text, "the first view of all nodes")
        for kind in ("Bridge", "Worker", "NATS", "HAProxy"):
            assert re.search(rf"{kind} {gone}</strong><span>does not answer", viewer.get("/").text)
        assert gone not in made.console.signed_in(Role.VIEWER, frozenset({TENANT_A})).get("/").text


async def test_a_node_that_does_not_answer_held_up_every_page(tmp_path: Path) -> None:
    """The picture of this machine does not wait for the others, and their last view is shown meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = Endpoint("127.0.0.1", silent.getsockname()[1])
        live = Live(Endpoint("127.0.0.1", free_port()), Nodes(bridges=(place,)))
        asking = asyncio.create_task(live.nodes())
        assert (await live.now()).data is None  # no daemon
        assert not asking.done()
        await asking
        assert live._asking is not None
        await live._asking
        assert (found := await live.nodes()) is not None and not found.nodes[0].is_reached


def test_people_of_one_tenant_see_no_machines(shared: World) -> None:
    """Only the sentence, and their own mail."""
    page = shared.console.signed_in(Role.ADMIN, frozenset({TENANT_A})).get("/").text
    assert "Mail is being accepted, scanned and delivered." in page and "Your mail in the last hour" in page
    assert shared.scanner.url not in page and shared.next_hop.url not in page
    nothing = shared.console.signed_in(Role.ADMIN, frozenset({"33333333-3333-4333-8333-333333333333"})).get("/").text
    assert "No mail arrived for your tenants in the last hour." in nothing


def test_the_live_page_sends_what_has_changed(shared: World) -> None:
    """As server-sent events, which begin at once."""
    browser = shared.console.signed_in()
    with closing(http.client.HTTPConnection("127.0.0.1", shared.console.port, timeout=120)) as connection:
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        connection.request("GET", "/live", headers={"Cookie": cookie, "Host": f"127.0.0.1:{shared.console.port}"})
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = b""
        while b"event: overview" not in text or not text.endswith(b"\n\n"):
            text += answer.read1(65536)
    assert b"Mail is being accepted" in text and b"<script" not in text


def test_one_session_does_not_watch_in_many_windows(shared: World) -> None:
    """Each window holds a connection."""
    browser = shared.console.signed_in()
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    open_ones = []
    try:
        for _ in range(MAX_OF_SESSION):
            connection = http.client.HTTPConnection("127.0.0.1", shared.console.port, timeout=120)
            connection.request("GET", "/live", headers={"Cookie": cookie, "Host": f"127.0.0.1:{shared.console.port}"})
            answer = connection.getresponse()
            answer.read1(100)
            open_ones.append((connection, answer))
        refused = browser.get("/live")
        assert (refused.status, refused.headers["retry-after"]) == (503, "10") and "too many windows" in refused.text
        assert f"event stream refused: {MAX_OF_SESSION} open" in shared.console.log
        assert shared.console.signed_in().get("/live").status == 200  # others are not affected
    finally:
        for connection, answer in open_ones:
            answer.close()
            connection.close()
    until(lambda: browser.get("/live").status == 200, "the streams to be free again")


async def test_all_sessions_together_have_a_limited_number_of_streams() -> None:
    """Also if a browser goes away before the first event."""
    streams = Streams()

    async def events() -> AsyncIterator[str]:
        yield "retry: 3000\n\n"

    async def gone(_: object = None) -> Any:
        raise OSError

    opened = [streams.stream(f"{number % 5}", f"session {number % 50}", events()) for number in range(MAX_OPEN)]
    with pytest.raises(Refused) as found:
        streams.stream("another", "another session", events())
    assert (found.value.status, found.value.retry_after_s, streams.refused) == (503, 10, 1)
    for each in opened:
        with pytest.raises((OSError, ExceptionGroup)):
            await each({"type": "http", "asgi": {}}, gone, gone)
    assert streams.number == 0 and streams.stream("another", "another session", events())


async def test_one_person_with_many_sessions_took_all_streams() -> None:
    """Everybody else was told that too many live pages were open."""
    streams = Streams()

    async def events() -> AsyncIterator[str]:
        yield "retry: 3000\n\n"

    for number in range(MAX_OF_PERSON):
        streams.stream("greedy", f"session {number}", events())
    with pytest.raises(Refused):
        streams.stream("greedy", "one more", events())
    assert streams.stream("other", "theirs", events())


# Mail

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></textarea><svg onload=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202egpj.exe",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_mail_stays_text(shared: World, text: str) -> None:
    """In every place where it is shown."""
    mail_id = f"HOSTILE{HOSTILE.index(text)}"
    history = shared.console.history
    values = {"sender": f"{text}@x.example", "recipients": f"{text}@a.example", "tags": text.replace(",", "")}
    values |= {"subject": text, "message_id": f"<{text}>", "helo": text, "reply": f"250 {text}", "queue_id": text}
    remember(history, (mail_id, TENANT_A), **values)
    history.close()
    browser = shared.console.signed_in()
    for path in ("/mail", f"/mail/{mail_id}"):
        page = browser.get(path).text
        assert "<script>alert" not in page and "<img src=x" not in page and "<svg onload" not in page
        assert "\u202e" not in page and 'href="javascript:' not in page
    assert "{{ 7*7 }}" in page or text != HOSTILE[3]


def test_people_of_a_tenant_do_not_see_the_machines_in_a_story(shared: World) -> None:
    """It showed them addresses of scanners and next hops, entries of others' lists, and commands for a shell."""
    history = shared.console.history
    why = {"why": "connect to 10.9.8.7 failed", "entry": "secret-entry.example"}
    more = {"scanner": "http://10.9.8.7:8080", "more": json.dumps(why), "list": "partners"}
    remember(history, ("MACHINE1", TENANT_A), **more, action="relay", decision="deliver", next_id="4bXyZ")
    remember(history, ("MACHINE2", TENANT_A), **more, action="tempfail", decision="", error="next_hop")
    history.close()
    own = shared.console.signed_in(Role.VIEWER, frozenset({TENANT_A}))
    everything = "".join(shared.console.signed_in().get(f"/mail/MACHINE{number}").text for number in (1, 2))
    pages = [own.get(f"/mail/MACHINE{number}") for number in (1, 2)]
    hop = f"127.0.0.1:{shared.next_hop.port}"
    hidden = ("10.9.8.7", "secret-entry.example", hop, "On the command line", "scanbridge lists entries")
    command = f"scanbridge lists entries -c {shared.console.config} partners"
    assert command in everything, "a command for a shell acted on the default configuration"
    hidden = (*hidden[:-1], command)
    assert not [word for word in hidden if word not in everything], "administrators see all of it"
    for page in pages:
        assert page.status == 200 and not [word for word in hidden if word in page.text]
    assert "The scanner scanned it" in pages[0].text and "4bXyZ" in pages[0].text
    assert "The next hop did not accept it." in pages[1].text


def test_pages_of_a_search_do_not_overlap(shared: World) -> None:
    """The link to older mail has everything that was asked for."""
    history = shared.console.history
    remember(history, *((f"PAGE{number:04d}", TENANT_B) for number in range(PER_PAGE + 7)), sender="paging@x.example")
    history.close()
    browser, seen, path = shared.console.signed_in(), [], "/mail?sender=paging@x.example&since=2h"
    while path:
        page = browser.get(path).text
        seen += re.findall(r'href="/mail/(PAGE\d+)"', page)
        found = re.search(r'href="([^"]+)" rel="next"', page)
        path = found[1].replace("&amp;", "&") if found else ""
    assert sorted(seen) == [f"PAGE{number:04d}" for number in range(PER_PAGE + 7)]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("since=bogus", "Since"), ("client=999", "Client"), ("action=explode", "Action"), ("tenant=x", "Tenant"),
        ("subject=...", "Subject"), ("what=%00", "What"), ("before=x", "Before"), ("sender=" + "x" * 1001, "Sender"),
    ],
)  # fmt: skip
def test_mistakes_in_a_search_are_explained(shared: World, query: str, field: str) -> None:
    """With the field's name, and what was typed is still there."""
    answer = shared.console.signed_in().get(f"/mail?{query}")
    assert answer.status == 400 and f"{field}: " in answer.text


def test_days_are_those_of_the_reader() -> None:
    """A script fills in the zone; without it, and for an unknown one, it is UTC."""
    there = read({"since": "2026-11-01", "zone": "Pacific/Auckland"}).wanted["since"]
    here = read({"since": "2026-11-01"}).wanted["since"]
    assert here - there == 13 * 3600
    for zone in ("Nowhere/Land", "../../etc/passwd", "/etc/localtime", "x" * 100):
        assert read({"since": "2026-11-01", "zone": zone}).wanted["since"] == here


def test_a_mail_is_found_by_any_key_or_address(shared: World) -> None:
    """As `explain` finds it: also as it is copied out of a log."""
    history = shared.console.history
    own = {"queue_id": "4bXyZ", "message_id": "<find-me@x.example>", "sender": "finder@keys.example", "ggrid": "GG-1"}
    remember(history, ("FINDME", TENANT_A), **own)
    history.close()
    browser = shared.console.signed_in()
    for what in (
        "FINDME",
        "id=FINDME",
        "findme",
        "4bXyZ:",
        "%3Cfind-me@x.example%3E,",
        "finder@keys.example",
        "keys.example",
    ):
        assert "/mail/FINDME" in browser.get(f"/mail?what={what}").text, what


def test_addresses_are_asked_for_as_the_history_has_them(tmp_path: Path) -> None:
    """With `log.addresses: hashed`, a whole address is found by its pseudonym, and a domain cannot be."""
    with world(tmp_path, log={"addresses": "hashed"}) as made:
        key = (tmp_path / "state" / "log-key").read_text().strip().encode()[:64]
        history = made.console.history
        remember(history, ("HIDDEN", TENANT_A), sender=Redaction("hashed", key).address("jane@x.example"))
        history.close()
        browser = made.console.signed_in()
        assert "/mail/HIDDEN" in browser.get("/mail?sender=jane@x.example").text
        answer = browser.get("/mail?sender=x.example")
        assert answer.status == 400 and "the history has no domains" in answer.text


# Audit


def test_everything_that_was_seen_or_done_is_in_the_audit_log(shared: World) -> None:
    """Also what was refused, and how it ended."""
    name = "audited"
    browser = shared.console.signed_in(Role.VIEWER, name=name)
    browser.get("/mail?sender=somebody@x.example")
    browser.get("/mail/MAILA")
    browser.get("/audit")
    browser.post("/sessions/revoke", {"session": "0" * 12})
    browser.post("/sign-out")
    with closing(shared.console.store) as store:
        found = [(e.action, e.mail, e.result, e.detail) for e in reversed(Audit(store).find(name=name))]
    assert found == [
        ("searched mail", "", "done", "sender: somebody@x.example"),
        ("viewed the story of a mail", "MAILA", "done", ""),
        ("asked for /audit", "", "refused", "needs the role admin"),
        ("ended a session", "", "failed", "The session has already ended, or it is not yours."),
        ("signed out", "", "done", ""),
    ]
    admin = shared.console.signed_in()
    page = admin.get(f"/audit?name={name}&action=viewed+the+story+of+a+mail").text
    assert 'href="/mail/MAILA"' in page and "<span>searched mail" not in page


# Around it


def test_without_its_key_the_console_says_how_to_turn_it_on(tmp_path: Path) -> None:
    """Exit code 78: a service manager must not restart it."""
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2")
    done = scanbridge("console", "-c", config)
    assert done.returncode == 78 and "address: 127.0.0.1:9083" in done.stderr


@pytest.mark.parametrize("root", ["/scanbridge", ""], ids=["path passed on", "path removed"])
def test_it_works_below_a_path_behind_a_reverse_proxy(tmp_path: Path, root: str) -> None:
    """Links, cookies and redirects have the path; the client's address is the one that the proxy names."""
    port = free_port()
    section = {"address": f"127.0.0.1:{port}", "public_url": "https://mail.example.org/scanbridge/"}
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", console=section)
    with console_process(config, port, root=root, host="mail.example.org") as console:
        console.add_user("ann")
        browser = console.browser()
        assert browser.get("/mail").target == "/scanbridge/sign-in?next=%2Fmail"
        page = browser.get("/sign-in").text
        assert 'action="/scanbridge/sign-in"' in page and 'href="/scanbridge/static/console.css' in page
        own = {"Origin": "https://mail.example.org", "X_Forwarded_For": "203.0.113.9, 192.0.2.77"}
        answer = browser.sign_in("ann", **own)
        assert (answer.status, answer.target) == (303, "/scanbridge/")
        assert "192.0.2.77" in browser.get("/sessions").text
        assert browser.post("/sign-out", Origin="https://mail.example.org:444").status == 403
        assert Browser(port).get("/sign-in").status == 421


def test_it_works_while_the_daemon_is_down(tmp_path: Path) -> None:
    """The history can be searched; the overview says what is wrong."""
    port = free_port()
    section = {"address": f"127.0.0.1:{port}"}
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", console=section)
    with console_process(config, port) as console:
        history = console.history
        remember(history, ("ALONE", ""))
        history.close()
        browser = console.signed_in()
        assert "the daemon does not answer" in browser.get("/").text
        assert "/mail/ALONE" in browser.get("/mail").text and browser.get("/mail/ALONE").status == 200
        answer = browser.post("/settings/reload")
        assert answer.status == 200 and "no daemon answers" in answer.text
        assert "does not answer" in browser.get("/settings").text


def test_mistakes_in_the_file_are_shown(tmp_path: Path) -> None:
    """The console keeps answering with the configuration it was started with."""
    port = free_port()
    config, _, _ = write_config(
        tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", console={"address": f"127.0.0.1:{port}"}
    )
    with console_process(config, port) as console:
        browser = console.signed_in()
        page = browser.get("/settings").text
        assert "scanner.token_file" in page and "bridge.yml:" in page and "default" in page
        config.write_text(config.read_text() + "nonsense: 1\n")
        assert "nonsense: unknown key" in browser.get("/settings").text
        assert "nonsense: unknown key" in browser.post("/settings/check").text


def test_mail_does_not_notice_an_attack_on_the_console(shared: World) -> None:
    """Sixteen clients hammer at it, with wrong passwords and searches; every mail is accepted as before."""
    stop, errors = threading.Event(), []

    def attack() -> None:
        browser = shared.console.signed_in()
        while not stop.is_set():
            try:
                browser.get("/mail?subject=hello")
                shared.console.browser().get("/sign-in")
            except OSError as exc:
                errors.append(exc)

    threads = [threading.Thread(target=attack) for _ in range(16)]
    for thread in threads:
        thread.start()
    try:
        replies = [shared.send(subject=f"under attack {number}") for number in range(30)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(reply.startswith("250 ") for reply in replies)


def test_mail_does_not_notice_that_the_console_is_gone(tmp_path: Path) -> None:
    """It is killed and its database is damaged; mail passes, and the daemon says nothing of it."""
    with world(tmp_path) as made:
        made.console.process.kill()
        made.console.process.wait()
        (tmp_path / "state" / "console.sqlite").write_bytes(b"nonsense" * 1000)
        assert made.send().startswith("250 ")
        assert "console" not in made.bridge.log


def test_a_damaged_database_is_explained(tmp_path: Path) -> None:
    """The page says so instead of failing silently, and nobody is signed in."""
    port = free_port()
    section = {"address": f"127.0.0.1:{port}"}
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", console=section)
    with console_process(config, port) as console:
        browser = console.signed_in()
        for file in (tmp_path / "state").glob("console.sqlite*"):
            file.write_bytes(b"nonsense" * 1000)
        until(lambda: browser.get("/mail").status == 503, "the console to notice")
        answer = browser.get("/mail")
        assert "own database cannot be used at the moment" in answer.text and "sqlite" not in answer.text.lower()
        assert "the console's database cannot be used: " in console.log
