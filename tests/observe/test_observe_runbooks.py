"""The runbooks: what they tell an operator to look for appears when the problem is real."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.errors import FailureLabel
from bridge.testing import RunningBridge, answer, result, running_bridge
from tests.daemon.process_kit import until
from tests.observe.observe_kit import ROOT
from tests.observe.test_observe_metrics import scrape, total, value

TEXT = (ROOT / "docs" / "operate" / "runbooks.md").read_text()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "bridge").rglob("*.py"))
GREPS = sorted(set(re.findall(r"journalctl -u scanbridge [^|`]*\| grep (?:-\w+ ?\d? )*'([^']+)'", TEXT)))


def section(alert: str) -> str:
    found = re.search(rf"^## {alert}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, alert
    return found[1]


def test_the_runbooks_have_patterns_for_the_log() -> None:
    assert len(GREPS) > 8, GREPS


@pytest.mark.parametrize("pattern", GREPS)
def test_the_program_logs_what_the_runbooks_search_for(pattern: str) -> None:
    """The patterns occur literally in the source; the values of `error=` are those of the metrics."""
    if pattern.strip().startswith("error="):
        words = set(re.findall(r"\w+", pattern)) - {"error"}
        assert words <= set(FailureLabel)
        return
    for word in pattern.split("|"):
        assert word in SOURCE, word


def test_every_reason_has_its_row_in_the_table_of_deferred_mail() -> None:
    """Except too_large, which is refused permanently."""
    table = section("ScanbridgeMailDeferred")
    missing = {label.value for label in FailureLabel if f"`{label}`" not in table}
    assert missing == {"too_large"}


def refuse(bridge: RunningBridge) -> None:
    bridge.scanner.reply = answer(401)


def fail(bridge: RunningBridge) -> None:
    bridge.scanner.reply = answer(500)


def talk_nonsense(bridge: RunningBridge) -> None:
    bridge.scanner.reply = answer(200, b"<html>login</html>")


def close_next_hop(bridge: RunningBridge) -> None:
    bridge.next_hop.replies = {b"CONNECT": b"554 no"}


def quarantine(bridge: RunningBridge) -> None:
    bridge.scanner.reply = answer(200, result("quarantine"))


PROBLEMS: list[tuple[str, Callable[[RunningBridge], None], str, str]] = [
    ("ScanbridgeCredentialsRefused", refuse, "refused", "refused the request"),
    ("ScanbridgeScansFail", fail, "unavailable", "error=unavailable"),
    ("ScanbridgeScansFail", talk_nonsense, "malformed", "error=malformed"),
    ("ScanbridgeNextHopDown", close_next_hop, "next_hop", "error=next_hop"),
    ("ScanbridgeQuarantineFails", quarantine, "quarantine", "could not be quarantined"),
]


@pytest.mark.parametrize(
    ("alert", "cause", "reason", "words"), PROBLEMS, ids=[f"{problem[0]}-{problem[2]}" for problem in PROBLEMS]
)
def test_a_real_problem_is_found_as_the_runbook_says(tmp_path: Path, caplog, alert, cause, reason, words) -> None:
    """The reason in the metrics leads to the section; the log has the words it searches for, and the cause."""
    caplog.set_level("INFO")
    assert re.search(words.replace("=", ".*"), section(alert))
    assert f"#{alert.lower()}" in section("ScanbridgeMailDeferred")
    with running_bridge(tmp_path, {"quarantine": {"max_size": "1B"}}) as bridge:
        cause(bridge)
        with bridge.client() as client:
            client.open()
            assert client.mail()[:1] == b"4"
        found = scrape(bridge.admin_port)
        assert (
            value(found, "scanbridge_failures_total", reason=reason) == 1 == total(found, "scanbridge_failures_total")
        )
        until(lambda: [message for message in caplog.messages if words in message], words)
        assert [message for message in caplog.messages if f"error={reason}" in message and " why=" in message]
