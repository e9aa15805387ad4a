"""The runbooks, continued: problems caused on purpose, the metrics their alerts use, the log lines to search for."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge.scanner.client import Scanner
from bridge.testing import RunningBridge, answer, running_bridge
from tests.daemon.process_kit import until
from tests.observe.test_observe_metrics import scrape, value
from tests.observe.test_observe_runbooks import section

LIMIT = {"max_in_processing": 2, "throttle_threshold": 2}


async def hang_up(_: object, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def send(bridge: RunningBridge, subject: str = "x") -> bytes:
    with bridge.client() as client:
        client.open()
        return client.mail(f"Subject: {subject}\r\n\r\nx\r\n".encode())


def number(bridge: RunningBridge, name: str, **labels: str) -> float:
    return value(scrape(bridge.admin_port), name, **labels)


def said(caplog: Any, words: str) -> list[str]:
    return [message for message in caplog.messages if words in message]


def test_no_scanner_can_be_reached(tmp_path: Path, caplog) -> None:
    with running_bridge(tmp_path) as bridge:
        url, fine = bridge.scanner.url, bridge.scanner.reply
        bridge.scanner.reply = hang_up  # on the connection that the status request left open
        bridge.background.run(bridge.scanner.stop())
        for _ in range(2):
            assert send(bridge)[:4] == b"451 "
        assert number(bridge, "scanbridge_scanner_circuit", host=url) >= 1
        until(lambda: said(caplog, "could not be reached: Connection refused"), "the cause in the log")
        assert said(caplog, "its circuit is open")
        bridge.scanner.reply = fine
        bridge.background.run(bridge.scanner.start(port=bridge.scanner.port))
        until(lambda: send(bridge)[:4] == b"250 ", "mail to be scanned again")
        assert number(bridge, "scanbridge_scanner_circuit", host=url) == 0


def test_a_scanner_that_answers_with_errors_is_found_in_the_log(tmp_path: Path, caplog) -> None:
    """Its status is GREEN and it can be reached: only the lines of mails show the error."""
    caplog.set_level("INFO")
    for alert in ("ScanbridgeNoScanner", "ScanbridgeScannerDown"):
        assert "fails to scan mail" in section(alert)
    with running_bridge(tmp_path) as bridge:
        bridge.scanner.reply = answer(500)
        for _ in range(4):
            assert send(bridge)[:4] == b"451 "
        assert number(bridge, "scanbridge_scanner_circuit", host=bridge.scanner.url) >= 1
        assert not said(caplog, "could not be reached")
        until(lambda: said(caplog, f'error=unavailable why="{bridge.scanner.url}: 500'), "the cause in the log")


def test_an_unexpected_error_is_logged_with_its_traceback(tmp_path: Path, caplog, monkeypatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    assert "unexpected error" in section("ScanbridgeInternalErrors")
    monkeypatch.setattr(Scanner, "submit", broken)
    with running_bridge(tmp_path) as bridge:
        assert send(bridge)[:10] == b"451 4.3.0 "
        assert number(bridge, "scanbridge_failures_total", reason="internal") == 1
        (line,) = [record for record in caplog.records if "unexpected error" in record.getMessage()]
        assert line.exc_info and line.exc_info[0] is ZeroDivisionError


def test_saturation_is_reported_with_its_cause(tmp_path: Path) -> None:
    async def never(*_: object) -> None:
        await asyncio.sleep(60)

    assert "`limit`" in section("ScanbridgeSaturated") and "`scanner`" in section("ScanbridgeSaturated")
    with running_bridge(tmp_path, {"admission": LIMIT, "scanner": {"status_interval": "100ms"}}) as bridge:
        bridge.scanner.reply = never
        clients = [bridge.client() for _ in range(2)]
        for client in clients:
            client.open()
            client.begin()
            client.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
            assert bridge.scanner.arrived.acquire(timeout=60)
        assert number(bridge, "scanbridge_saturated", cause="limit") == 1
        assert number(bridge, "scanbridge_saturated", cause="scanner") == 0
        for client in clients:
            client.close()
        bridge.scanner.status = answer(200, b'{"messageQueueStatus": "RED"}')
        until(lambda: number(bridge, "scanbridge_saturated", cause="scanner") == 1, "the status RED")


def test_refused_clients_are_logged(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    assert "' refused: '" in section("ScanbridgeConnectionsRefused")
    with running_bridge(tmp_path, {"limits": {"max_connections_per_client": 1}}) as bridge:
        with bridge.client() as first, bridge.client() as second:
            first.open()
            assert second.reply()[:4] == b"421 "
        assert number(bridge, "scanbridge_connections_refused_total", reason="client_limit") == 1
        assert said(caplog, "127.0.0.1 refused: client_limit")


def test_late_scans_give_their_slots_back_when_the_service_is_restarted(tmp_path: Path) -> None:
    """A restart breaks the connections of the scans, as the runbook says."""
    restarted = asyncio.Event()

    async def hang(_: object, writer: asyncio.StreamWriter) -> None:
        await restarted.wait()
        writer.transport.abort()

    assert "connections of these scans are lost" in section("ScanbridgeLateDecisionsPileUp")
    with running_bridge(tmp_path, {"admission": LIMIT}, deadline="1s") as bridge:
        bridge.scanner.reply = hang
        for subject in ("one", "two"):
            assert send(bridge, subject)[:10] == b"451 4.4.7 "
        assert number(bridge, "scanbridge_late_scans_running") == number(bridge, "scanbridge_in_processing_limit") == 2
        assert send(bridge, "three")[:4] != b"250 "
        bridge.scanner.reply = answer(200, b"{}")
        bridge.background.loop.call_soon_threadsafe(restarted.set)
        until(lambda: number(bridge, "scanbridge_late_scans_running") == 0, "the slots to be free", 30)
        assert number(bridge, "scanbridge_late_scans_total", end="failed") == 2


def test_a_next_hop_that_does_not_answer_is_reported_as_timed_out(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    assert "timed out" in section("ScanbridgeNextHopDown")

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.read()

    with running_bridge(tmp_path, {"relay": {"connect_timeout": "300ms"}}) as bridge:
        bridge.next_hop._serve = frozen  # type: ignore[method-assign, assignment]
        bridge.background.run(bridge.next_hop.stop())
        bridge.background.run(bridge.next_hop.start(port=bridge.next_hop.port))
        assert send(bridge)[:10] == b"451 4.4.1 "
        assert number(bridge, "scanbridge_next_hop_up", next_hop=bridge.next_hop.url) == 0
        until(lambda: said(caplog, f'error=next_hop why="{bridge.next_hop.url}: timed out"'), "the cause in the log")


@pytest.mark.parametrize("words", ["set `SCANBRIDGE_CONFIG` first", "grep -o 'error=.*'"])
def test_the_introduction_has_what_all_sections_need(words: str) -> None:
    """Without SCANBRIDGE_CONFIG the commands would check another configuration and find nothing wrong."""
    runbooks = Path(__file__).parents[2] / "docs" / "operate" / "runbooks.md"
    assert words in runbooks.read_text().split("\n## ", 1)[0]
