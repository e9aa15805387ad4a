"""`scanner.size_limit_counts: request`: a service that counts the form around the mail, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.api.scanning import MAX_MESSAGE_BYTES, SMALLEST_FORM_BYTES, AnalysisRequest, BorderMtaData, form
from bridge.errors import MessageTooLarge
from bridge.mail.message import Message, Spool
from bridge.scanner.client import Scanner, ScannerSettings
from bridge.testing import RunningBridge, running_bridge
from tests.scanner.fault_server import TOKEN, faults

COUNTS_REQUEST = {"scanner": {"size_limit_counts": "request"}}
MANY = tuple(f"recipient-{number}@example.org" for number in range(200))


@pytest.mark.parametrize("recipients", [("b@example.org",), MANY], ids=["one", "many"])
@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_the_whole_body_is_compared_with_the_limit(recipients: tuple[str, ...], extra: int) -> None:
    """What is measured is what is sent, to the byte; what does not fit is not sent."""
    request = AnalysisRequest(BorderMtaData("a@example.org", recipients, "192.0.2.1", "mx.example.org"))
    content, limit = b"x" * 1000, 1000 + sum(map(len, form(request.to_json(), b"x" * 36))) - extra
    message = Message(Spool(MAX_MESSAGE_BYTES))
    message.write(content)
    async with faults() as server:
        scanner = Scanner(ScannerSettings((server.url,), TOKEN, max_request_bytes=limit))
        try:
            deadline = scanner._loop.time() + 10
            if extra > 0:
                with pytest.raises(MessageTooLarge, match=str(limit)):
                    await scanner.submit(request, message, deadline)
                assert server.requests == []
            else:
                await scanner.submit(request, message, deadline)
                assert len(server.requests[0].body) == limit + extra
        finally:
            scanner.close()
            message.close()


def send(bridge: RunningBridge, size: int, declared: int | None = None) -> list[bytes]:
    """The replies to MAIL and to the content, which has `size` bytes."""
    with bridge.client() as client:
        client.open()
        replies = client.say(b"MAIL FROM:<a@client.example>" + (b" SIZE=%d" % declared if declared else b""))
        if not replies[0].startswith(b"250"):
            return replies
        client.say(b"RCPT TO:<b@example.org>", b"DATA")
        line = b"x" * 1022 + b"\r\n"
        client.send(b"x" * (size % 1024 + 1022) + b"\r\n")
        for _ in range(size // 1024 // 1023):
            client.send(line * 1023)
        client.send(line * (size // 1024 % 1023 - 1))
        return [*replies, *client.say(b".")]


def test_a_mail_whose_request_would_be_too_large_is_552_and_not_sent(tmp_path: Path) -> None:
    """The announced size leaves room for the smallest form; longer envelopes are measured after the content."""
    parameters = AnalysisRequest(BorderMtaData("a@client.example", ("b@example.org",))).to_json()
    fits = MAX_MESSAGE_BYTES - sum(map(len, form(parameters, b"x" * 36)))
    with running_bridge(tmp_path, COUNTS_REQUEST) as bridge:
        with bridge.client() as client:
            assert b"SIZE %d\n" % (MAX_MESSAGE_BYTES - SMALLEST_FORM_BYTES) in client.open()
        assert send(bridge, 0, declared=MAX_MESSAGE_BYTES)[0].startswith(b"552 5.3.4 ")
        assert send(bridge, fits + 1)[1].startswith(b"552 5.3.4 ")
        assert bridge.scanner.submissions == []
        assert send(bridge, fits)[1].startswith(b"250 ")
        assert len(bridge.scanner.submissions[0].email) == fits


def test_by_default_the_mail_alone_counts(tmp_path: Path) -> None:
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        assert b"SIZE %d\n" % MAX_MESSAGE_BYTES in client.open()


def test_a_lower_limit_of_the_operator_stays(tmp_path: Path) -> None:
    config = {**COUNTS_REQUEST, "limits": {"max_message_size": "10MiB"}}
    with running_bridge(tmp_path, config) as bridge, bridge.client() as client:
        assert b"SIZE 10485760\n" in client.open()
