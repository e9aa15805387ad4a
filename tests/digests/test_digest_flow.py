"""From a held mail to its release: the digest, its links, the pages, against real processes."""

from __future__ import annotations

import threading
import time
from contextlib import closing

from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction
from bridge.quarantine.record import ReleaseAttempt
from bridge.testing import answer, result, until
from tests.console.held_kit import CONTENT, held_ids, hold, quarantine, run
from tests.digests.digest_kit import Users, links, parsed, text_of


def released(world: Users, subject: str) -> list[tuple[list[str], bytes]]:
    """To whom a mail with this subject came, and its bytes as received."""
    found = [mail for mail in world.received() if f"Subject: {subject}".encode() in mail.content]
    return [(mail.recipients, mail.content) for mail in found if b"Auto-Submitted" not in mail.content]


def content(subject: str) -> bytes:
    return CONTENT.replace(b"Subject: hello", f"Subject: {subject}".encode())


def test_a_held_mail_is_announced_and_released_once_byte_for_byte(shared: Users) -> None:
    hold(shared.directory, "FLOW1", "flow1@a.example", content("flow1"))
    digest = shared.send_digests("--now")["flow1@a.example"]
    assert digest["Auto-Submitted"] == "auto-generated"
    assert digest["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert "/u/" in digest["List-Unsubscribe"]
    text = text_of(digest)
    assert (
        "flow1" in text and "john@\u2060client.\u2060example" in text and "It looks like unwanted advertising" in text
    )
    html = digest.get_body(("html",))
    assert html is not None and "http://elsewhere" not in html.get_content() and "<img" not in html.get_content()
    release, *_ = links(digest)
    browser = shared.served.browser()
    page = browser.get(release)
    assert page.status == 200 and "Do you want this mail?" in page.text
    assert released(shared, "flow1") == []  # a GET does nothing
    done = browser.post(release)
    assert done.status == 200 and "The mail was released" in done.text, done.text
    (recipients, received) = released(shared, "flow1")[0]
    assert recipients == ["flow1@a.example"]
    assert received.endswith(content("flow1"))
    for other in (browser, shared.served.browser()):  # a replay, and the link in another browser
        assert other.press(release).status == 409
    assert len(released(shared, "flow1")) == 1


def test_the_findings_are_told_in_words(shared: Users) -> None:
    """A reader was told only that a mail looks like phishing, not that it pretends to be PayPal."""
    facts = {"verdict": "phishing", "tags": ["phishing:likely"]}
    why = ["claims to be PayPal, sent from example.biz", "<b>" + "y" * 300, "a QR code leads to evil.example", "4th"]
    hold(shared.directory, "WORDS1", "words1@a.example", content("words1"), **facts, reasons=why)
    digest = shared.send_digests("--now")["words1@a.example"]
    text, html = text_of(digest).replace("\r\n", "\n"), digest.get_body(("html",))
    assert "- claims to be PayPal, sent from example.\u2060biz\n- <b>yyy" in text
    assert "- a QR code leads to evil.\u2060example" in text and "4th" not in text and "y" * 200 not in text
    assert html is not None and "&lt;b&gt;yyy" in html.get_content() and "<b>" not in html.get_content()


def test_nobody_is_told_twice_and_nothing_new_is_no_mail(shared: Users) -> None:
    hold(shared.directory, "TWICE1", "twice@a.example")
    assert "twice@a.example" in shared.send_digests("--now")
    assert "twice@a.example" not in shared.send_digests("--now")
    hold(shared.directory, "TWICE2", "twice@a.example", content("second"))
    digest = shared.send_digests("--now")["twice@a.example"]
    assert "second" in text_of(digest) and "hello" not in text_of(digest)


def test_the_envelope_sender_is_null_and_strangers_get_nothing(shared: Users) -> None:
    hold(shared.directory, "OUTSIDE", "stranger@elsewhere.example")
    hold(shared.directory, "ROUTED", "stranger%elsewhere.example@a.example")
    hold(shared.directory, "INSIDE", "inside@a.example")
    before = len(shared.next_hop.mails)
    assert list(shared.send_digests("--now")) == ["inside@a.example"]
    (mail,) = shared.received()[before:]
    assert mail.sender == ""


def test_a_digest_carries_the_token_of_released_mail(shared: Users) -> None:
    """So that a next hop that sends it through the bridge does not have it scanned, and held again."""
    hold(shared.directory, "TOKEN1", "token@a.example")
    before = len(shared.next_hop.mails)
    shared.send_digests("--now")
    (mail,) = shared.received()[before:]
    assert mail.content.startswith(b"X-Scan-Released: ")
    scans = len(shared.scanner.submissions)
    with shared.bridge.client() as client:
        client.begin(b"<>", b"<token@a.example>")
        stuffed = mail.content.replace(b"\r\n.", b"\r\n..")
        assert client.say(stuffed + b".")[0].startswith(b"250")
    assert len(shared.scanner.submissions) == scans


def test_a_link_works_after_a_newer_digest(shared: Users) -> None:
    """A new digest does not end the links of the one before it, nor do new keys."""
    hold(shared.directory, "OLDER1", "older@a.example", content("older"))
    release = links(shared.send_digests("--now")["older@a.example"])[0]
    hold(shared.directory, "OLDER2", "older@a.example", content("newer"))
    assert "newer" in text_of(shared.send_digests("--now")["older@a.example"])
    assert shared.command("digest", "keys", "rotate").returncode == 0
    assert shared.served.browser().press(release).status == 200
    assert [recipients for recipients, _ in released(shared, "older")] == [["older@a.example"]]
    assert released(shared, "newer") == []


def test_one_recipient_of_many_releases_their_own_copy(shared: Users) -> None:
    hold_many(shared, "MANY1", ["one@a.example", "two@a.example", "out@elsewhere.example"], content("many"))
    digests = shared.send_digests("--now")
    assert set(digests) == {"one@a.example", "two@a.example"}
    assert shared.served.browser().press(links(digests["one@a.example"])[0]).status == 200
    assert [recipients for recipients, _ in released(shared, "many")] == [["one@a.example"]]
    assert shared.served.browser().press(links(digests["two@a.example"])[0]).status == 200
    assert [recipients for recipients, _ in released(shared, "many")] == [["one@a.example"], ["two@a.example"]]


def test_user_operator_and_command_line_press_at_the_same_moment(shared: Users) -> None:
    hold(shared.directory, "RACE1", "race@a.example", content("race"))
    release = links(shared.send_digests("--now")["race@a.example"])[0]
    browsers = [shared.served.browser() for _ in range(3)]
    for browser in browsers:
        browser.get(release)
    answers: list[int] = []
    work = [lambda browser=browser: answers.append(browser.post(release).status) for browser in browsers]
    work += [lambda: shared.command("quarantine", "release", "RACE1")] * 2
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [recipients for recipients, _ in released(shared, "race")] == [["race@a.example"]]
    # Who clicked twice was told that the mail could not be released.
    assert len(answers) == 3 and set(answers) <= {200, 409} and answers.count(200) <= 1


def test_malware_is_only_requested_and_the_releasers_are_told(shared: Users) -> None:
    hold(shared.directory, "BAD1", "bad@a.example", content("bad"), verdict="malware", tags=["malware:eicar"])
    digest = shared.send_digests("--now")["bad@a.example"]
    assert "It contains a virus" in text_of(digest) and "Ask for its release" in text_of(digest)
    browser = shared.served.browser()
    assert "Someone will check it before" in browser.get(links(digest)[0]).text
    assert "Your request has been received" in browser.post(links(digest)[0]).text
    assert released(shared, "bad") == []
    note = until(
        lambda: next((m for m in shared.received() if m.recipients == ["postmaster@a.example"]), None), "the notice"
    )
    assert note is not None and "bad@a.example has asked for this mail" in parsed(note.content).get_content()
    count = len(shared.received())
    browser.press(links(digest)[0])  # asking again tells nobody again
    assert len(shared.received()) == count


def test_deleting_hides_one_copy_and_removes_the_mail_with_the_last(shared: Users) -> None:
    hold_many(shared, "DEL1", ["del1@a.example", "del2@a.example"], content("del"))
    digests = shared.send_digests("--now")
    for name, is_left in (("del1", True), ("del2", False)):
        browser = shared.served.browser()
        browser.press(links(digests[f"{name}@a.example"])[-2])  # all mail: signs in
        assert browser.get("/mail/DEL1").status == 200
        assert browser.post("/mail/DEL1/delete").status == 303
        assert browser.get("/mail/DEL1").status == 404
        assert ("DEL1" in held_ids(shared.directory)) is is_left


def test_one_click_unsubscribes_without_a_page(shared: Users) -> None:
    hold(shared.directory, "UNSUB1", "unsub@a.example")
    path = links(shared.send_digests("--now")["unsub@a.example"])[-1]
    form = b"List-Unsubscribe=One-Click"
    answer = shared.served.browser().ask("POST", path, form, Origin=None, Sec_Fetch_Site=None)
    assert answer.status == 200, answer.text
    hold(shared.directory, "UNSUB2", "unsub@a.example")
    assert "unsub@a.example" not in shared.send_digests("--now")


def hold_many(world: Users, mail_id: str, recipients: list[str], data: bytes) -> None:
    """One mail with several recipients."""
    facts = {"decision": "quarantine", "verdict": "spam", "tags": ["spam:bulk"], "reason": "quarantine"}
    with quarantine(world.directory) as opened, closing(Message(Spool(1 << 30))) as message:
        message.write(data)
        now = time.monotonic()
        envelope = Envelope("john@client.example", tuple(map(Recipient, recipients)))
        session = Session("s1", "mx", "127.0.0.1", Client("192.0.2.7", "client.example"))
        run(opened.keep(Transaction(mail_id, session, envelope, message, now, now + 60), b"X-Scan-Id: 1\r\n", facts))


def test_a_release_that_a_crash_interrupted_is_not_repeated_by_users(shared: Users) -> None:
    """They may have the mail. An operator, who can look, may release it again."""
    hold(shared.directory, "CRASH1", "crash@a.example", content("crash"))
    release = links(shared.send_digests("--now")["crash@a.example"])[0]
    with quarantine(shared.directory) as opened, opened.lock("CRASH1"):
        attempt = ReleaseAttempt("2026-11-16T10:00:00.000+00:00", "user crash@a.example", ("crash@a.example",))
        opened.write_releases("CRASH1", (attempt,))
    answer = shared.served.browser().press(release)
    assert answer.status == 409 and "may already have been delivered" in answer.text
    assert released(shared, "crash") == []
    assert shared.command("quarantine", "release", "CRASH1").returncode == 75
    assert released(shared, "crash") == []
    assert shared.command("quarantine", "release", "--again", "CRASH1").returncode == 0
    assert [recipients for recipients, _ in released(shared, "crash")] == [["crash@a.example"]]


def test_a_release_without_an_answer_is_not_repeated_by_users(shared: Users) -> None:
    """The next hop did not answer the final dot: the page does not ask them to try again."""
    hold(shared.directory, "LOST1", "lost@a.example", content("lost"))
    release = links(shared.send_digests("--now")["lost@a.example"])[0]
    with quarantine(shared.directory) as opened, opened.lock("LOST1"):
        answer = ("451 4.4.2 The next mail server did not answer", (), ("lost@a.example",))
        opened.write_releases("LOST1", (ReleaseAttempt("2026-11-16T10:00:00.000+00:00", "x", answer[2], *answer),))
    answer = shared.served.browser().press(release)
    assert answer.status == 409 and "may already have been delivered" in answer.text
    assert released(shared, "lost") == []


def test_a_release_waits_for_one_to_another_recipient(shared: Users) -> None:
    hold_many(shared, "WAIT1", ["wait1@a.example", "wait2@a.example"], content("wait"))
    release = links(shared.send_digests("--now")["wait1@a.example"])[0]
    browser = shared.served.browser()
    browser.get(release)
    answers: list[int] = []
    with quarantine(shared.directory) as opened:
        with opened.lock("WAIT1"):
            thread = threading.Thread(target=lambda: answers.append(browser.post(release).status))
            thread.start()
            thread.join(1.0)
            assert answers == []
        thread.join()
    assert answers == [200]
    assert [recipients for recipients, _ in released(shared, "wait")] == [["wait1@a.example"]]


def test_the_history_did_not_say_that_a_digest_was_sent(shared: Users) -> None:
    """A postmaster could not tell whether the recipient knew of the mail."""
    usual, shared.scanner.reply = shared.scanner.reply, answer(200, result("quarantine", verdict="spam", tags=["spam"]))
    try:
        with shared.bridge.client() as client:
            client.begin(b"<john@client.example>", b"<story@a.example>")
            assert client.say(b"Subject: story\r\n\r\nx\r\n.")[0].startswith(b"250")
    finally:
        shared.scanner.reply = usual
    until(lambda: "was quarantined" in shared.command("explain", "story@a.example").stdout, "the story")
    assert "A digest that lists it" not in shared.command("explain", "story@a.example").stdout
    release = links(shared.send_digests("--now")["story@a.example"])[0]
    told = shared.command("explain", "story@a.example").stdout
    assert told.count("A digest that lists it was sent to story@a.example.") == 1
    shared.served.browser().press(release)
    told = shared.command("explain", "story@a.example").stdout
    assert told.index("A digest that lists it") < told.index("It was released from the quarantine by user story@a.exam")
