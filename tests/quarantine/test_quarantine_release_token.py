"""The release token: a released mail passes the bridge again unscanned, and no other mail does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bridge.mail.message import Message, Spool
from bridge.quarantine.release_token import VALID_S, ReleaseTokens
from bridge.testing import free_port, until
from tests.postfix_kit import Postfix
from tests.quarantine.quarantine_kit import SOON_S, Desk, desk, made
from tests.requirements import need

KEY = "0123456789abcdef" * 4
MAIL = b"From: a@x\r\nTo: b@example.org\r\nSubject: hello\r\n world\r\nContent-Type: text/plain\r\n\r\nbody\r\n.\r\n"
TO = ("b@example.org", "c@example.org")


def message(content: bytes) -> Message:
    new = Message(Spool(1 << 30))
    made.append(new)
    new.write(content)
    return new


def marked(moment: float | None = None, key: str = KEY) -> bytes:
    now = datetime.fromtimestamp(time.time() if moment is None else moment, UTC)
    return ReleaseTokens(key, "X-Scan-").field(message(MAIL), TO, now) + MAIL


def is_valid(content: bytes, *recipients: str) -> bool:
    marks, mail = ReleaseTokens(KEY, "X-Scan-"), message(content)
    fields = marks.find(mail.head(), time.time())
    return bool(fields) and marks.valid(fields, mail, recipients or TO) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda mail: mail,
        lambda mail: b"Received: from x\r\n\tby y; date\r\nReturn-Path: <>\r\n" + mail,
        lambda mail: mail.replace(b"Subject: hello\r\n world", b"Subject: hello world"),
        lambda mail: mail.replace(b"\r\n\r\nbody", b"\r\nDate: now\r\nMessage-Id: <1@x>\r\n\r\nbody"),
        lambda mail: mail + b"\r\n",
        lambda mail: b"X-Scan-Released: nonsense\r\nx-scan-released: d; t=1; mark=AAAA\r\n" + mail,
        lambda mail: mail.replace(b"X-Scan-Released", b"x-scan-released"),
    ],
    ids=["as it was", "trace fields", "unfolded", "date and id", "line end", "other marks", "lower case"],
)
def test_a_mark_survives_what_servers_do(change) -> None:  # type: ignore[no-untyped-def]
    assert is_valid(change(marked()))
    assert is_valid(change(marked()), "C@Example.ORG")


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
        marked(key=KEY[::-1]),
        marked(time.time() - VALID_S - 10),
        marked(time.time() + 1000),
        re.sub(rb"t=\d+", b"t=%d" % time.time(), marked(time.time() - 100)),
        re.sub(rb"mark=[^\r]+\r\n [^\r]+\r\n", b"mark=,\r\n", marked()),
    ],
    ids=[
        *("none", "body", "subject", "type", "sender", "reply-to", "longer", "another key"),
        *("old", "future", "another time", "empty"),
    ],
)  # fmt: skip
def test_a_mark_is_good_for_one_mail_only(content: bytes) -> None:
    assert not is_valid(content)


def test_a_mark_is_good_for_its_recipients_only() -> None:
    """A recipient of a released mail cannot send it to others unscanned."""
    assert not is_valid(marked(), "d@example.org")
    assert not is_valid(marked(), "b@example.org", "d@example.org")


def test_the_digest_does_not_depend_on_chunk_boundaries() -> None:
    content = marked()
    for size in (1, 3, 7):
        mail = Message(Spool(1 << 30, memory_per_mail=0))
        made.append(mail)
        for start in range(0, len(content), size):
            mail.write(content[start : start + size])
        marks = ReleaseTokens(KEY, "X-Scan-")
        assert marks.valid(marks.find(mail.head(), time.time()), mail, TO) is not None


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as running:
        yield running


def test_a_released_mail_that_comes_back_is_not_scanned_again(here: Desk) -> None:
    """The scanner would quarantine the mail, and does if one byte or the recipient is changed."""
    mail_id = here.send(MAIL)
    assert here.call("release", mail_id).exit_code == 0
    hop, scanner = here.bridge.next_hop, here.bridge.scanner
    released = hop.mails[0].content
    assert len(scanner.submissions) == 1
    for content, recipient, scans in (
        (released, b"b@example.org", 1),
        (b"Received: from somewhere\r\n" + released, b"B@example.org", 1),
        (released.replace(b"body", b"b0dy"), b"b@example.org", 2),
        (released, b"d@example.org", 3),
    ):
        before = len(hop.mails)
        with here.bridge.client() as client:
            client.open()
            client.say(b"MAIL FROM:<a@x>", b"RCPT TO:<%b>" % recipient, b"DATA")
            assert client.say(content.replace(b"\r\n.", b"\r\n..") + b".")[0].startswith(b"250 ")
        assert len(scanner.submissions) == scans
        assert len(hop.mails) - before == (scans == 1)
    again = hop.mails[-1].content
    assert again.count(b"X-Scan-Released:") == 1 and again.endswith(MAIL)
    assert b"X-Scan-Unscanned: released\r\n" in again


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
