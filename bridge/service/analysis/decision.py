"""From tags and scores to verdict and decision, by the table in the configuration.

Pure: the same tags give the same answer. Two rules stand above the table. A mail that was not
looked at completely (tag `incomplete`) is never delivered, unless a rule names that tag itself.
And a tag has one score, wherever it came from and however often.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate

from bridge.api.scanning import Decision
from bridge.service.settings import Decisions

INCOMPLETE = "incomplete"

# What a tag weighs unless `decisions.scores` says otherwise. docs/service.md explains each.
TAG_SCORES: dict[str, float] = {
    "mime:executable": 8.0,
    "mime:double-extension": 5.0,
    "mime:deceptive-name": 5.0,
    "mime:type-mismatch": 4.0,
    "mime:encrypted-archive": 4.0,
    "mime:macro": 4.0,
    "mime:nested-archive": 1.0,
    "mime:broken-archive": 2.0,
    "mime:unopened-archive": 2.0,
    "url:mismatch": 3.0,
    "url:userinfo": 2.0,
    "url:ip-host": 2.0,
    "url:punycode": 0.5,
    "header:missing-from": 2.0,
    "header:missing-date": 1.0,
    "header:missing-message-id": 0.5,
    "header:bad-date": 1.0,
    "header:duplicate": 2.0,
    "header:several-from": 1.0,
    "header:display-address": 2.0,
    "header:reply-to-differs": 0.5,
    "auth:spf-fail": 3.0,
    "auth:spf-softfail": 1.0,
    "auth:dkim-fail": 1.0,
    "auth:dmarc-reject": 10.0,
    "auth:dmarc-quarantine": 8.0,
    "clamav:encrypted": 4.0,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: str
    decision: Decision
    score: float


class DecisionTable:
    def __init__(self, settings: Decisions) -> None:
        self._scores = {**TAG_SCORES, **settings.scores}
        self._otherwise = settings.otherwise
        self._rules = [
            (re.compile("|".join(translate(tag) for tag in rule.tags)) if rule.tags else None, rule)
            for rule in settings.rules
        ]

    def decide(self, tags: set[str], extra_score: float = 0.0) -> Outcome:
        score = round(extra_score + sum(self._scores.get(tag, 0.0) for tag in tags), 2)
        for pattern, rule in self._rules:
            if pattern is not None and not any(map(pattern.match, tags)):
                continue
            if rule.score is not None and score < rule.score:
                continue
            if self._unsafe(rule.decision, tags) and not (pattern and pattern.match(INCOMPLETE)):
                continue
            return Outcome(rule.verdict, rule.decision, score)
        if self._unsafe(self._otherwise, tags):
            return Outcome("incomplete", Decision.UNDECIDED, score)
        return Outcome("clean", self._otherwise, score)

    @staticmethod
    def _unsafe(decision: Decision, tags: set[str]) -> bool:
        return decision is Decision.DELIVER and INCOMPLETE in tags
