"""Listener addresses (IPv4, IPv6, unix sockets), trusted clients and connection limits."""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.intake.connection_limits import ListenerSettings, Refusal
from bridge.intake.listener import Listener
from bridge.intake.trusted_clients import TrustedClients, peer_address
from bridge.testing import TOKEN, RunningBridge, SmtpClient, free_port, running_bridge
from tests.intake.hooks.hooks_kit import MailServer, facts
from tests.intake.milter.milter_kit import connect_frame, frame, offer
from tests.requirements import need_ipv6


class Unix(SmtpClient):
    """The same client on a unix socket."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(path))
        self._read = b""


class V6(SmtpClient):
    """The same client over IPv6."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("::1", port), 10)
        self._read = b""


def test_unix_socket_is_guarded_by_its_permissions(tmp_path: Path) -> None:
    """Every client that can open the socket is trusted; the scanner gets no address, because there is none."""
    path = tmp_path / "bridge.sock"
    listener = {"address": f"unix:{path}", "unix_mode": "0600", "profile": "direct"}
    with running_bridge(tmp_path, **listener) as bridge, Unix(path) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"XFORWARD" in client.open()
        assert client.mail().startswith(b"250 ")
        border = bridge.scanner.submissions[0].parameters["borderMtaData"]
        assert "remoteAddress" not in border and border["senderHelo"] == "client.example"
        assert b"([unix])" in bridge.next_hop.mails[0].content


def test_ipv6_loopback_is_trusted_by_default(tmp_path: Path) -> None:
    """The default of trusted_clients is this machine, in both families."""
    need_ipv6()
    port = free_port()
    with running_bridge(tmp_path, address=f"[::1]:{port}", profile="direct") as bridge, V6(port) as client:
        client.open()
        assert client.mail().startswith(b"250 ")
        assert bridge.scanner.submissions[0].parameters["borderMtaData"]["remoteAddress"] == "::1"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.1", 25), "192.0.2.1"),
        (("::ffff:192.0.2.1", 25, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 25, 0, 0), "2001:db8::1"),
        (("fe80::1%eth0", 25, 0, 2), "fe80::1"),
        ("", None),
        (None, "unknown"),
    ],
)
def test_peer_is_a_bare_address(peer: object, address: str | None) -> None:
    """An IPv4 client on an IPv6 socket is an IPv4 client; the zone is not part of the address."""
    assert peer_address(peer) == address


@pytest.mark.parametrize(
    ("address", "is_trusted"), [(None, True), ("127.0.0.9", True), ("::1", True), ("192.0.2.1", False), ("gone", False)]
)
def test_trust_is_decided_by_address(address: str | None, is_trusted: bool) -> None:
    """A unix socket is trusted; something that is not an address is not, however often it is looked up."""
    trusted = TrustedClients(ListenerSettings("test").trusted)
    assert [address in trusted for _ in range(2)] == [is_trusted] * 2


async def test_connection_limits_and_counts() -> None:
    """In total, per client and for untrusted clients; a closed connection frees its place, a refused one has none."""
    listener = Listener[str](ListenerSettings("test", max_connections=7, max_connections_per_client=2))
    assert [listener.admit(f"a{n}", "127.0.0.1") for n in range(3)] == [None, None, Refusal.CLIENT_FULL]
    strangers = [listener.admit(f"s{n}", f"192.0.2.{n}") for n in range(5)]
    assert strangers == [None] * 5 and listener.untrusted == 5
    assert listener.admit("over", "127.0.0.2") is Refusal.FULL
    listener.forget("a0")
    assert listener.admit("s5", "192.0.2.5") is Refusal.FULL  # this place is reserved for trusted clients
    assert listener.expect("proxy", "192.0.2.1") is Refusal.UNTRUSTED
    assert listener.expect("proxy", "127.0.0.2") is None and listener.expect("other", None) is Refusal.FULL
    assert listener.admit("proxy", None) is None and not listener.expected
    for connection in [*listener.open, "over"]:
        listener.forget(connection)
    assert (listener.open, listener.per_client, listener.untrusted) == ({}, {}, 0)
    assert await listener.wait_until_empty(0)


@pytest.mark.parametrize("protocol", ["smtp", "milter", "mta-hooks"])
def test_client_that_is_no_longer_trusted_after_a_reload_sends_no_more_mail(tmp_path: Path, protocol: str) -> None:
    """It kept its connection open, and could send 10,000 more mails in the name of any client."""
    (tmp_path / "hooks-token").write_text(TOKEN)
    hooks = {"hooks": {"token_file": "hooks-token"}} if protocol == "mta-hooks" else {}
    with running_bridge(tmp_path, protocol=protocol, **hooks) as bridge, ExitStack() as stack:
        sends_mail = {"smtp": _over_smtp, "milter": _over_milter, "mta-hooks": _over_hooks}[protocol](bridge, stack)
        assert sends_mail()
        listener = bridge.daemon.config.listeners[0].model_copy(update={"trusted_clients": ["192.0.2.0/24"]})
        changed = bridge.daemon.config.model_copy(update={"listeners": [listener]})
        bridge.background.run(bridge.daemon.reload(lambda: changed))
        assert not sends_mail()
        assert len(bridge.scanner.submissions) == 1


def test_proxy_that_is_no_longer_trusted_after_a_reload_named_trusted_clients(tmp_path: Path) -> None:
    """Its open connections were looked at by the address that it had named itself."""
    trusted = ["127.0.0.1/32", "192.0.2.0/24"]
    with running_bridge(tmp_path, proxy_protocol=True, trusted_clients=trusted) as bridge, bridge.client() as client:
        client.send(b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 25\r\n")
        client.open()
        assert client.mail().startswith(b"250 ")
        listener = bridge.daemon.config.listeners[0].model_copy(update={"trusted_clients": ["192.0.2.0/24"]})
        changed = bridge.daemon.config.model_copy(update={"listeners": [listener]})
        bridge.background.run(bridge.daemon.reload(lambda: changed))
        assert client.say(b"MAIL FROM:<a@client.example>")[0].startswith(b"550 5.7.1 ")


def test_an_open_connection_was_taken_for_the_sender_after_a_mail_server_had_been_put_in_front(tmp_path: Path) -> None:
    """Its own address, which may be on a list of mail that needs no scan, was that of all its senders."""
    with running_bridge(tmp_path, profile="direct") as bridge, bridge.client() as client:
        client.open()
        for profile in ("postfix-proxy", "direct"):
            assert client.mail().startswith(b"250 ")
            listener = bridge.daemon.config.listeners[0].model_copy(update={"profile": profile})
            changed = bridge.daemon.config.model_copy(update={"listeners": [listener]})
            bridge.background.run(bridge.daemon.reload(lambda conf=changed: conf))
        assert client.mail().startswith(b"250 ")
        told = [submission.parameters["borderMtaData"] for submission in bridge.scanner.submissions]
        assert [border.get("remoteAddress") for border in told] == ["127.0.0.1", None, "127.0.0.1"]


def _over_smtp(bridge: RunningBridge, stack: ExitStack) -> Callable[[], bool]:
    client = stack.enter_context(bridge.client())
    client.open()
    return lambda: client.mail().startswith(b"250 ")


def _over_milter(bridge: RunningBridge, stack: ExitStack) -> Callable[[], bool]:
    sock = stack.enter_context(bridge.connect())
    sock.sendall(offer() + connect_frame())
    mail = [frame("M", b"<a@b.example>\0"), frame("R", b"<c@example.org>\0"), frame("L", b"Subject\0 x\0")]

    def sends_mail() -> bool:
        sock.sendall(b"".join([*mail, frame("N"), frame("E")]))
        said = b""
        while said.count(frame("c")) < 3 and (block := sock.recv(4096)):  # for MAIL, RCPT and the whole
            said += block
        return frame("h", b"X-Scan-Decision\0 deliver\0") in said

    return sends_mail


def _over_hooks(bridge: RunningBridge, stack: ExitStack) -> Callable[[], bool]:
    server = stack.enter_context(MailServer(bridge.port, TOKEN))
    return lambda: server.ask(facts())[0] == 200
