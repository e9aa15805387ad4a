"""Lists in the console, with the real service: browsing, searching, adding, deleting, uploading."""

from __future__ import annotations

import html
import io
import json
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bridge.api.lists import GET_LISTS_PATH, LIST_ENTRIES_PATH, NDJSON, ListEntry, ListFileInfo
from bridge.console.audit import Audit
from bridge.console.list_difference import DiskDifference, Kind
from bridge.console.pages.list_uploads import view_of
from bridge.console.roles import Role
from bridge.console.uploads import Sent, Stage, Upload
from bridge.console.url_part import from_part, to_part
from bridge.lists.client import ListSettings
from bridge.lists.danger import Dangers
from bridge.lists.files import Format
from bridge.testing import until
from tests.console.console_kit import TENANT_A, TENANT_B, Answer, Browser, World, world
from tests.console.held_kit import hold, send_file
from tests.console.test_console_quarantine import wait_for_jobs
from tests.lists.lists_kit import Service, peak_kib, running_service
from tests.requirements import library

OWN = frozenset({TENANT_A})


@dataclass
class Listed:
    world: World
    service: Service

    @property
    def admin(self) -> Browser:
        return self.world.console.signed_in()

    @property
    def releaser(self) -> Browser:
        """Of tenant A."""
        return self.world.console.signed_in(Role.RELEASER, OWN, name="rita")


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listed]:
    library("nh3", "console")
    with running_service(tmp_path_factory.mktemp("service")) as service:
        lists = {"url": service.url, "api_key_file": str(service.key_file), "block_list": "large"}
        lists["allow_list"] = "partners"
        with world(tmp_path_factory.mktemp("console"), lists=lists) as made:
            yield Listed(made, service)


@pytest.fixture
def empty(listed: Listed) -> Listed:
    listed.service.clear()
    return listed


def entries_on(answer: Answer) -> list[str]:
    return re.findall(r'name="entry" value="([^"]+)"', answer.text)


def page_with(browser: Browser, path: str, entries: list[str]) -> Answer:
    """The page, once its copy of the list has them: another one changed the list."""
    until(lambda: entries_on(browser.get(path)) == entries, f"{path} to have {entries}", 150)
    return browser.get(path)


def uploaded(browser: Browser, name: str, content: bytes, **fields: str) -> tuple[str, Answer]:
    """Send a file and wait until it is compared; returns its number and its page."""
    sent = send_file(browser, "/lists/actions/upload", name, content, **fields)
    assert sent.status == 303 and sent.target.startswith("/lists/uploads/"), sent.text
    until(lambda: "data-reload" not in browser.get(sent.target).text, "the file to be compared", 600.0)
    return sent.target.rpartition("/")[2], browser.get(sent.target)


def test_the_lists_of_all_mail_and_of_a_tenant(empty: Listed) -> None:
    """People of a tenant see that tenant's lists alone."""
    page = empty.admin.get("/lists")
    assert page.status == 200 and "Partners" in page.text and "Who we work with" in page.text
    own = empty.releaser.get("/lists")
    assert own.status == 200 and TENANT_B not in own.text and "all mail" not in own.text
    for scope in ("all", TENANT_B, "x", "../x"):
        assert empty.releaser.get(f"/lists?tenant={scope}").status == 404
        assert empty.releaser.get(f"/lists/large?tenant={scope}").status == 404
        for action, form in (("add", {"entries": "a@b.example"}), ("delete", {"entry": "a@b.example"})):
            form |= {"list": "large", "tenant": scope}
            assert empty.releaser.post(f"/lists/actions/{action}", form).status == 404
        upload = send_file(
            empty.releaser, "/lists/actions/upload", "x.txt", b"a@b.example\n", list="large", tenant=scope
        )
        assert upload.status == 404
    assert empty.service.entries("large") == {} and empty.service.entries("large", TENANT_B) == {}
    assert empty.admin.get("/lists/nowhere").status == 404


def test_an_entry_is_added_and_deleted(empty: Listed) -> None:
    """On the page and at the service, as soon as it can no longer be undone."""
    browser = empty.admin
    until(lambda: "The list is empty" in browser.get("/lists/notes").text, "the list to be read")
    form = {"list": "notes", "tenant": "all", "entries": " one \n\ntwo\none", "comment": "asked by Jim"}
    assert browser.post("/lists/actions/add", form).target == "/lists/notes?tenant=all"
    waiting = browser.get("/lists/notes?tenant=all").text
    assert "Add 2 entries to notes in" in waiting and empty.service.entries("notes") == {}
    assert "2 of 2 entries added to notes" in wait_for_jobs(browser)
    assert empty.service.entries("notes") == {"one": "asked by Jim", "two": "asked by Jim"}
    page = browser.get("/lists/notes?tenant=all")
    assert entries_on(page) == ["one", "two"] and "asked by Jim" in page.text
    assert browser.post("/lists/actions/delete", {"list": "notes", "tenant": "all", "entry": ["one"]}).status == 303
    assert "1 of 1 entry deleted from notes" in wait_for_jobs(browser)
    assert empty.service.entries("notes") == {"two": "asked by Jim"}
    assert entries_on(browser.get("/lists/notes")) == ["two"]


def test_a_change_of_a_list_can_be_undone(empty: Listed) -> None:
    """Within the undo period, by the person who made it; then the list is as before."""
    empty.service.add("notes", {"old": "why"})
    browser, scope = empty.admin, {"list": "notes", "tenant": "all"}
    browser.post("/lists/actions/add", {**scope, "entries": "new"})
    browser.post("/lists/actions/delete", {**scope, "entry": "old"})
    page = browser.get("/lists/notes?tenant=all&find=o")
    jobs = re.findall(r'name="job" value="([^"]+)"', page.text)
    assert len(jobs) == 2 and 'name="page" value="/lists/notes"' in page.text
    stranger = empty.world.console.signed_in(name="mallory")
    assert stranger.post("/quarantine/actions/undo", {"job": jobs[0]}).status == 409
    for job in jobs:
        undo = {"job": job, "page": "/lists/notes", "back": "tenant=all&find=o&evil=1"}
        assert browser.post("/quarantine/actions/undo", undo).target == "/lists/notes?tenant=all&find=o"
    said = wait_for_jobs(browser)
    assert "1 entry was not added" in said and "1 entry was not deleted" in said
    assert empty.service.entries("notes") == {"old": "why"}
    for page in ("/lists/../quarantine", "//evil.example", "/lists/a/b", "https://evil.example/lists/x"):
        assert browser.post("/quarantine/actions/dismiss", {"page": page}).target == "/quarantine"


def test_a_dangerous_entry_is_shown_first(empty: Listed) -> None:
    """With the warning of the command line; nothing is added before it was confirmed."""
    form = {"list": "large", "tenant": "all", "entries": "@gmail.com\nok@client.example", "comment": ""}
    page = empty.admin.post("/lists/actions/add", form)
    assert page.status == 409 and "gmail.com is a large mail provider" in page.text
    assert (
        "a.example is your own domain" in empty.admin.post("/lists/actions/add", {**form, "entries": "@a.example"}).text
    )
    assert empty.service.entries("large") == {}
    browser = empty.admin
    assert browser.post("/lists/actions/add", {**form, "sure": "yes"}).status == 303
    wait_for_jobs(browser)
    assert set(empty.service.entries("large")) == {"@gmail.com", "ok@client.example"}


def test_what_the_service_refuses_is_said(empty: Listed) -> None:
    """With the entry, and how many were added."""
    browser, form = empty.admin, {"list": "large", "tenant": "all", "entries": "not an address\ngood@client.example"}
    assert browser.post("/lists/actions/add", form).status == 303
    said = wait_for_jobs(browser)
    assert "1 of 2 entries added to large; 1 not" in said and "not an address" in said and "was refused" in said
    assert set(empty.service.entries("large")) == {"good@client.example"}
    full = {
        "list": "partners",
        "tenant": "all",
        "entries": "\n".join(f"{number}@client.example" for number in range(4)),
    }
    browser.post("/lists/actions/add", full)
    assert "0 of 4 entries added to partners; 4 not" in wait_for_jobs(browser)
    with closing(empty.world.console.store) as store:
        (entry,) = Audit(store).find(action="added to a list", limit=1)
    assert entry.result == "failed" and "partners of the deployment" in entry.detail
    for entries in ("", "  \n ", "x" * 1001, "\n".join(map(str, range(501))), "a\x1b[31m"):
        assert empty.admin.post("/lists/actions/add", {**form, "entries": entries}).status == 400


def test_a_file_is_compared_before_it_is_applied(empty: Listed) -> None:
    """The difference is shown; only `apply` changes the list, and only of the person who sent the file."""
    empty.service.add("large", {"old@client.example": "", "kept@client.example": ""}, TENANT_A)
    browser, scope = empty.releaser, {"list": "large", "tenant": TENANT_A}
    content = b"entry,comment\r\nkept@client.example,new comment\r\nnew@client.example,\r\n"
    number, page = uploaded(browser, "file.csv", content, **scope, prune="yes")
    assert "+ new@client.example" in page.text and "To add (1)" in page.text
    assert (
        "~ kept@client.example <small>new comment</small>" in browser.get(f"/lists/uploads/{number}?show=update").text
    )
    assert "\u2212 old@client.example" in browser.get(f"/lists/uploads/{number}?show=delete").text
    assert set(empty.service.entries("large", TENANT_A)) == {"old@client.example", "kept@client.example"}
    assert empty.admin.post("/lists/actions/apply", {"upload": number}).status == 404
    assert empty.admin.get(f"/lists/uploads/{number}").status == 404
    assert browser.post("/lists/actions/apply", {"upload": number}).target == f"/lists/large?tenant={TENANT_A}"
    assert browser.post("/lists/actions/apply", {"upload": number}).status == 409
    assert browser.post("/lists/actions/cancel", {"upload": number}).status == 409
    assert "is being applied" in browser.get(f"/lists/uploads/{number}").text
    said = wait_for_jobs(browser)
    assert "3 of 3 changes applied to large" in said and "2 added or changed, 1 deleted" in said
    assert empty.service.entries("large", TENANT_A) == {"kept@client.example": "new comment", "new@client.example": ""}
    assert browser.post("/lists/actions/apply", {"upload": number}).status == 404
    page_with(browser, f"/lists/large?tenant={TENANT_A}", ["kept@client.example", "new@client.example"])
    with closing(empty.world.console.store) as store:
        (entry,) = Audit(store).find(action="applied an uploaded list", limit=1)
    assert (entry.name, entry.result) == ("rita", "done") and "2 added or changed, 1 deleted" in entry.detail


def test_an_applied_file_can_be_undone_and_applied_after_all(empty: Listed) -> None:
    """Within the undo period; the difference is still there."""
    browser = empty.admin
    number, _ = uploaded(browser, "f.txt", b"one\ntwo\n", list="notes", tenant="all")
    browser.post("/lists/actions/apply", {"upload": number})
    job = re.search(r'name="job" value="([^"]+)"', browser.get("/quarantine/jobs").text)
    assert job is not None and browser.post("/quarantine/actions/undo", {"job": job[1]}).status == 303
    assert "2 changes were not applied" in wait_for_jobs(browser) and empty.service.entries("notes") == {}
    browser.post("/lists/actions/apply", {"upload": number})
    wait_for_jobs(browser)
    assert set(empty.service.entries("notes")) == {"one", "two"}


def test_a_page_never_shows_counts_that_are_not_final() -> None:
    """The comparison ended while the page was being made, which then said for good that nothing would change."""
    file = io.BytesIO(b"")
    sent = Sent("ann", ListFileInfo("notes"), None, False, file, Format.TEXT, "f.txt")
    upload = Upload(sent, lambda: ListSettings("http://127.0.0.1:1", "key"), Dangers(), "notes", stage=Stage.COMPARING)

    class Ending(DiskDifference):
        def count(self, kind: Kind) -> int:
            upload.stage = Stage.READY
            return 0

    with closing(upload.difference), closing(Ending()) as ending:
        upload.difference = ending
        assert view_of(upload).stage is Stage.COMPARING


def test_a_file_is_cancelled(empty: Listed) -> None:
    """Also by another file of the same person; others keep theirs."""
    browser, other, scope = empty.admin, empty.releaser, {"list": "notes", "tenant": "all"}
    first, _ = uploaded(browser, "f.txt", b"one\n", **scope)
    kept, _ = uploaded(other, "f.txt", b"x\n", list="notes", tenant=TENANT_A)
    second, _ = uploaded(browser, "f.txt", b"two\n", **scope)
    assert browser.get(f"/lists/uploads/{first}").status == 404
    assert browser.post("/lists/actions/cancel", {"upload": kept}).status == 404
    assert browser.post("/lists/actions/cancel", {"upload": second}).target == "/lists/notes?tenant=all"
    assert browser.get(f"/lists/uploads/{second}").status == 404 and other.get(f"/lists/uploads/{kept}").status == 200
    assert empty.service.entries("notes") == {}


def test_a_file_with_dangerous_entries_needs_a_second_look(empty: Listed) -> None:
    """Its page has the reasons."""
    browser = empty.admin
    number, page = uploaded(browser, "f.txt", b"@gmail.com\n", list="large", tenant="all")
    assert "gmail.com is a large mail provider" in page.text
    assert browser.post("/lists/actions/apply", {"upload": number}).status == 409
    assert 'data-job="waiting"' not in browser.get("/quarantine/jobs").text
    assert browser.post("/lists/actions/apply", {"upload": number, "sure": "yes"}).status == 303
    wait_for_jobs(browser)
    assert set(empty.service.entries("large")) == {"@gmail.com"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("f.json", b"{", "not JSON"),
        ("f.txt", b"\xff\xfe", "not UTF-8"),
        ("f.txt", b"", "the file has no entries"),
        ("f.jsonl", b"{\n", "the file:1: not JSON"),
        ("f.jsonl", b'"a\\ud800"\n', "not text"),
        ("f.txt", b"x" * 2_000_000, "the line is longer than"),
        ("deep.yml", b"[" * 1_000_000, "the file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_cannot_be_read_changes_nothing(empty: Listed, name: str, content: bytes, said: str) -> None:
    """The page says what is wrong with it."""
    browser = empty.admin
    number, page = uploaded(browser, name, content, list="large", tenant="all")
    assert 'class="problem"' in page.text and said in page.text and "cannot be used" in page.text
    assert browser.post("/lists/actions/apply", {"upload": number}).status == 409


@pytest.mark.parametrize("name", ["large.yml", "large.json"])
def test_a_large_file_must_be_of_a_kind_that_is_read_line_by_line(empty: Listed, name: str) -> None:
    """Others take many times their size in memory."""
    content = b"- a@b.example\n" * 200_000
    answer = send_file(empty.admin, "/lists/actions/upload", name, content, list="large", tenant="all")
    assert answer.status == 413 and "JSON lines instead" in answer.text


def test_a_small_file_of_many_values_took_the_consoles_memory(empty: Listed) -> None:
    """Each value of a YAML file takes 0.5 KB, however short it is."""
    _, page = uploaded(empty.admin, "many.yml", b"[" + b"{a}," * 90_000 + b"]", list="large", tenant="all")
    assert 'class="problem"' in page.text and "too many values" in page.text


def test_a_file_that_does_not_fit_changes_nothing(empty: Listed) -> None:
    """The list has a maximum."""
    _, page = uploaded(empty.admin, "f.txt", b"a@a.example\nb@a.example\nc@a.example\nd@a.example\n",
                       list="partners", tenant="all")  # fmt: skip
    assert "its maxSize is 3" in page.text


def test_a_file_is_applied_only_while_the_user_may_change_the_list(empty: Listed) -> None:
    """A user uploads a file, but belongs to another tenant when it is applied."""
    browser = empty.releaser
    number, _ = uploaded(browser, "f.txt", b"z@z.example\n", list="large", tenant=TENANT_A)
    moved = empty.world.console.signed_in(Role.RELEASER, frozenset({TENANT_B}), name="rita")
    assert moved.post("/lists/actions/apply", {"upload": number, "sure": "yes"}).status == 404
    assert moved.get(f"/lists/uploads/{number}").status == 404
    assert browser.post("/lists/actions/apply", {"upload": number, "sure": "yes"}).status == 303
    wait_for_jobs(browser)


def names_of(numbers: Iterable[int]) -> bytes:
    return b"".join(b"user%07d@example.org\n" % number for number in numbers)


@pytest.mark.parametrize("total", [2_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_long_file_is_compared_and_applied_in_bounded_memory(empty: Listed, total: int) -> None:
    """In the background: other pages answer meanwhile. The difference has pages; of a second file, what differs."""
    browser, pid = empty.world.console.signed_in(name="long"), empty.world.console.process.pid
    browser.get("/lists")
    before_kib = memory_kib(pid)
    sent = send_file(browser, "/lists/actions/upload", "f.txt", names_of(range(total)), list="notes", tenant="all")
    answered = 0
    while "data-reload" in (page := browser.get(sent.target)).text:
        assert browser.get("/mail").status == 200
        answered += 1
    number = sent.target.rpartition("/")[2]
    assert f"To add ({total:,})" in page.text and (answered or total < 100_000)
    last = browser.get(f"/lists/uploads/{number}?show=add&at={total - 1}").text
    assert f"+ user{total - 1:07d}@example.org" in last and 'rel="next"' not in last
    assert len(re.findall(r"\+ user", page.text)) == 100 and "user0000099@example.org" in page.text
    browser.post("/lists/actions/apply", {"upload": number})
    said = wait_for_jobs(browser, 1800.0)
    assert f"{total:,} of {total:,} changes applied to notes" in said and "problems" not in said
    browser.post("/quarantine/actions/dismiss")
    number, page = uploaded(browser, "f.txt", names_of(range(5, total + 2)), list="notes", tenant="all", prune="yes")
    assert "To add (2)" in page.text and "To delete (5)" in page.text
    browser.post("/lists/actions/apply", {"upload": number})
    assert "2 added or changed, 5 deleted" in wait_for_jobs(browser, 1800.0)
    assert memory_kib(pid) - before_kib < 150 * 1024


def memory_kib(pid: int) -> int:
    """The peak."""
    return peak_kib(Path(f"/proc/{pid}/status").read_text())


@pytest.mark.long
def test_applying_a_long_file_is_cancelled(empty: Listed) -> None:
    """While it runs; the page says how far it came."""
    browser, total = empty.admin, 60_000
    number, _ = uploaded(browser, "f.txt", names_of(range(total)), list="notes", tenant="all")
    browser.post("/lists/actions/apply", {"upload": number})
    until(lambda: ">Cancel</button>" in browser.get("/quarantine/jobs").text, "the change to begin")
    job = re.search(r'name="job" value="([^"]+)"', browser.get("/quarantine/jobs").text)
    assert job is not None and browser.post("/quarantine/actions/undo", {"job": job[1]}).status == 303
    said = wait_for_jobs(browser)
    result = re.search(r"([\d,]+) of 60,000 changes applied to notes; ([\d,]+) not", said)
    assert result is not None and "it was cancelled" in said
    assert len(empty.service.entries("notes")) == int(result[1].replace(",", "")) < total


def test_senders_are_blocked_and_allowed_from_the_quarantine(empty: Listed) -> None:
    """For the tenant of the mail; a large provider's domain only after a warning."""
    directory = empty.world.console.directory
    hold(directory, "BLOCKME", sender="spammer@bulk.example")
    hold(directory, "ALLOWME", sender="friend@partner.example")
    hold(directory, "GMAIL", sender="someone@gmail.com")
    browser = empty.releaser
    assert browser.post("/quarantine/actions/block", {"mail": "BLOCKME"}).status == 303
    assert browser.post("/quarantine/actions/allow", {"mail": "ALLOWME", "domain": "yes"}).status == 303
    warned = browser.post("/quarantine/actions/block", {"mail": "GMAIL", "domain": "yes"})
    assert warned.status == 409 and "gmail.com is a large mail provider" in warned.text
    said = wait_for_jobs(browser)
    assert "spammer@bulk.example was added to large" in said and "@partner.example was added to partners" in said
    blocked = empty.service.entries("large", TENANT_A)
    assert list(blocked) == ["spammer@bulk.example"] and "by console:rita" in blocked["spammer@bulk.example"]
    assert list(empty.service.entries("partners", TENANT_A)) == ["@partner.example"]
    assert empty.service.entries("large") == {}


@contextmanager
def list_server(names: list[str]) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """A List API with lists of any name: our own service has plain ones only. Yields its address and its entries."""
    held: dict[str, dict[str, str]] = {name: {} for name in names}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            entries, kind = held.get(asked.get("listName", ""), {}), "application/json"
            if self.path == GET_LISTS_PATH:
                infos = [ListFileInfo(name, category="sender", max_size=1000).to_dict() for name in names]
                body = json.dumps({"listFileInfos": infos}).encode()
            elif self.path == LIST_ENTRIES_PATH:
                kind = NDJSON
                body = b"".join(json.dumps(ListEntry(*pair).to_dict()).encode() + b"\n" for pair in entries.items())
            else:
                entries |= {entry["entry"]: entry["comment"] for entry in asked["entries"]}
                body = json.dumps({"modifiedEntries": len(asked["entries"])}).encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", held
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


ODD_NAMES = ["a/b", "..", ".hidden", "a b?c#d%2F&e=f", "\u00fcber", "~7E", "<b>", "a//b/", "%00", "\U0001f600"]


@pytest.mark.parametrize("name", [*ODD_NAMES, "plain-name_1.txt"])
def test_every_name_has_a_place_in_a_path(name: str) -> None:
    """One part, of characters that neither browsers nor proxies change."""
    part = to_part(name)
    assert from_part(part) == name and re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*", part)
    assert name not in ODD_NAMES or part != name


@pytest.mark.parametrize("part", ["~", "~7e", "~2", "~FF", "a~61", ".x", "a/b", "\u00fc", "~00~"])
def test_a_part_that_we_did_not_write_names_nothing(part: str) -> None:
    """A name has one address."""
    assert from_part(part) == ""


@pytest.mark.long
def test_a_list_with_an_odd_name_is_browsed_and_changed(tmp_path: Path) -> None:
    """Of a service that names its lists as it likes: every link and every form of its pages works."""
    library("nh3", "console")
    with list_server(ODD_NAMES) as (url, held):
        key = tmp_path / "key"
        key.write_text("secret-key\n")
        (tmp_path / "console").mkdir()
        soon = {"undo_period": "1s"}
        with world(tmp_path / "console", soon, lists={"url": url, "api_key_file": str(key)}) as made:
            browser = made.console.signed_in()
            first = browser.get("/lists")
            links = re.findall(r"href=\"(/lists/[^\"]+)\"", first.text)
            assert len(links) == len(ODD_NAMES), first.text
            for name, link in zip(ODD_NAMES, links, strict=True):
                held[name] = {"one@client.example": ""}
                page = page_with(browser, html.unescape(link), ["one@client.example"])
                action = re.search(r'<form class="filters" method="get" action="([^"]+)"', page.text)
                assert action is not None and browser.get(action[1] + "?find=one&tenant=all").status == 200
                form = {"list": name, "tenant": "all", "entries": "two@client.example"}
                done = browser.post("/lists/actions/add", form)
                assert done.status == 303 and browser.get(done.target).status == 200
                wait_for_jobs(browser)
                assert set(held[name]) == {"one@client.example", "two@client.example"}
