"""Releasing: once, byte for byte, and never lost; each command is a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from bridge import testing
from bridge.mail.envelope import Envelope, Recipient
from bridge.quarantine import record
from bridge.quarantine.locks import MAX_HELD
from bridge.testing import free_port
from tests.daemon.process_kit import INDIA
from tests.intake.milter.milter_kit import Mta
from tests.quarantine.quarantine_kit import CONTENT, SOON_S, Desk, desk, let_go, waiting_hop


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def codes(*processes: subprocess.Popen[bytes]) -> list[int]:
    for process in processes:
        process.communicate(timeout=SOON_S)
    return sorted(process.returncode for process in processes)


def test_a_released_mail_arrives_once_byte_for_byte(here: Desk) -> None:
    """The second attempt is refused with its own exit code, and the log names the first operator."""
    mail_id = here.send(CONTENT, b"b@example.org", b"c@example.org", sender=b"")
    kept = (here.directory / f"{mail_id}.eml").read_bytes()
    done = here.run("release", mail_id)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == f"{mail_id}: released: 250 2.0.0 Ok: queued as NEXT1\n".encode()
    assert here.call("release", mail_id).exit_code == 4
    (mail,) = here.bridge.next_hop.mails
    assert b"MAIL FROM:<>" in mail.commands[1]
    assert mail.commands[2:4] == [b"RCPT TO:<b@example.org> NOTIFY=NEVER", b"RCPT TO:<c@example.org> NOTIFY=NEVER"]
    added = mail.content.removesuffix(kept)
    assert re.fullmatch(
        rb"X-Scan-Released: [^\r\n]+;\r\n t=\d+;(\r\n \w+=[\w,-]+;)+\r\n mark=[\w-]+,\r\n [\w-]+\r\n", added
    )
    assert kept.endswith(CONTENT)
    (line,) = map(json.loads, (here.directory / "actions.log").read_text().splitlines())
    assert (line["action"], line["id"]) == ("released", mail_id)
    assert line["by"] in {os.environ.get("SUDO_USER"), _user(), _login()}
    (listed,) = here.listed("--state", "released")
    assert listed["releases"][0]["by"] == line["by"]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may use any number
        return str(os.getuid())


def _login() -> str:
    try:
        return os.getlogin()
    except OSError:
        return ""


def test_a_release_names_the_client_that_was_named(here: Desk) -> None:
    """And not our own mail server, which is in the record as well."""
    here.bridge.next_hop.extensions += ("XFORWARD ADDR HELO",)
    unnamed = here.send()
    with here.bridge.client() as client:
        client.open()
        client.say(b"XFORWARD ADDR=192.0.2.7 HELO=mx.sender.example")
        named = client.mail().split()[-1].decode()
    assert here.call("release", unnamed).exit_code == here.call("release", named).exit_code == 0
    found = [line for mail in here.bridge.next_hop.mails for line in mail.commands if line.startswith(b"XFORWARD")]
    assert found == [
        b"XFORWARD ADDR=[UNAVAILABLE] HELO=[UNAVAILABLE]",
        b"XFORWARD ADDR=192.0.2.7 HELO=mx.sender.example",
    ]


def test_thirty_mails_were_released_one_after_the_other(here: Desk) -> None:
    """Each waited for the answer to the one before it. Now eight are sent at a time, over eight connections."""
    ids = [here.send(b"Subject: %d\r\n\r\n" % number) for number in range(30)]
    with waiting_hop(here.bridge) as hop:
        here.use(hop.url)
        running = here.start("release", *ids)
        for _ in range(MAX_HELD):
            assert hop.heard.acquire(timeout=SOON_S)
        assert len(hop.mails) == MAX_HELD  # and no other
        let_go(here.bridge, hop)
        out, said = running.communicate(timeout=SOON_S)
    assert running.returncode == 0 and said.endswith(b"30 of 30 mails released\n"), said
    assert sorted(line.partition(b":")[0].decode() for line in out.splitlines()) == sorted(ids)
    assert len(hop.mails) == 30 and len({mail.content.partition(b"Subject: ")[2] for mail in hop.mails}) == 30
    new = [mail for mail in hop.mails if any(line.startswith(b"EHLO") for line in mail.commands)]
    assert len(new) <= MAX_HELD  # connections
    assert {mail["state"] for mail in here.listed()} == {"released"}
    assert len((here.directory / "actions.log").read_text().splitlines()) == 30
    assert here.call("release", *ids).exit_code == 4 and len(hop.mails) == 30


def test_an_output_that_nobody_reads_cut_off_the_other_releases(here: Desk) -> None:
    """`release ... | head -1`: the mails that were being sent at that moment were left `interrupted`."""
    ids = [here.send(b"Subject: %d\r\n\r\n" % number) for number in range(MAX_HELD + 4)]
    with waiting_hop(here.bridge) as hop:
        here.use(hop.url)
        running = here.start("release", *ids)
        for _ in range(MAX_HELD):
            assert hop.heard.acquire(timeout=SOON_S)
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        let_go(here.bridge, hop)
        running.wait(SOON_S)
        running.stderr.close()
    states = Counter(mail["state"] for mail in here.listed())
    assert states["released"] >= MAX_HELD and set(states) <= {"released", "kept"}, states


def test_the_time_of_a_release_was_shown_in_utc_with_milliseconds(here: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other times are local, without milliseconds. JSON has the time as it is stored."""
    mail_id = here.send()
    assert here.call("release", mail_id).exit_code == 0
    stored = datetime.fromisoformat(here.listed()[0]["releases"][0]["at"])
    local = stored.astimezone(timezone(timedelta(hours=5, minutes=30))).strftime("%Y-%m-%d %H:%M:%S")
    monkeypatch.setenv("TZ", INDIA)
    for arguments in (("show", mail_id), ("release", mail_id)):
        said = b"".join(here.start(*arguments).communicate(timeout=SOON_S)).decode()
        assert local in said and stored.isoformat(timespec="milliseconds") not in said, said


def test_two_simultaneous_releases_deliver_once(here: Desk) -> None:
    """The second operator reads that the mail was released, or is being released."""
    mail_id = here.send()
    people = [here.start("release", mail_id) for _ in range(2)]
    assert codes(*people) == [0, 4]
    assert len(here.bridge.next_hop.mails) == 1


def test_a_release_that_is_still_running_keeps_others_out(here: Desk) -> None:
    """While the next hop has not answered, the mail cannot be released, deleted or purged."""
    mail_id = here.send()
    with waiting_hop(here.bridge) as hop:
        here.use(hop.url)
        first = here.start("release", mail_id)
        assert hop.heard.acquire(timeout=SOON_S)
        second = here.call("release", mail_id)
        assert second.exit_code == 4 and "released or removed by another process" in second.stderr
        assert here.call("delete", "--yes", mail_id).exit_code == 4
        assert here.call("purge", "--older-than", "0s", "--yes").stdout == "0 deleted\n"
        let_go(here.bridge, hop)
        assert codes(first) == [0]
        assert len(hop.mails) == 1


def test_a_release_that_was_killed_in_the_middle_is_not_repeated_unasked(here: Desk) -> None:
    """The next hop had the whole mail, and the next release sent it once more. No lock is left behind."""
    mail_id = here.send()
    with waiting_hop(here.bridge) as hop:
        here.use(hop.url)
        process = here.start("release", mail_id)
        assert hop.heard.acquire(timeout=SOON_S)
        process.kill()
        assert codes(process) == [-9]
        let_go(here.bridge, hop)
        assert [mail["state"] for mail in here.listed()] == ["interrupted"]
        refused = here.call("release", mail_id)
        assert refused.exit_code == 75 and "was cut off, or is still running. Look for it" in refused.stderr
        assert here.call("release", "--recipient", "b@example.org", "--yes").exit_code == 75
        assert len(hop.mails) == 1
        assert here.call("release", mail_id, "--to", "c@example.org").exit_code == 0
        assert [mail["state"] for mail in here.listed()] == ["interrupted"], "a release to others changes nothing"
        assert here.call("release", "--again", mail_id).exit_code == 0
    assert [mail["state"] for mail in here.listed()] == ["released"]
    assert list(map(recipients, hop.mails)) == [[b"b@example.org"], [b"c@example.org"], [b"b@example.org"]]


def test_a_release_without_an_answer_is_not_repeated_unasked(here: Desk) -> None:
    """The connection broke after the final dot; the mail was `kept`, and the next run of a script sent it once more."""
    mail_id = here.send()
    here.bridge.next_hop.replies[b"."] = b""
    unsure = here.call("release", mail_id)
    assert unsure.exit_code == 75 and f"{mail_id}: unsure: the whole mail was sent" in unsure.stderr
    assert [mail["releases"][0]["unsure"] for mail in here.listed("--state", "unsure")] == [["b@example.org"]]
    assert "the next hop did not answer; b@example.org may have the mail" in here.call("show", mail_id).stdout
    (line,) = map(json.loads, (here.directory / "actions.log").read_text().splitlines())
    assert line["action"] == "release unsure"
    del here.bridge.next_hop.replies[b"."]
    held = here.call("release", mail_id)
    assert held.exit_code == 75 and "it may have been delivered" in held.stderr and "add --again" in held.stderr
    assert here.call("release", "--recipient", "b@example.org", "--yes").exit_code == 75
    assert here.bridge.next_hop.mails == []
    assert here.call("release", mail_id, "--to", "c@example.org").exit_code == 0, "nobody else has to wait"
    assert [mail["state"] for mail in here.listed()] == ["unsure"]
    assert here.call("release", "--again", mail_id).exit_code == 0
    assert [mail["state"] for mail in here.listed()] == ["released"]
    assert list(map(recipients, here.bridge.next_hop.mails)) == [[b"c@example.org"], [b"b@example.org"]]


def test_time_does_not_tell_whether_a_mail_arrived(here: Desk) -> None:
    """A quarter of an hour later, a script that releases everything sent the mail once more."""
    mail_id = here.send()
    here.bridge.next_hop.replies[b"."] = b""
    assert here.call("release", mail_id).exit_code == 75
    here.bridge.next_hop.replies.clear()
    path = here.directory / f"{mail_id}.releases"
    (attempt,) = json.loads(path.read_text())
    earlier = datetime.now(UTC) - timedelta(seconds=901)
    path.write_text(json.dumps([attempt | {"at": earlier.isoformat(timespec="milliseconds")}]))
    assert here.call("release", mail_id).exit_code == 75 and here.bridge.next_hop.mails == []
    assert here.call("release", "--again", mail_id).exit_code == 0


def test_only_recipients_without_an_answer_wait(here: Desk) -> None:
    """One was refused at RCPT, and the answer for the other was lost."""
    mail_id = here.send(CONTENT, b"b@example.org", b"c@example.org")
    hop = here.bridge.next_hop
    hop.replies.update({b"RCPT <b@example.org>": b"451 4.2.1 busy", b".": b""})
    assert here.call("release", mail_id).exit_code == 75
    (mail,) = here.listed()
    assert (mail["state"], mail["releases"][0]["unsure"]) == ("unsure", ["c@example.org"])
    hop.replies.clear()
    assert here.call("release", mail_id).exit_code == 75 and hop.mails == []
    assert here.call("release", mail_id, "--to", "b@example.org").exit_code == 0
    assert [mail["state"] for mail in here.listed()] == ["unsure"]


def test_a_mail_goes_to_others_and_again_on_request(here: Desk) -> None:
    mail_id = here.send()
    assert here.call("release", mail_id, "--to", "audit@example.org", "--to", "ü@example.org").exit_code == 0
    assert here.call("release", "--again", mail_id).exit_code == 0
    first, second = here.bridge.next_hop.mails
    assert first.commands[2:4] == [
        b"RCPT TO:<audit@example.org> NOTIFY=NEVER",
        "RCPT TO:<ü@example.org> NOTIFY=NEVER".encode(),
    ]
    assert first.commands[1].endswith(b" SMTPUTF8")
    assert second.commands[2] == b"RCPT TO:<b@example.org> NOTIFY=NEVER"
    (kept,) = here.listed()
    assert [attempt["to"] for attempt in kept["releases"]] == [
        ["audit@example.org", "ü@example.org"],
        ["b@example.org"],
    ]


def recipients(mail: testing.Received) -> list[bytes]:
    return sorted(line.partition(b"<")[2].partition(b">")[0] for line in mail.commands if line.startswith(b"RCPT"))


def test_a_release_to_one_recipient_ended_the_mail_for_the_others(here: Desk) -> None:
    """It stays `kept` until everyone has it; the next release goes to those who do not."""
    mail_id = here.send(CONTENT, b"b@example.org", b"B@example.org", b"c@example.org")
    assert here.call("release", mail_id, "--to", "audit@other.example").exit_code == 0
    assert here.call("release", mail_id, "--to", "b@EXAMPLE.org.").exit_code == 0
    (kept,) = here.listed("--state", "kept")
    assert kept["releases"][-1]["delivered"] == ["audit@other.example", "b@EXAMPLE.org."]
    again = here.call("release", mail_id, "--to", "b@example.org")
    assert again.exit_code == 4 and "released to audit@other.example, b@EXAMPLE.org., last by " in again.stderr
    assert again.stderr.endswith("; to send it again, or to others, add --again\n")
    assert here.call("release", mail_id).exit_code == 0
    assert recipients(here.bridge.next_hop.mails[-1]) == [b"B@example.org", b"c@example.org"]
    assert [mail["state"] for mail in here.listed()] == ["released"]
    assert here.call("release", mail_id).exit_code == 4
    assert here.call("release", mail_id, "--to", "x@x.example").exit_code == 4
    assert here.call("release", mail_id, "--again").exit_code == 0
    assert len(recipients(here.bridge.next_hop.mails[-1])) == 3


def test_a_release_to_some_of_several_can_be_completed_by_others_that_fail(here: Desk) -> None:
    """Everyone has the mail, although no release succeeded for all whom it named."""
    mail_id = here.send()
    here.bridge.next_hop.replies[b"RCPT <x@example.org>"] = b"550 5.1.1 Unknown"
    done = here.call("release", mail_id, "--to", "b@example.org", "--to", "x@example.org")
    assert done.exit_code == 1 and "released to only some of the recipients: 1 of 2 recipients have it" in done.stderr
    assert [mail["state"] for mail in here.listed()] == ["released"]
    assert "released to b@example.org, last by " in here.call("release", mail_id).stderr


@pytest.mark.parametrize(
    ("verb", "says", "code"),
    [(b".", b"451 4.3.0 Later", 75), (b".", b"550 5.7.1 Never", 1), (b"DATA", b"", 75)],
    ids=["4xx", "5xx", "dropped"],
)
def test_a_mail_that_the_next_hop_does_not_accept_stays(here: Desk, verb: bytes, says: bytes, code: int) -> None:
    """The exit code tells a script whether to try again. Without an answer to the dot, see above."""
    mail_id = here.send()
    here.bridge.next_hop.replies[verb] = says
    assert here.call("release", mail_id).exit_code == code
    here.bridge.next_hop.replies.clear()
    assert [mail["state"] for mail in here.listed()] == ["kept"]
    assert here.call("release", mail_id).exit_code == 0


def test_several_mails_are_released_and_the_worst_problem_is_the_exit_code(here: Desk) -> None:
    first, second = here.send(), here.send()
    done = here.call("release", first, "NOSUCHMAIL", "../../etc/passwd", second, first)
    assert done.exit_code == 3 and done.stderr.count("no such mail") == 2
    assert len(here.bridge.next_hop.mails) == 2
    here.use(f"127.0.0.1:{free_port()}")
    done = here.call("release", "--again", "NOSUCHMAIL", first)
    assert done.exit_code == 75 and "not released" in done.stderr
    assert "Connection refused; check relay.next_hop, then run the command again\n" in done.stderr


def hop_of(here: Desk, *, lmtp: bool) -> testing.NextHop:
    hop = testing.NextHop(lmtp=lmtp)
    here.bridge.background.run(hop.start())
    here.use(hop.url)
    return hop


@pytest.mark.parametrize("lmtp", [True, False], ids=["lmtp", "smtp"])
def test_a_second_release_sent_another_copy_to_those_who_have_the_mail(here: Desk, lmtp: bool) -> None:
    """One recipient is refused at first: the next release goes to that one only, and the mail is then released."""
    mail_id = here.send(CONTENT, b"b@example.org", b"c@example.org", b"d@example.org")
    hop = hop_of(here, lmtp=lmtp)
    hop.replies[b". <c@example.org>" if lmtp else b"RCPT <c@example.org>"] = b"450 4.2.2 Full"
    try:
        done = here.call("release", mail_id)
        assert done.exit_code == 75 and "2 of 3 recipients have it; 450 4.2.2 Full" in done.stderr
        (listed,) = here.listed("--state", "kept")
        assert listed["releases"][0]["delivered"] == ["b@example.org", "d@example.org"]
        assert "b@example.org, d@example.org" in here.call("show", mail_id).stdout
        assert here.call("release", mail_id).exit_code == 75
        assert here.call("release", mail_id, "--to", "d@example.org").exit_code == 4
        hop.replies.clear()
        assert here.call("release", mail_id).exit_code == 0
        assert here.call("release", mail_id).exit_code == 4
        assert here.call("release", "--again", mail_id).exit_code == 0
    finally:
        here.bridge.background.run(hop.stop())
    sent = [sorted(line for line in mail.commands if line.startswith(b"RCPT")) for mail in hop.mails]
    received = [[line.partition(b"<")[2].partition(b">")[0][:1] for line in lines] for lines in sent]
    assert received[0] == [b"b", b"c", b"d"] and received[-1] == [b"b", b"c", b"d"]
    assert all(line == [b"c"] for line in received[1:-1]) and len(received) >= 3


def test_a_next_hop_that_answers_for_some_recipients_only_is_remembered(here: Desk) -> None:
    """LMTP: the connection is lost after the first recipient's answer."""
    mail_id = here.send(CONTENT, b"b@example.org", b"c@example.org")
    hop = hop_of(here, lmtp=True)
    hop.replies[b". <c@example.org>"] = b""
    try:
        assert here.call("release", mail_id).exit_code == 75
        hop.replies.clear()
        assert here.call("release", mail_id).exit_code == 75, "the second recipient may have it"
        assert [mail["releases"][0]["unsure"] for mail in here.listed()] == [["c@example.org"]]
        assert here.call("release", "--again", mail_id, "--to", "c@example.org").exit_code == 0
    finally:
        here.bridge.background.run(hop.stop())
    assert [line for line in hop.mails[-1].commands if line.startswith(b"RCPT")] == [
        b"RCPT TO:<c@example.org> NOTIFY=NEVER"
    ]


def test_a_record_of_an_earlier_version_can_be_read() -> None:
    """It says who has the mail only by whom a successful release was for."""
    (attempt,) = record.read_releases(b'[{"at": "2026-01-01", "by": "me", "to": ["b@example.org"], "reply": "450 x"}]')
    assert attempt == record.ReleaseAttempt("2026-01-01", "me", ("b@example.org",), "450 x")
    for to, state in (("b@example.org", "released"), ("audit@example.org", "kept")):
        done = record.ReleaseAttempt("2026-01-01", "me", (to,), "250 x")
        envelope = Envelope("", (Recipient("b@example.org"),))
        mail = record.MailRecord("1", datetime.now(UTC), envelope, releases=(done,))
        assert (mail.state, mail.delivered) == (state, {to})
    assert record.MailRecord("1", datetime.now(UTC), releases=(done,), is_damaged=True).state == "released"


def test_a_stored_mail_that_begins_with_white_space_is_not_put_below_our_field(here: Desk) -> None:
    """Its first line would continue the token."""
    mail_id = here.send()
    (here.directory / f"{mail_id}.eml").write_bytes(b" x\r\nSubject: y\r\n\r\n")
    done = here.call("release", mail_id)
    assert done.exit_code != 0 and "starts with white space" in done.stderr and not here.bridge.next_hop.mails


def test_the_beginning_of_a_mail_was_released_as_the_whole(here: Desk) -> None:
    """A damaged disk, or an object that was cut: the mail counted as released, and was deleted in the end."""
    mail_id = here.send()
    stored = here.directory / f"{mail_id}.eml"
    whole = stored.read_bytes()
    os.truncate(stored, len(whole) - 1)
    done = here.call("release", mail_id)
    assert done.exit_code == 1
    assert f"it is damaged: of its {len(whole):,} bytes, {len(whole) - 1:,} are left" in done.stderr
    assert here.bridge.next_hop.mails == [] and [mail["state"] for mail in here.listed()] == ["kept"]


def test_a_stored_mail_with_a_long_header_section_is_not_released(here: Desk) -> None:
    """Behind the part of it that is read, fields that only we may write were kept, and delivered."""
    mail_id = here.send()
    long = b"X: %b\r\n" % (b"y" * 900) * 2400 + b"X-Scan-Decision: deliver\r\n\r\nx\r\n"
    (here.directory / f"{mail_id}.eml").write_bytes(long)
    done = here.call("release", mail_id)
    assert done.exit_code != 0 and "longer than 1 MiB" in done.stderr and not here.bridge.next_hop.mails


SMUGGLED = b"MAIL FROM:<ceo@example.org>%bRCPT TO:<b@example.org>%bDATA%bSubject: smuggled%b%bx%b.%b"


@pytest.mark.parametrize(
    "odd",
    [
        b"x\n.\n" + SMUGGLED.replace(b"%b", b"\n"),
        b"x\r.\r\n",
        b"x\n.\r\n",
        b"x\r\r\n",
        b"\0",
        b"x\r",
        b"x" * 300_000 + b"\n",
    ],
)
def test_a_mail_with_bare_line_feeds_was_released_as_two(here: Desk, odd: bytes) -> None:
    """SMTP refuses such content; a milter may have stored it as it was."""
    mail_id = here.send()
    stored = here.directory / f"{mail_id}.eml"
    stored.write_bytes(stored.read_bytes() + odd)
    done = here.run("release", mail_id)
    assert done.returncode != 0 and b"export it" in done.stderr
    assert not here.bridge.next_hop.mails


@pytest.mark.parametrize("name", ["actions.log", "claims.lock"])
def test_a_link_in_the_directory_of_the_service_led_root_elsewhere(here: Desk, tmp_path: Path, name: str) -> None:
    """The service's user owns the directory, and operators run the command as root."""
    mail_id = here.send()
    target = tmp_path / "precious"
    target.write_bytes(b"precious\n")
    (here.directory / name).unlink(missing_ok=True)
    (here.directory / name).symlink_to(target)
    here.run("release", mail_id)
    assert target.read_bytes() == b"precious\n"


async def _send_as_stalwart(port: int, raw: bytes) -> str:
    """Offer the mail to the milter; returns the letter of its answer."""
    mta = Mta(*await asyncio.open_connection("127.0.0.1", port))
    await mta.greet()
    await mta.mail()
    mta.content((b"Subject", b"x"), body=raw)
    answer = await mta.until_final()
    mta.close()
    return answer[-1][0]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\0\r\n"])
def test_a_release_does_not_smuggle_a_second_mail(tmp_path: Path, end: bytes) -> None:
    """A milter gets bare line feeds as they are (Stalwart), and many servers take them for line ends."""
    raw = b"Subject: x\r\n\r\nhello" + end + b"." + end + b"MAIL FROM:<ceo@example.org>" + end + b"QUIT\r\n"
    with desk(tmp_path, protocol="milter", profile="stalwart-milter") as here:
        assert asyncio.run(_send_as_stalwart(here.bridge.port, raw)) == "d"
        (mail_id,) = here.ids
        assert (here.directory / f"{mail_id}.eml").read_bytes().endswith(raw)
        done = here.call("release", mail_id)
        assert done.exit_code == 1 and "it contains a bare CR, a bare LF or a NUL" in done.stderr
        assert "export it" in done.stderr and not here.bridge.next_hop.mails
        assert here.listed("--state", "released") == []
