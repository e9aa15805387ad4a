"""`client_header`: a mail server that speaks no XFORWARD names its client on top of the mail."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.smtp.client_header import BadClient, ClientHeader
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client
from bridge.testing import RunningBridge, SmtpClient, running_bridge

NAME = "X-Scanbridge-Client"
OURS = b"X-Scanbridge-Client: ADDR=192.0.2.7 HELO=stranger.example\r\n"
FORGED = b"x-scanbridge-client: ADDR=127.0.0.1\r\n"
MAIL = b"Received: from a by b; now\r\nSubject: x\r\n\r\nX-Scanbridge-Client: ADDR=192.0.2.1\r\nbody\r\n"


def message(content: bytes, memory: int = 1 << 20) -> Message:
    made = Message(Spool(1 << 30, memory))
    made.write(content)
    return made


def content_of(made: Message) -> bytes:
    return b"".join(made.chunks())


@pytest.mark.parametrize(
    ("field", "client"),
    [
        (OURS, Client(address="192.0.2.7", helo="stranger.example")),
        (b"X-SCANBRIDGE-CLIENT:ADDR=IPV6:2001:db8::1\r\n", Client(address="2001:db8::1")),
        (b"X-Scanbridge-Client : addr=2001:DB8::1\r\n", Client(address="2001:db8::1")),
        (
            b"X-Scanbridge-Client: ADDR=192.0.2.7\r\n\tHELO=a+20b NAME=[UNAVAILABLE]\r\n"
            b" PORT=4711 IDENT=1abc-2 LOGIN=me\r\n",
            Client(address="192.0.2.7", helo="a b", port=4711, ident="1abc-2", login="me"),
        ),
        (b"X-Scanbridge-Client: ADDR=[UNAVAILABLE] HELO=\r\n", Client()),
    ],
)
@pytest.mark.parametrize("memory", [1 << 20, 0])
def test_the_topmost_field_names_the_client_and_all_are_taken_out(field: bytes, client: Client, memory: int) -> None:
    """Wherever the content lies, the rest of it is what it was, byte for byte."""
    made = message(b"Received: from x\r\n" + field + FORGED + MAIL + FORGED, memory)
    assert ClientHeader(NAME).take_from(made) == client
    assert content_of(made) == b"Received: from x\r\n" + MAIL + FORGED
    made.close()


@pytest.mark.parametrize(
    "content",
    [
        MAIL,
        b"",
        b"\r\n" + FORGED,
        b"X-Scanbridge-Client-Too: ADDR=192.0.2.1\r\n" + MAIL,
        b"Subject: y\r\n X-Scanbridge-Client: ADDR=192.0.2.1\r\n" + MAIL,
        b"X-X-Scanbridge-Client: ADDR=192.0.2.1\r\n" + MAIL,
    ],
)
def test_what_is_no_such_field_is_left_alone(content: bytes) -> None:
    """Another name, a folded line, and whatever stands in the body."""
    made = message(content)
    assert ClientHeader(NAME).take_from(made) is None
    assert content_of(made) == content
    made.close()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"192.0.2.7",
        b"ADDR=not-an-address",
        b"ADDR=192.0.2.7 COLOUR=blue",
        b"ADDR=192.0.2.7 HELO=x ADDR=127.0.0.1",
        b"HELO=x ADDR=127.0.0.1 ADDR=192.0.2.7",
        b"HELO=x addr=127.0.0.1 ADDR=192.0.2.7",
        b"ADDR=192.0.2.7 HELO=" + b"x" * 256,
        b"ADDR=192.0.2.7" + b"\r\n " * 400,
    ],
)
def test_nothing_of_a_bad_field_is_believed(value: bytes) -> None:
    """Above all not where a HELO brought an ADDR of its own; nor is the field below it believed instead."""
    made = message(b"X-Scanbridge-Client: " + value + b"\r\n" + OURS + MAIL)
    with pytest.raises(BadClient):
        ClientHeader(NAME).take_from(made)
    assert content_of(made) == MAIL
    made.close()


@given(st.binary(max_size=300))
def test_any_value_is_a_client_or_bad(value: bytes) -> None:
    """And text that every encoder takes."""
    line = value.replace(b"\r", b"").replace(b"\n", b"\r\n ")
    made = message(b"X-Scanbridge-Client: " + line + b"\r\n" + MAIL)
    try:
        client = ClientHeader(NAME).take_from(made)
    except BadClient:
        client = Client()
    assert client is not None and all(str(one).encode() for one in asdict(client).values())
    made.close()


# Through a listener


def sent(bridge: RunningBridge, content: bytes, *commands: bytes, source: str = "127.0.0.1") -> dict[str, Any]:
    """What the scanner is told of a mail's client."""
    with SmtpClient(bridge.port, source) as client:
        client.open()
        for command in commands:
            assert client.say(command)[0].startswith(b"2")
        assert client.mail(content).startswith(b"250 ")
    return bridge.scanner.submissions[-1].parameters["borderMtaData"]


def told(border: dict[str, Any]) -> tuple[str | None, str | None]:
    return border.get("remoteAddress"), border.get("senderHelo")


def test_the_scanner_learns_the_client_and_nobody_sees_the_field(tmp_path: Path) -> None:
    """What is scanned and what is relayed is the mail without it, and the same bytes otherwise."""
    with running_bridge(tmp_path, client_header=NAME) as bridge:
        assert told(sent(bridge, OURS + FORGED + MAIL)) == ("192.0.2.7", "stranger.example")
        assert bridge.scanner.submissions[0].email == MAIL
        relayed = bridge.next_hop.mails[0].content
        assert relayed.endswith(b"\r\n" + MAIL) and relayed.count(b"X-Scanbridge-Client") == 1  # the body's own


def test_each_mail_has_its_own_client(tmp_path: Path) -> None:
    """On one connection; a mail without the field has none: the mail server's own address is not its client's."""
    with running_bridge(tmp_path, client_header=NAME) as bridge, bridge.client() as client:
        client.open()
        for field in (OURS, b"X-Scanbridge-Client: ADDR=IPV6:2001:db8::9\r\n", b"", b"X-Scanbridge-Client: ?\r\n"):
            assert client.mail(field + MAIL).startswith(b"250 ")
        seen = [told(one.parameters["borderMtaData"]) for one in bridge.scanner.submissions]
        assert seen == [("192.0.2.7", "stranger.example"), ("2001:db8::9", None), (None, None), (None, None)]
        assert all(one.email == MAIL for one in bridge.scanner.submissions)


def test_a_missing_or_bad_field_is_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The operator learns that the mail server does not do its part; what the field held is not repeated."""
    with caplog.at_level(logging.WARNING), running_bridge(tmp_path, client_header=NAME) as bridge:
        sent(bridge, MAIL)
        sent(bridge, b"X-Scanbridge-Client: secret\r\n" + MAIL)
        sent(bridge, OURS + MAIL)
    lines = [one.getMessage().partition(": ")[2] for one in caplog.records if "client" in one.getMessage()]
    assert lines == [
        "header field X-Scanbridge-Client is missing; the client is unknown",
        "header field X-Scanbridge-Client cannot be read; the client is unknown",
    ]


def test_off_is_the_default_and_the_field_is_a_field_like_any_other(bridge: RunningBridge) -> None:
    """Neither read nor taken out."""
    assert told(sent(bridge, OURS + MAIL)) == ("127.0.0.1", "client.example")
    assert bridge.scanner.submissions[0].email == OURS + MAIL


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (b"XFORWARD ADDR=198.51.100.1 HELO=told.example", ("198.51.100.1", "told.example")),
        (b"XFORWARD ADDR=[UNAVAILABLE]", (None, None)),
        (b"XCLIENT ADDR=198.51.100.2 HELO=told.example", ("198.51.100.2", "told.example")),
    ],
)
def test_xforward_and_xclient_win(tmp_path: Path, command: bytes, expected: tuple[str | None, str | None]) -> None:
    """A sender cannot write those; after them the field can only be his. It is taken out all the same."""
    with running_bridge(tmp_path, client_header=NAME) as bridge:
        again = [b"EHLO proxy.example"] if command.startswith(b"XFORWARD") else []
        assert told(sent(bridge, OURS + MAIL, *again, command)) == expected
        assert bridge.scanner.submissions[0].email == MAIL


def test_a_stranger_is_not_believed(tmp_path: Path) -> None:
    """Who is not among trusted_clients hands over no mail, and so no field."""
    with running_bridge(tmp_path, client_header=NAME, trusted_clients=["127.0.0.1"]) as bridge:
        with SmtpClient(bridge.port, "127.0.0.2") as client:
            client.open()
            assert client.say(b"MAIL FROM:<a@client.example>")[0].startswith(b"550 5.7.1 ")
        assert told(sent(bridge, OURS + MAIL))[0] == "192.0.2.7"


def test_behind_a_proxy_the_field_says_more_than_its_header(tmp_path: Path) -> None:
    """PROXY names the mail server, which must be a trusted client; the field names the mail server's client."""
    with running_bridge(
        tmp_path, client_header=NAME, proxy_protocol=True, trusted_clients=["127.0.0.1", "203.0.113.1"]
    ) as bridge:
        for source, trusted in (("203.0.113.1", True), ("203.0.113.2", False)):
            with SmtpClient(bridge.port) as client:
                client.send(f"PROXY TCP4 {source} 127.0.0.1 4711 25\r\n".encode())
                client.open()
                if trusted:
                    assert client.mail(OURS + MAIL).startswith(b"250 ")
                else:
                    assert client.say(b"MAIL FROM:<a@client.example>")[0].startswith(b"550 ")
        assert len(bridge.scanner.submissions) == 1
        assert told(bridge.scanner.submissions[0].parameters["borderMtaData"]) == ("192.0.2.7", "stranger.example")


def test_lmtp_has_it_too(tmp_path: Path) -> None:
    """Whatever the mail server speaks, the client is the field's."""
    with running_bridge(tmp_path, client_header=NAME, protocol="lmtp") as bridge, bridge.client() as client:
        client.open(b"LHLO mx.example")
        assert client.mail(OURS + MAIL).startswith(b"250 ")
        assert told(bridge.scanner.submissions[0].parameters["borderMtaData"])[0] == "192.0.2.7"


def test_a_reload_turns_it_on(tmp_path: Path) -> None:
    """Also for the next mail of a connection that is open."""
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        client.open()
        assert client.mail(OURS + MAIL).startswith(b"250 ")
        listeners = [bridge.daemon.config.listeners[0].model_copy(update={"client_header": NAME})]
        changed = bridge.daemon.config.model_copy(update={"listeners": listeners})
        bridge.background.run(bridge.daemon.reload(lambda: changed))
        assert client.mail(OURS + MAIL).startswith(b"250 ")
        seen = [told(one.parameters["borderMtaData"])[0] for one in bridge.scanner.submissions]
        assert seen == ["127.0.0.1", "192.0.2.7"]
