"""The next hop's replies, parsed and made safe for our client."""

from __future__ import annotations

import pytest

from bridge.errors import ProtocolError
from bridge.mail.reply import Reply, weightiest
from bridge.relay import client_replies
from bridge.relay.client_replies import passed_on
from bridge.relay.reply_reader import ReplyReader, queue_id_in

WIRE = b"220 x\r\n250-a\r\n250-SIZE 1\r\n250 B\r\n250 2.1.0 Ok\r\n250\r\n354 go\r\n"
READ = [
    Reply(220, "", "x"),
    Reply(250, "", "a\nSIZE 1\nB"),
    Reply(250, "2.1.0", "Ok"),
    Reply(250, "", ""),
    Reply(354, "", "go"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_replies_are_read_whole_and_in_pieces(size: int) -> None:
    reader = ReplyReader()
    assert [r for i in range(0, len(WIRE), size) for r in reader.feed(WIRE[i : i + size])] == READ


def test_bare_line_feeds_end_reply_lines_too() -> None:
    assert list(ReplyReader().feed(b"250-a\n250 b\n")) == [Reply(250, "", "a\nb")]


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\r\n",
        b"25\r\n",
        b"150 no\r\n",
        b"650 no\r\n",
        b"250-a\r\n251 b\r\n",
        b"250_a\r\n",
        b"250 " + b"x" * 5000 + b"\r\n",
        b"x" * 5000,
        b"250-" + b"x" * 5000,
        (b"250-" + b"x" * 1000 + b"\r\n") * 70,
    ],
)
def test_a_malformed_reply_is_refused(wire: bytes) -> None:
    """Reading stops at a malformed line and at an endless reply."""
    with pytest.raises(ProtocolError):
        list(ReplyReader().feed(wire))


def test_replies_before_a_malformed_one_are_kept() -> None:
    read = []
    with pytest.raises(ProtocolError):
        for reply in ReplyReader().feed(b"250 2.0.0 Ok\r\nnonsense\r\n"):
            read.append(reply)
    assert read == [Reply(250, "2.0.0", "Ok")]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (Reply(550, "5.7.1", "No"), Reply(550, "5.7.1", "No")),
        (Reply(450, "4.2.0", "Greylisted\nlater"), Reply(450, "4.2.0", "Greylisted\nlater")),
        (Reply(554, "", "No"), Reply(554, "", "No")),
        (Reply(421, "4.3.2", "Bye"), Reply(451, "4.3.2", "Bye")),
        (Reply(421, "", "Bye"), Reply(451, "", "Bye")),
        (Reply(521, "5.3.2", "No mail here"), Reply(451, "4.3.2", "No mail here")),
        (Reply(530, "5.7.0", "STARTTLS first"), Reply(451, "4.7.0", "STARTTLS first")),
        (Reply(538, "", "Encrypt"), Reply(451, "", "Encrypt")),
        (Reply(550, "5.7.10", "Encrypt"), Reply(451, "4.7.10", "Encrypt")),
        (Reply(250, "2.0.0", "Ok"), client_replies.OUT_OF_PLACE),
        (Reply(354, "", "go"), client_replies.OUT_OF_PLACE),
    ],
)
def test_a_refusal_reaches_the_client_unless_it_would_hang_up(said: Reply, read: Reply) -> None:
    assert passed_on(said) == read


@pytest.mark.parametrize(
    ("codes", "heaviest"),
    [((250, 250), None), ((250, 550, 554), 550), ((550, 450, 451), 450), ((421, 550), 421), ((550, 354), 354)],
)
def test_a_temporary_refusal_speaks_for_all_recipients(codes: tuple[int, ...], heaviest: int | None) -> None:
    """If some recipients could get the mail later, the client must try again."""
    worst = weightiest([Reply(code, "", "x") for code in codes])
    assert (worst.code if worst else None) == heaviest


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Ok: queued as 4ABC123", "4ABC123"),
        ("OK id=1rXyZa-0001Ab-2C", "1rXyZa-0001Ab-2C"),
        ("38AB3456123 Message accepted for delivery", "38AB3456123"),
        ("Ok", ""),
        ("Message accepted for delivery", ""),
    ],
)
def test_queue_id_of_the_next_hop(text: str, found: str) -> None:
    assert queue_id_in(Reply(250, "2.0.0", text)) == found
