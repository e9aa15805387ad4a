"""An envelope as commands, given what the next hop announced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.mail.envelope import Recipient
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.session import Client
from bridge.mail.transaction import Transaction
from bridge.relay.commands import Capabilities, for_mail, xforward
from tests.relay.scripted_hop import HEAD, make_tx

ALL = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "IDENT", "SOURCE")


def capabilities(*lines: str) -> Capabilities:
    return Capabilities.parse(Reply(250, "", "\n".join(["hop.example", *lines])))


def commands(tx: Transaction, *extensions: str, reset: bool = False) -> list[str]:
    made = for_mail(capabilities(*extensions), tx, HEAD, reset=reset)
    lines = made.wire.decode().split("\r\n")
    assert lines.pop() == ""
    assert len(lines) == made.count
    assert lines[made.before_mail].startswith("MAIL")
    return lines


def refusal(tx: Transaction, *extensions: str) -> str:
    with pytest.raises(NextHopError) as caught:
        commands(tx, *extensions)
    return f"{caught.value.reply.code} {caught.value.reply.status}"


def test_ehlo_is_read_in_any_case() -> None:
    read = capabilities("pipelining", "Size 1000", "XFORWARD name ADDR", "AUTH=LOGIN", "")
    assert read.names == {"PIPELINING", "SIZE", "XFORWARD", "AUTH=LOGIN"}
    assert read.xforward == ("NAME", "ADDR")
    assert read.announced == ("pipelining", "Size 1000", "XFORWARD name ADDR", "AUTH=LOGIN")


def test_a_plain_envelope() -> None:
    tx = make_tx(recipients=("b@example.org", '"c d"@example.org'))
    assert commands(tx) == [
        "MAIL FROM:<a@example.org>",
        "RCPT TO:<b@example.org>",
        'RCPT TO:<"c d"@example.org>',
        "DATA",
    ]


def test_the_null_sender() -> None:
    assert commands(make_tx(sender=""))[0] == "MAIL FROM:<>"


def test_size_is_that_of_the_mail_with_our_head() -> None:
    tx = make_tx(b"x" * 100, params=("SIZE=77",))
    assert commands(tx, "SIZE 0")[0] == f"MAIL FROM:<a@example.org> SIZE={100 + len(HEAD)}"
    assert commands(tx)[0] == "MAIL FROM:<a@example.org>"


def test_dsn_and_auth_go_on_with_their_case_where_understood() -> None:
    rcpt = Recipient("b@example.org", ("NOTIFY=success,FAILURE", "ORCPT=rfc822;B+2Bc@Example.org"))
    tx = make_tx(recipients=(rcpt,), params=("RET=Hdrs", "ENVID=QQ+2Babc", "AUTH=<>"))
    assert commands(tx, "DSN", "AUTH PLAIN") == [
        "MAIL FROM:<a@example.org> RET=Hdrs ENVID=QQ+2Babc AUTH=<>",
        "RCPT TO:<b@example.org> NOTIFY=success,FAILURE ORCPT=rfc822;B+2Bc@Example.org",
        "DATA",
    ]


@pytest.mark.parametrize("notify", ["NEVER", "failure,DELAY"])
def test_dsn_is_left_out_where_the_next_hop_reports_in_its_own_way(notify: str) -> None:
    rcpt = Recipient("b@example.org", (f"NOTIFY={notify}", "ORCPT=rfc822;b@example.org"))
    tx = make_tx(recipients=(rcpt,), params=("RET=Hdrs", "ENVID=QQ", "AUTH=<>"))
    assert commands(tx) == ["MAIL FROM:<a@example.org>", "RCPT TO:<b@example.org>", "DATA"]


@pytest.mark.parametrize("notify", ["SUCCESS", "FAILURE,Success", "success,delay"])
def test_a_report_that_the_next_hop_cannot_send_is_refused(notify: str) -> None:
    """The sender learns now that no report would come."""
    tx = make_tx(recipients=(Recipient("b@example.org", (f"NOTIFY={notify}",)),))
    assert refusal(tx) == "550 5.3.3"
    assert commands(tx, "DSN")[1] == f"RCPT TO:<b@example.org> NOTIFY={notify}"


@pytest.mark.parametrize(
    ("content", "announced", "made"),
    [
        (b"caf\xc3\xa9\r\n", ("8BITMIME",), " BODY=8bitmime"),
        (b"plain\r\n", ("8BITMIME",), " BODY=8bitmime"),
        (b"plain\r\n", (), ""),
    ],
)
def test_8bitmime_goes_on_or_is_not_needed(content: bytes, announced: tuple[str, ...], made: str) -> None:
    tx = make_tx(content, params=("BODY=8bitmime",))
    assert commands(tx, *announced)[0] == "MAIL FROM:<a@example.org>" + made


def test_8bit_content_is_not_converted_but_refused() -> None:
    tx = make_tx([b"plain\r\n" * 10, b"caf\xc3\xa9\r\n"], params=("BODY=8BITMIME",))
    assert refusal(tx) == "554 5.6.3"
    assert refusal(make_tx(params=("BODY=BINARYMIME",)), "8BITMIME", "BINARYMIME") == "554 5.6.3"


def test_undeclared_8bit_content_goes_on_as_it_is() -> None:
    assert commands(make_tx(b"caf\xc3\xa9\r\n"))[0] == "MAIL FROM:<a@example.org>"


def test_smtputf8_goes_on_or_is_refused() -> None:
    tx = make_tx(sender="ä@example.org", recipients=("ö@example.org",), params=("SMTPUTF8",))
    assert commands(tx, "SMTPUTF8")[:2] == ["MAIL FROM:<ä@example.org> SMTPUTF8", "RCPT TO:<ö@example.org>"]
    assert refusal(tx) == "550 5.6.7"
    assert refusal(make_tx(params=("SMTPUTF8",))) == "550 5.6.7"
    assert refusal(make_tx(sender="ä@example.org")) == "550 5.6.7"


def test_an_unknown_parameter_is_refused() -> None:
    assert refusal(make_tx(params=("REQUIRETLS",))) == "555 5.5.4"
    assert commands(make_tx(params=("REQUIRETLS",)), "REQUIRETLS")[0].endswith(" REQUIRETLS")


@pytest.mark.parametrize("address", ["a\r\nDATA@example.org", "a\rb@example.org", "a\nb@d", "a\0b@d", "\udcff@d"])
def test_an_address_never_becomes_a_command(address: str) -> None:
    """In case the intake ever accepts such an address."""
    assert refusal(make_tx(sender=address), "SMTPUTF8") == "553 5.1.3"
    assert refusal(make_tx(recipients=(address,)), "SMTPUTF8") == "553 5.1.3"


@pytest.mark.parametrize(
    "address",
    ["b@example.org> NOTIFY=NEVER", "a@x.example> <b@example.org", "Name <b@example.org>", "b c@example.org",
     '"b"@example.org> X', '"b> "c"@example.org', "b@example.org\t", "<b@example.org"],
)  # fmt: skip
def test_an_address_never_ends_its_path(address: str) -> None:
    """A quarantined mail's envelope may have come over milter or HTTP, where nobody has parsed it as a path.

    What follows a bracket would be a parameter, or another recipient.
    """
    assert refusal(make_tx(recipients=(address,)), "DSN") == "553 5.1.3"
    assert refusal(make_tx(sender=address), "DSN") == "553 5.1.3"


@pytest.mark.parametrize("address", ['"b> c"@example.org', '"b\\" <c"@example.org', '"<>"'])
def test_quoted_text_may_contain_brackets_and_spaces(address: str) -> None:
    assert commands(make_tx(recipients=(address,)))[1] == f"RCPT TO:<{address}>"


def test_a_parameter_is_one_word() -> None:
    recipient = Recipient("b@example.org", ("NOTIFY=NEVER ORCPT=rfc822;c@example.org",))
    assert refusal(make_tx(recipients=(recipient,)), "DSN") == "555 5.5.4"


def test_reset_and_xforward_come_before_mail() -> None:
    tx = make_tx(client=Client(address="192.0.2.1"))
    assert commands(tx, "XFORWARD ADDR", reset=True)[:3] == [
        "RSET",
        "XFORWARD ADDR=192.0.2.1",
        "MAIL FROM:<a@example.org>",
    ]


def test_a_client_that_nobody_named_is_unavailable() -> None:
    """It is our own mail server, not the sending host."""
    tx = make_tx(client=Client(address="192.0.2.1", helo="mx.example.org"))
    unnamed = replace(tx, session=replace(tx.session, is_told=False))
    assert commands(unnamed, "XFORWARD ADDR HELO")[0] == "XFORWARD ADDR=[UNAVAILABLE] HELO=[UNAVAILABLE]"


def test_xforward_passes_on_all_that_is_known_of_the_client() -> None:
    client = Client("2001:db8::1", 4711, "mx.example.net", "[192.0.2.9]", "ESMTP", "4ABC", "me", "REMOTE")
    assert xforward(client, ALL) == [
        "XFORWARD NAME=mx.example.net ADDR=IPV6:2001:db8::1 PORT=4711",
        "XFORWARD PROTO=ESMTP HELO=[192.0.2.9] IDENT=4ABC SOURCE=REMOTE",
    ]


def test_xforward_marks_unknown_values_as_unavailable() -> None:
    """Otherwise the next hop would take us for the client."""
    assert xforward(Client(address="192.0.2.1"), ("NAME", "ADDR", "LOGIN")) == [
        "XFORWARD NAME=[UNAVAILABLE] ADDR=192.0.2.1"
    ]
    assert xforward(Client(), ("HELO", "PROTO")) == ["XFORWARD PROTO=[UNAVAILABLE] HELO=[UNAVAILABLE]"]
    assert xforward(Client(), ("LOGIN",)) == []


def test_xforward_values_are_xtext() -> None:
    client = Client(helo="a b+c=d\r\nMAIL ä\x00")
    assert xforward(client, ("HELO",)) == ["XFORWARD HELO=a+20b+2Bc+3Dd+0D+0AMAIL+20+C3+A4+00"]
    assert xforward(Client(helo="\ud800x"), ("HELO",)) == ["XFORWARD HELO=?x"]


def test_xforward_commands_are_at_most_512_bytes() -> None:
    client = Client("192.0.2.1", 25, "n" * 255, "h" * 255, "ESMTP", "i" * 255, None, "LOCAL")
    made = xforward(client, ALL)
    assert len(made) == 3
    assert all(len(line) + 2 <= 512 for line in made)
    assert " ".join(line.removeprefix("XFORWARD ") for line in made).split() == [
        "NAME=" + "n" * 255, "ADDR=192.0.2.1", "PORT=25", "PROTO=ESMTP", "HELO=" + "h" * 255, "IDENT=" + "i" * 255,
        "SOURCE=LOCAL",
    ]  # fmt: skip


def test_an_overlong_xforward_value_is_unavailable() -> None:
    assert xforward(Client(helo="h" * 256), ("HELO",)) == ["XFORWARD HELO=[UNAVAILABLE]"]
