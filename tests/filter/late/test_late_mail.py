"""A mail whose scan takes longer than its deadline, as the client sees it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.testing import RunningBridge, answer, result, running_bridge
from tests.filter.smtp_kit import MAIL, Client, Gate, counted, mail_lines, send, until
from tests.hostile.hostile_kit import Hanging, bridge_process

SHORT_DEADLINE: dict[str, Any] = {"deadline": "1s"}  # a tenth of it is reserved for the relay


def test_the_retry_is_answered_from_the_late_decision(tmp_path: Path) -> None:
    """451, another 451 while the scan runs, then immediate delivery; the scanner saw the mail once."""
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge, mail_lines() as lines:
        gate = Gate(bridge, answer(200, result(verdict="late")))
        assert send(bridge).startswith("451 4.4.7 ")
        assert bridge.daemon.admission.in_processing == 1 and bridge.daemon.spool.in_use == 0
        assert counted(bridge, "late_scans_running") == 1
        assert send(bridge, b"Received: from x by y; now\r\n" + MAIL).startswith("451 4.4.7 ")
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
        assert send(bridge, b"Received: from x by y; later\r\n" + MAIL) == "250 2.0.0 Ok: queued as NEXT1"
        assert b"X-Scan-Verdict: late\r\n" in bridge.next_hop.mails[0].content
        assert len(bridge.scanner.submissions) == 1
        assert [line.get("late") for line in lines] == ["awaited", "running", "hit"]
        assert [line["scan_ms"] for line in lines][1:] == [0, 0]
        assert lines[1]["error"] == "deadline" and "error" not in lines[2]
        for name in ("awaited", "running", "hit"):
            assert counted(bridge, "late_mails_total", late=name) == 1
        assert counted(bridge, "late_scans_total", end="kept") == 1
        assert counted(bridge, "late_scans_running") == 0


@pytest.mark.parametrize(
    ("decision", "start"), [("bounce", "550 5.7.1 "), ("drop", "250 2.0.0 "), ("quarantine", "250 ")]
)
def test_every_decision_can_come_late(tmp_path: Path, decision: str, start: str) -> None:
    """The policy is applied when the mail is sent again."""
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge:
        gate = Gate(bridge, answer(200, result(decision)))
        assert send(bridge).startswith("451 4.4.7 ")
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
        assert send(bridge).startswith(start)
        assert not bridge.next_hop.mails and len(bridge.scanner.submissions) == 1


def test_another_mail_is_scanned_meanwhile(tmp_path: Path) -> None:
    """Same sender and recipient, other content: it gets its own decision over its own connection."""
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge:
        gate = Gate(bridge, answer(200, result("bounce")))
        assert send(bridge).startswith("451 4.4.7 ")
        bridge.scanner.reply = answer(200, result("deliver"))
        assert send(bridge, MAIL + b"other\r\n").startswith("250 ")
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
        assert send(bridge).startswith("550 ")
        assert send(bridge, MAIL + b"other\r\n").startswith("250 ")
        assert len(bridge.scanner.submissions) == 3


def test_a_decision_survives_a_restart(tmp_path: Path) -> None:
    """The next process answers from the file; its scanner gets no mail."""
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge:
        gate = Gate(bridge, answer(200, result("bounce")))
        assert send(bridge).startswith("451 4.4.7 ")
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge, mail_lines() as lines:
        assert send(bridge).startswith("550 5.7.1 ")
        assert lines[0]["late"] == "hit" and not bridge.scanner.submissions


def test_a_stopped_program_leaves_its_decision_to_the_next_one(tmp_path: Path) -> None:
    """The same with SIGTERM and two processes: the second one's scanner gets no mail."""
    hanging = Hanging()
    with bridge_process(tmp_path, is_program=False, **SHORT_DEADLINE) as bridge:
        bridge.scanner.reply = hanging
        with bridge.client() as client:
            client.open()
            assert client.mail().startswith(b"451 4.4.7 ")
        bridge.background.loop.call_soon_threadsafe(hanging.release.set)
        bridge.terminate()
        assert bridge.wait(60) == 0
    with bridge_process(tmp_path, is_program=False, **SHORT_DEADLINE) as bridge:
        with bridge.client() as client:
            client.open()
            assert client.mail().startswith(b"250 ")
        assert len(bridge.next_hop.mails) == 1 and not bridge.scanner.submissions


def test_a_stop_waits_for_a_late_scan(tmp_path: Path) -> None:
    """Within the drain timeout: no scan is wasted."""
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge:
        gate = Gate(bridge, answer(200, result("bounce")))
        assert send(bridge).startswith("451 4.4.7 ")
        threading.Timer(0.2, gate.open).start()
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge:
        assert send(bridge).startswith("550 5.7.1 ")


def test_memory_does_not_survive(tmp_path: Path) -> None:
    """With `store: memory`, the mail is scanned again."""
    config = {"late_decisions": {"store": "memory"}}
    for start in ("451 4.4.7 ", "451 4.4.7 "):
        with running_bridge(tmp_path, config, **SHORT_DEADLINE) as bridge:
            gate = Gate(bridge, answer(200, result("bounce")))
            assert send(bridge).startswith(start)
            gate.open()
            until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
            assert send(bridge).startswith("550 ")
            assert not (tmp_path / "state" / "late.sqlite").exists()


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


def test_with_store_off_the_scan_is_abandoned_at_the_deadline(tmp_path: Path) -> None:
    """The connection is closed, the slot is free, and every attempt is a new scan."""
    with running_bridge(tmp_path, {"late_decisions": {"store": "off"}}, **SHORT_DEADLINE) as bridge:
        bridge.scanner.reply = _hang
        for count in (1, 2):
            assert send(bridge).startswith("451 4.4.7 ")
            assert bridge.daemon.admission.in_processing == 0 and len(bridge.scanner.submissions) == count
        until(lambda: bridge.scanner.in_flight == 0, "the connections to close")


@pytest.mark.parametrize("end", ["fails", "undecided", "hangs up"])
def test_a_late_scan_that_fails_is_tried_again(tmp_path: Path, end: str) -> None:
    """The retry is scanned, because there was no decision."""
    answers = {"fails": answer(500), "undecided": answer(200, result("undecided")), "hangs up": b""}
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge:
        gate = Gate(bridge, answers[end])
        if end == "hangs up":
            bridge.scanner.reply = _close_after(gate)
        assert send(bridge).startswith("451 4.4.7 ")
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
        bridge.scanner.reply = answer(200, result("bounce"))
        assert send(bridge).startswith("550 ")
        assert counted(bridge, "late_scans_total", end="failed") == 1


def _close_after(gate: Gate) -> Any:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate._open.wait()
        writer.close()

    return reply


def test_the_scan_of_a_mail_relayed_at_its_deadline_is_abandoned(tmp_path: Path) -> None:
    """The mail will not be sent again."""
    with running_bridge(tmp_path, {"policy": {"deadline": "relay"}}, **SHORT_DEADLINE) as bridge:
        bridge.scanner.reply = _hang
        assert send(bridge).startswith("250 ")
        assert b"X-Scan-Unscanned: deadline\r\n" in bridge.next_hop.mails[0].content
        assert bridge.daemon.admission.in_processing == 0


def test_a_late_scan_holds_its_slot(tmp_path: Path) -> None:
    """The scanner is working on the mail, so it counts: the next one is refused at MAIL."""
    admission = {"max_in_processing": 1, "throttle_threshold": 1}
    with running_bridge(tmp_path, {"admission": admission}, **SHORT_DEADLINE) as bridge:
        gate = Gate(bridge, answer(200, result()))
        assert send(bridge).startswith("451 4.4.7 ")
        with Client(bridge) as client:
            client.say("EHLO x")
            assert client.say("MAIL FROM:<a@b>").startswith("451 4.3.2 ")
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
        assert send(bridge).startswith("250 ")


def test_large_mail_can_come_late_too(tmp_path: Path) -> None:
    """Its content is not kept while the scan runs."""
    large = MAIL + b"0123456789abcdef" * 4 * 1024 * 48 + b"\r\n"
    with running_bridge(tmp_path, **SHORT_DEADLINE) as bridge:
        gate = Gate(bridge, answer(200, result()))
        assert send(bridge, large).startswith("451 4.4.7 ")
        assert bridge.daemon.spool.in_use == 0
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
        assert send(bridge, large).startswith("250 ")
        assert len(bridge.scanner.submissions) == 1


def test_mail_is_not_hashed_while_nothing_is_late(bridge: RunningBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without late mail, late decisions cost nothing."""

    def never(*_: object) -> bytes:
        raise AssertionError

    late = bridge.daemon.late
    assert late is not None
    monkeypatch.setattr(late, "settings", replace(late.settings, hash_envelope=never, hash_mail=never))
    assert send(bridge).startswith("250 ")
