"""`client_header`: a mail server without XFORWARD names its client in a header field."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.smtp.client_header import BadClient, ClientHeader, FoldedClient, TwoClients
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client
from bridge.testing import RunningBridge, SmtpClient, running_bridge
from tests.processor_time import fair_cpu_s

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
            b"X-Scanbridge-Client: ADDR=192.0.2.7\tHELO=a+20b NAME=[UNAVAILABLE]  PORT=4711 IDENT=1abc-2 LOGIN=me\r\n",
            Client(address="192.0.2.7", helo="a b", port=4711, ident="1abc-2", login="me"),
        ),
        (b"X-Scanbridge-Client: ADDR=[UNAVAILABLE] HELO=\r\n", Client()),
    ],
)
@pytest.mark.parametrize("memory", [1 << 20, 0])
def test_the_topmost_field_names_the_client_and_all_are_removed(field: bytes, client: Client, memory: int) -> None:
    """In memory or in a file, the rest of the content is unchanged, byte for byte."""
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
def test_anything_but_the_field_is_left_alone(content: bytes) -> None:
    """A field with another name, a continuation line, and the body."""
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
        b"COLOUR=blue",
        b"HELO=" + b"x" * 256,
        b"HELO=x HELO=y",
    ],
)
def test_a_malformed_field_is_ignored_entirely(value: bytes) -> None:
    """The next field is not used instead."""
    made = message(b"X-Scanbridge-Client: " + value + b"\r\n" + OURS + MAIL)
    with pytest.raises(BadClient):
        ClientHeader(NAME).take_from(made)
    assert content_of(made) == MAIL
    made.close()


@pytest.mark.parametrize(
    "value",
    [
        b"ADDR=192.0.2.7 HELO=x ADDR=127.0.0.1",
        b"HELO=x ADDR=127.0.0.1 ADDR=192.0.2.7",
        b"HELO=x addr=127.0.0.1 ADDR=192.0.2.7",
        b"ADDR=192.0.2.7 HELO=x ADDR=no-address",
    ],
)
def test_a_helo_that_contains_an_address_names_two_clients(value: bytes) -> None:
    """Which of them the mail server means depends on its order; the sender wants none of them to count."""
    made = message(b"X-Scanbridge-Client: " + value + b"\r\n" + OURS + MAIL)
    with pytest.raises(TwoClients):
        ClientHeader(NAME).take_from(made)
    assert content_of(made) == MAIL
    made.close()


@pytest.mark.parametrize(
    "others",
    [
        b"HELO=" + b"x" * 256,
        b"HELO=" + b"x" * 60_000,
        b"HELO=x y z",
        b"HELO=x HELO=y",
        b"HELO=x PORT=70000 COLOUR=blue",
        b" " * 1200,
    ],
)
def test_a_helo_that_cannot_be_used_cost_the_address_too(others: bytes) -> None:
    """A sender chose by his HELO to be judged by no address."""
    for value in (b"ADDR=192.0.2.7 " + others, others + b" ADDR=192.0.2.7"):
        made = message(b"X-Scanbridge-Client: " + value + b"\r\n" + MAIL)
        client = ClientHeader(NAME).take_from(made)
        assert client is not None and client.address == "192.0.2.7"
        assert client.helo in (None, "x")
        made.close()


@given(st.binary(max_size=300))
def test_any_value_is_a_client_or_an_error(value: bytes) -> None:
    """All values of the client can be encoded."""
    line = value.replace(b"\r", b"").replace(b"\n", b"\r\n ")
    made = message(b"X-Scanbridge-Client: " + line + b"\r\n" + MAIL)
    try:
        client = ClientHeader(NAME).take_from(made)
    except (BadClient, FoldedClient, TwoClients):
        client = Client()
    assert client is not None and all(str(value).encode() for value in asdict(client).values())
    made.close()


# Through a listener


@pytest.mark.parametrize("start", [b" LOGIN=admin\r\n", b"\tNAME=localhost\r\n", b" \r\n", b" text\r\n"])
@pytest.mark.parametrize("command", [b"NOOP", b"XFORWARD ADDR=198.51.100.1"])
def test_a_mail_that_begins_with_white_space_continued_the_field(tmp_path: Path, start: bytes, command: bytes) -> None:
    """The mail server put its field above the sender's first line; the sender added attributes to it."""
    with running_bridge(tmp_path, client_header=NAME) as bridge, bridge.client() as client:
        client.open()
        client.say(b"EHLO proxy.example")
        client.say(command)
        assert client.mail(OURS + start + MAIL).startswith(b"550 5.6.0 ")
        assert client.mail(OURS + MAIL + start).startswith(b"250 ")
        assert len(bridge.scanner.submissions) == len(bridge.next_hop.mails) == 1


def sent(bridge: RunningBridge, content: bytes, *commands: bytes, source: str = "127.0.0.1") -> dict[str, Any]:
    """Send a mail; returns what the scanner was told about its client."""
    with SmtpClient(bridge.port, source) as client:
        client.open()
        for command in commands:
            assert client.say(command)[0].startswith(b"2")
        assert client.mail(content).startswith(b"250 ")
    return bridge.scanner.submissions[-1].parameters["borderMtaData"]


def told(border: dict[str, Any]) -> tuple[str | None, str | None]:
    return border.get("remoteAddress"), border.get("senderHelo")


def test_the_scanner_gets_the_client_and_the_field_is_removed(tmp_path: Path) -> None:
    """The mail is scanned and relayed without the field, and otherwise unchanged."""
    with running_bridge(tmp_path, client_header=NAME) as bridge:
        assert told(sent(bridge, OURS + FORGED + MAIL)) == ("192.0.2.7", "stranger.example")
        assert bridge.scanner.submissions[0].email == MAIL
        relayed = bridge.next_hop.mails[0].content
        assert relayed.endswith(b"\r\n" + MAIL) and relayed.count(b"X-Scanbridge-Client") == 1  # in the body


def test_each_mail_has_its_own_client(tmp_path: Path) -> None:
    """On one connection; a mail without the field has no client: the mail server's address is not used instead."""
    with running_bridge(tmp_path, client_header=NAME) as bridge, bridge.client() as client:
        client.open()
        for field in (OURS, b"X-Scanbridge-Client: ADDR=IPV6:2001:db8::9\r\n", b"", b"X-Scanbridge-Client: ?\r\n"):
            assert client.mail(field + MAIL).startswith(b"250 ")
        seen = [told(submission.parameters["borderMtaData"]) for submission in bridge.scanner.submissions]
        assert seen == [("192.0.2.7", "stranger.example"), ("2001:db8::9", None), (None, None), (None, None)]
        assert all(submission.email == MAIL for submission in bridge.scanner.submissions)


def test_a_missing_or_malformed_field_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The operator sees that the mail server's configuration is wrong; the field's content is not logged."""
    with caplog.at_level(logging.WARNING), running_bridge(tmp_path, client_header=NAME) as bridge:
        sent(bridge, MAIL)
        sent(bridge, b"X-Scanbridge-Client: secret\r\n" + MAIL)
        sent(bridge, OURS + MAIL)
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records if "client" in record.getMessage()]
    assert lines == [
        "header field X-Scanbridge-Client is missing; the client is unknown",
        "header field X-Scanbridge-Client cannot be read; the client is unknown",
    ]


def test_by_default_the_field_has_no_meaning(bridge: RunningBridge) -> None:
    """It is neither read nor removed."""
    assert told(sent(bridge, OURS + MAIL)) == (None, None)
    assert bridge.scanner.submissions[0].email == OURS + MAIL


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (b"XFORWARD ADDR=198.51.100.1 HELO=told.example", ("198.51.100.1", "told.example")),
        (b"XFORWARD ADDR=[UNAVAILABLE]", (None, None)),
        (b"XCLIENT ADDR=198.51.100.2 HELO=told.example", ("198.51.100.2", "told.example")),
    ],
)
def test_xforward_and_xclient_take_precedence(
    tmp_path: Path, command: bytes, expected: tuple[str | None, str | None]
) -> None:
    """A sender cannot forge the commands, so after them the field is the sender's. It is still removed."""
    with running_bridge(tmp_path, client_header=NAME) as bridge:
        again = [b"EHLO proxy.example"] if command.startswith(b"XFORWARD") else []
        assert told(sent(bridge, OURS + MAIL, *again, command)) == expected
        assert bridge.scanner.submissions[0].email == MAIL


def test_the_field_of_an_untrusted_client_is_never_used(tmp_path: Path) -> None:
    """A client that is not in trusted_clients cannot send any mail."""
    with running_bridge(tmp_path, client_header=NAME, trusted_clients=["127.0.0.1"]) as bridge:
        with SmtpClient(bridge.port, "127.0.0.2") as client:
            client.open()
            assert client.say(b"MAIL FROM:<a@client.example>")[0].startswith(b"550 5.7.1 ")
        assert told(sent(bridge, OURS + MAIL))[0] == "192.0.2.7"


def test_behind_a_proxy_the_field_names_the_client(tmp_path: Path) -> None:
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


def test_the_field_works_over_lmtp(tmp_path: Path) -> None:
    """The protocol makes no difference."""
    with running_bridge(tmp_path, client_header=NAME, protocol="lmtp") as bridge, bridge.client() as client:
        client.open(b"LHLO mx.example")
        assert client.mail(OURS + MAIL).startswith(b"250 ")
        assert told(bridge.scanner.submissions[0].parameters["borderMtaData"])[0] == "192.0.2.7"


def test_a_reload_can_enable_the_field(tmp_path: Path) -> None:
    """It applies to the next mail of an open connection."""
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        client.open()
        assert client.mail(OURS + MAIL).startswith(b"250 ")
        listeners = [bridge.daemon.config.listeners[0].model_copy(update={"client_header": NAME})]
        changed = bridge.daemon.config.model_copy(update={"listeners": listeners})
        bridge.background.run(bridge.daemon.reload(lambda: changed))
        assert client.mail(OURS + MAIL).startswith(b"250 ")
        seen = [told(submission.parameters["borderMtaData"])[0] for submission in bridge.scanner.submissions]
        assert seen == [None, "192.0.2.7"]


@pytest.mark.parametrize(("line", "limit_s"), [(b":a\r\n", 0.12), (b":" + b" HELO=x" * 149_000 + b"\r\n", 0.2)])
def test_a_mebibyte_of_these_fields_stopped_all_sessions(line: bytes, limit_s: float) -> None:
    """If the mail server adds none, they are the sender's: many short ones, or one of many words."""
    field = NAME.encode() + line
    head = field * ((1 << 20) // len(field))

    def take() -> None:
        with pytest.raises(BadClient):
            ClientHeader(NAME).take_from(message(head + b"\r\nbody\r\n", 1 << 21))

    assert fair_cpu_s(take, attempts=3) < limit_s
