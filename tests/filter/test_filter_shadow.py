"""Shadow mode: mail is scanned, logged, counted, and always relayed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import QueueStatus
from bridge.testing import answer, result, running_bridge
from tests.filter.smtp_kit import counted, mail_lines, say, send


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


WORDS: dict[str, tuple[Any, str]] = {
    "deliver": (answer(200, result("deliver")), "relay"),
    "bounce": (answer(200, result("bounce")), "reject"),
    "drop": (answer(200, result("drop")), "discard"),
    "quarantine": (answer(200, result("quarantine")), "quarantine"),
    "undecided": (answer(200, result("undecided")), "tempfail"),
    "too large": (answer(413), "reject"),
    "failing": (answer(500), "tempfail"),
    "hanging": (hang, "tempfail"),
    "full": (answer(429), "tempfail"),
}


def test_shadow_mode_relays_whatever_the_scanner_says(tmp_path: Path) -> None:
    """Log and metrics show what would have been done; nothing is stored or refused."""
    with running_bridge(tmp_path, mode="shadow", deadline="3s") as bridge, mail_lines() as lines:
        for word, (reply, would) in WORDS.items():
            bridge.scanner.reply = reply
            before = counted(bridge, "shadow_mails_total", listener="test", would=would)
            assert send(bridge) == "250 2.0.0 Ok: queued as NEXT1", word
            assert (lines[-1]["would"], lines[-1]["action"]) == (would, "relay")
            assert counted(bridge, "shadow_mails_total", listener="test", would=would) == before + 1
        assert len(bridge.next_hop.mails) == len(WORDS) and not bridge.quarantined
        assert bridge.daemon.admission.in_processing == 0  # the scan of a relayed mail is abandoned
        assert b"X-Scan-Decision: bounce" in bridge.next_hop.mails[1].content
        assert b"X-Scan-Unscanned: unreachable" in bridge.next_hop.mails[6].content


def test_shadow_mode_relays_when_the_scanner_is_unavailable_or_saturated(tmp_path: Path) -> None:
    """Shadow mode never causes a 451."""
    config = {"scanner": {"status_interval": "100ms"}}
    with running_bridge(tmp_path, config, mode="shadow") as bridge, mail_lines() as lines:
        say(bridge, QueueStatus.RED)
        assert send(bridge).startswith("250 ")
        assert lines[0]["would"] == "tempfail" and lines[0]["error"] == "saturated"
        assert not bridge.scanner.submissions


@pytest.mark.parametrize(("percent", "low", "high"), [(0, 0, 0), (50, 5, 35), (100, 40, 40)])
def test_a_share_of_the_mail_can_be_in_shadow(tmp_path: Path, percent: float, low: int, high: int) -> None:
    """The rest is processed normally."""
    with running_bridge(tmp_path, shadow_percent=percent) as bridge, mail_lines() as lines:
        bridge.scanner.reply = answer(200, result("bounce"))
        replies = [send(bridge)[:3] for _ in range(40)]
    assert low <= replies.count("250") <= high
    assert replies.count("250") + replies.count("550") == 40
    assert sum("would" in line for line in lines) == replies.count("250")
