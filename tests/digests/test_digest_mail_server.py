"""With a real Postfix, Dovecot and Chromium: a held mail, its digest in the Maildir, the release, the mail once."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Role
from bridge.digests.database import FILE, DigestStore
from bridge.digests.items import Items
from bridge.runtime.database import Database
from bridge.testing import answer, free_port, result, until
from tests.console.browser_kit import LIMIT_MS, chromium, overflows, wrong_for_readers
from tests.console.console_kit import ConsoleProcess, console_process
from tests.digests.digest_kit import Users, parsed, users
from tests.digests.mail_server_kit import MailServer, mail_server

# Language -> the subject of a digest, the button in it, the button on the page, what the page then says
WORDS = {
    "en": ("1 mail is held for you", "Release", "The mail was released"),
    "de": ("1 E-Mail wird für Sie zurückgehalten", "Freigeben", "Die E-Mail wurde freigegeben"),
    "fr": ("1 message est retenu pour vous", "Libérer", "Le message a été libéré"),
    "es": ("1 mensaje está retenido para usted", "Liberar", "El mensaje se ha liberado"),
}
BODY = (
    b"From: John <john@client.example>\r\nTo: you@a.example\r\nSubject: %b\r\nMessage-ID: <1@client.example>\r\n"
    b"Date: Mon, 16 Nov 2026 10:00:00 +0100\r\n"
    b"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
    b".dot\r\nna\xc3\xafve \r\n\r\n"
)
OFFER = (
    b"From: Weekly Deals <deals@shop.example>\r\nTo: you@a.example\r\nSubject: %b\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: multipart/alternative; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    b"Dear customer,\r\n\r\ncaf\xc3\xa9 tables and chairs are 20 %% cheaper until Sunday.\r\n\r\n"
    b"--b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<h1>20 %% off</h1><p>Only <b>until Sunday</b>: "
    b"<a href='http://shop.example/sale'>caf\xc3\xa9 tables and chairs</a>.</p>\r\n--b--\r\n"
)
FOUND = ["claims to be Bank, sent from bank-login.example", "an attached page asks for a password"]
PICTURES = os.environ.get("SCREENSHOTS", "")
ON_PAGES = {"Held mail": "users-list", "New prices": "users-mail"}  # what was clicked -> the picture


@dataclass
class World:
    users: Users
    server: MailServer
    console: ConsoleProcess
    chromium: Any

    def hold(self, subject: str, *recipients: str, body: bytes = BODY, **scan: Any) -> bytes:
        """Send a mail that the scanner wants held; returns its bytes."""
        content = body % subject.encode()
        self.users.scanner.reply = answer(200, result(**{"decision": "quarantine", "verdict": "spam", **scan}))
        held = len(self.held())
        self.server.send(content, "john@client.example", *recipients)
        until(lambda: len(self.held()) == held + 1, "the mail to be held")
        return content

    def held(self) -> list[Path]:
        return list((self.users.directory / "state" / "quarantine").glob("*.eml"))

    def arrived(self, name: str, count: int) -> list[bytes]:
        """The mails in the Maildir, as SMTP carries them."""
        until(lambda: len(self.server.mailbox(name)) >= count, f"{count} mails for {name}")
        return [path.read_bytes().replace(b"\n", b"\r\n") for path in self.server.mailbox(name)]

    def speak(self, name: str, language: str) -> None:
        with closing(DigestStore(Database.file(self.users.directory / "state" / FILE))) as store:
            Items(store, "").choose(f"{name}@a.example", language=language)

    def send_digests(self) -> None:
        done = self.users.command("digest", "send", "--now")
        assert done.returncode == 0, done.stderr

    def window(self, **look: Any) -> Any:
        context = self.chromium.new_context(**look)
        context.set_default_timeout(LIMIT_MS)
        return context.new_page()

    def open_digest(self, content: bytes, tmp_path: Path, **look: Any) -> Any:
        """In a window, as a mail program shows it: nothing is asked for until the reader clicks."""
        part = parsed(content).get_body(("html",))
        assert part is not None
        file = tmp_path / "digest.html"
        file.write_text(part.get_content(), "utf-8")
        page = self.window(locale="en-GB", **look)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        assert asked == [file.as_uri()]
        return page


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory, behind, port = tmp_path_factory.mktemp("mail"), free_port(), free_port()
    sections = {"relay": {"next_hop": f"127.0.0.1:{behind}"}, "console": {"address": f"127.0.0.1:{port}"}}
    digests = {"notify": ["postmaster@a.example"]}
    with (
        chromium() as browser,
        users(directory, digests, **sections) as made,
        mail_server(made.bridge.port, behind) as server,
        console_process(directory / "bridge.yml", port) as console,
    ):
        yield World(made, server, console, browser)


@pytest.mark.parametrize(
    "language", [word if word in ("en", "de") else pytest.param(word, marks=pytest.mark.long) for word in WORDS]
)
def test_a_digest_is_opened_and_the_mail_released(world: World, tmp_path: Path, language: str) -> None:
    release_from_digest(world, tmp_path, language)


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "profile", "way"),
    [
        ("milter", "", "smtpd_milters=inet:127.0.0.1:{port}"),
        ("smtp", "postfix-content-filter", "content_filter=smtp:[127.0.0.1]:{port}"),
        ("lmtp", "", "content_filter=lmtp:inet:127.0.0.1:{port}"),
    ],
    ids=["milter", "content filter", "LMTP"],
)
def test_however_postfix_asks_the_bridge(world: World, tmp_path: Path, protocol: str, profile: str, way: str) -> None:
    """The same as with a proxy filter: held, announced, released once, and no byte changed."""
    behind, port = free_port(), free_port()
    listener = {"name": "mx", "protocol": protocol, "address": f"127.0.0.1:{port}"}
    listener |= {"profile": profile} if profile else {}
    sections: dict[str, Any] = {"relay": {"next_hop": f"127.0.0.1:{behind}"}, "listeners": [listener]}
    sections["policy"] = {"quarantine": "quarantine"}  # the default of a milter is Postfix's hold queue
    with users(tmp_path, **sections) as made, mail_server(port, behind, way) as server:
        release_from_digest(replace(world, users=made, server=server), tmp_path, "en")


def release_from_digest(world: World, tmp_path: Path, language: str) -> None:
    name, (subject, button, done) = f"jane-{language}", WORDS[language]
    world.speak(name, language)
    original = world.hold(f"wanted {language}", f"{name}@a.example")
    world.send_digests()
    (digest,) = world.arrived(name, 1)
    assert parsed(digest)["Subject"] == subject
    assert parsed(digest)["Return-Path"] == "<MAILER-DAEMON>"  # how Postfix writes the null sender
    page = world.open_digest(digest, tmp_path)
    page.get_by_role("link", name=button, exact=True).click()
    assert page.locator("html").get_attribute("lang") == language
    assert len(world.server.mailbox(name)) == 1  # the click is a GET
    page.get_by_role("button").click()
    assert done in page.get_by_role("status").inner_text()
    page.reload()  # the browser asks again: nothing is sent twice
    world.send_digests()
    received = world.arrived(name, 2)
    assert len(received) == 2
    assert received[1].endswith(original)
    page.context.close()


@pytest.mark.long
def test_every_page_for_users_speaks_the_language_and_reads_well(world: World, tmp_path: Path) -> None:
    """By the link of the digest: the list, a mail, the choices; both widths; no violation of WCAG."""
    world.hold("Your account will be closed", "look@a.example", verdict="phishing", tags=["phishing"], reasons=FOUND)
    world.hold("New prices", "look@a.example", body=OFFER)
    world.send_digests()
    (digest,) = world.arrived("look", 1)
    for width in (1280, 360):
        page = world.open_digest(digest, tmp_path, viewport={"width": width, "height": 800})
        page.get_by_role("link", name="All mail that is held for you").click()
        page.get_by_role("button").click()
        page.get_by_role("heading", name="Held mail").wait_for()
        for target in ("Held mail", "Your account will be closed", "Held mail", "New prices", "My choices"):
            page.get_by_role("link", name=target, exact=True).first.click()
            page.wait_for_load_state()
            assert wrong_for_readers(page) == [], target
            assert not overflows(page), target
            if target == "New prices":
                assert "café tables" in page.locator("pre").inner_text()
            if target == "Your account will be closed":
                assert page.locator(".findings li").all_inner_texts() == [
                    "claims to be Bank, sent from bank-login.\u2060example", "an attached page asks for a password",
                ]  # fmt: skip
            if PICTURES and width == 1280 and target in ON_PAGES:
                page.screenshot(path=f"{PICTURES}/{ON_PAGES[target]}.png")
        page.get_by_label("Language").select_option("de")
        page.get_by_label("How often").select_option("never")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("heading", name="Meine Einstellungen").wait_for()
        assert page.get_by_label("Wie oft").input_value() == "never"
        page.get_by_label("Sprache").select_option("en")
        page.get_by_role("button", name="Speichern").click()
        page.context.close()


def test_sign_in_with_a_code_from_the_mailbox(world: World) -> None:
    world.hold("for the code", "coder@a.example")
    page = world.window(locale="fr-FR")
    page.goto(f"http://127.0.0.1:{world.users.served.port}/")
    page.get_by_label("Votre adresse").fill("Coder@A.example")
    page.get_by_role("button", name="M\u2019envoyer un code").click()
    (mail,) = world.arrived("coder", 1)
    code = re.search(r"\b\d{8}\b", parsed(mail).get_content())
    assert code is not None and code[0] not in parsed(mail)["Subject"]
    page.get_by_label("Code").fill(code[0])
    page.get_by_role("button", name="Se connecter").click()
    page.get_by_role("heading", name="Courrier retenu").wait_for()
    assert page.get_by_role("link", name="for the code").count() == 1
    page.context.close()


def test_a_request_waits_for_a_releaser_who_grants_it_to_the_one_who_asked(world: World, tmp_path: Path) -> None:
    original = world.hold("with malware", "asker@a.example", "other@a.example", verdict="malware", tags=["malware:any"])
    world.send_digests()
    (digest,) = world.arrived("asker", 1)
    page = world.open_digest(digest, tmp_path)
    page.get_by_role("link", name="Ask for its release").click()
    page.get_by_role("button", name="Ask for its release").click()
    page.get_by_role("status").wait_for()
    assert b"asker@a.example" in world.arrived("postmaster", 1)[-1]
    page.context.close()
    assert world.console.signed_in(Role.VIEWER).get("/requests").status == 403
    browser = world.console.signed_in(Role.RELEASER, name="rita")
    page = world.window()
    cookie = {"name": SESSION_COOKIE, "value": browser.cookies[SESSION_COOKIE], "domain": "127.0.0.1", "path": "/"}
    page.context.add_cookies([{**cookie, "secure": True}])
    page.goto(f"http://127.0.0.1:{world.console.port}/requests")
    assert wrong_for_readers(page) == []
    page.get_by_role("button", name="Release").click()
    page.get_by_text("The request was granted.").wait_for()
    received = world.arrived("asker", 2)
    assert received[1].endswith(original)
    assert len(world.server.mailbox("other")) == 1  # their digest alone
    page.context.close()


@pytest.mark.long
def test_a_digest_reads_well_in_two_widths(world: World, tmp_path: Path) -> None:
    """A wide window and a telephone: nothing is cut off, and buttons can be hit; in every language."""
    sizes = (("wide", 760), ("narrow", 360))
    for language, (name, width) in itertools.product(WORDS, sizes):
        digest = world.users.command("digest", "preview", "--language", language).stdout.encode()
        page = world.open_digest(digest, tmp_path, viewport={"width": width, "height": 900})
        assert not overflows(page)
        boxes = [link.bounding_box() for link in page.get_by_role("link", name=WORDS[language][1], exact=True).all()]
        assert boxes and all(box is not None and box["height"] >= 24 for box in boxes)
        if PICTURES and language == "en":
            page.screenshot(path=f"{PICTURES}/digest-{name}.png", full_page=True)
        page.context.close()
