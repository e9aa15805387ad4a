"""Smuggling: at most one mail reaches the next hop, and it contains no bare CR, LF or NUL."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from bridge.testing import RunningBridge, SmtpClient, running_bridge
from tests.hostile.smuggling import scan

SEQUENCES = [
    *(b"\n.\n", b"\n.\r", b"\r.\n", b"\r.\r", b"\n.\r\n", b"\r.\r\n", b"\r\n.\n", b"\r\n.\r", b"\r\r\n.\r\r\n"),
    *(b"\r\n\0.\r\n", b"\r\n.\0\r\n", b"\n\n.\r\n", b"\r\n\r.\r\n", b"\r\n.\r\r\n", b"\n.\n\r\n", b"\0"),
]
SECOND = b"END\r\nMAIL FROM:<evil@x.example>\r\nRCPT TO:<victim@x.example>\r\nDATA\r\nsmuggled\r\n.\r\n"


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_smuggled_mail_is_refused_with_its_carrier(shared: RunningBridge, sequence: bytes) -> None:
    """All of it counts as one mail, refused with 550 5.5.2; the inner commands never run."""
    with shared.client() as client:
        client.open()
        client.begin()
        client.send(b"START" + sequence + SECOND)
        assert client.reply().startswith(b"550 5.5.2 ")
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]
    assert shared.next_hop.mails == [] and shared.scanner.submissions == []


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_smuggling_byte_by_byte_is_refused_too(shared: RunningBridge, sequence: bytes) -> None:
    """Segment boundaries make no difference."""
    with shared.client() as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.open()
        client.begin()
        for byte in b"START" + sequence + SECOND:
            client.send(bytes([byte]))
        assert client.reply().startswith(b"550 5.5.2 ")
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]
    assert shared.next_hop.mails == []


def test_only_crlf_dot_crlf_ends_a_mail(shared: RunningBridge) -> None:
    """Tries every combination that some server has accepted as the end (tests/tools: with a real Postfix)."""
    seen = scan(shared.client, b"example.org")
    assert len(seen) > 500
    assert [attempt for attempt in seen if not attempt.refused] == []
    assert shared.next_hop.mails == [] and shared.scanner.submissions == []


def test_end_of_data_one_byte_per_segment_is_the_end(shared: RunningBridge) -> None:
    """CRLF dot CRLF ends the mail wherever segments begin, and what follows is a command."""
    with shared.client() as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.open()
        client.begin()
        for byte in b"x\r\n..\r\n\r\n.\r\nNOOP\r\n":
            client.send(bytes([byte]))
        assert client.reply() == b"250 2.0.0 Ok: queued as NEXT1"
        assert client.reply() == b"250 2.0.0 OK"
    assert shared.scanner.submissions[0].email == b"x\r\n.\r\n\r\n"


def test_end_of_data_across_tls_records_is_the_end(tmp_path: Path, certificate) -> None:
    """One byte per TLS record: the end is recognised, and smuggling is refused."""
    tls, context = certificate
    with running_bridge(tmp_path, tls=tls) as bridge, bridge.client() as client:
        client.open()
        client.say(b"STARTTLS")
        client.sock = context.wrap_socket(client.sock, server_hostname="bridge.example")
        client.say(b"EHLO client.example")
        for content, code in ((b"x\r\n..\r\n.\r\n", b"250"), (b"x\n.\r\nMAIL FROM:<>\r\n.\r\n", b"550")):
            client.begin()
            for byte in content:
                client.send(bytes([byte]))
            assert client.reply().startswith(code)
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]
        assert [mail.content.rpartition(b"\r\nX-Scan-")[2].partition(b"\r\n")[2] for mail in bridge.next_hop.mails] == [
            b"x\r\n.\r\n"
        ]


CONTENTS = [
    b"",
    b"\r\n",
    b"no header\r\n",
    b"Subject: x\r\n\r\n..\r\n.x\r\n",
    b"Subject:x\r\nX-Odd :y\r\n\tfolded\r\n\r\n\xff\x80 8 bit\r\n",
    b"Subject: long\r\n\r\n" + b"y" * 2000 + b"\r\n" + b"z" * 100_000 + b"\r\n",
]


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_scanner_and_next_hop_get_the_same_bytes(shared: RunningBridge, content: bytes) -> None:
    """The relayed mail is, byte for byte, the scanned mail after the headers we add."""
    with shared.client() as client:
        client.open()
        assert client.mail(stuffed(content)).startswith(b"250")
    assert shared.scanner.submissions[0].email == content
    received = shared.next_hop.mails[0].content
    assert received.endswith(content)
    added = received.removesuffix(content)
    assert re.fullmatch(rb"Received: (?:.*\r\n[\t])*.*\r\n(?:X-Scan-[A-Za-z]+: .*\r\n)+", added), added


def stuffed(content: bytes) -> bytes:
    return re.sub(rb"(?m)^\.", b"..", content)


def send_mail(client: SmtpClient, content: bytes) -> bytes:
    client.begin()
    return client.say(content + b".")[0]


def test_forged_headers_of_ours_do_not_survive(shared: RunningBridge) -> None:
    """Header fields with our prefix are removed, for the scanner and for the next hop."""
    with shared.client() as client:
        client.open()
        send_mail(client, b"x-scan-decision: deliver\r\n and more\r\nSubject: x\r\nX-SCAN-Id: 1\r\n\r\nx\r\n")
    assert shared.scanner.submissions[0].email == b"Subject: x\r\n\r\nx\r\n"
    assert shared.next_hop.mails[0].content.lower().count(b"x-scan-decision") == 1
