"""Copies in the quarantine of mail that its client sends again: each attempt stores its own, and one must stay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.lists.personal_store import FILE, PersonalLists
from bridge.runtime.database import Database
from bridge.testing import RunningBridge, running_bridge, until
from tests.filter.smtp_kit import Client, mail_lines, send
from tests.filter.test_filter_outcomes import filter_of

ANNA, BEN = "anna@example.org", "ben@example.org"
OFF: dict[str, Any] = {"late_decisions": {"store": "off"}}
COPIED: dict[str, Any] = {"policy": {"deliver": {"action": "relay", "keep_copy": True}}}


class Silent:
    """A next hop that never answers."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    async def deliver(self, *_: object) -> None:
        self.asked.set()
        await asyncio.Event().wait()


@contextmanager
def client_gone_while_relaying(bridge: RunningBridge, **envelope: Any) -> Iterator[None]:
    """The client disconnects before the next hop has answered."""
    actions, silent = filter_of(bridge)._actions, Silent()
    usual, actions._relay = actions._relay, silent  # type: ignore[assignment]
    try:
        with mail_lines() as lines:
            with Client(bridge) as client:
                client.begin(**envelope)
                client.say("DATA")
                client.content()
                assert silent.asked.wait(60)
                assert bridge.quarantined
            until(lambda: lines, "the end of the mail")
        yield
    finally:
        actions._relay = usual


@pytest.mark.parametrize(
    "reply, copies", [(b"451 4.3.0 Later", 0), (b"", 0), (b"550 5.7.1 No", 2), (b"250 2.0.0 Ok", 2)]
)
def test_each_attempt_left_another_copy_while_the_next_hop_deferred_the_mail(
    tmp_path: Path, reply: bytes, copies: int
) -> None:
    """A copy stays of mail that is delivered, or refused for good."""
    with running_bridge(tmp_path, OFF | COPIED) as bridge:
        bridge.next_hop.replies[b"."] = reply
        for _ in range(2):
            assert send(bridge).startswith(reply[:3].decode() or "451")
        assert len(bridge.quarantined) == copies


def test_a_copy_stays_if_some_recipients_have_the_mail(tmp_path: Path) -> None:
    with running_bridge(tmp_path, OFF | COPIED, protocol="lmtp") as bridge:
        bridge.next_hop.replies[f"RCPT <{BEN}>".encode()] = b"451 4.3.0 Later"
        with Client(bridge) as client:
            client.say("LHLO client.example")
            client.say("MAIL FROM:<a@example.org>")
            for recipient in (ANNA, BEN):
                client.say(f"RCPT TO:<{recipient}>")
            client.say("DATA")
            client.content()
            assert [client.read()[:3], client.read()[:3]] == ["250", "451"]
        assert len(bridge.quarantined) == 1


def test_the_copy_of_a_mail_stayed_whose_client_disconnected(tmp_path: Path) -> None:
    with running_bridge(tmp_path, OFF | COPIED) as bridge:
        with client_gone_while_relaying(bridge):
            until(lambda: not bridge.quarantined, "the end of the copy")
        assert send(bridge).startswith("250 ") and len(bridge.quarantined) == 1


def test_the_withheld_part_stayed_if_the_client_disconnected(tmp_path: Path) -> None:
    """The client sends the mail again, and Anna had it twice in her quarantine."""
    with running_bridge(tmp_path, OFF) as bridge:
        lists = PersonalLists(Database.file(tmp_path / "state" / FILE))
        lists.block(ANNA, "news@shop.example")
        until(lambda: len(bridge.daemon.personal.table) == 1, "the entry in memory")
        people = {"sender": "news@shop.example", "recipients": (ANNA, BEN)}
        with client_gone_while_relaying(bridge, **people):
            until(lambda: not bridge.quarantined, "the end of the withheld part")
        assert send(bridge, **people).startswith("250 ") and len(bridge.quarantined) == 1
        lists.close()
