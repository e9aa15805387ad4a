"""Cases about commands and envelopes that a dialogue file (tests/dialogues) cannot express."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.testing import RunningBridge, running_bridge, until
from tests.hostile.hostile_kit import Hanging, MiB, bridge_process


def test_ehlo_reply_goes_out_in_one_write(shared: RunningBridge) -> None:
    """A client that reads once gets the whole reply."""
    with shared.client() as client:
        client.reply()
        client.send(b"EHLO client.example\r\n")
        reply = client.sock.recv(65536)
    assert reply.startswith(b"250-bridge.example\r\n") and reply.endswith(b"250 HELP\r\n")


def test_pipelined_commands_are_answered_in_one_write(shared: RunningBridge) -> None:
    """Three commands in one segment get their three replies in one segment."""
    with shared.client() as client:
        client.open()
        client.send(b"MAIL FROM:<a@client.example>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n")
        assert client.sock.recv(65536).count(b"\r\n") == 3


def test_ten_megabytes_without_line_end_cost_no_memory(tmp_path: Path) -> None:
    """An endless command gets 500 at its end and is never stored."""
    with bridge_process(tmp_path) as bridge, bridge.client() as client:
        client.open()
        with bridge.growing_at_most(3 * MiB):
            for _ in range(160):
                client.send(b"x" * 65536)
            assert client.say(b"") == [b"500 5.5.2 Command line too long"]
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]


def test_overlong_lines_count_as_errors_and_end_the_session(shared: RunningBridge) -> None:
    """Twenty lines over the limit end the session, like any twenty bad commands."""
    with shared.client() as client:
        client.open()
        client.send((b"x" * 5000 + b"\r\n") * 25)
        assert [client.reply() for _ in range(20)] == [b"500 5.5.2 Command line too long"] * 20
        assert client.reply().startswith(b"421 4.7.0 ")
        assert client.is_cut()


@pytest.mark.parametrize("length", [998, 2000, 100_000])
def test_long_lines_pass_intact(shared: RunningBridge, length: int) -> None:
    """Lines of any length are relayed."""
    content = b"Subject: x\r\nX-Long: " + b"h" * length + b"\r\n\r\n" + b"b" * length + b"\r\n"
    with shared.client() as client:
        client.open()
        assert client.mail(content).startswith(b"250")
    assert shared.next_hop.mails[0].content.endswith(content)


def test_mail_of_exactly_the_limit_passes_and_one_byte_more_is_552(tmp_path: Path) -> None:
    """One byte under 50 MiB, exactly 50 MiB, and one byte over, whatever SIZE says; memory stays small.

    The client waits for the disk: what is not written yet is in memory, and has its own limit.
    """
    line = b"x" * 1022 + b"\r\n"
    with bridge_process(tmp_path) as bridge, bridge.client() as client:
        client.open()
        with bridge.growing_at_most(24 * MiB):
            for extra, code in ((-1, b"250 "), (0, b"250 "), (1, b"552 5.3.4 ")):
                until(lambda: not bridge.spooled(), "the file of the mail before to be closed")
                client.begin(b"<a@client.example> SIZE=1000")
                client.send(b"x" * (1022 + extra) + b"\r\n")
                for number in range(50 * 32 - 1):
                    client.send(line * 32)
                    if number % 128 == 127:
                        until(lambda sent=number // 32: bridge.spooled() >= (sent - 2) * MiB, "the disk")
                client.send(line * 31)
                assert client.say(b".")[0].startswith(code)
        assert [len(submission.email) - 50 * MiB for submission in bridge.scanner.submissions] == [-1, 0]


HELLOS = [
    b"<script>alert(1)</script>",
    b"x" * 500,
    b"\xff\xfe",
    "bücher.example".encode(),
    b"a\tb\x1b[31m",
    b"[127.0.0.1]",
]


@pytest.mark.parametrize("hello", HELLOS)
def test_any_helo_is_valid_json_and_a_clean_header(tmp_path: Path, hello: bytes) -> None:
    """Whatever a client sends in HELO, the scanner gets strict UTF-8 JSON and the header stays one field."""
    with running_bridge(tmp_path, profile="direct") as bridge:
        with bridge.client() as client:
            client.open(b"EHLO " + hello)
            assert client.mail().startswith(b"250")
        border, content = bridge.scanner.submissions[0].parameters["borderMtaData"], bridge.next_hop.mails[0].content
    assert border["senderHelo"] == hello.decode("utf-8", "replace").strip()
    json.dumps(border, ensure_ascii=False).encode("utf-8")
    received = content.partition(b"\r\nX-Scan-")[0]
    assert received.isascii() and received.count(b"\r\n") == 2 and b"\x1b" not in received


def test_client_input_is_escaped_in_the_log(tmp_path: Path) -> None:
    """Control characters and non-ASCII bytes in HELO, verbs and addresses never reach a terminal."""
    with bridge_process(tmp_path) as bridge:
        with bridge.client() as client:
            client.open(b"EHLO \x1b[31m\xff\xfe\x07")
            client.say(b"\x1b[2J", b"FROB \x1b]0;x", b"MAIL FROM:<\x1b@x>")
            client.begin("<jürgen@client.example> SMTPUTF8".encode(), b'<"a b;=c"@example.org>')
            assert client.say(b"x\r\n.")[0].startswith(b"250")
        until(lambda: b"from=" in bridge.log.read_bytes(), "the log line")
        log = bridge.log.read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in log), log
    assert b"FROB" not in log and log.count(b"from=") == 1, log


def test_body_with_our_own_boundary_does_no_harm(shared: RunningBridge) -> None:
    """A mail that contains the multipart boundary of the scan request reaches the scanner intact."""
    with shared.client() as client:
        client.open()
        client.mail()
        boundary = shared.scanner.submissions[0].raw.partition(b"\r\n")[0]
        evil = b"Subject: x\r\n\r\n" + boundary + b"\r\n" + boundary + b"--\r\n\r\nafter\r\n"
        assert client.mail(evil).startswith(b"250")
    assert shared.scanner.submissions[1].email == evil
    assert shared.next_hop.mails[1].content.endswith(evil)


def test_mail_in_a_loop_is_refused(shared: RunningBridge) -> None:
    """A mail with 100 Received fields gets 554 5.4.6 and is not passed on."""
    with shared.client() as client:
        client.open()
        assert client.mail(b"Received: from x\r\n" * 100 + b"\r\nx\r\n").startswith(b"554 5.4.6 ")
    assert shared.next_hop.mails == [] and shared.scanner.submissions == []


def test_saturated_session_is_not_blamed_for_pipelining(tmp_path: Path) -> None:
    """RCPT commands already sent when MAIL got 451 do not count as errors: the session continues."""
    hang = Hanging()
    with running_bridge(tmp_path, {"admission": {"max_in_processing": 1, "throttle_threshold": 1}}) as bridge:
        bridge.scanner.reply = hang
        with bridge.client() as first, bridge.client() as second:
            first.open()
            second.open()
            first.begin()
            first.send(b"x\r\n.\r\n")
            assert bridge.scanner.arrived.acquire(timeout=60)
            for _ in range(5):
                replies = second.say(b"MAIL FROM:<>", *[b"RCPT TO:<b@example.org>"] * 50, b"DATA", b"RSET")
                assert [reply[:3] for reply in replies] == [b"451"] + [b"503"] * 51 + [b"250"]
            bridge.background.loop.call_soon_threadsafe(hang.release.set)
            assert first.reply().startswith(b"250 ")
            until(lambda: second.mail().startswith(b"250 "), "the second client")


def test_saturated_bridge_answers_451_at_mail_and_at_data(tmp_path: Path) -> None:
    """When all slots are taken, the next mail gets 451 4.3.2 before its content, and is accepted later."""
    hang = Hanging()
    with running_bridge(tmp_path, {"admission": {"max_in_processing": 1, "throttle_threshold": 1}}) as bridge:
        bridge.scanner.reply = hang
        with bridge.client() as first, bridge.client() as second:
            first.open()
            second.open()
            second.say(b"MAIL FROM:<a@client.example>", b"RCPT TO:<b@example.org>")
            first.begin()
            first.send(b"x\r\n.\r\n")
            assert bridge.scanner.arrived.acquire(timeout=60)
            assert second.say(b"DATA")[0].startswith(b"451 4.3.2 ")
            assert second.say(b"MAIL FROM:<a@client.example>")[0].startswith(b"451 4.3.2 ")
            bridge.background.loop.call_soon_threadsafe(hang.release.set)
            assert first.reply().startswith(b"250 ")
            until(
                lambda: second.say(b"MAIL FROM:<a@client.example>")[0].startswith(b"250 "),
                "the second client",
            )
