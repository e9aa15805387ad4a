"""The pages for users: who may see what, sign-in, choices, policy, header fields, hostile mail."""

from __future__ import annotations

import re
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.console.database import FILE as CONSOLE_FILE
from bridge.console.database import attempts
from bridge.console.headers import PREVIEW_POLICY
from bridge.console.sign_in_attempts import MAX_PER_USER
from bridge.digests.database import FILE, DigestStore
from bridge.digests.items import Items
from bridge.errors import BridgeError
from bridge.runtime.database import Database
from bridge.testing import until
from bridge.user_pages.app import ROUTES
from bridge.user_pages.cookies import SESSION_COOKIE
from bridge.user_pages.sessions import UserSessions
from tests.console.browser_kit import chromium
from tests.console.held_kit import CONTENT, held_ids, hold, holding
from tests.console.hostile_mails import MARK, corpus
from tests.digests.digest_kit import Browser, Users, links, parsed, users

CLOSED, CHANGES = [route for route in ROUTES if not route.is_open], [route for route in ROUTES if route.changes]
ALIASES = "info@a.example boss@a.example\n@boss.example boss@a.example\n"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    directory = tmp_path_factory.mktemp("pages")
    (directory / "aliases").write_text(ALIASES)
    digests = {
        "domains": ["a.example", "boss.example"], "aliases_file": "aliases",
        "users": {"other": "nothing", "delete": False}, "exclude": ["list@a.example"],
    }  # fmt: skip
    with users(directory, digests) as made:
        yield made


def _is_listed(browser: Browser, subject: str, expected: bool) -> bool:
    return (subject in browser.get("/").text) is expected


def signed_in(world: Users, person: str) -> Browser:
    """A browser with a session of its own."""
    browser = world.served.browser()
    with closing(DigestStore(Database.file(world.directory / "state" / FILE))) as store:
        browser.cookies[SESSION_COOKIE] = UserSessions(store, 3600, 3600).begin(person)
    return browser


def code_in(world: Users) -> str:
    """The code in the last mail. The subject is in logs and in the history, so it is not there."""
    mail = parsed(world.received()[-1].content)
    code = re.search("[0-9]{8}", mail.get_content())
    assert code is not None and code[0] not in mail["Subject"]
    return code[0]


def signed_in_by_code(world: Users, address: str) -> Browser:
    """By a code that is sent to the address."""
    browser = world.served.browser()
    browser.get("/sign-in")
    before = len(world.next_hop.mails)
    assert browser.post("/sign-in", {"address": address}).status == 200
    until(lambda: len(world.next_hop.mails) > before, "the code")
    code = code_in(world)
    answer = browser.post("/sign-in/code", {"address": address, "code": code})
    assert answer.status == 303, answer.text
    return browser


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
def test_a_method_that_is_not_possible_names_those_that_are(pages: Users, path: str) -> None:
    """RFC 9110 15.5.6. Before, the page said that there is none at this address."""
    methods = {route.method for route in ROUTES if route.path == path}
    allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    for method in ("PUT", "DELETE", "OPTIONS"):
        answer = pages.served.browser().ask(method, re.sub(r"{\w+}", "x", path))
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")


def test_nobody_sees_anything_of_others(pages: Users) -> None:
    hold(pages.directory, "OWN1", "own@a.example", CONTENT.replace(b"hello", b"my own"))
    hold(pages.directory, "THEIRS1", "theirs@a.example", CONTENT.replace(b"hello", b"their own"))
    own = signed_in(pages, "own@a.example")
    listed = own.get("/").text
    assert "my own" in listed and "their own" not in listed and "THEIRS1" not in listed
    for path in ("", "/html", "/release", "/delete", "/block", "/allow", "/report"):
        method = own.get if path in ("", "/html") else own.post
        assert method(f"/mail/THEIRS1{path}").status == 404, path
        assert method(f"/mail/NOSUCH{path}").status == 404, path
        same = [method(f"/mail/{mail}{path}").text.replace(mail, "") for mail in ("THEIRS1", "NOSUCH")]
        assert same[0] == same[1]  # they do not even learn that it exists
    assert "THEIRS1" in held_ids(pages.directory)


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not route.is_open], ids=lambda r: f"{r.method} {r.path}"
)
def test_every_other_page_needs_a_sign_in(pages: Users, route: Any) -> None:
    if "CLOSED1" not in held_ids(pages.directory):
        hold(pages.directory, "CLOSED1", "closed@a.example")
    path = route.path.replace("{id}", "CLOSED1")
    browser = pages.served.browser()
    browser.get("/sign-in")
    answer = browser.post(path) if route.changes else browser.get(path)
    assert (answer.status, answer.target) in ((401, ""), (303, "/sign-in"))
    browser.cookies[SESSION_COOKIE] = "x" * 43
    answer = browser.post(path) if route.changes else browser.get(path)
    assert answer.status in (303, 401, 403) and answer.target in ("", "/sign-in")


@pytest.mark.parametrize("route", CHANGES, ids=lambda route: f"{route.method} {route.path}")
def test_every_change_needs_our_page_and_our_token(pages: Users, route: Any) -> None:
    browser = signed_in(pages, f"csrf{CHANGES.index(route)}@a.example")
    path = route.path.replace("{id}", "CLOSED1").replace("{token}", "x")
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": None, "Sec_Fetch_Site": None},
    ):
        assert browser.post(path, **headers).status == 403, headers
    assert browser.post(path, {"form_token": "0" * 64}).status == 403


@pytest.mark.parametrize("route", [each for each in CLOSED if not each.changes], ids=lambda route: route.path)
def test_no_page_is_loaded_by_another_site(pages: Users, route: Any) -> None:
    """Another server of the same site loaded held mail as pictures: the audit log said that its reader had seen it."""
    if "LOADED1" not in held_ids(pages.directory):
        hold(pages.directory, "LOADED1", "loaded@a.example")
    browser, path = signed_in(pages, "loaded@a.example"), route.path.replace("{id}", "LOADED1")
    loads = (("no-cors", "image", 403), ("navigate", "iframe", 403), ("navigate", "document", 200))
    for site in ("same-site", "cross-site"):
        for mode, dest, status in loads:
            fields = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}
            assert browser.get(path, **fields).status == status, fields


def test_every_answer_has_its_header_fields(pages: Users) -> None:
    hold(pages.directory, "HEAD1", "head@a.example", CONTENT + b"<b>x</b>")
    browser = signed_in(pages, "head@a.example")
    for path in ("/", "/mail/HEAD1", "/choices", "/sign-in", "/nowhere", "/l/x", "/u/x", "/static/users.css"):
        answer = browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, path
        assert answer.headers["x-frame-options"] == "DENY", path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["referrer-policy"] == "same-origin", path
    preview = browser.get("/mail/HEAD1/html")
    assert preview.headers["content-security-policy"] == PREVIEW_POLICY


def test_another_host_name_is_refused(pages: Users) -> None:
    browser = pages.served.browser()
    browser.host = "evil.example"
    assert browser.get("/sign-in").status == 421


def test_a_code_is_for_one_browser_one_time_and_few_guesses(pages: Users) -> None:
    first, second = pages.served.browser(), pages.served.browser()
    for browser in (first, second):
        browser.get("/sign-in")
    before = len(pages.next_hop.mails)
    first.post("/sign-in", {"address": "code@a.example"})
    until(lambda: len(pages.next_hop.mails) > before, "the code")
    code = code_in(pages)
    form = {"address": "code@a.example", "code": code}
    assert second.post("/sign-in/code", form).status == 403  # in another browser
    for _ in range(5):
        assert first.post("/sign-in/code", {**form, "code": "00000000"}).status == 403
    assert first.post("/sign-in/code", form).status == 403  # after too many guesses
    for _ in range(20):
        last = first.post("/sign-in/code", {**form, "code": "00000001"})
    assert last.status == 429


def test_a_stranger_could_keep_somebody_from_signing_in_by_a_code(pages: Users) -> None:
    """Wrong codes were counted for the person, whatever browser they came from."""
    stranger, victim = pages.served.browser(), pages.served.browser()
    for browser in (stranger, victim):
        browser.get("/sign-in")
    before = len(pages.next_hop.mails)
    victim.post("/sign-in", {"address": "victim@a.example"})
    until(lambda: len(pages.next_hop.mails) > before, "the code")
    form = {"address": "victim@a.example", "code": "00000000"}
    assert [stranger.post("/sign-in/code", form).status for _ in range(12)] == [403] * 10 + [429] * 2
    assert victim.post("/sign-in/code", {**form, "code": code_in(pages)}).status == 303


def test_nobody_learns_which_addresses_exist(pages: Users) -> None:
    before = len(pages.next_hop.mails)
    texts = []
    for address in ("someone@a.example", "stranger@elsewhere.example", "list@a.example"):
        browser = pages.served.browser()
        browser.get("/sign-in")
        answer = browser.post("/sign-in", {"address": address})
        texts.append((answer.status, answer.text.replace(address, "").replace(browser.token, "")))
    assert len(set(texts)) == 1
    until(lambda: len(pages.next_hop.mails) == before + 1, "the one code")
    assert pages.received()[-1].recipients == ["someone@a.example"]


def test_aliases_and_domains_are_one_person(pages: Users) -> None:
    hold(pages.directory, "ALIAS1", "info@a.example", CONTENT.replace(b"hello", b"to info"))
    hold(pages.directory, "ALIAS2", "Any.Thing@boss.example", CONTENT.replace(b"hello", b"to a domain"))
    hold(pages.directory, "ALIAS3", "boss@a.example", CONTENT.replace(b"hello", b"to boss"))
    digests = pages.send_digests("--now")
    assert "info@a.example" not in digests
    text = str(digests["boss@a.example"].get_body(("plain",)).get_content())  # type: ignore[union-attr]
    assert all(subject in text for subject in ("to info", "to a domain", "to boss"))
    assert "To: any.thing@boss.example" in text
    browser = signed_in_by_code(pages, "info@a.example")  # whichever address they type
    assert pages.received()[-1].recipients == ["boss@a.example"]
    until(
        lambda: all(subject in browser.get("/").text for subject in ("to info", "to a domain", "to boss")), "the list"
    )
    assert browser.post("/mail/ALIAS2/release").status == 303
    assert pages.received()[-1].recipients == ["Any.Thing@boss.example"]  # the recipient's own copy


def test_the_links_of_the_former_owner_of_an_alias_acted_for_the_new_one(pages: Users) -> None:
    """For two weeks, the former owner could still read and release the mail, and the audit log named the new one."""
    aliases = pages.directory / "aliases"
    aliases.write_text(f"{ALIASES}sales@a.example leaving@a.example\n")
    hold(pages.directory, "MOVED1", "sales@a.example", CONTENT)
    former = links(pages.send_digests("--now")["leaving@a.example"])[:2]  # release and view
    assert [pages.served.browser().get(path).status for path in former] == [200, 200]
    aliases.write_text(f"{ALIASES}sales@a.example following@a.example\n")
    before = len(pages.next_hop.mails)
    browser = pages.served.browser()
    browser.get("/sign-in")  # for the form token: the links have no page any more
    assert [(browser.get(path).status, browser.post(path).status) for path in former] == [(404, 404)] * 2
    assert len(pages.next_hop.mails) == before
    release = links(pages.send_digests("--now")["following@a.example"])[0]
    assert pages.served.browser().press(release).status == 200
    assert pages.received()[-1].recipients == ["sales@a.example"]
    aliases.write_text(ALIASES)


def test_the_policy_holds_on_every_way(pages: Users) -> None:
    """`other: nothing`, `delete: false`: by the page, by hand, and by a link that was made before."""
    from bridge.digests.signed_links import Act, Link, LinkKeys

    hold(pages.directory, "POLICY1", "policy@a.example", tags=["mime:executable"], verdict="suspicious")
    text = str(pages.send_digests("--now")["policy@a.example"])
    assert "does not release such mail" in text
    browser = signed_in(pages, "policy@a.example")
    for path in ("/", "/mail/POLICY1"):
        assert "does not release such mail" in browser.get(path).text, path
    before = len(pages.next_hop.mails)
    for action in ("release", "delete"):
        assert browser.post(f"/mail/POLICY1/{action}").status == 403, action
    keys = LinkKeys(pages.directory / "state" / "digest-keys")
    for act in (Act.RELEASE, Act.REQUEST, Act.DELETE):
        token = keys.sign(Link(act, int(time.time()) + 60, "POLICY1", "policy@a.example"))
        assert browser.press(f"/l/{token}").status == 403, act
    assert len(pages.next_hop.mails) == before
    assert "POLICY1" in held_ids(pages.directory)
    assert sum("|POLICY1|refused|" in line for line in pages.audit()) >= 5


def test_a_choice_is_kept_and_used(pages: Users) -> None:
    hold(pages.directory, "CHOICE1", "choice@a.example")
    browser = signed_in(pages, "choice@a.example")
    assert browser.post("/choices", {"schedule": "sometimes", "language": "de"}).status == 400
    assert browser.post("/choices", {"schedule": "daily", "language": "it"}).status == 400
    assert browser.post("/choices", {"schedule": "daily", "language": "de"}).status == 303
    assert "Zurückgehaltene E-Mails" in browser.get("/", Accept_Language="en").text
    assert pages.send_digests("--now")["choice@a.example"]["Content-Language"] == "de"


def test_signing_out_ends_the_session(pages: Users) -> None:
    browser = signed_in_by_code(pages, "bye@a.example")
    token = browser.cookies[SESSION_COOKIE]
    assert browser.post("/sign-out").status == 303
    browser.cookies[SESSION_COOKIE] = token
    assert browser.get("/").target == "/sign-in"


def test_hostile_mail_is_harmless_on_every_page(pages: Users) -> None:
    """In a real browser: nothing runs, and nothing is asked for elsewhere."""
    mails = {f"HOSTILE{number}": mail for number, mail in enumerate(corpus())}
    with holding(pages.directory) as put:
        for mail_id, mail in mails.items():
            put(mail_id, "hostile@a.example", mail.content, sender=mail.sender, tags=mail.tags)
    token = signed_in(pages, "hostile@a.example").cookies[SESSION_COOKIE]
    own, problems = f"http://127.0.0.1:{pages.served.port}/", []
    with chromium() as browser:
        context = browser.new_context(base_url=own)
        cookie = {"name": SESSION_COOKIE, "value": token, "domain": "127.0.0.1", "path": "/"}
        context.add_cookies([{**cookie, "secure": True, "httpOnly": True, "sameSite": "Lax"}])
        page = context.new_page()
        page.on("request", lambda asked: None if asked.url.startswith(own) else problems.append(asked.url))
        for path in ("", *(f"mail/{mail_id}{end}" for mail_id in mails for end in ("", "/html"))):
            answer = page.goto(own + path)
            assert answer is not None and answer.status == 200, path
            assert page.title() != MARK, path
        context.close()
    assert problems == []


def test_templates_of_a_tenant_replace_ours(tmp_path: Path) -> None:
    tenant = "11111111-1111-4111-8111-111111111111"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "digest.html").write_text(
        '{% extends "standard/digest.html" %}{% block head %}<p>ACME & {{ entries|length }}</p>{% endblock %}'
    )
    (tmp_path / "own" / "digest-subject.txt").write_text("ACME: {{ count }}\nBcc: x@evil.example")
    digests = {
        "domains": ["a.example", "b.example"],
        "tenants": [{"uid": tenant, "templates": "own", "from": "ACME <q@b.example>", "language": "fr"}],
    }
    sections = {"tenants": [{"uid": tenant, "recipient_domains": ["b.example"]}]}
    with users(tmp_path, digests, **sections) as world:
        hold(tmp_path, "TENANT1", "x@a.example")
        hold(tmp_path, "TENANT2", "x@b.example")
        made = world.send_digests("--now")
        own, other = made["x@b.example"], made["x@a.example"]
        assert own["Subject"] == "ACME: 1 Bcc: x@evil.example" and own["Bcc"] is None
        assert own["From"] == "ACME <q@b.example>" and own["Content-Language"] == "fr"
        html = own.get_body(("html",)).get_content()  # type: ignore[union-attr]
        assert "<p>ACME & 1</p>" in html and "Libérer" in html
        assert "ACME" not in str(other) and other["Content-Language"] == "en"
        (tmp_path / "own" / "digest.html").write_text("{{ nothing }}")
        hold(tmp_path, "TENANT3", "x@b.example")
        hold(tmp_path, "TENANT4", "x@a.example")
        before = len(world.next_hop.mails)
        done = world.command("digest", "send", "--now")
        assert done.returncode == 75 and "digest.html in " in done.stderr, done.stderr
        assert [mail.recipients for mail in world.received()[before:]] == [["x@a.example"]]
        (tmp_path / "own" / "digest.html").unlink()
        assert "x@b.example" in world.send_digests("--to", "x@b.example")  # nothing was lost


def test_the_errors_of_pages_are_ours() -> None:
    """What a page catches as a failure of a database is one of these."""
    from bridge.console.database import ConsoleStoreError
    from bridge.digests.database import DigestStoreError
    from bridge.runtime.tables import TablesFailed

    assert issubclass(ConsoleStoreError, TablesFailed) and issubclass(DigestStoreError, TablesFailed)
    assert issubclass(TablesFailed, BridgeError)


def test_links_in_the_list_are_ids_alone(pages: Users) -> None:
    hold(pages.directory, "IDS1", "ids@a.example", CONTENT.replace(b"hello", b"secret words"))
    digest = pages.send_digests("--now")["ids@a.example"]
    assert len(links(digest)) == 5
    browser = signed_in(pages, "ids@a.example")
    for target in re.findall(r'(?:href|action|src)="([^"]*)"', browser.get("/").text):
        assert "secret" not in target and "@" not in target


def test_a_person_blocks_senders_for_themselves_and_asks_to_allow_them(pages: Users) -> None:
    """The bridge then holds the blocked sender's mail for this person, and for nobody else."""
    hold(pages.directory, "SENDER1", "lists@a.example", sender="pest@client.example")
    browser = signed_in(pages, "lists@a.example")
    until(lambda: "/mail/SENDER1" in browser.get("/").text, "the list")
    assert browser.post("/mail/SENDER1/block").status == 303
    assert "pest@client.example" in browser.get("/choices").text
    assert "pest@client.example" not in signed_in(pages, "others@a.example").get("/choices").text
    form = {"kind": "block", "sender": "pest@client.example", "recipient": "lists@a.example"}
    assert signed_in(pages, "others@a.example").post("/choices/remove", form).status == 404
    assert "pest@client.example" in browser.get("/choices").text
    assert browser.post("/choices/remove", form).status == 303
    assert "pest@client.example" not in browser.get("/choices").text
    assert browser.post("/mail/SENDER1/allow").target == "/?notice=requested"  # administrators decide
    assert "pest@client.example" not in browser.get("/choices").text


@pytest.mark.parametrize(("number", "sender"), [(1, "client.example"), (2, "*@client.example")])
def test_who_blocked_an_odd_sender_blocked_a_whole_domain(pages: Users, number: int, sender: str) -> None:
    """Spam from `MAIL FROM:<client.example>` or `<*@client.example>`: its victims blocked all their customers there."""
    person = f"odd{number}@a.example"
    hold(pages.directory, f"ODD{number}", person, sender=sender)
    browser = signed_in(pages, person)
    until(lambda: f"/mail/ODD{number}" in browser.get("/").text, "the list")
    assert browser.post(f"/mail/ODD{number}/block").status == (409 if number == 1 else 303)
    page = browser.get("/choices").text
    assert ">@client.example<" not in page
    assert (sender in page) == (number == 2)
    if number == 2:
        form = {"kind": "block", "sender": sender, "recipient": person}
        assert browser.post("/choices/remove", form).status == 303
        assert sender not in browser.get("/choices").text


def test_the_log_had_the_address_of_a_user_who_released_a_mail(tmp_path: Path) -> None:
    """Although `log.addresses` is `hashed`: it did not apply to the line about the release."""
    with users(tmp_path, {"users": {"spam": "release"}}, log={"addresses": "hashed"}) as world:
        hold(world.directory, "MINE", "jane@a.example")
        jane = signed_in(world, "jane@a.example")
        until(lambda: "MINE" in jane.get("/").text, "the mail")
        assert jane.post("/mail/MINE/release").status == 303
        until(lambda: '"action": "released"' in world.served.log, "the line about the release")
        assert "jane" not in world.served.log and "@a.example" not in world.served.log
        actions = (world.directory / "state" / "quarantine" / "actions.log").read_text()
        assert '"by": "user jane@a.example"' in actions


def test_a_report_from_the_digest_and_from_the_page(pages: Users) -> None:
    hold(pages.directory, "REPORT1", "report@a.example")
    ham = links(pages.send_digests("--now")["report@a.example"])[2]
    assert "We will learn from this" in pages.served.browser().press(ham).text
    assert signed_in(pages, "report@a.example").post("/mail/REPORT1/report", {"kind": "x"}).status == 404
    assert any(line.startswith("reported as ham|REPORT1|done|user report@a.example") for line in pages.audit())
    actions = (pages.directory / "state" / "quarantine" / "actions.log").read_text()
    assert "not spam" in actions and "report@a.example" in actions


def test_a_mail_that_is_held_for_another_reason_is_reported_as_spam(pages: Users) -> None:
    """From the digest and from the page. Before, a digest had no such link."""
    for mail in ("JUNK1", "JUNK2"):
        hold(pages.directory, mail, "junk@a.example", verdict="phishing", tags=["phishing:likely"])
    digest = pages.send_digests("--now")["junk@a.example"]
    text = str(digest.get_body(("plain",)).get_content())  # type: ignore[union-attr]
    assert text.count("This is spam:") == 2 and "This is not spam" not in text
    assert str(digest.get_body(("html",)).get_content()).count(">This is spam</a>") == 2  # type: ignore[union-attr]
    browser, spam = pages.served.browser(), links(digest)[2]
    assert "This does not delete it" in browser.get(spam).text
    assert not any(line.startswith("reported as spam") for line in pages.audit())  # a GET does nothing
    assert "We will learn from this" in browser.post(spam).text
    person = signed_in(pages, "junk@a.example")
    assert person.get("/").text.count("/mail/JUNK") >= 2
    for mail in ("JUNK1", "JUNK2"):
        assert person.post(f"/mail/{mail}/report", {"kind": "spam"}).status == 303
    for mail in ("JUNK1", "JUNK2"):
        assert any(line.startswith(f"reported as spam|{mail}|done|user junk@a.example") for line in pages.audit())
    assert {"JUNK1", "JUNK2"} <= held_ids(pages.directory)


def test_nobody_teaches_the_filter_that_malware_is_wanted(pages: Users) -> None:
    for mail, verdict in (("POISON1", "malware"), ("POISON2", "phishing")):
        hold(pages.directory, mail, "poison@a.example", verdict=verdict, tags=[f"{verdict}:any"])
    browser = signed_in(pages, "poison@a.example")
    until(lambda: "POISON1" in browser.get("/").text, "the list")
    for mail in ("POISON1", "POISON2"):
        assert "This is not spam" not in browser.get(f"/mail/{mail}").text
        assert browser.post(f"/mail/{mail}/report", {"kind": "ham"}).status == 403


def test_copies_for_operators_are_neither_announced_nor_shown(tmp_path: Path) -> None:
    """`keep_copy`: the mail itself was delivered, so nobody is told that it is held."""
    with users(tmp_path, policy={"deliver": {"action": "relay", "keep_copy": True}}) as world:
        with world.bridge.client() as client:
            client.begin(b"<john@client.example>", b"<copy@a.example>")
            assert client.say(b"Subject: delivered\r\n\r\nx\r\n.")[0].startswith(b"250")
        (mail,) = held_ids(tmp_path)
        hold(tmp_path, "HELD1", "copy@a.example", CONTENT.replace(b"hello", b"really held"))
        text = str(world.send_digests("--now")["copy@a.example"])
        assert "really held" in text and "delivered\n" not in text
        browser = signed_in(world, "copy@a.example")
        until(lambda: "really held" in browser.get("/").text, "the list")
        assert mail not in browser.get("/").text
        assert browser.get(f"/mail/{mail}").status == browser.post(f"/mail/{mail}/release").status == 404


def test_a_request_with_two_hosts_is_refused(pages: Users) -> None:
    """A proxy might have looked at the other one."""
    head = f"GET /sign-in HTTP/1.1\r\nHost: 127.0.0.1:{pages.served.port}\r\n"
    assert _status(pages, f"{head}Connection: close\r\n\r\n") == 200
    assert _status(pages, f"{head}Host: evil.example\r\nConnection: close\r\n\r\n") == 421


def test_a_form_with_text_that_no_database_keeps_is_refused(pages: Users) -> None:
    browser = signed_in(pages, "own@a.example")
    assert browser.post("/choices", {"schedule": "daily\0", "language": "en"}).status == 400


def test_what_people_are_refused_is_in_the_audit_log(pages: Users) -> None:
    """Also a look at somebody else's mail, and a form that another site has sent."""
    hold(pages.directory, "PRYED1", "theirs@a.example")
    pryer = signed_in(pages, "pryer@a.example")
    assert pryer.get("/mail/PRYED1").status == 404
    assert "asked for /mail/{id}|PRYED1|refused|user pryer@a.example|Not Found" in pages.audit()
    assert pryer.post("/mail/PRYED1/release", {"form_token": "forged"}).status == 403
    assert "asked for /mail/{id}/release|PRYED1|refused|user pryer@a.example|Forbidden" in pages.audit()


def _status(world: Users, request: str) -> int:
    with socket.create_connection(("127.0.0.1", world.served.port), 30) as peer, peer.makefile("rb") as answer:
        peer.sendall(request.encode())
        return int(answer.readline().split()[1])


def test_an_old_link_signed_in_the_new_owner_of_the_address(pages: Users) -> None:
    """Somebody leaves, and the address becomes an alias of another person."""
    from bridge.digests.signed_links import Act, Link, LinkKeys

    hold(pages.directory, "LEFT1", "boss@a.example", CONTENT.replace(b"hello", b"for the boss alone"))
    keys = LinkKeys(pages.directory / "state" / "digest-keys")
    old, new = (
        keys.sign(Link(Act.ENTER, int(time.time()) + 60, "", address))
        for address in ("info@a.example", "boss@a.example")
    )
    for token, status, sees in ((old, 410, False), (new, 303, True)):
        browser = pages.served.browser()
        assert browser.press(f"/l/{token}").status == status
        until(partial(_is_listed, browser, "for the boss alone", sees), "the list")


def test_every_spelling_of_an_address_had_its_own_number_of_codes(pages: Users) -> None:
    """A whole domain belongs to one person, who would get them all."""
    with closing(sqlite3.connect(pages.directory / "state" / CONSOLE_FILE)) as database, database:
        database.execute(f"DELETE FROM {attempts.name}")  # other tests here ask for codes, too
    before = len(pages.next_hop.mails)
    for number in range(12):
        browser = pages.served.browser()
        browser.get("/sign-in")
        assert browser.post("/sign-in", {"address": f"any{number}@boss.example"}).status == 200
    until(lambda: len(pages.next_hop.mails) >= before + MAX_PER_USER, "the codes")
    browser.post("/sign-in", {"address": "last@a.example"})
    until(lambda: pages.received()[-1].recipients == ["last@a.example"], "the last code")
    assert len(pages.next_hop.mails) == before + MAX_PER_USER + 1


def test_the_number_of_codes_told_who_owns_an_alias(pages: Users) -> None:
    """Too many for the one address were too many for the other, and for no other address."""
    browser = pages.served.browser()
    browser.get("/sign-in")
    asked = ["boss@a.example"] * (MAX_PER_USER + 1) + ["info@a.example", "other@a.example", "unknown@x.example"]
    answers = [browser.post("/sign-in", {"address": each}).status for each in asked]
    assert answers == [200] * MAX_PER_USER + [429] + [200] * 3


def test_what_cannot_be_recorded_is_not_done(pages: Users) -> None:
    """The audit log is written before anything is done, so a crash hides nothing."""
    hold(pages.directory, "UNSEEN1", "unseen@a.example")
    browser = signed_in(pages, "unseen@a.example")
    until(lambda: "UNSEEN1" in browser.get("/").text, "the list")
    before = len(pages.next_hop.mails)
    with _without_audit_log(pages):
        for path in ("/mail/UNSEEN1/release", "/mail/UNSEEN1/block", "/mail/UNSEEN1/report"):
            assert browser.post(path, {"kind": "ham"}).status == 503, path
        assert browser.post("/choices", {"schedule": "never", "language": "de"}).status == 503
    assert len(pages.next_hop.mails) == before
    assert "Nie" not in browser.get("/choices").text and "john@client.example" not in browser.get("/choices").text
    assert browser.post("/mail/UNSEEN1/release").status == 303
    assert len(pages.next_hop.mails) == before + 1
    assert any(line.startswith("released own mail|UNSEEN1|done|user unseen@a.example|to ") for line in pages.audit())


@contextmanager
def _without_audit_log(world: Users) -> Iterator[None]:
    """As if the database had lost the table."""
    with closing(sqlite3.connect(world.directory / "state" / CONSOLE_FILE, timeout=30)) as database:
        database.execute("ALTER TABLE console_audit RENAME TO away")
        try:
            yield
        finally:
            database.execute("ALTER TABLE away RENAME TO console_audit")


@pytest.mark.parametrize("language", ["de", "fr", "es"])
def test_refusals_of_the_shared_checks_are_translated(pages: Users, language: str) -> None:
    browser = pages.served.browser()
    browser.get("/sign-in")
    wanted = {"Accept_Language": language}
    stranger = pages.served.browser()
    stranger.host = "evil.example"
    answers = [
        stranger.get("/sign-in", **wanted),
        browser.post("/sign-in", {"address": "x" * 20_000}, **wanted),
        browser.post("/sign-in", {"address": "\0"}, **wanted),
        browser.post("/sign-in", **wanted, Origin="https://evil.example"),
        signed_in(pages, "speaks@a.example").get("/?before=nan-X-y", **wanted),
    ]
    assert [answer.status for answer in answers] == [421, 413, 400, 403, 404]
    for answer in answers:
        assert f'<html lang="{language}"' in answer.text
        for words in (
            "Wrong address",
            "Too large",
            "At most",
            "Not a form",
            "Not from this page",
            "The form",
            "No such",
        ):
            assert words not in answer.text, words


def test_a_session_ends_when_its_address_becomes_an_alias(pages: Users) -> None:
    hold(pages.directory, "TURNED1", "turned@a.example")
    browser = signed_in(pages, "turned@a.example")
    until(lambda: "TURNED1" in browser.get("/").text, "the list")
    aliases = pages.directory / "aliases"
    aliases.write_text(f"{ALIASES}turned@a.example boss@a.example\n")
    try:
        assert browser.get("/").target == "/sign-in"
        assert browser.post("/mail/TURNED1/release").status in (401, 403)
        assert pages.command("digest", "preview", "--to", "boss@a.example").returncode == 0  # reads whose it is now
        assert "TURNED1" in signed_in(pages, "boss@a.example").get("/").text
    finally:
        aliases.write_text(ALIASES)


def test_held_mail_behind_a_page_of_copies_is_listed(pages: Users) -> None:
    hold(pages.directory, "BEHIND1", "behind@a.example")
    for number in range(55):
        hold(pages.directory, f"FRONT{number}", "behind@a.example", copy_of="relay")
    assert "BEHIND1" in signed_in(pages, "behind@a.example").get("/").text


def test_who_saves_the_page_unchanged_follows_the_configuration(pages: Users) -> None:
    """A schedule that was shown, and not chosen, does not stay when the operator changes it."""
    browser = signed_in(pages, "follower@a.example")
    for chosen, stored in (("weekly", ""), ("daily", "daily"), ("weekly", "weekly")):
        assert browser.post("/choices", {"schedule": chosen, "language": "en"}).status == 303
        with closing(DigestStore(Database.file(pages.directory / "state" / FILE))) as store:
            assert Items(store, "").person("follower@a.example").schedule == stored
