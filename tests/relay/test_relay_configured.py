"""Next hops as operators configure them, in a complete bridge."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bridge.config.relay import Relay
from bridge.testing import NextHop, RunningBridge, free_port, running_bridge

NOBODY = "127.0.0.1:1"


def send(bridge: RunningBridge, *recipients: bytes) -> bytes:
    with bridge.client() as client:
        client.open()
        client.say(b"MAIL FROM:<a@client.example>", *(b"RCPT TO:<" + address + b">" for address in recipients), b"DATA")
        return client.say(b"Subject: x\r\n\r\nx\r\n.")[0]


def test_mail_goes_to_the_second_next_hop_when_the_first_is_down(tmp_path: Path) -> None:
    """The client notices nothing."""
    with running_bridge(tmp_path) as other:
        relay = {"next_hop": f"127.0.0.1:{free_port()}"}
        relay = {"next_hops": [relay["next_hop"], other.next_hop.url], **relay}
        (tmp_path / "second").mkdir()
        with running_bridge(tmp_path / "second", {"relay": relay}) as bridge:
            assert send(bridge, b"b@example.org").startswith(b"250")
        assert len(other.next_hop.mails) == 1


def test_a_domain_has_its_own_route(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with running_bridge(tmp_path) as other:
        relay = {"routes": [{"recipient_domains": ["Own.example"], "next_hop": other.next_hop.url}]}
        with running_bridge(tmp_path / "second", {"relay": relay}) as bridge:
            assert send(bridge, b"b@own.EXAMPLE").startswith(b"250")
            assert (_recipients(other.next_hop), _recipients(bridge.next_hop)) == ([b"b@own.EXAMPLE"], [])
            assert send(bridge, b"b@own.example").startswith(b"250")
            assert send(bridge, b"c@example.org").startswith(b"250")
            assert _recipients(other.next_hop) == [b"b@own.EXAMPLE", b"b@own.example"]
            assert _recipients(bridge.next_hop) == [b"c@example.org"]


@pytest.mark.parametrize(
    ("extensions", "replies", "answer"),
    [
        (("PIPELINING",), {b"EHLO": b"250 next.example\r\n550 5.7.1 Go away"}, b"451 4.4.1 "),  # another may be tried
        ((), {b"RCPT": b"250 2.1.5 Ok\r\n550 5.1.1 No"}, b"451 4.4.2 "),
    ],
    ids=["EHLO", "RCPT"],
)
def test_a_next_hop_that_answers_twice_had_mail_bounced(
    tmp_path: Path, extensions: tuple[str, ...], replies: dict[bytes, bytes], answer: bytes
) -> None:
    """The second answer, a 5xx that no command had asked for, was passed on as the refusal of the mail."""
    with running_bridge(tmp_path) as bridge:
        bridge.next_hop.extensions = extensions or ("8BITMIME",)
        bridge.next_hop.replies = replies
        assert send(bridge, b"b@example.org", b"c@example.org").startswith(answer)
        bridge.next_hop.replies = {}
        assert send(bridge, b"b@example.org", b"c@example.org").startswith(b"250 ")


def test_mail_was_bounced_because_of_a_tls_handshake_that_failed_once(tmp_path: Path) -> None:
    """The mail was sent without TLS instead, and the next hop's 530 to that went to the client, as the mail's fault."""
    with running_bridge(tmp_path) as bridge:
        hop = bridge.next_hop
        hop.extensions = (*hop.extensions, "STARTTLS")
        hop.replies = {
            b"STARTTLS": b"454 4.7.0 TLS not available due to temporary reason",
            b"MAIL": b"530 5.7.0 Must issue a STARTTLS command first",
        }
        assert send(bridge, b"b@example.org") == b"451 4.7.0 Must issue a STARTTLS command first"


@contextmanager
def silent(port: int) -> Iterator[str]:
    """An address at which nobody answers, not even with a refusal: a full backlog is as silent as a dead machine."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.2", port))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(("127.0.0.2", port))
        yield "127.0.0.2"


def test_a_silent_address_kept_all_mail_from_the_others_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took all the time to connect, so the next address was never tried."""
    with running_bridge(tmp_path) as other, silent(other.next_hop.port) as dead:
        look_up, found = socket.getaddrinfo, (dead, "127.0.0.1")

        def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> list[Any]:
            if host != "mx.example.org":
                return look_up(host, *arguments, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        (tmp_path / "second").mkdir()
        relay = {"next_hop": f"mx.example.org:{other.next_hop.port}"}
        with running_bridge(tmp_path / "second", {"relay": relay}) as bridge:
            assert send(bridge, b"b@example.org").startswith(b"250 ")
        assert len(other.next_hop.mails) == 1


def _recipients(hop: NextHop) -> list[bytes]:
    commands = [command for mail in hop.mails for command in mail.commands]
    return [command[9:].partition(b">")[0] for command in commands if command.startswith(b"RCPT TO:<")]


@pytest.mark.parametrize(
    ("relay", "complaint"),
    [
        ({}, "Field required"),
        ({"next_hops": []}, "Field required"),
        ({"next_hop": NOBODY, "next_hops": ["127.0.0.1:2"]}, "not both"),
        ({"next_hops": [NOBODY, NOBODY]}, "twice"),
        ({"next_hop": NOBODY, "routes": [{"recipient_domains": ["a", "A"], "next_hop": NOBODY}]}, "the same domain"),
        ({"next_hop": NOBODY, "routes": [{"recipient_domains": ["a@b"], "next_hop": NOBODY}]}, "a domain is a name"),
        ({"next_hop": NOBODY, "routes": [{"recipient_domains": ["a"]}]}, "Field required"),
    ],
)
def test_invalid_next_hops_are_refused(relay: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Relay.model_validate(relay)


def test_the_effective_configuration_can_be_loaded_again() -> None:
    """`scanbridge config show` prints a file that works."""
    relay = Relay.model_validate({"next_hops": [NOBODY, "lmtp+unix:/run/lmtp"]})
    assert Relay.model_validate(relay.model_dump(mode="json")) == relay
