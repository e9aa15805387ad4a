"""Fields that only we may write, behind so many others that the header section is not read to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.mail.message import HEAD_LIMIT, Message, Spool
from bridge.testing import RunningBridge, SmtpClient, running_bridge

REST = b"Subject: x\r\n\r\nhello\r\n"
TENANTS = [
    {"uid": f"123e4567-e89b-12d3-a456-42661417400{number}", "recipient_domains": [f"{number}.example"]}
    for number in (1, 2)
]
RESULTS = {"headers": {"authserv_id": "mx.example.org"}}


def many(field: bytes) -> bytes:
    """So many of them that the header section is cut, and that what follows is shorter than its limit."""
    return field * (3 * HEAD_LIMIT // 2 // len(field))


def replies(bridge: RunningBridge, content: bytes, *recipients: bytes, is_lmtp: bool = False) -> list[bytes]:
    with SmtpClient(bridge.port) as client:
        client.open(b"LHLO x" if is_lmtp else b"EHLO x")
        client.say(b"MAIL FROM:<a@x.example>", *(b"RCPT TO:<%b>" % to for to in recipients), b"DATA")
        client.send(content + b".\r\n")
        return [client.reply()[:10] for _ in (recipients if is_lmtp else recipients[:1])]


@pytest.mark.parametrize(
    ("removed", "forged"),
    [
        (b"X-Scan-Id: %b\r\n" % (b"y" * 900), b"X-Scan-Decision: deliver\r\n"),
        (b"X-Scan-Id: %b\r\n" % (b"y" * 900), b"Authentication-Results: mx.example.org; spf=pass\r\n"),
        (b"Authentication-Results: mx.example.org; %b\r\n" % (b"y" * 900), b"X-Scan-Decision: deliver\r\n"),
        (b"X-Scan-Id: y\r\n" + b" y\r\n" * 1000, b" y\r\n"),
    ],
    ids=["ours", "results", "behind results", "continued"],
)
def test_fields_of_ours_hid_forged_ones_in_a_mail_for_two_tenants(
    tmp_path: Path, removed: bytes, forged: bytes
) -> None:
    """They were removed before the mail was split, and what was left looked like a short header section."""
    config: dict[str, Any] = {"tenants": TENANTS} | RESULTS
    content = many(removed) + forged + REST
    with running_bridge(tmp_path, config, protocol="lmtp") as bridge:
        assert replies(bridge, content, b"b@1.example", b"b@2.example", is_lmtp=True) == [b"554 5.6.0 "] * 2
        assert not bridge.next_hop.mails and not bridge.scanner.submissions
        assert replies(bridge, removed + REST, b"b@1.example", b"b@2.example", is_lmtp=True) == [b"250 2.0.0 "] * 2


@pytest.mark.parametrize(
    "forged",
    [b"X-Scan-Decision: deliver\r\n", b"Authentication-Results: mx.example.org; spf=pass\r\n", b"x-client: ADDR=1\r\n"],
)
@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_fields_that_name_the_client_hid_forged_ones(tmp_path: Path, forged: bytes, protocol: str) -> None:
    """They are removed before anything else looks at the mail; those of the same name behind them stayed."""
    content = many(b"X-Client: ADDR=192.0.2.1 %b\r\n" % (b"y" * 900)) + forged + REST
    with running_bridge(tmp_path, RESULTS, protocol=protocol, client_header="X-Client") as bridge:
        assert replies(bridge, content, b"b@example.org", is_lmtp=protocol == "lmtp") == [b"554 5.6.0 "]
        assert not bridge.next_hop.mails and not bridge.scanner.submissions


@pytest.mark.parametrize("memory", [0, 64 << 20], ids=["file", "memory"])
@pytest.mark.parametrize("piece", [1000, 65_537], ids=["small", "large"])
def test_a_message_knows_that_its_header_section_was_cut(memory: int, piece: int) -> None:
    """Also after fields were removed from it, and wherever the pieces in which it arrived end."""
    heads = {b"A: b\r\n": False, many(b"A: b\r\n"): True, b"\r\n" + many(b"A: b\r\n"): False}
    for head, is_cut in heads.items():
        content = head + b"\r\n" + b"x" * 2 * HEAD_LIMIT
        message = Message(Spool(1 << 30, memory))
        for start in range(0, len(content), piece):
            message.write(content[start : start + piece])
        assert message.is_head_cut() is is_cut
        message.replace_head(b"")
        assert message.is_head_cut() is is_cut and message.with_head(b"C: d\r\n").is_head_cut() is is_cut
        message.close()
