"""Every limit that a client can exceed: the reply it gets, and that it is counted (docs/reference/limits.md)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.testing import RunningBridge, SmtpClient, running_bridge, until
from tests.hostile.hostile_kit import MiB

LIMITS = {
    "max_message_size": "3MiB",
    "max_recipients": 2,
    "max_errors": 5,
    "max_received": 10,
    "max_mails_per_connection": 2,
}
TIMES = {"command_timeout": "1s", "data_timeout": "1s", "mail_timeout": "1500ms"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("strict"), {"limits": LIMITS}) as bridge:
        yield bridge


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("hasty"), {"limits": TIMES}) as bridge:
        yield bridge


@contextmanager
def hits(bridge: RunningBridge, limit: str) -> Iterator[None]:
    """The block exceeds this limit once, and no other limit."""
    counts = bridge.daemon.metrics.limits_hit.values
    before = dict(counts)
    yield

    def changed() -> dict[tuple[str, ...], float]:
        return {labels: count - before[labels] for labels, count in counts.items() if count != before[labels]}

    until(changed, "the limit to be counted")
    assert changed() == {("test", limit): 1}


def trickle(client: SmtpClient, data: bytes) -> bytes:
    """Sends `data` repeatedly and returns the reply that ends the session."""
    client.sock.settimeout(0.1)
    for _ in range(100):
        client.send(data)
        try:
            return client.sock.recv(4096)
        except TimeoutError:
            continue
    return b""


def in_data(client: SmtpClient, content: bytes) -> bytes:
    assert client.begin().startswith(b"354 ")
    return client.say(content + b"\r\n.")[0]


def slowly(data: bytes) -> Callable[[SmtpClient], bytes]:
    def send(client: SmtpClient) -> bytes:
        client.begin()
        return trickle(client, data)

    return send


def enough_mail(client: SmtpClient) -> bytes:
    assert client.mail().startswith(b"250 ") and client.mail().startswith(b"250 ")
    return client.say(b"RSET")[0]


def long_header(client: SmtpClient) -> bytes:
    """A header field with our prefix beyond the part of the header that is searched."""
    line = b"X-Filler: " + b"x" * 900 + b"\r\n"
    return in_data(client, line * (2 * MiB // len(line)) + b"X-Scan-Decision: deliver\r\n\r\nx")


CASES: dict[str, tuple[str, Callable[[SmtpClient], bytes], bytes]] = {
    "line": ("line", lambda client: client.say(b"NOOP " + b"x" * 9000)[0], b"500 5.5.2 "),
    "command": ("command", lambda client: client.say(b"NOOP " + b"x" * 600)[0], b"500 5.5.2 "),
    "header": ("header", long_header, b"554 5.6.0 "),
    "declared size": ("max_message_size", lambda client: client.say(b"MAIL FROM:<> SIZE=4000000")[0], b"552 5.3.4 "),
    "size": ("max_message_size", lambda client: in_data(client, b"x" * (3 * MiB + 1)), b"552 5.3.4 "),
    "recipients": (
        "max_recipients",
        lambda client: client.say(b"MAIL FROM:<>", *[b"RCPT TO:<b@example.org>"] * 3)[3],
        b"452 4.5.3 ",
    ),
    "hops": ("max_received", lambda client: in_data(client, b"Received: x\r\n" * 11), b"554 5.4.6 "),
    "mails": ("max_mails_per_connection", enough_mail, b"421 4.7.0 "),
    "errors": ("max_errors", lambda client: (client.say(*[b"FROB"] * 5), client.reply())[1], b"421 4.7.0 "),
    "idle commands": ("idle_commands", lambda client: (client.say(*[b"NOOP"] * 100), client.reply())[1], b"421 4.7.0 "),
    "silence": ("command_timeout", lambda client: client.reply(), b"421 4.4.2 "),
    "silence in DATA": ("data_timeout", lambda client: (client.begin(), client.reply())[1], b"421 4.4.2 "),
    "too slow": ("min_data_rate", slowly(b"x"), b"421 4.4.2 "),
    "too long": ("mail_timeout", slowly(b"x" * 998 + b"\r\n"), b"421 4.4.2 "),
}


@pytest.mark.parametrize("case", CASES)
def test_a_limit_that_is_passed_is_answered_and_counted(strict: RunningBridge, hasty: RunningBridge, case: str) -> None:
    """The client gets the reply, the metric counts it, and the next client is served."""
    limit, act, answer = CASES[case]
    bridge = hasty if limit in {*TIMES, "min_data_rate"} else strict
    with hits(bridge, limit), bridge.client() as client:
        client.open()
        assert act(client).startswith(answer)
    with bridge.client() as client:
        client.open()
        assert client.mail().startswith(b"250 ")


def test_bytes_in_processing_over_the_limit_are_counted(tmp_path: Path) -> None:
    config = {"admission": {"max_bytes_in_processing": "64KiB"}}
    with running_bridge(tmp_path, config) as bridge, bridge.client() as client:
        client.open()
        with hits(bridge, "max_bytes_in_processing"):
            assert in_data(client, b"x" * 100_000).startswith(b"451 4.3.2 ")


def test_a_client_at_its_mail_limit_continues_on_a_new_connection(strict: RunningBridge) -> None:
    """Its mail is accepted, QUIT still gets 221, and the connection never ends between a mail and its reply."""
    with strict.client() as client:
        client.open()
        assert [client.mail()[:3] for _ in range(2)] == [b"250", b"250"]
        assert client.say(b"QUIT") == [b"221 2.0.0 Bye"]
    with strict.client() as client:
        client.open()
        assert [client.mail()[:3] for _ in range(2)] == [b"250", b"250"]
        assert client.say(b"MAIL FROM:<>")[0] == b"421 4.7.0 Too many mails on this connection, open a new one"
        assert client.is_cut()


def test_connections_over_a_limit_are_counted(tmp_path: Path) -> None:
    config = {"limits": {"max_connections": 3, "max_connections_per_client": 2}}
    with running_bridge(tmp_path, config) as bridge:
        clients = [bridge.client(source) for source in ("127.0.0.1",) * 3 + ("127.0.0.2",) * 2]
        assert [client.reply()[:9] for client in clients] == [b"220 bridg"] * 2 + [
            b"421 4.7.0",
            b"220 bridg",
            b"421 4.3.2",
        ]
        counts = bridge.daemon.metrics.refused_connections.values
        assert counts["test", "client_limit"] == counts["test", "limit"] == 1
        for client in clients:
            client.close()


def frame(command: bytes, data: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", 1 + len(data) if length is None else length) + command + data


RATE = {"limits": {"max_mails_per_client_per_minute": 1}}
TOO_MUCH = b"451 4.7.1 Too much mail from your address, try again later"


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_a_client_that_sends_too_much_is_deferred_at_mail(tmp_path: Path, protocol: str) -> None:
    """Its other commands in the same packet are no mistakes, and other clients are not concerned."""
    hello = b"LHLO client.example" if protocol == "lmtp" else b"EHLO client.example"
    with running_bridge(tmp_path, RATE, protocol=protocol) as bridge, bridge.client() as client:
        client.open(hello)
        assert client.mail().startswith(b"250")
        with hits(bridge, "max_mails_per_client_per_minute"):
            assert client.say(b"MAIL FROM:<a@client.example>", b"RCPT TO:<b@example.org>", b"DATA")[0] == TOO_MUCH
        assert client.say(b"NOOP")[0].startswith(b"250")
        with bridge.client("127.0.0.2") as other:
            other.open(hello)
            assert other.mail().startswith(b"250")
        assert not bridge.daemon.metrics.refused_early.values["test", "mail"]


def test_the_client_behind_a_mail_server_is_the_one_that_is_limited(tmp_path: Path) -> None:
    """With XFORWARD: else its mail server would be deferred for the mail of one of its clients."""
    with running_bridge(tmp_path, RATE) as bridge, bridge.client() as client:
        client.open()
        for address, is_first in ((b"192.0.2.1", True), (b"192.0.2.2", True), (b"192.0.2.1", False)):
            client.say(b"XFORWARD ADDR=" + address)
            reply = client.say(b"MAIL FROM:<a@client.example>")[0]
            assert reply.startswith(b"250") if is_first else reply == TOO_MUCH
            client.say(b"RSET")


def test_a_client_of_a_milter_that_sends_too_much_is_deferred_at_mail(tmp_path: Path) -> None:
    """The client is the mail server's, not the mail server."""
    negotiate = frame(b"O", struct.pack(">III", 6, 0x1FF, 0))
    with running_bridge(tmp_path, RATE, protocol="milter") as bridge:

        def answers(address: bytes, sock: socket.socket) -> bytes:
            sock.sendall(negotiate + frame(b"C", b"host\0004\0\x19" + address + b"\0"))
            sock.sendall(frame(b"M", b"<a@example.org>\0"))
            sock.settimeout(60)
            found = b""
            while found.count(b"\0\0\0\x01c") < 2 and TOO_MUCH not in found:
                found += sock.recv(4096)
            return found

        for address in (b"192.0.2.1", b"192.0.2.2"):
            with connected(bridge) as sock:
                assert TOO_MUCH not in answers(address, sock)
        with hits(bridge, "max_mails_per_client_per_minute"), connected(bridge) as sock:
            assert TOO_MUCH in answers(b"192.0.2.1", sock)


def test_limits_of_a_milter_are_counted(tmp_path: Path) -> None:
    """A frame over its limit, one recipient too many, too large a mail."""
    with running_bridge(tmp_path, {"limits": LIMITS}, protocol="milter") as bridge:
        negotiate = frame(b"O", struct.pack(">III", 6, 0x1FF, 0x1FFFFF))
        envelope = frame(b"M", b"<a@example.org>\0") + frame(b"R", b"<b@example.org>\0") * 2
        with hits(bridge, "frame"), connected(bridge) as sock:
            sock.sendall(negotiate + frame(b"H", b"x", 70_000))
            until(lambda: is_cut(sock), "the connection to be cut")
        with hits(bridge, "max_recipients"), connected(bridge) as sock:
            sock.sendall(negotiate + envelope + frame(b"R", b"<c@example.org>\0"))
        body = frame(b"B", b"x" * 65_535) * (3 * 16 + 1)
        with hits(bridge, "max_message_size"), connected(bridge) as sock:
            sock.sendall(negotiate + envelope + frame(b"N", b"") + body)
        with hits(bridge, "header"), connected(bridge) as sock:
            sock.sendall(negotiate + envelope + frame(b"L", b"X-Scan-Id\0 x\0") * 501 + frame(b"N", b""))


@contextmanager
def connected(bridge: RunningBridge) -> Iterator[socket.socket]:
    with bridge.connect() as sock:
        yield sock
        sock.settimeout(0.2)
        is_cut(sock)


def is_cut(sock: socket.socket) -> bool:
    """Whether the other side has hung up, as far as can be seen now."""
    sock.settimeout(0.2)
    try:
        return not sock.recv(65536)
    except TimeoutError:
        return False
    except OSError:
        return True
