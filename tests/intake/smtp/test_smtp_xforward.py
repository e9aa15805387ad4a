"""XFORWARD and XCLIENT attributes."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.smtp.xforward import XCLIENT_NAMES, XFORWARD_NAMES, BadAttribute, apply
from bridge.mail.session import Client


@pytest.mark.parametrize(
    ("argument", "client"),
    [
        (b"ADDR=192.0.2.1", Client(address="192.0.2.1")),
        (b"addr=IPV6:2001:DB8::1", Client(address="2001:db8::1")),
        (b"ADDR=ipv6:::1 PORT=25", Client(address="::1", port=25)),
        (b"ADDR=IPV6:fe80::1%eth0", Client(address="fe80::1")),
        (b"ADDR=[UNAVAILABLE] NAME=[unavailable] PORT=[TempUnavail]", Client()),
        (b"NAME=a.example HELO=b.example", Client(name="a.example", helo="b.example")),
        (b"HELO=a+2Bb+20c", Client(helo="a+b c")),
        (b"HELO=a+2bb", Client(helo="a+b")),
        (b"HELO=a+2", Client(helo="a+2")),
        (b"HELO=a+xx+2B", Client(helo="a+xx+2B")),
        (b"HELO=+FF", Client(helo="\ufffd")),
        (b"HELO=", Client()),
        (b"HELO=a=b", Client(helo="a=b")),
        (b"PROTO=SMTP IDENT=3F2A SOURCE=LOCAL", Client(protocol="SMTP", ident="3F2A", source="LOCAL")),
        (b"HELO=" + b"x" * 255, Client(helo="x" * 255)),
    ],
)
def test_attributes_are_understood(argument: bytes, client: Client) -> None:
    """All forms in which mail servers describe their client."""
    assert apply(Client(), argument, XFORWARD_NAMES) == client


@pytest.mark.parametrize(
    "argument",
    [
        *(
            b"",
            b" ",
            b"ADDR",
            b"=x",
            b"COLOUR=x",
            b"LOGIN=x",
            b"ADDR=not-an-ip",
            b"ADDR=192.0.2.256",
            b"ADDR=192.0.2.1:25",
        ),
        *(b"ADDR=IPV6:xyz", b"PORT=-1", b"PORT=65536", b"PORT=x", b"PORT=\xc2\xb2", b"HELO=" + b"x" * 256),
        *(b"NAME=good.example ADDR=bad", b"\xff=x"),
    ],
)
def test_bad_attribute_refuses_the_whole_command(argument: bytes) -> None:
    """After one bad attribute, nothing of the command is used."""
    with pytest.raises(BadAttribute):
        apply(Client(), argument, XFORWARD_NAMES)


def test_second_command_adds_to_the_first() -> None:
    """smtp(8) sends two commands for one client."""
    first = apply(Client(), b"NAME=a.example ADDR=192.0.2.1", XFORWARD_NAMES)
    second = apply(first, b"HELO=b.example ADDR=[UNAVAILABLE]", XFORWARD_NAMES)
    assert second == Client(name="a.example", helo="b.example")


def test_xclient_knows_the_login_and_ignores_the_destination() -> None:
    """XCLIENT's additional attributes are accepted; the destination of the connection is not used."""
    client = apply(Client(), b"LOGIN=bob DESTADDR=192.0.2.9 DESTPORT=25", XCLIENT_NAMES)
    assert client == Client(login="bob")


@given(st.binary(max_size=80), st.sampled_from(XFORWARD_NAMES))
def test_any_value_is_text_or_refused(value: bytes, name: str) -> None:
    """Invalid bytes affect only their own command; stored values are valid Unicode."""
    try:
        client = apply(Client(), name.encode() + b"=" + value, XFORWARD_NAMES)
    except BadAttribute:
        return
    for text in asdict(client).values():
        assert not isinstance(text, str) or text.encode("utf-8", "replace").decode("utf-8") == text
