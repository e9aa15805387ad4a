"""Why a mail looks like phishing, in words: from the service's answer to everything that people read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import MAX_REASON, MAX_REASONS, AnalysisResult
from bridge.runtime import yaml_file
from bridge.testing import answer, configuration, result, running_bridge
from tests.daemon.process_kit import scanbridge
from tests.filter.smtp_kit import send
from tests.history.test_history_daemon import history

CLAIM = "claims to be PayPal, sent from example.biz"
HOSTILE = "<b onclick=x>\x1b[2J\u202ehello"


@pytest.mark.parametrize("addresses", ["full", "domain", "hashed"])
def test_reasons_are_kept_and_told(tmp_path: Path, addresses: str) -> None:
    """`quarantine show` and `explain` say why in words; a history without addresses has no names either."""
    config: dict[str, Any] = {"log": {"addresses": addresses}}
    with running_bridge(tmp_path, config) as bridge:
        file = tmp_path / "bridge.yml"
        file.write_text(yaml_file.dump(configuration(tmp_path, bridge.scanner, bridge.next_hop, config)))
        bridge.scanner.reply = answer(200, result("quarantine", reasons=[CLAIM, HOSTILE]))
        assert send(bridge, b"Subject: x\r\n\r\nx\r\n").startswith("250 ")
        (kept,) = bridge.quarantined
        (entry,) = history(bridge)
        assert entry.get("reasons", [None])[0] == (CLAIM if addresses == "full" else None)
        shown = scanbridge("quarantine", "show", kept.stem, "-c", file).stdout
        assert CLAIM in shown and "\x1b" not in shown and "\u202e" not in shown
        told = scanbridge("explain", kept.stem, "-c", file).stdout
        assert (f"Reasons for suspicion: {CLAIM}; " in told) == (addresses == "full")


@pytest.mark.parametrize("given", [None, "text", {"a": 1}, [1, None, []], [], 7])
def test_odd_reasons_are_none(given: object) -> None:
    """A service that sends something else is understood without them."""
    assert AnalysisResult.from_json(json.dumps({"decision": "deliver", "reasons": given}).encode()).reasons == ()


def test_reasons_are_few_short_and_printable() -> None:
    """Whatever a service sends, it fills neither a page nor a database."""
    body = json.dumps({"decision": "deliver", "reasons": [HOSTILE, "\U0001d173" * 10**6, *["x" * 10**4] * 1000]})
    found = AnalysisResult.from_json(body.encode()).reasons
    assert len(found) == MAX_REASONS and all(len(text) <= MAX_REASON and text.isprintable() for text in found)
    assert (
        AnalysisResult.from_json(json.dumps(AnalysisResult.from_json(body.encode()).to_dict()).encode()).reasons
        == found
    )
