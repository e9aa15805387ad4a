"""Copies in the quarantine of mail that its client sends again: each attempt stores its own, and one must stay."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.api.changes import Changes
from bridge.api.scanning import AnalysisResult
from bridge.lists.personal_store import FILE, PersonalLists
from bridge.runtime.database import Database
from bridge.testing import RunningBridge, answer, result, running_bridge, until
from tests.filter.smtp_kit import MAIL, Client, mail_lines, send
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


def test_a_mail_to_be_held_was_deferred_for_ever_and_left_a_copy_each_time(tmp_path: Path) -> None:
    """Without a milter, `hold` stores the mail here: its copy had taken the name."""
    policy = {"quarantine": {"action": "hold", "keep_copy": True}}
    with running_bridge(tmp_path, OFF | {"policy": policy}) as bridge:
        bridge.scanner.reply = answer(200, result("quarantine"))
        assert send(bridge).startswith("250 ")
        (kept,) = bridge.quarantined
    assert "copy_of" not in json.loads(kept.with_suffix(".json").read_text())["facts"]


def test_a_mail_that_a_milter_cannot_hold_left_a_copy_with_each_attempt(tmp_path: Path) -> None:
    policy = {"quarantine": {"action": "hold", "keep_copy": True}}
    with running_bridge(tmp_path, OFF | {"policy": policy}, protocol="milter") as bridge:
        bridge.scanner.reply = answer(200, result("quarantine"))
        assert bridge.background.run(end_of_body(bridge.port)).startswith(b"y451 ") and not bridge.quarantined


async def end_of_body(port: int) -> bytes:
    """What a milter client that can do nothing with a mail is told about one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        for command, payload in ((b"O", bytes(3) + b"\6" + bytes(8)), *MILTER_MAIL):
            writer.write((1 + len(payload)).to_bytes(4) + command + payload)
            answered = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    return answered


MILTER_MAIL = (
    (b"C", b"mx.example\0U"),
    (b"M", b"<a@example.org>\0"),
    (b"R", b"<b@example.org>\0"),
    (b"L", b"Subject\0x\0"),
    (b"E", b""),
)


def test_a_copy_took_the_place_of_a_mail_that_is_quarantined_instead_of_bounced(tmp_path: Path) -> None:
    """After a queue, a sender had a mail deferred for ever: the scanner's changes to it cannot all be made."""
    wanted = Changes(remove=(("x-old", 0),))
    with running_bridge(tmp_path, OFF | COPIED, profile="postfix-content-filter") as bridge:
        scanner = filter_of(bridge)._scanner

        async def decide(*_: object) -> AnalysisResult:
            return replace(AnalysisResult.from_json(result()), changes=wanted)

        scanner.submit = decide  # type: ignore[method-assign]
        assert send(bridge, b"X-Old: x\r\n" * 501 + MAIL).startswith("250 ")
        (kept,) = bridge.quarantined
    facts = json.loads(kept.with_suffix(".json").read_text())["facts"]
    assert facts["reason"] == "refused" and "copy_of" not in facts
