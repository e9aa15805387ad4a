"""The quarantine in the console: finding mail, looking at it, and doing something with it."""

from __future__ import annotations

import asyncio
import html
import io
import re
from contextlib import closing
from urllib.parse import urlencode

import pytest
import pyzipper

from bridge.console.audit import Audit
from bridge.console.pages.quarantine import MAX_CHOSEN, PER_PAGE
from bridge.console.roles import Role
from bridge.console.undoable_jobs import Action, Job, Jobs
from bridge.quarantine.record import ReleaseAttempt
from bridge.testing import eventually, until
from tests.console.console_kit import TENANT_A, TENANT_B, Browser, World
from tests.console.held_kit import CONTENT, held_ids, hold, holding, quarantine

OWN = frozenset({TENANT_A})


def ids_on(text: str) -> list[str]:
    return re.findall(r'name="mail" value="(\w+)"', text)


def audited(world: World, mail_id: str = "") -> list[tuple[str, str, str]]:
    """Action, result and mail, the newest first."""
    with closing(world.console.store) as store:
        return [(entry.action, entry.result, entry.mail) for entry in Audit(store).find(mail=mail_id)]


def wait_for_jobs(browser: Browser, limit_s: float = 60.0) -> str:
    """Waits until no action is pending; returns what the page says."""
    pending = re.compile(r'data-job="(waiting|running)"')
    until(lambda: not pending.search(browser.get("/quarantine/jobs").text), "the actions", limit_s)
    return browser.get("/quarantine/jobs").text


def test_a_page_of_the_quarantine_follows_the_other(shared: World) -> None:
    """Every mail is on exactly one page, the newest first."""
    directory = shared.console.directory
    with holding(directory) as put:
        made = [put(f"PAGE{number:04d}", sender="pages@client.example") for number in range(PER_PAGE + 20)]
    browser = shared.console.signed_in()
    first = browser.get("/quarantine?sender=pages@client.example")
    following = re.search(r'<a href="([^"]+)" rel="next">', first.text)
    assert following is not None and "pages" in following[1]
    second = browser.get(following[1].replace("&amp;", "&"))
    assert ids_on(first.text) + ids_on(second.text) == made[::-1]
    assert 'rel="next"' not in second.text


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ("recipient=anna@a.example", True), ("recipient=other@a.example", False), ("sender=@shop.example", True),
        ("subject=summer*", True), ("subject=winter", False), ("tag=phishing:*", True), ("tag=malware:*", False),
        ("state=kept", True), ("state=released", False), ("client=192.0.2.0/24", True), ("client=198.51.100.1", False),
        ("decision=quarantine", True), ("decision=bounce", False), (f"tenant={TENANT_A}", True),
        (f"tenant={TENANT_B}", False), ("listener=mx", True), ("since=2h", True), ("until=2h", False),
    ],
)  # fmt: skip
def test_filters(shared: World, query: str, is_found: bool) -> None:
    """As those of `scanbridge quarantine list`."""
    if "FILTERED" not in held_ids(shared.console.directory):
        content = b"Subject: Summer sale\r\n\r\nx\r\n"
        hold(shared.console.directory, "FILTERED", "anna@a.example", content, "news@shop.example", tags=["phishing:x"])
    answer = shared.console.signed_in().get(f"/quarantine?{query}")
    assert answer.status == 200 and ("FILTERED" in ids_on(answer.text)) is is_found


@pytest.mark.parametrize("query", ["since=bogus", "client=x", "state=gone", "before=x", "subject=%00", "before=1:%27"])
def test_a_mistake_in_a_filter_is_shown_with_its_field(shared: World, query: str) -> None:
    """Nothing is searched."""
    answer = shared.console.signed_in().get(f"/quarantine?{query}")
    assert answer.status == 400 and 'class="problem"' in answer.text and ids_on(answer.text) == []


def test_people_see_the_mail_of_their_tenants_alone(shared: World) -> None:
    """Neither in the table nor in its number."""
    found = shared.console.signed_in(Role.RELEASER, frozenset({TENANT_B})).get("/quarantine")
    assert ids_on(found.text) == ["MAILB"] and "1 mail is here" in found.text


def test_a_mail_whose_recipients_may_have_it_is_released_only_on_request(shared: World) -> None:
    """A release was interrupted; pressing the button sent the mail once more, without a word about it."""
    hold(shared.console.directory, "CUTOFF", "cut@a.example")
    attempt = ReleaseAttempt("2026-11-16T10:00:00.000+00:00", "rita", ("cut@a.example",))
    with quarantine(shared.console.directory) as opened, opened.lock("CUTOFF"):
        opened.write_releases("CUTOFF", (attempt,))
    browser = shared.console.signed_in(Role.RELEASER, OWN, name="ursula")
    assert 'name="unsure" value="yes"' in browser.get("/quarantine/CUTOFF").text
    browser.post("/quarantine/actions/release", {"mail": "CUTOFF"})
    assert "it may have been delivered: the release that rita" in html.unescape(wait_for_jobs(browser))
    with quarantine(shared.console.directory) as opened:
        assert opened.read("CUTOFF").state == "interrupted"
    browser.post("/quarantine/actions/release", {"mail": "CUTOFF", "unsure": "yes"})
    wait_for_jobs(browser)
    with quarantine(shared.console.directory) as opened:
        assert opened.read("CUTOFF").state == "released"
    assert 'name="unsure"' not in browser.get("/quarantine/CUTOFF").text


def test_a_second_report_changes_nothing(shared: World) -> None:
    """Pressing twice reports once: the second job says so, and the history has one note."""
    hold(shared.console.directory, "SPAMME", content=CONTENT.replace(b"hello", b"SPAMME"))
    browser = shared.console.signed_in(Role.RELEASER, OWN, name="sue")
    for _ in range(2):
        browser.post("/quarantine/actions/report-spam", {"mail": "SPAMME"})
    said = wait_for_jobs(browser)
    assert "already reported as spam" in said
    assert [row[:2] for row in audited(shared, "SPAMME")] == [("reported as spam", "done")] * 2
    history = shared.console.history
    noted = [(event.event, event.by) for event in history.later(["SPAMME"])]
    history.close()
    assert noted == [("reported as spam", "console:sue")]
    browser.post("/quarantine/actions/dismiss")


def test_released_deleted_and_reported_mail(shared: World) -> None:
    """When it is too late to undo: the next hop has it, or it is gone; audit log and history have each of them."""
    directory = shared.console.directory
    for mail_id in ("RELEASEME", "DELETEME", "REPORTME", "UNDOME"):
        hold(directory, mail_id, content=CONTENT.replace(b"hello", mail_id.encode()))
    browser = shared.console.signed_in(Role.RELEASER, OWN, name="rita")
    before = len(shared.next_hop.mails)
    for action, mail_id in (("release", "RELEASEME"), ("delete", "DELETEME"), ("report", "REPORTME")):
        answer = browser.post(f"/quarantine/actions/{action}", {"mail": mail_id, "back": "sender=x&evil=1"})
        assert (answer.status, answer.target) == (303, "/quarantine?sender=x")
    browser.post("/quarantine/actions/delete", {"mail": "UNDOME"})
    page = browser.get("/quarantine").text
    assert "Release 1 mail in" in page and page.count("data-undo") == 4
    job = re.findall(r'name="job" value="([^"]+)"', page)[0]  # the newest
    stranger = shared.console.signed_in(Role.ADMIN, name="mallory")
    assert stranger.post("/quarantine/actions/undo", {"job": job}).status == 409
    assert browser.post("/quarantine/actions/undo", {"job": job}).target == "/quarantine"
    assert {"RELEASEME", "DELETEME", "REPORTME", "UNDOME"} <= held_ids(directory)
    assert len(shared.next_hop.mails) == before
    said = wait_for_jobs(browser)
    assert "1 of 1 mail released" in said and "1 of 1 mail deleted" in said and "reported as not spam" in said
    assert len(shared.next_hop.mails) == before + 1 and b"Subject: RELEASEME" in bytes(
        shared.next_hop.mails[-1].content
    )
    assert {"RELEASEME", "REPORTME", "UNDOME"} <= held_ids(directory) and "DELETEME" not in held_ids(directory)
    with quarantine(directory) as opened:
        assert opened.read("RELEASEME").state == "released"
        assert opened.read("RELEASEME").releases[-1].by == "console:rita"
    assert audited(shared, "RELEASEME")[0] == ("released", "done", "RELEASEME")
    assert audited(shared, "DELETEME")[0] == ("deleted", "done", "DELETEME")
    assert audited(shared, "REPORTME")[0] == ("reported as not spam", "done", "REPORTME")
    assert audited(shared, "UNDOME") == []
    history = shared.console.history
    noted = {event.id: (event.event, event.by) for event in history.later(["RELEASEME", "DELETEME", "REPORTME"])}
    history.close()
    assert noted == {
        "RELEASEME": ("released", "console:rita"),
        "DELETEME": ("deleted", "console:rita"),
        "REPORTME": ("reported as not spam", "console:rita"),
    }
    assert browser.post("/quarantine/actions/undo", {"job": job}).status == 409
    browser.post("/quarantine/actions/dismiss")
    assert "data-job" not in browser.get("/quarantine/jobs").text


def test_other_tenants_mail_is_left_alone(shared: World) -> None:
    """Also among ids that may be chosen."""
    browser = shared.console.signed_in(Role.RELEASER, OWN, name="otto")
    assert browser.post("/quarantine/actions/delete", {"mail": ["MAILB", "MAILNONE"]}).status == 404
    hold(shared.console.directory, "MINE")
    browser.post("/quarantine/actions/delete", {"mail": ["MAILB", "MINE", "../../etc/passwd"]})
    wait_for_jobs(browser)
    assert "MAILB" in held_ids(shared.console.directory) and "MINE" not in held_ids(shared.console.directory)


def confirmed(text: str) -> dict[str, str]:
    """The fields of the form that asks whether all mails are meant."""
    form = text.partition('class="danger"')[0].rpartition("<form")[2]
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', html.unescape(form)))


def test_all_mails_that_match_are_counted_and_confirmed_first(shared: World) -> None:
    """Not only those of the page; but neither mail that arrives later, nor mail of others."""
    directory, sender = shared.console.directory, "all@client.example"
    with holding(directory) as put:
        made = {put(f"ALL{number:04d}", sender=sender) for number in range(PER_PAGE + 3)}
        put("ALLOTHER", "jim@b.example", sender=sender)
    browser = shared.console.signed_in(Role.RELEASER, OWN, name="alma")
    page = browser.get(f"/quarantine?sender={sender}").text
    matching = re.search(r'name="matching" value="([^"]+)"', page)
    assert matching is not None and "all that match" in page
    given = {"all": "yes", "matching": html.unescape(matching[1]), "back": html.unescape(matching[1])}
    asked = browser.post("/quarantine/actions/delete", given)
    assert asked.status == 409 and f"Delete {len(made)} mails?" in asked.text and "Nothing has been done" in asked.text
    assert "data-job=" not in browser.get("/quarantine/jobs").text
    form = confirmed(asked.text)
    assert browser.post("/quarantine/actions/delete", {**form, "number": "3"}).status == 409  # more than were shown
    hold(directory, "ALLLATE", sender=sender)
    done = browser.post("/quarantine/actions/delete", form)
    assert (done.status, done.target) == (303, f"/quarantine?{urlencode({'sender': sender})}")
    assert f"{len(made)} of {len(made)} mails deleted" in wait_for_jobs(browser)
    left = held_ids(directory)
    assert not made & left and {"ALLLATE", "ALLOTHER"} <= left
    assert browser.post("/quarantine/actions/delete", form).status == 404
    for wrong in ({"matching": "since=bogus"}, {"newest": "x"}):
        assert browser.post("/quarantine/actions/delete", {**form, **wrong}).status == 400


async def test_a_running_action_is_cancelled_if_it_can_be() -> None:
    """By the person who began it; `work` sees it before the next mail."""
    jobs, running, go_on = Jobs(undo_s=0.0), asyncio.Event(), asyncio.Event()

    async def work(job: Job) -> None:
        running.set()
        await go_on.wait()
        job.succeeded() if not job.is_cancelled else job.fail("it was cancelled")

    async def dropped(job: Job) -> None: ...

    async def begun(**more: bool) -> Job:
        running.clear()
        job = jobs.begin("ann", "", Action(("Release", "released"), "", 1, **more), work, dropped)
        await running.wait()
        return job

    one, other = await begun(can_be_cancelled=True), await begun()
    assert jobs.undo("bob", one.id) is None and jobs.undo("ann", other.id) is None
    assert jobs.undo("ann", one.id) is one and one.is_cancelled
    go_on.set()
    await eventually(lambda: one.is_over and other.is_over, "both to end")
    assert (one.failed, one.problems, other.done) == (1, ["it was cancelled"], 1)
    assert jobs.undo("ann", one.id) is None


@pytest.mark.parametrize(
    "mails",
    [[], [""], ["../x"], ["A" * 65], [f"X{n}" for n in range(MAX_CHOSEN + 1)]],
    ids=lambda mails: str(mails)[:20],
)
def test_a_choice_that_is_none_does_nothing(shared: World, mails: list[str]) -> None:
    """And says so."""
    answer = shared.console.signed_in().post("/quarantine/actions/delete", {"mail": mails})
    assert answer.status == 400 and "othing was done" in answer.text


def test_without_lists_senders_cannot_be_listed(shared: World) -> None:
    """The page has no button for it, and the server says what is missing."""
    browser = shared.console.signed_in()
    assert "/quarantine/actions/block" not in browser.get("/quarantine").text
    answer = browser.post("/quarantine/actions/block", {"mail": "MAILA"})
    assert answer.status == 502 and "the List API is not configured" in answer.text


def test_one_mail_shows_its_text_first_and_its_structure(shared: World) -> None:
    """With types, sizes and hashes; and every view is in the audit log."""
    content = (
        b"Subject: two parts\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/plain\r\n\r\nthe text\r\n"
        b'--b\r\nContent-Type: application/pdf; name="a.pdf"\r\nContent-Transfer-Encoding: base64\r\n\r\n'
        b"eA==\r\n--b--\r\n"
    )
    hold(shared.console.directory, "PARTS", content=content)
    browser = shared.console.signed_in(Role.VIEWER, OWN, name="vera")
    page = browser.get("/quarantine/PARTS")
    assert page.text.index("the text") < page.text.index("multipart/mixed") < page.text.index("a.pdf")
    assert "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" in page.text  # of the letter x
    assert "/quarantine/actions/release" not in page.text
    assert "frame-src 'self'" in page.headers["content-security-policy"]
    browser.get("/quarantine/PARTS/source")
    browser.get("/quarantine/PARTS/html")
    browser.get("/quarantine/PARTS/download")
    seen = [action for action, _, _ in audited(shared, "PARTS")]
    assert seen == [
        "downloaded a mail",
        "viewed the HTML of a mail",
        "viewed the source of a mail",
        "viewed a quarantined mail",
    ]


def test_a_download_is_a_zip_with_a_password(shared: World) -> None:
    """So that no program opens it by accident."""
    answer = shared.console.signed_in().get("/quarantine/MAILA/download")
    assert answer.headers["content-disposition"] == 'attachment; filename="MAILA.zip"'
    with pyzipper.AESZipFile(io.BytesIO(answer.body)) as archive:
        assert archive.namelist() == ["MAILA.eml"]
        with pytest.raises(RuntimeError):
            archive.read("MAILA.eml")
        archive.setpassword(b"infected")
        assert archive.read("MAILA.eml") == b"X-Scan-Id: 1\r\n" + CONTENT
    assert CONTENT not in answer.body


def test_a_long_source_has_pages(shared: World) -> None:
    """Each of them is small, and together they are the mail."""
    lines = b"".join(b"line %d <script>alert(1)</script>\r\n" % number for number in range(5000))
    hold(shared.console.directory, "LONG", content=b"Subject: long\r\n\r\n" + lines)
    browser, path, seen = shared.console.signed_in(), "/quarantine/LONG/source", ""
    while path:
        page = browser.get(path)
        assert page.status == 200 and len(page.body) < 200_000 and "<script>alert" not in page.text
        seen += page.text
        following = re.search(r'<a href="([^"]+)" rel="next">', page.text)
        path = following[1].replace("&amp;", "&") if following else ""
    assert all(f"line {number} " in seen for number in (0, 2500, 4999))


def test_preview_has_its_own_policy(shared: World) -> None:
    """Nothing may be loaded, run or sent, and only we may frame it."""
    content = (
        b"Subject: x\r\nContent-Type: text/html\r\n\r\n<p onclick=x()>Hi <a href='http://evil.example/'>you</a>\r\n"
    )
    hold(shared.console.directory, "HTML", content=content)
    answer = shared.console.signed_in().get("/quarantine/HTML/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "; sandbox; frame-ancestors 'self'" in policy
    assert "[http://evil.example/]" in answer.text and "href" not in answer.text and "onclick" not in answer.text


def test_the_table_weighs_little(shared: World) -> None:
    """Also with long and hostile texts in every field."""
    long = "<b>&" * 200
    content = f"Subject: {long}\r\n\r\nx\r\n".encode()
    with holding(shared.console.directory) as put:
        for number in range(PER_PAGE):
            put(f"WIDE{number}", "wide@a.example", content, tags=[f"tag:{long}"] * 10)
    answer = shared.console.signed_in().get("/quarantine?recipient=wide@a.example")
    assert len(ids_on(answer.text)) == PER_PAGE and len(answer.body) < 200_000 and "<b>&<b>" not in answer.text


def test_a_held_mail_says_why_in_words(shared: World) -> None:
    """The reasons are text from strangers: nothing in them acts on the page."""
    reasons = ["claims to be PayPal, sent from example.biz", "<img src=x onerror=alert(1)>"]
    mail = hold(shared.console.directory, "REASONS1", reasons=reasons)
    page = shared.console.signed_in().get(f"/quarantine/{mail}").text
    assert "<li>claims to be PayPal, sent from example.biz</li>" in page
    assert "<img src=x" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
