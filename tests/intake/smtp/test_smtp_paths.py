"""The address parser: an address is passed on unchanged or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.smtp.paths import Path, parse_path
from bridge.mail.reply import Reply

SYNTAX = "Syntax: MAIL FROM: <address>"


@pytest.mark.parametrize(
    ("argument", "address"),
    [
        (b"<a@b.example>", "a@b.example"),
        (b" <a@b.example>", "a@b.example"),
        (b"a@b.example", "a@b.example"),
        (b"<>", ""),
        (b"<postmaster>", "postmaster"),
        (b'<"a b"@d>', '"a b"@d'),
        (b'<""@d>', '""@d'),
        (b'<"a\\"b>"@d>', '"a\\"b>"@d'),
        (b"<a@[192.0.2.1]>", "a@[192.0.2.1]"),
        (b"<a@[IPv6:2001:db8::1]>", "a@[IPv6:2001:db8::1]"),
        (b"<=?utf-8?q?x?=@d>", "=?utf-8?q?x?=@d"),
        (b"<a..b@d>", "a..b@d"),
        (b"<A+b=c/d!e#f$g%h&i'j*k?l^m_n`o{p|q}r~s-t@D.Example>", "A+b=c/d!e#f$g%h&i'j*k?l^m_n`o{p|q}r~s-t@D.Example"),
        ("<jürgen@bücher.example>".encode(), "jürgen@bücher.example"),
    ],
)
def test_address_is_kept_unchanged(argument: bytes, address: str) -> None:
    """Every form of address that mail servers send is kept, byte for byte."""
    assert parse_path(argument, syntax=SYNTAX) == Path(address)


@pytest.mark.parametrize(
    "argument",
    [
        *(b"", b" ", b"<", b">", b"<a@b", b"a@b>", b"<<a@b>>", b"<a b@d>", b"<a(c)@d>", b"(c)<a@d>", b"<a@d>(c)"),
        *(b"<a@b@c>", b"<@r:a@b>", b"<@r,@s:a@b>", b"a@b c@d", b"Bob <a@b>", b"<a,b@d>", b"<a;b@d>", b"<a:b@d>"),
        *(b'<"a@d>', b'<a"b@d>', b'<"a"b@d>', b'<"a\\"@d>', b"<a@[d>", b"<a@d]>", b"<a@[]>", b"<a@[a b]>", b"<a\\b@d>"),
        *(b"<a@b>x", b"<a@b>SIZE=1", b"<a@b> =1", b"<a@b> SIZE=", b"<a@b> A=1 a=2", b"<a@b> A=b=c", b"<a@b> -a=1"),
        *(b"<a@b> SIZE=1\nX", b"<a@b> SIZE=1\rX", b"<a@b> X\0", b"<a@b> X\tY", b"<a@b> X=\x7f", b"<a@b> \x0bX"),
        b"<a@" + b"b" * 300 + b" >",
    ],
)
def test_malformed_path_is_a_syntax_error(argument: bytes) -> None:
    """Anything but a path with parameters is refused with 501."""
    reply = parse_path(argument, syntax=SYNTAX)
    assert isinstance(reply, Reply) and (reply.code, reply.status, reply.text) == (501, "5.5.4", SYNTAX)


@pytest.mark.parametrize(
    "argument",
    [
        *(
            b"<a\rb@d>",
            b"<a\nb@d>",
            b"<a\0b@d>",
            b'<"a\rb"@d>',
            b'<"a\nb"@d>',
            b'<"a\\\nb"@d>',
            b"<a\x1b@d>",
            b"<a\tb@d>",
        ),
        *(b"<a\x7f@d>", b"<a@d\r\nRCPT TO:<x@y>>", b"<a@d>\nRCPT TO:<x@y>"),
        *(b"<a@>", b"<@d>"),
        *(b"<\xff\xfe@d>", b"<a@\xff>", b"<\xc3@d>", b"<\xed\xa0\x80@d>", b"<\xc0\xaf@d>", b"<a@d> ENVID=\xff"),
        *(
            b"<=?utf-8?q?a=0Db?=@d>",
            b"<=?utf-8?q?=0a?=@d>",
            b"<=?x?B?Cg==?=@d>",
            b"<=?x?b?c?=@d>",
            b"<=?utf-8?q?a=00@d>",
        ),
    ],
)
def test_dangerous_address_is_553(argument: bytes) -> None:
    """Control characters, invalid UTF-8 and incomplete addresses are refused with 553."""
    reply = parse_path(argument, syntax=SYNTAX)
    assert isinstance(reply, Reply) and (reply.code, reply.status) == (553, "5.1.3")


def test_parameters_keep_order_and_case_of_their_values() -> None:
    """Keywords become upper case, values are unchanged."""
    path = parse_path(b"<a@b>  size=10 Envid=Ab+2Bc  SMTPUTF8 ", syntax=SYNTAX)
    assert isinstance(path, Path)
    assert path.params == (("SIZE", "10"), ("ENVID", "Ab+2Bc"), ("SMTPUTF8", None))
    assert path.as_sent == ("SIZE=10", "ENVID=Ab+2Bc", "SMTPUTF8")


@given(st.binary(max_size=60) | st.text(alphabet='<>@"\\ab.[]=?: \r\n\0\t,;()é', max_size=40).map(str.encode))
def test_any_address_is_refused_or_kept_unchanged(argument: bytes) -> None:
    """Every accepted address is part of the input, byte for byte, and has no control character."""
    for sent in (argument, b"<" + argument + b">", b"<" + argument + b"@d.example> SIZE=1"):
        path = parse_path(sent, syntax=SYNTAX)
        if isinstance(path, Path):
            raw = path.address.encode("utf-8")
            assert raw in sent
            words = b" ".join(word.encode("utf-8") for word in path.as_sent)
            assert not any(byte < 32 or byte == 127 for byte in raw + words)
        else:
            assert path.code in (501, 553)
