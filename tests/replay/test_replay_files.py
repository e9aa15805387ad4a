"""Mail in files, directories and Maildirs: which files are mail, and what their envelopes are."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.testing import answer, result
from tests.quarantine.quarantine_kit import desk
from tests.replay.replay_kit import DELIVER, Replays

PLAIN = b"From: a@client.example\nSubject: saved\n\nhello\n"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Replays]:
    (tmp_path / "bridge").mkdir()
    with desk(tmp_path / "bridge") as made:
        made.bridge.scanner.reply = DELIVER
        yield Replays(made)


def scanned(at: Replays) -> list[tuple[bytes, dict[str, object]]]:
    return [(mail.email, mail.parameters["borderMtaData"]) for mail in at.desk.bridge.scanner.submissions]


def test_a_file_is_sent_with_crlf_and_the_given_envelope(at: Replays, tmp_path: Path) -> None:
    """As `scanbridge scan` does."""
    file = tmp_path / "mail.eml"
    file.write_bytes(PLAIN)
    given = ("--from", "s@client.example", "--to", "x@example.org", "--to", "y@example.org")
    code, data = at.json(file, *given, "--remote-address", "192.0.2.9", "--helo", "mx.example")
    assert code == 0 and data["totals"]["new"] == 1 and data["mails"][0]["envelope"] == "options"
    assert scanned(at) == [
        (
            PLAIN.replace(b"\n", b"\r\n"),
            {
                "envelopeFrom": "s@client.example",
                "envelopeRecipients": ["x@example.org", "y@example.org"],
                "remoteAddress": "192.0.2.9",
                "senderHelo": "mx.example",
            },
        )
    ]


def test_line_ends_of_a_mail_with_crlf_are_left_alone(at: Replays, tmp_path: Path) -> None:
    """A bare line feed in such a mail is part of it."""
    content = b"Subject: x\r\n\r\nbare\nline feed\r\n"
    (tmp_path / "mail.eml").write_bytes(content)
    at.run(tmp_path / "mail.eml")
    assert scanned(at)[0][0] == content


@pytest.mark.parametrize(
    ("head", "sender", "recipients", "where"),
    [
        (b"Return-Path: <r@a.example>\nDelivered-To: d@example.org\n", "r@a.example", ["d@example.org"], "header"),
        (b"Return-Path: <>\nDelivered-To: new@b.example\nDelivered-To: o@b.example\n", "", ["new@b.example"], "header"),
        (b"X-Original-To: a@b.example\nX-Original-To: c@b.example\n", "", ["a@b.example", "c@b.example"], "header"),
        (b"Return-Path: <r@a.example>\n", "r@a.example", ["postmaster"], "default"),
        (b"Return-Path: not an address\nDelivered-To: <\x1b>\n", "", ["postmaster"], "default"),
    ],
    ids=["both", "null sender", "our Maildir", "no recipient", "nonsense"],
)  # fmt: skip
def test_the_envelope_is_read_from_the_mail(
    at: Replays, tmp_path: Path, head: bytes, sender: str, recipients: list[str], where: str
) -> None:
    """Return-Path and Delivered-To, as delivery agents write them; a default is said."""
    (tmp_path / "mail.eml").write_bytes(head + PLAIN)
    code, data = at.json(tmp_path / "mail.eml")
    assert code == 0 and data["mails"][0]["envelope"] == where
    assert scanned(at)[0][1] == {"envelopeFrom": sender, "envelopeRecipients": recipients}
    said = at.run(tmp_path / "mail.eml").stderr
    assert ("`postmaster` was assumed" in said) == (where == "default")


def test_our_own_fields_say_what_was_decided_and_are_not_sent(at: Replays, tmp_path: Path) -> None:
    """Mail that the bridge has delivered carries its decision."""
    fields = b"X-Scan-Id: 1\nX-Scan-Decision: deliver\nX-Scan-Verdict: clean\nX-Scan-Tags: a:b,\n c:d\n"
    (tmp_path / "mail.eml").write_bytes(fields + PLAIN)
    at.desk.bridge.scanner.reply = answer(200, result("bounce", verdict="spam", tags=["a:b"]))
    code, data = at.json(tmp_path / "mail.eml")
    assert code == 1 and data["matrix"] == {"deliver": {"bounce": 1}}
    assert data["mails"][0]["before"]["verdict"] == "clean"
    assert scanned(at)[0][0] == PLAIN.replace(b"\n", b"\r\n")


def test_mail_that_was_delivered_by_the_bridge_is_unchanged(at: Replays, tmp_path: Path) -> None:
    """From the intake through a Maildir and back: the same decision, the same envelope."""
    maildir = tmp_path / "Maildir"
    with desk(tmp_path, {"relay": {"next_hop": f"maildir:{maildir}"}}) as made:
        made.bridge.scanner.reply = answer(200, result("deliver", verdict="clean", tags=["a:b", "c:d"]))
        made.send(b"Subject: x\r\n\r\nhello\r\n", b"x@example.org", b"y@example.org")
        code, data = Replays(made).json(maildir)
        first, again = made.bridge.scanner.submissions
    assert code == 0 and data["totals"]["same"] == 1
    assert again.parameters == first.parameters
    assert again.email.endswith(first.email) and b"X-Scan-" not in again.email


def test_directories_and_maildirs_are_searched(at: Replays, tmp_path: Path) -> None:
    """.eml files at any depth; of a Maildir everything in `cur` and `new`, of each folder, and nothing in `tmp`."""
    wanted = ["a.eml", "deep/b.EML", "Mail/cur/1:2,S", "Mail/new/2", "Mail/.Folder/cur/3", "Mail/.Folder/new/4"]
    for name in [*wanted, "notes.txt", "Mail/tmp/5", "Mail/.Folder/tmp/6", "Mail/dovecot.index", "Mail/cur/.hidden"]:
        (tmp_path / "mails" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mails" / name).write_bytes(PLAIN)
    for folder in ("Mail", "Mail/.Folder"):
        for part in ("cur", "new", "tmp"):
            (tmp_path / "mails" / folder / part).mkdir(exist_ok=True)
    code, data = at.json(tmp_path / "mails")
    assert code == 0
    assert sorted(mail["mail"].removeprefix(f"{tmp_path}/mails/") for mail in data["mails"]) == sorted(wanted)


def test_what_cannot_be_read_is_reported_and_does_not_stop_the_rest(at: Replays, tmp_path: Path) -> None:
    """A FIFO does not make us wait, a link leads nowhere, a file is too large, another is empty."""
    folder = tmp_path / "Mail"
    for part in ("cur", "new", "tmp"):
        (folder / part).mkdir(parents=True)
    os.mkfifo(folder / "cur" / "fifo")
    (folder / "cur" / "link").symlink_to("/etc/passwd")
    with (folder / "cur" / "large").open("wb") as file:
        file.truncate(60 * 1024 * 1024)
    (folder / "cur" / "empty").write_bytes(b"")
    (folder / "cur" / "good").write_bytes(PLAIN)
    code, data = at.json(folder)
    found = {mail["mail"].rpartition("/")[2]: mail["status"] for mail in data["mails"]}
    assert found == {"fifo": "failed", "link": "failed", "large": "failed", "empty": "new", "good": "new"}
    assert code == 75 and data["totals"]["failed"] == 3
    assert all("root:" not in mail.email.decode("latin-1") for mail in at.desk.bridge.scanner.submissions)


def test_a_directory_without_mail_is_said(at: Replays, tmp_path: Path) -> None:
    """Exit code 3."""
    (tmp_path / "nothing").mkdir()
    done = at.run(tmp_path / "nothing")
    assert done.returncode == 3 and "Maildir" in done.stderr


def test_the_tenant_of_a_file_is_that_of_its_recipient(tmp_path: Path) -> None:
    """As for mail that arrives."""
    uid = "0b8e4567-e89b-12d3-a456-426614174000"
    with desk(tmp_path) as made:
        made.more = {"tenants": [{"uid": uid, "recipient_domains": ["example.org"]}]}
        made.use(made.bridge.next_hop.url)
        made.bridge.scanner.reply = DELIVER
        (tmp_path / "mail.eml").write_bytes(PLAIN)
        Replays(made).run(tmp_path / "mail.eml", "--to", "x@EXAMPLE.org")
        Replays(made).run(tmp_path / "mail.eml", "--to", "x@example.net")
        assert [mail.parameters.get("tenantUid") for mail in made.bridge.scanner.submissions] == [uid, None]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_mail_was_scanned_as_it_was_and_called_clean(
    at: Replays, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """Dovecot can compress the mails of a Maildir. No scanner finds anything in such a file."""
    for part in ("cur", "new", "tmp"):
        (tmp_path / "Mail" / part).mkdir(parents=True)
    (tmp_path / "Mail" / "cur" / "1,S=60:2,S").write_bytes(compress(PLAIN))
    code, data = at.json(tmp_path / "Mail")
    assert code == 75 and "it is compressed" in data["mails"][0]["now"]["problem"] and scanned(at) == []


def test_a_mailbox_was_replayed_as_one_mail(at: Replays, tmp_path: Path) -> None:
    """The decision was that of all its mails together, and seemed to be that of the first."""
    separator = b"From a@client.example Thu Jan  1 00:00:00 2026\n"
    (tmp_path / "mbox").write_bytes(separator + PLAIN + b"\n" + separator + PLAIN)
    code, data = at.json(tmp_path / "mbox")
    assert code == 75 and "it is a mailbox (mbox)" in data["mails"][0]["now"]["problem"] and scanned(at) == []
