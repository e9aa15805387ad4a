"""Next hops as operators configure them, in a complete bridge."""

from __future__ import annotations

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
