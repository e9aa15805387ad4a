"""How a decision came about: the scores that the service used, and the row of its table that decided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.api.scanning import MAX_SCORES, AnalysisResult, Decision, Scoring, readable_scoring
from bridge.service.analysis.decision import ENGINES, MODEL, NOT_DELIVERED, OTHERWISE, DecisionTable
from bridge.service.decision_settings import DecisionRule, Decisions
from tests.service.service_kit import CONFIG, GTUBE, mail, service


@pytest.mark.parametrize(
    ("tags", "engines", "model", "scoring"),
    [
        (set(), 0.0, 0.0, None),
        ({"auth:spf-pass"}, -3.0, 0.0, None),
        ({"malware:eicar"}, 0.0, 0.0, Scoring("rule 1 (tags malware:*)")),
        ({"url:punycode"}, 0.0, 0.0, Scoring(OTHERWISE, 0.5, (("url:punycode", 0.5),))),
        ({"incomplete"}, 1.0, 0.0, Scoring("rule 5 (tags incomplete)", 1.0, ((ENGINES, 1.0),))),
        (
            {"mime:macro", "header:bad-date"},
            2.0,
            1.25,
            Scoring(
                "rule 11 (a score of 8 or more)",
                8.25,
                (("mime:macro", 4.0), (ENGINES, 2.0), (MODEL, 1.25), ("header:bad-date", 1.0)),
            ),
        ),
    ],
)
def test_each_score_and_the_rule_are_reported(
    tags: set[str], engines: float, model: float, scoring: Scoring | None
) -> None:
    """A clean mail has nothing to report, so its answer stays short."""
    table = DecisionTable(Decisions())
    assert table.scoring(table.decide(tags, engines, model), tags, engines, model) == scoring


def test_the_configured_scores_and_rules_are_reported() -> None:
    """`quarantine show` had the defaults, which may be others than those that decided."""
    both = DecisionRule(tags=["url:*", "x"], score=2.5, verdict="links", decision=Decision.DROP)
    table = DecisionTable(Decisions(rules=[both], scores={"url:punycode": 3.0, "x": -0.5}))
    tags = {"url:punycode", "x"}
    scores = (("url:punycode", 3.0), ("x", -0.5))
    assert table.scoring(table.decide(tags), tags) == Scoring(
        "rule 1 (tags url:*, x; a score of 2.5 or more)", 2.5, scores
    )
    unsafe = DecisionTable(Decisions(rules=[]))
    assert unsafe.scoring(unsafe.decide({"incomplete"}), {"incomplete"}) == Scoring(NOT_DELIVERED)


def test_the_answer_of_the_service_has_them(tmp_path: Path) -> None:
    """And its reader gets the same from it."""
    with service(tmp_path, CONFIG + "decisions: {scores: {'header:missing-date': 9.5}}\n") as running:
        clean = running.submit(mail()).json
        spam = AnalysisResult.from_json(running.submit(mail(GTUBE)).body)
        body = running.submit(b"From: a@example.org\r\nMessage-ID: <1@example.org>\r\n\r\nx\r\n").body
    assert "scoring" not in clean
    assert spam.scoring is not None and spam.scoring.rule == "rule 3 (tags spam:gtube, rspamd:reject)"
    found = AnalysisResult.from_json(body)
    assert found.scoring is not None and found.scoring.rule == "rule 11 (a score of 8 or more)"
    assert ("header:missing-date", 9.5) in found.scoring.scores
    assert AnalysisResult.from_json(json.dumps(found.to_dict()).encode()) == found


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        ([], None),
        ({"scores": [{"name": "x", "score": 1}]}, None),
        ({"rule": 7}, None),
        ({"rule": "r", "scores": {}, "total": "9"}, Scoring("r")),
        ({"rule": "a\x1b[31m", "total": float("nan"), "scores": ["x", {"name": "y"}]}, Scoring("a?[31m")),
        ({"rule": "r", "total": 10**400, "scores": [{"name": "a\nb", "score": 2}]}, Scoring("r", 0.0, (("a?b", 2.0),))),
        ({"rule": "r", "total": True, "scores": [{"name": "x", "score": float("inf")}]}, Scoring("r")),
    ],
)
def test_what_a_service_reports_is_read_with_care(given: object, read: Scoring | None) -> None:
    """Names, numbers and text are whatever the service sends, and operators read them on a terminal."""
    assert readable_scoring(given) == read
    assert AnalysisResult.from_json(json.dumps({"decision": "drop", "scoring": given}).encode()).scoring == read


def test_a_report_is_bounded() -> None:
    many = [{"name": "n" * 1000, "score": 1}] * 1000
    found = readable_scoring({"rule": "r" * 1000, "total": 1, "scores": many})
    assert found is not None and len(found.scores) == MAX_SCORES
    assert len(found.rule) == 300 and len(found.scores[0][0]) == 100
