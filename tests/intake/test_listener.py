"""Where a listener listens: TCP over IPv4 and IPv6, unix sockets; and what a session is made of."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from bridge.intake.listener import peer_address
from bridge.testing import SmtpClient, free_port, running_bridge


class Unix(SmtpClient):
    """The same client on a unix socket."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(path))
        self._read = b""


class V6(SmtpClient):
    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("::1", port), 10)
        self._read = b""


def test_unix_socket_is_guarded_by_its_permissions(tmp_path: Path) -> None:
    """Who may open it is trusted; the scanner is told no address, since there is none."""
    path = tmp_path / "bridge.sock"
    with running_bridge(tmp_path, address=f"unix:{path}", unix_mode="0600") as bridge, Unix(path) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"XFORWARD" in client.open()
        assert client.mail().startswith(b"250 ")
        border = bridge.scanner.submissions[0].parameters["borderMtaData"]
        assert "remoteAddress" not in border and border["senderHelo"] == "client.example"
        assert b"([unix])" in bridge.next_hop.mails[0].content


def test_ipv6_loopback_is_trusted_by_default(tmp_path: Path) -> None:
    """The default of trusted_clients is this machine, in both families."""
    port = free_port()
    with running_bridge(tmp_path, address=f"[::1]:{port}") as bridge, V6(port) as client:
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
        (None, None),
    ],
)
def test_peer_is_a_bare_address(peer: object, address: str | None) -> None:
    """An IPv4 client on an IPv6 socket is an IPv4 client; a zone is no part of an address."""
    assert peer_address(peer) == address
