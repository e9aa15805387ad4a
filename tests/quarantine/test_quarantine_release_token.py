"""The release token: a released mail passes the bridge again unscanned, and no other mail does."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

from bridge.mail.message import Message, Spool
from bridge.quarantine.release_token import VALID_S, ReleaseTokens
from bridge.quarantine.used_tokens import UsedTokens
from bridge.runtime.database import Database
from bridge.testing import free_port, until
from tests.filter.smtp_kit import mail_lines
from tests.postfix_kit import Postfix
from tests.processor_time import fair_cpu_s
from tests.quarantine.quarantine_kit import SOON_S, Desk, desk, made, thread_is_in
from tests.requirements import need

KEY = "0123456789abcdef" * 4
MAIL = b"From: a@x\r\nTo: b@example.org\r\nSubject: hello\r\n world\r\nContent-Type: text/plain\r\n\r\nbody\r\n.\r\n"
TO = ("b@example.org", "c@example.org")
SENDER = "a@client.example"


def message(content: bytes) -> Message:
    new = Message(Spool(1 << 30))
    made.append(new)
    new.write(content)
    return new


def marked(moment: float | None = None, key: str = KEY, mail: bytes = MAIL, to: tuple[str, ...] = TO) -> bytes:
    now = datetime.fromtimestamp(time.time() if moment is None else moment, UTC)
    return ReleaseTokens(key, "X-Scan-").field(message(mail), SENDER, to, now) + mail


def is_valid(content: bytes, *recipients: str, sender: str = SENDER) -> bool:
    mail = message(content)
    token = ReleaseTokens(KEY, "X-Scan-").find(mail.head(), sender, recipients or TO, time.time())
    return token is not None and token.is_for(mail, time.time())


def date() -> bytes:
    return f"Date: {format_datetime(datetime.now(UTC))}\r\n".encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda mail: mail,
        lambda mail: b"Received: from x\r\n\tby y; date\r\nReturn-Path: <>\r\n" + mail,
        lambda mail: mail.replace(b"Subject: hello\r\n world", b"Subject: hello world"),
        lambda mail: mail.replace(b"\r\n\r\nbody", b"\r\n" + date() + b"Message-Id: <1@x>\r\n\r\nbody"),
        lambda mail: b"Message-Id: <1@x>\r\n" + date() + mail,
        lambda mail: b"X-Scan-Released: nonsense\r\nx-scan-released: d; t=1; mark=AAAA\r\n" + mail,
        lambda mail: mail.replace(b"X-Scan-Released", b"x-scan-released"),
        lambda mail: mail.replace(b";\r\n ", b"; ").replace(b",\r\n ", b",\r\n\t"),
    ],
    ids=["as it was", "trace fields", "unfolded", "date and id", "at the top", "other marks", "lower case", "refolded"],
)
def test_a_mark_survives_what_servers_do(change) -> None:  # type: ignore[no-untyped-def]
    assert is_valid(change(marked()))
    assert is_valid(change(marked()), "c@Example.ORG", sender="a@CLIENT.example")


@pytest.mark.parametrize(
    "content",
    [
        MAIL,
        marked().replace(b"body", b"b0dy"),
        marked().replace(b"hello", b"other"),
        marked().replace(b"text/plain", b"text/html"),
        marked().replace(b"From: a@x", b"From: boss@x"),
        marked().replace(b"To: b@example.org\r\n", b"To: b@example.org\r\nReply-To: evil@x\r\n"),
        marked() + b"more\r\n",
        marked() + b"\r\n",
        marked()[:-3],
        marked(key=KEY[::-1]),
        marked(time.time() - VALID_S - 10),
        marked(time.time() + 86_400),
        re.sub(rb" t=\d+", b" t=%d" % time.time(), marked(time.time() - 100)),
        re.sub(rb"size=(\d+)", lambda found: b"size=%d" % (int(found[1]) + 2), marked()),
        re.sub(rb"hash=(.)", lambda found: b"hash=_" if found[1] != b"_" else b"hash=A", marked()),
        re.sub(rb"nonce=(.)", lambda found: b"nonce=_" if found[1] != b"_" else b"nonce=A", marked()),
        re.sub(rb"mark=[^\r]+\r\n [^\r]+\r\n", b"mark=,\r\n", marked()),
    ],
    ids=[
        *("none", "body", "subject", "type", "sender", "reply-to", "longer", "empty line", "shorter", "another key"),
        *("old", "future", "another time", "another size", "another hash", "another nonce", "empty"),
    ],
)  # fmt: skip
def test_a_mark_is_good_for_one_mail_only(content: bytes) -> None:
    assert not is_valid(content)


SPACES = b'Content-Type: multipart/mixed; boundary="a b"\r\nTo: b@example.org\r\n\r\n--a b\r\n\r\nhi\r\n--a  b\r\n'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"a b"', b'"a  b"'),
        (b'"a b"', b'"a\tb"'),
        (b'"a b"', b'"a b "'),
        (b'"a b"', b'"a\r\n  b"'),
        (b"Content-Type", b"content-type"),
        (b"Content-Type:", b"Content-Type :"),
        (b": multipart", b":  multipart"),
        (b"To:", b"Content-Type: text/html\r\nTo:"),
        (b"\r\n\r\n--", b"\r\nContent-Type: text/html\r\n\r\n--"),
        (b"\r\n\r\n--", b"\r\nTo: b@example.org\r\n\r\n--"),
        (b"\r\n\r\n--", b"\r\nX-Other: 1\r\n\r\n--"),
        (b"\r\n\r\n--", b"\r\n \r\n\r\n--"),
        (b"\r\n\r\n--", b"\r\nVisible text\r\n\r\n--"),
        (b"To:", b"Visible text\r\nTo:"),
        (b"\r\n\r\n--", b"\r\nReceived: below the token\r\n\r\n--"),
        (b"\r\n\r\n--", b"\r\nDate: long ago\r\n\r\n--"),
        (b"\r\n\r\n--", b"\r\nDate: Mon, 01 Jan 2024 00:00:00 +0000\r\n\r\n--"),
        (b"\r\n\r\n--", b"\r\nNOWNOW\r\n--"),
        (b"\r\n\r\n--", b"\r\nMessage-Id: <1@x> text\r\n\r\n--"),
    ],
)
def test_white_space_and_unsigned_lines_made_two_mails_share_a_mark(old: bytes, new: bytes) -> None:
    """Readers see another structure, or other text: what any of them could show is signed exactly."""
    content = marked(mail=SPACES)
    assert is_valid(content) and content.count(old) >= 1
    assert not is_valid(content.removesuffix(SPACES) + SPACES.replace(old, new.replace(b"NOW", date()), 1))


@pytest.mark.parametrize(
    "top",
    [
        b"Content-Type: text/html\r\n",
        b"Subject: another\r\n",
        b"Visible text\r\n",
        b" Visible text\r\n",
        b"Received\r\n Visible text\r\n",
        b"Received : by x\r\n",
        b"Received: by x\r\n \r\n",
        b"Received: by x\x0cVisible text\r\n",
        b"Received: by x\rVisible text\r\n",
        b"X-Received: by x\r\n",
        b"Authentication-Results: mx; dkim=pass\r\n",
        b"\r\n",
    ],
)
def test_nothing_but_trace_fields_may_stand_above_a_mark(top: bytes) -> None:
    """A reader uses the topmost of two fields."""
    assert not is_valid(top + marked())


@pytest.mark.parametrize(
    "mail",
    [
        b"Visible text\r\n" + MAIL,
        b" x\r\n" + MAIL,
        MAIL.replace(b"To:", b"x\r\nTo:"),
        MAIL.replace(b"To:", b"X: a\rb\r\nTo:"),
    ],
)
def test_a_header_section_with_a_line_that_is_no_field_gets_no_mark(mail: bytes) -> None:
    assert marked(mail=mail) == mail


def test_a_mark_is_good_for_its_sender_and_recipients_only() -> None:
    """A recipient of a released mail cannot send it to others unscanned."""
    assert not is_valid(marked(), "d@example.org")
    assert not is_valid(marked(), "b@example.org", "d@example.org")
    assert not is_valid(marked(), "B@example.org")
    assert not is_valid(marked(), sender="evil@client.example")
    assert not is_valid(marked(), sender="")
    assert is_valid(marked(), "b@example.org") and is_valid(marked(), *reversed(TO), *TO)


def test_two_marks_cannot_be_combined() -> None:
    """All recipients need a code of the same release."""
    assert not is_valid(marked(to=TO[:1]).removesuffix(MAIL) + marked(to=TO[1:]))


def test_a_mail_without_a_last_line_end_gets_one_on_the_way() -> None:
    """SMTP cannot carry it otherwise."""
    content = marked(mail=MAIL.removesuffix(b"\r\n"))
    assert is_valid(content) and is_valid(content + b"\r\n") and not is_valid(content + b"\r\n\r\n")
    content = marked(mail=b"Subject: x")
    assert is_valid(content + b"\r\n") and not is_valid(content + b"\r\n\r\n")


def test_the_digest_does_not_depend_on_chunk_boundaries() -> None:
    content = marked()
    for size in (1, 3, 7):
        mail = Message(Spool(1 << 30, memory_per_mail=0))
        made.append(mail)
        for start in range(0, len(content), size):
            mail.write(content[start : start + size])
        token = ReleaseTokens(KEY, "X-Scan-").find(mail.head(), SENDER, TO, time.time())
        assert token is not None and token.is_for(mail, time.time())


def test_a_forged_mark_above_a_body_of_empty_lines_was_quadratic() -> None:
    """A mail of 50 MiB costs what its header section costs: the codes are checked before the body is read."""
    mail = Message(Spool(1 << 30, memory_per_mail=0))
    made.append(mail)
    mail.write(marked(key=KEY[::-1], mail=b"Subject: x\r\n\r\n"))
    for _ in range(50):
        mail.write(b"\r\n" * (1 << 19))
    tokens = ReleaseTokens(KEY, "X-Scan-")
    assert tokens.find(mail.head(), SENDER, TO, time.time()) is None
    assert fair_cpu_s(lambda: tokens.find(mail.head(), SENDER, TO, time.time()), attempts=3) < 0.1


def test_a_true_mark_above_another_body_of_empty_lines_costs_one_pass() -> None:
    """Somebody who has a token can have a mail of the same size hashed once, as for any scan."""
    mail = Message(Spool(1 << 30, memory_per_mail=0))
    made.append(mail)
    mail.write(b"Subject: x\r\n\r\n")
    for _ in range(50):
        mail.write(b"\r\n" * (1 << 19))
    tokens = ReleaseTokens(KEY, "X-Scan-")
    assert tokens.field(mail, SENDER, TO, datetime.now(UTC))
    assert fair_cpu_s(lambda: tokens.field(mail, SENDER, TO, datetime.now(UTC))) < 2.0


def test_a_header_section_full_of_marks_is_cheap() -> None:
    """The largest that is searched, with the most recipients: one code each is computed for a few fields."""
    field = marked(key=KEY[::-1]).removesuffix(MAIL)
    many = field.replace(b"mark=", b"mark=" + b"A" * 24 + b"," + (b"\r\n " + b"A" * 24 + b",") * 2000)
    to = [f"{number}@example.org" for number in range(1000)]
    tokens = ReleaseTokens(KEY, "X-Scan-")
    for head in (
        field * ((1 << 20) // len(field)),
        many * ((1 << 20) // len(many)),
        b"X-Scan-Released:" + b"\t" * (1 << 20),
    ):
        assert tokens.find(head, SENDER, to, time.time()) is None
        assert fair_cpu_s(lambda head=head: tokens.find(head, SENDER, to, time.time()), attempts=3) < 0.2


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as running:
        yield running


def submit(here: Desk, content: bytes, recipient: bytes = b"b@example.org", sender: bytes = SENDER.encode()) -> bool:
    """Send the mail to the bridge, which answers 250; returns whether it was relayed without a scan."""
    scans, mails = len(here.bridge.scanner.submissions), len(here.bridge.next_hop.mails)
    with here.bridge.client() as client:
        client.open()
        client.say(b"MAIL FROM:<%b>" % sender, b"RCPT TO:<%b>" % recipient, b"DATA")
        assert client.say(content.replace(b"\r\n.", b"\r\n..") + b".")[0].startswith(b"250 ")
    is_relayed = len(here.bridge.next_hop.mails) > mails
    assert is_relayed != (len(here.bridge.scanner.submissions) > scans)
    return is_relayed


def released(here: Desk, *options: str) -> bytes:
    """Quarantine a mail and release it; returns what the next hop gets."""
    assert here.call("release", here.send(MAIL), *options).exit_code == 0
    return here.bridge.next_hop.mails[-1].content


def test_a_released_mail_that_comes_back_is_not_scanned_again(here: Desk) -> None:
    """The scanner would quarantine the mail, and does if one byte, the sender or the recipient is changed."""
    content = released(here)
    assert not submit(here, content.replace(b"body", b"b0dy"))
    assert not submit(here, content, b"d@example.org")
    assert not submit(here, content, sender=b"evil@client.example")
    with mail_lines() as lines:
        assert submit(here, b"Received: from somewhere\r\n" + content)
    assert (lines[-1]["rule"], lines[-1]["unscanned"]) == ("released", "released")
    again = here.bridge.next_hop.mails[-1].content
    assert b"X-Scan-Unscanned: released\r\n" in again and again.endswith(MAIL)


def test_a_mark_was_good_for_any_number_of_mails(here: Desk) -> None:
    """Somebody who got it back in a report replayed it: it is used once, and does not travel on."""
    content = released(here)
    assert submit(here, content)
    assert b"X-Scan-Released" not in here.bridge.next_hop.mails[-1].content
    assert not submit(here, content)
    assert not submit(here, b"Received: by x\r\n" + content)


def test_each_release_has_a_mark_of_its_own(here: Desk) -> None:
    content = released(here)
    assert submit(here, content)
    assert here.call("release", "--again", here.ids[0]).exit_code == 0
    assert submit(here, here.bridge.next_hop.mails[-1].content)
    assert not submit(here, content)


def test_each_recipient_may_come_in_a_mail_of_its_own(here: Desk) -> None:
    """Mail servers split a mail by next hop."""
    content = released(here, "--to", "b@example.org", "--to", "c@example.org")
    assert submit(here, content) and submit(here, content, b"c@example.org")
    assert not submit(here, content) and not submit(here, content, b"c@example.org")


@pytest.mark.parametrize(
    ("says", "is_good"),
    [(b"451 4.3.0 Later", True), (b"550 5.7.1 Never", False), (b"", True)],
    ids=["4xx", "5xx", "dropped"],
)
def test_a_mark_is_good_as_long_as_the_mail_server_tries_again(here: Desk, says: bytes, is_good: bool) -> None:
    """After a 5xx the mail goes back to its sender, with the token: it is used up."""
    content, hop = released(here), here.bridge.next_hop
    hop.replies[b"."] = says
    with here.bridge.client() as client:
        client.open()
        client.say(b"MAIL FROM:<%b>" % SENDER.encode(), b"RCPT TO:<b@example.org>", b"DATA")
        assert client.say(content.replace(b"\r\n.", b"\r\n..") + b".")[0][:1] in b"45"
    hop.replies.clear()
    assert submit(here, content) == is_good and not submit(here, content)


def test_two_at_the_same_time_use_a_mark_once(here: Desk) -> None:
    """The second one is scanned, and quarantined by its decision."""
    content, before = released(here), len(here.bridge.next_hop.mails)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: send(here, content), range(8)))
    assert len(here.bridge.next_hop.mails) == before + 1


def send(here: Desk, content: bytes) -> None:
    with here.bridge.client() as client:
        client.open()
        client.say(b"MAIL FROM:<%b>" % SENDER.encode(), b"RCPT TO:<b@example.org>", b"DATA")
        assert client.say(content.replace(b"\r\n.", b"\r\n..") + b".")[0].startswith(b"250 ")


def test_a_client_that_disconnected_while_its_mark_was_taken_used_it_up(here: Desk) -> None:
    """The mail server sends the mail again: it was scanned, and quarantined a second time."""
    content = released(here)
    assert not submit(here, content.replace(b"body", b"b0dy"))  # creates the database
    database = here.bridge.directory / "state" / "released.sqlite"
    with mail_lines() as lines, closing(sqlite3.connect(database, isolation_level=None)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        client = here.bridge.client()
        client.open()
        client.say(b"MAIL FROM:<%b>" % SENDER.encode(), b"RCPT TO:<b@example.org>", b"DATA")
        client.send(content.replace(b"\r\n.", b"\r\n..") + b".\r\n")
        until(lambda: thread_is_in(UsedTokens.take), "the bridge to wait for the database")
        client.close()
        loop = here.bridge.background.loop
        until(lambda: any(task.cancelling() for task in asyncio.all_tasks(loop)), "the bridge to notice")
        busy.execute("ROLLBACK")
        until(lambda: bool(lines), "the cancelled mail is logged")
    assert lines[-1]["action"] == "cancelled"
    assert submit(here, content) and not submit(here, content)


def test_a_used_mark_stays_used_after_a_restart(tmp_path: Path) -> None:
    with desk(tmp_path) as first:
        content = released(first)
        assert submit(first, content)
    with desk(tmp_path) as second:
        assert not submit(second, content)
        unused = released(second)
    with desk(tmp_path) as third:
        assert submit(third, unused)


def test_without_its_database_no_mark_is_accepted(here: Desk) -> None:
    """In doubt, a mail is scanned."""
    content = released(here)
    (here.bridge.directory / "state" / "released.sqlite").mkdir()
    assert not submit(here, content)


def test_used_marks_are_shared_and_forgotten_when_they_have_expired(database: Database) -> None:
    """By all workers, and with PostgreSQL by all machines."""
    here, there, now = UsedTokens(database), UsedTokens(database), time.time()
    assert here.take([b"a", b"b"], now) and there.has([b"c", b"b"]) and not there.take([b"c", b"a"], now)
    assert not there.has([b"c"])
    here.give_back([b"b"])
    assert not there.has([b"b"]) and there.has([b"a"])
    assert there.take([b"d"], now + VALID_S + 100_000) and not here.has([b"a"]) and here.has([b"d"])
    assert database.path is None or database.path.stat().st_mode & 0o777 == 0o600
    with ThreadPoolExecutor(8) as threads:  # they wait for each other, on a busy machine for seconds
        assert sum(threads.map(lambda _: UsedTokens(database, wait_s=60.0).take([b"e"], now), range(8))) == 1
    here.close()
    there.close()


def test_a_report_returned_the_mark_to_the_sender(here: Desk) -> None:
    """A sender who asked for reports gets none for a released mail: a report returns the header section."""
    with here.bridge.client() as client:
        client.open()
        client.say(b"MAIL FROM:<a@client.example> RET=FULL ENVID=x1 BODY=8BITMIME")
        client.say(b"RCPT TO:<b@example.org> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;b@example.org", b"DATA")
        assert client.say(MAIL.replace(b"\r\n.", b"\r\n..") + b".")[0].startswith(b"250 ")
    assert here.call("release", *here.ids).exit_code == 0
    mail = here.bridge.next_hop.mails[0]
    assert re.fullmatch(rb"MAIL FROM:<a@client.example> SIZE=\d+ BODY=8BITMIME", mail.commands[1])
    assert mail.commands[2] == b"RCPT TO:<b@example.org> ORCPT=rfc822;b@example.org NOTIFY=NEVER"


def test_through_a_real_chain_a_released_mail_passes_the_bridge_once_more(here: Desk) -> None:
    """The next hop for releases is a Postfix whose content filter is the same bridge."""
    need("postfix", root=True)
    mail_id = here.send(MAIL)
    port, hop = free_port(), here.bridge.next_hop
    service = f"127.0.0.1:{port} inet n - n - 10 smtpd -o content_filter=smtp:[127.0.0.1]:{here.bridge.port}"
    with Postfix(service, hop.port, "relay_domains = example.org\n") as postfix:
        here.use(f"127.0.0.1:{port}")
        assert here.call("release", mail_id).exit_code == 0
        until(lambda: hop.mails, f"the mail: {postfix.log()}", SOON_S)
    assert len(here.bridge.scanner.submissions) == 1 and here.ids == [mail_id]
    content = hop.mails[0].content
    assert content.endswith(b"\r\n\r\nbody\r\n.\r\n") and b"Message-Id: <" in content  # added by Postfix


@pytest.mark.parametrize("says", [b"250 2.1.5 Ok", b"550 5.1.1 No such user"], ids=["delivered", "bounced"])
def test_a_real_postfix_sends_no_report_on_a_released_mail(here: Desk, says: bytes) -> None:
    """The sender asked for reports of success and failure; each would return the token."""
    need("postfix", root=True)
    with here.bridge.client() as client:
        client.open()
        client.say(b"MAIL FROM:<a@client.example> RET=FULL", b"RCPT TO:<b@example.org> NOTIFY=SUCCESS,FAILURE", b"DATA")
        assert client.say(MAIL.replace(b"\r\n.", b"\r\n..") + b".")[0].startswith(b"250 ")
    port, hop = free_port(), here.bridge.next_hop
    hop.replies[b"RCPT"], hop.extensions = says, ("PIPELINING",)
    with Postfix(f"127.0.0.1:{port} inet n - n - 10 smtpd", hop.port, "relay_domains = example.org\n") as postfix:
        here.use(f"127.0.0.1:{port}")
        assert here.call("release", *here.ids).exit_code == 0
        until(lambda: re.search(r"qmgr\[\d+\]: \w+: removed", postfix.log()), "the end of the mail", SOON_S)
        assert "status=sent" in postfix.log() or "status=bounced" in postfix.log()
        for report in re.findall(r"notification: (\w+)", postfix.log()):  # Postfix 3.11 begins one, and cancels it
            until(lambda name=report: f"{name}: removed (canceled)" in postfix.log(), "the end of the report", SOON_S)
        assert postfix.log().count("qmgr") == 2  # active, removed: of the mail alone
