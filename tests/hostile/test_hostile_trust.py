"""TLS, and which clients are trusted."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge.config.model import EMBEDDED, Config
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.testing import RunningBridge, SmtpClient, running_bridge, until
from tests.hostile.conftest import made_clean

Certificate = tuple[dict[str, Any], ssl.SSLContext]
PATIENCE = "4s"  # long enough that a busy machine does not time out a valid client


@pytest.fixture(scope="module")
def tls_bridge(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[RunningBridge]:
    limits = {"limits": {"command_timeout": PATIENCE}}
    with running_bridge(tmp_path_factory.mktemp("tls"), limits, tls=certificate[0]) as bridge:
        yield bridge


def secure(client: SmtpClient, context: ssl.SSLContext) -> None:
    client.sock = context.wrap_socket(client.sock, server_hostname="bridge.example")


# STARTTLS


def test_commands_pipelined_after_starttls_are_discarded(tls_bridge: RunningBridge, certificate: Certificate) -> None:
    """Plaintext input after STARTTLS is discarded (RFC 3207, CVE-2011-0411)."""
    with tls_bridge.client() as client:
        client.open()
        client.send(b"STARTTLS\r\nEHLO injected\r\nMAIL FROM:<evil@x.example>\r\n")
        assert client.reply() == b"220 2.0.0 Ready to start TLS"
        secure(client, certificate[1])
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]
        assert client.say(b"RCPT TO:<b@example.org>") == [b"503 5.5.1 Error: send HELO first"]


def test_a_client_named_in_plain_text_was_believed_after_starttls(
    tls_bridge: RunningBridge, certificate: Certificate
) -> None:
    """Somebody on the way adds an XCLIENT before the handshake, and chooses the address the mail is judged by."""
    with tls_bridge.client() as client:
        client.open()
        assert client.say(b"XCLIENT ADDR=192.0.2.1 HELO=bank.example")[0].startswith(b"220 ")
        client.say(b"EHLO client.example")
        client.say(b"STARTTLS")
        secure(client, certificate[1])
        client.say(b"EHLO client.example")
        assert client.mail().startswith(b"250")
        known = tls_bridge.scanner.submissions[-1].parameters["borderMtaData"]
        assert "remoteAddress" not in known and known.get("senderHelo") != "bank.example"
        assert client.say(b"XCLIENT ADDR=192.0.2.2")[0].startswith(b"220 ")  # over TLS, it counts
        client.say(b"EHLO client.example")
        assert client.mail().startswith(b"250")
        assert tls_bridge.scanner.submissions[-1].parameters["borderMtaData"]["remoteAddress"] == "192.0.2.2"


def test_session_is_reset_after_starttls(tls_bridge: RunningBridge, certificate: Certificate) -> None:
    """Greeting, open transaction and XFORWARD from before TLS are reset; STARTTLS is not offered again."""
    with tls_bridge.client() as client:
        assert b"STARTTLS" in client.open()
        client.say(b"XFORWARD ADDR=192.0.2.1", b"MAIL FROM:<a@client.example>", b"STARTTLS")
        secure(client, certificate[1])
        assert client.say(b"MAIL FROM:<a@client.example>") == [b"503 5.5.1 Error: send HELO first"]
        extensions = client.say(b"EHLO client.example")[0]
        assert b"STARTTLS" not in extensions and b"AUTH" not in extensions and b"XFORWARD" in extensions
        assert client.say(b"STARTTLS") == [b"454 4.7.0 TLS not available"]
        assert client.mail().startswith(b"250")
    assert "remoteAddress" not in tls_bridge.scanner.submissions[-1].parameters["borderMtaData"]
    assert b" with ESMTPS id " in tls_bridge.next_hop.mails[-1].content


def test_mail_before_required_tls_is_530(tmp_path: Path, certificate: Certificate) -> None:
    """Where TLS is required, mail commands are refused before STARTTLS and accepted after it."""
    with running_bridge(tmp_path, tls={**certificate[0], "required": True}) as bridge, bridge.client() as client:
        client.open()
        for command in (
            b"MAIL FROM:<a@client.example>",
            b"RCPT TO:<b@example.org>",
            b"DATA",
            b"XCLIENT ADDR=192.0.2.1",
        ):
            assert client.say(command) == [b"530 5.7.0 Must issue a STARTTLS command first"]
        assert client.say(b"NOOP", b"STARTTLS") == [b"250 2.0.0 OK", b"220 2.0.0 Ready to start TLS"]
        secure(client, certificate[1])
        client.say(b"EHLO client.example")
        assert client.mail().startswith(b"250")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_is_refused(tls_bridge: RunningBridge, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and later only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
    with tls_bridge.client() as client:
        client.open()
        client.say(b"STARTTLS")
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            secure(client, context)


@pytest.mark.parametrize("cipher", ["ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-SHA", "AES256-GCM-SHA384"])
def test_weak_cipher_is_refused(tls_bridge: RunningBridge, cipher: str) -> None:
    """No cipher block chaining and no key exchange without forward secrecy (testssl: LUCKY13)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers(cipher + ":@SECLEVEL=0")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with tls_bridge.client() as client:
        client.open()
        client.say(b"STARTTLS")
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            secure(client, context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_current_tls_is_accepted(tls_bridge: RunningBridge, certificate: Certificate, version: ssl.TLSVersion) -> None:
    """Both current versions work."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    with tls_bridge.client() as client:
        client.open()
        client.say(b"STARTTLS")
        secure(client, context)
        client.say(b"EHLO client.example")
        assert client.mail().startswith(b"250")


BROKEN = [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"MAIL FROM:<a@client.example>\r\n"]


def test_stalled_or_broken_handshake_is_closed(tls_bridge: RunningBridge) -> None:
    """A client that does not complete the handshake is disconnected within the command timeout."""
    with ExitStack() as stack:
        clients = [stack.enter_context(tls_bridge.client()) for _ in BROKEN]
        for client in clients:
            client.open()
        for client, sent in zip(clients, BROKEN, strict=True):
            assert client.say(b"STARTTLS") == [b"220 2.0.0 Ready to start TLS"]
            client.send(sent)
        for client, sent in zip(clients, BROKEN, strict=True):
            assert client.is_cut(), sent
    until(lambda: not tls_bridge.daemon.servers[0].listener.open, "all connections to be gone")


def test_stop_during_a_handshake_does_not_wait_for_it(tmp_path: Path, certificate: Certificate) -> None:
    """A session stuck in its handshake is closed and does not delay the shutdown."""
    with running_bridge(tmp_path, tls=certificate[0]) as bridge, bridge.client() as client:
        client.open()
        client.say(b"STARTTLS")
        client.send(b"\x16\x03\x01")
        began = time.monotonic()
        bridge.background.run(bridge.daemon.servers[0].drain(50.0))
        assert time.monotonic() - began < 45
        assert client.is_cut()
        assert not bridge.daemon.servers[0].listener.open


# Strangers


@pytest.fixture(scope="module")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("guarded"), trusted_clients=["127.0.0.1/32"]) as bridge:
        yield bridge


@pytest.fixture
def guarded(_guarded: RunningBridge) -> RunningBridge:
    """A bridge that trusts 127.0.0.1 only; 127.0.0.9 is a stranger."""
    return made_clean(_guarded)


def test_stranger_who_resets_before_being_accepted_stays_a_stranger(guarded: RunningBridge) -> None:
    """Such a connection has no peer name, as a trusted unix socket has none, but its commands are still read."""
    refused = _refused(guarded)
    mail = b"EHLO x\r\nMAIL FROM:<evil@x.example>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nSubject: x\r\n\r\nx\r\n.\r\n"
    for _ in range(20):
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.9", 0))
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.connect(("127.0.0.1", guarded.port))
            stranger.sendall(mail)
    until(lambda: _refused(guarded) >= refused + 20, "all attempts are refused")
    assert guarded.scanner.submissions == [] and guarded.next_hop.mails == []


def _refused(bridge: RunningBridge) -> float:
    value = bridge.daemon.status.metrics.registry.get_sample_value(
        "scanbridge_connections_refused_total", {"listener": "test", "reason": "untrusted"}
    )
    return value or 0.0


RELAY_PROBES = [
    *(
        b"<>",
        b"<b@example.org>",
        b"<b@[127.0.0.1]>",
        b'<"b@example.org">',
        b'<"b%example.org">',
        b"<b%example.org@bridge.example>",
    ),
    *(b"<b@example.org@bridge.example>", b"<@bridge.example:b@example.org>", b"<example.org!b>", b"<b@bridge.example>"),
]


@pytest.mark.parametrize("probe", RELAY_PROBES)
def test_stranger_cannot_relay(guarded: RunningBridge, probe: bytes) -> None:
    """No form of sender or recipient lets an untrusted client send mail."""
    with guarded.client("127.0.0.9") as client:
        client.open()
        for sender in (b"<>", b"<root@bridge.example>", probe):
            codes = [reply[:3] for reply in client.say(b"MAIL FROM:" + sender, b"RCPT TO:" + probe, b"DATA")]
            assert codes[0] in (b"550", b"501") and codes[1:] == [b"503", b"503"]
            assert client.say(b"RSET") == [b"250 2.0.0 OK"]
    assert guarded.next_hop.mails == [] and guarded.scanner.submissions == []


def test_trusted_client_is_served_alongside_strangers(guarded: RunningBridge) -> None:
    """What a trusted client says about its own clients is used, and its mail goes through."""
    with guarded.client() as client:
        client.open()
        assert client.say(b"XFORWARD ADDR=192.0.2.1") == [b"250 2.0.0 Ok"]
        assert client.mail().startswith(b"250")
    assert guarded.scanner.submissions[-1].parameters["borderMtaData"]["remoteAddress"] == "192.0.2.1"


def test_public_bind_without_trusted_clients_is_refused(tmp_path: Path) -> None:
    """An address reachable from other machines needs a list of trusted clients."""
    for address in ("0.0.0.0:10025", "[::]:10025", "192.0.2.1:10025", "mail.example.org:10025"):
        with (
            pytest.raises(ConfigError, match="list the mail servers that may use it"),
            running_bridge(tmp_path, address=address),
        ):
            pass


def test_default_bind_is_loopback(tmp_path: Path) -> None:
    """Without a configuration, all addresses are reachable from this machine only."""
    conf = yaml_file.load(tmp_path / "x.yml", Config, EMBEDDED.format(state=tmp_path))
    assert all(listener.address.is_local for listener in conf.listeners)
    assert conf.admin.address.is_local


# PROXY


def v2(command: int, family: int, addresses: bytes) -> bytes:
    return b"\r\n\r\n\0\r\nQUIT\n" + struct.pack("!BBH", 0x20 | command, family, len(addresses)) + addresses


V2_IPV4 = v2(1, 0x11, bytes([192, 0, 2, 7, 127, 0, 0, 1]) + struct.pack("!HH", 4711, 25))
V2_IPV6 = v2(1, 0x21, bytes.fromhex("20010db8") + bytes(11) + b"\7" + bytes(15) + b"\1" + struct.pack("!HH", 4711, 25))
V2_MAPPED = v2(
    1, 0x21, bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 7]) + bytes(15) + b"\1" + struct.pack("!HH", 4711, 25)
)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A listener that expects a PROXY header, from 127.0.0.1 only."""
    trusted = ["127.0.0.1/32", "192.0.2.0/24", "2001:db8::/32"]
    config = {"limits": {"command_timeout": PATIENCE, "max_connections_per_client": 2}}
    directory = tmp_path_factory.mktemp("proxied")
    with running_bridge(directory, config, proxy_protocol=True, trusted_clients=trusted) as bridge:
        yield bridge


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 25\r\n", "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 ::1 4711 25\r\n", "2001:db8::7"),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:127.0.0.1 4711 25\r\n", "192.0.2.7"),  # a dual-stack proxy: read 550
        (b"PROXY TCP6 ::FFFF:C000:207 ::1 4711 25\r\n", "192.0.2.7"),
        (V2_MAPPED, "192.0.2.7"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (V2_IPV4, "192.0.2.7"),
        (V2_IPV6, "2001:db8::7"),
        (v2(0, 0x00, b""), None),
        # LOCAL: the rest of the header is ignored, whatever it says. Its address was believed, its family refused.
        (v2(0, 0x11, bytes([192, 0, 2, 7, 127, 0, 0, 1]) + struct.pack("!HH", 4711, 25)), None),
        (v2(0, 0xFF, bytes(300)), None),
        # A unix socket of the proxy: the proxy's own address was taken for the sender's.
        (v2(1, 0x31, b"/run/client".ljust(108, b"\0") + b"/run/proxy".ljust(108, b"\0")), None),
        (v2(1, 0x31, bytes(216)), None),
        (v2(1, 0x00, b"more"), None),
    ],
)
def test_proxy_header_names_the_client(proxied: RunningBridge, header: bytes, address: str | None) -> None:
    """The client is the one the header names; UNKNOWN and a health check name none, and the proxy is not the sender."""
    with proxied.client() as client:
        client.send(header)
        client.open()
        assert client.mail().startswith(b"250")
    assert proxied.scanner.submissions[-1].parameters["borderMtaData"].get("remoteAddress") == address


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 25\r\n", "192.0.2.7"),
        (V2_IPV4, "192.0.2.7"),
        (v2(0, 0xFF, bytes(9)), None),
    ],
)
def test_a_proxy_header_may_arrive_byte_by_byte(proxied: RunningBridge, header: bytes, address: str | None) -> None:
    """And the client's first command with its last byte."""
    with proxied.client() as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(header) - 1):
            client.send(header[position : position + 1])
        client.send(header[-1:] + b"EHLO client.example\r\n")
        assert client.reply().startswith(b"220 ") and client.reply().startswith(b"250-")
        assert client.mail().startswith(b"250")
    assert proxied.scanner.submissions[-1].parameters["borderMtaData"].get("remoteAddress") == address


@pytest.mark.parametrize("source", [b"TCP4 198.51.100.1 127.0.0.1", b"TCP6 ::ffff:198.51.100.1 ::1"])
def test_proxied_stranger_cannot_send(proxied: RunningBridge, source: bytes) -> None:
    """The client named in the header must itself be trusted."""
    with proxied.client() as client:
        client.send(b"PROXY %b 4711 25\r\n" % source)
        assert b"XFORWARD" not in client.open()
        assert client.say(b"MAIL FROM:<>")[0].startswith(b"550 5.7.1 ")


@pytest.mark.parametrize("command", [b"XFORWARD", b"XCLIENT"])
@pytest.mark.parametrize("spelling", [b"IPV6:::ffff:192.0.2.7", b"::ffff:c000:207", b"192.0.2.7"])
def test_a_client_had_two_addresses_in_two_spellings(guarded: RunningBridge, command: bytes, spelling: bytes) -> None:
    """The scanner, the lists and the log know an IPv4 client by its IPv4 address only."""
    with guarded.client() as client:
        client.open()
        assert client.say(b"%b ADDR=%b" % (command, spelling))[0][:1] == b"2"
        if command == b"XCLIENT":  # which begins a new session
            client.say(b"EHLO client.example")
        assert client.mail().startswith(b"250")
    assert guarded.scanner.submissions[-1].parameters["borderMtaData"]["remoteAddress"] == "192.0.2.7"


MALFORMED = [
    *(b"EHLO client.example\r\n", b"PROXY\r\n", b"PROXY \r\n", b"PROXY TCP4\r\n", b"PROXY TCP4 192.0.2.7\r\n"),
    *(b"PROXY TCP4 x 127.0.0.1 1 2\r\n", b"PROXY TCP4 ::1 ::1 1 2\r\n", b"PROXY TCP4 192.0.2.7 127.0.0.1 x 2\r\n"),
    *(
        b"PROXY TCP4 192.0.2.7 127.0.0.1 1 65536\r\n",
        b"PROXY TCP4  192.0.2.7 127.0.0.1 1 2\r\n",
        b"PROXY TCP5 a b 1 2\r\n",
    ),
    *(b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2\n", b"PROXY " + b"x" * 10_000, b"PROXY UNKNOWN" + b"x" * 200 + b"\r\n"),
    *(b"\r\n\r\n\0\r\nQUIX\n" + bytes(4), b"\r\n\r\n\0\r\nQUIT\n\x11\x11\0\x0c" + bytes(12)),
    *(v2(2, 0x11, bytes(12)), v2(1, 0xFF, bytes(12)), v2(1, 0x11, bytes(4))),
    *(v2(1, 0x12, V2_IPV4[16:]), v2(1, 0x31, bytes(215)), v2(1, 0x21, bytes(35)), v2(1, 0x14, bytes(12))),
]
INCOMPLETE = [b"PROXY TCP4 192.0.2.7 127.", V2_IPV4[:-1], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff" + bytes(1000), b""]
INCOMPLETE += [v2(0, 0, bytes(9))[:-1], v2(0, 0, b"")[:-1], v2(0, 0, b"")[:13], b"\r\n"]


@pytest.mark.parametrize("sent", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_proxy_header_closes_the_connection_silently(proxied: RunningBridge, sent: bytes) -> None:
    """An invalid header ends the connection without a reply."""
    with proxied.client() as client:
        client.send(sent)
        assert client.line() == b""
    assert_forgotten(proxied)


def test_incomplete_or_missing_proxy_header_closes_the_connection_silently(proxied: RunningBridge) -> None:
    """An incomplete header ends the connection within the timeout, without a reply."""
    with ExitStack() as stack:
        clients = [stack.enter_context(proxied.client()) for _ in INCOMPLETE]
        for client, sent in zip(clients, INCOMPLETE, strict=True):
            client.send(sent)
        for client, sent in zip(clients, INCOMPLETE, strict=True):
            assert client.line() == b"", sent
    assert_forgotten(proxied)


def assert_forgotten(bridge: RunningBridge) -> None:
    server = bridge.daemon.servers[0]
    until(lambda: not server.listener.expected and not server.listener.open, "all connections to be gone")


def test_proxy_header_from_a_stranger_is_not_read(proxied: RunningBridge) -> None:
    """Only a trusted peer may name a client; others are disconnected immediately."""
    with proxied.client("127.0.0.9") as client:
        assert client.line() == b""


def test_cap_per_client_counts_the_client_behind_the_proxy(proxied: RunningBridge) -> None:
    """All connections come from the proxy; the limit applies to each client behind it."""
    clients = [proxied.client() for _ in range(5)]
    greetings = []
    for client, address in zip(clients, (b"7", b"7", b"7", b"8", b"9"), strict=True):
        client.send(b"PROXY TCP4 192.0.2." + address + b" 127.0.0.1 1 2\r\n")
        greetings.append(client.reply()[:3])
    for client in clients:
        client.close()
    assert greetings == [b"220", b"220", b"421", b"220", b"220"]


def test_proxy_header_on_a_plain_port_changes_nothing(guarded: RunningBridge) -> None:
    """On a port without PROXY, the header is just a bad command."""
    with guarded.client("127.0.0.9") as client:
        client.reply()
        assert client.say(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2") == [b"500 5.5.2 Error: command not recognized"]
        client.say(b"EHLO x")
        assert client.say(b"MAIL FROM:<>")[0].startswith(b"550 5.7.1 ")
    with guarded.client() as client:
        client.reply()
        client.send(V2_IPV4)
        client.send(b"\r\nEHLO x\r\n")
        while client.reply()[:3] != b"250":
            pass
        assert client.mail().startswith(b"250")
    assert "remoteAddress" not in guarded.scanner.submissions[-1].parameters["borderMtaData"]
    guarded.scanner.submissions.clear()
    guarded.next_hop.mails.clear()
