"""A bridge whose listener enforces lists of the real service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.testing import RunningBridge, running_bridge
from tests.filter.smtp_kit import Client, until
from tests.lists.lists_kit import TENANT, Service

TENANTS = [{"uid": TENANT, "recipient_domains": ["tenant.example"]}]

LISTS: dict[tuple[str, str | None], dict[str, str]] = {
    ("blocked-senders", None): {"bad@sender.example": "", "@worse.example": "", "both@sender.example": ""},
    ("blocked-senders", TENANT): {"unwanted@sender.example": "the tenant's own"},
    ("blocked-domains", None): {"evil.example": "", "bücher.example": ""},
    ("blocked-networks", None): {"192.0.2.0/24": "", "2001:db8:bad::/48": "", "198.51.100.7": ""},
    ("allowed-networks", None): {"203.0.113.0/24": "partners", "127.0.0.0/8": "a trap", "192.0.2.200": ""},
    ("allowed-senders", None): {"friend@sender.example": "", "both@sender.example": ""},
    ("closed-mailboxes", None): {
        "gone@example.org": "",
        "gone@example.net": "",
        "press@example.org": "",
        "@closed.example": "",
    },
    ("closed-mailboxes", TENANT): {"retired@tenant.example": ""},
}
BLOCK = ["blocked-senders", "blocked-domains", "blocked-networks"]


def fill(service: Service) -> None:
    for (name, tenant), entries in LISTS.items():
        service.add(name, entries, tenant)


def section(service: Any, **more: Any) -> dict[str, Any]:
    return {"url": service.url, "api_key_file": str(service.key_file), "refresh": "1h", **more}


@contextmanager
def door(
    directory: Path, service: Any, lists: dict[str, Any], config: dict[str, Any] | None = None, **listener: Any
) -> Iterator[RunningBridge]:
    """A bridge that enforces these lists, after it has fetched them."""
    given = {"lists": section(service), "tenants": TENANTS, **(config or {})}
    with running_bridge(directory, given, lists=lists, **listener) as bridge:
        until(lambda: not bridge.daemon.list_refresh.copies.missing(), "the local copies of the lists", 30.0)
        yield bridge


def forwarded(client: Client, address: str) -> None:
    """Send an XFORWARD command with this client address, as a mail server does."""
    client.say("EHLO mx.example")
    kind = "IPV6:" if ":" in address else ""
    assert client.say(f"XFORWARD ADDR={kind}{address}").startswith("250")


def offer(bridge: RunningBridge, sender: str = "good@sender.example", recipient: str = "b@example.org") -> str:
    """Send one mail, up to the first refusal; returns the last reply."""
    with Client(bridge) as client:
        client.say("EHLO mx.example")
        for command in (f"MAIL FROM:<{sender}>", f"RCPT TO:<{recipient}>", "DATA"):
            reply = client.say(command)
            if reply[0] not in "23":
                return reply
        client.content()
        return client.read()
