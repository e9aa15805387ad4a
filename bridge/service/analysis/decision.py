"""The decision table: turns tags and scores into a verdict and a decision.

Pure: the same tags always give the same result. Four rules override the table:

- A mail that was not inspected completely (tag `incomplete`) is never delivered, unless a rule names that tag itself.
- Each tag counts once, no matter where it came from or how often.
- The scores of engines together never count below 0: a sender with good DKIM signatures gets a negative score from
  rspamd, which must not outweigh an attached program.
- The points of the phishing model never count for a rule that bounces or drops mail: the model may be wrong, and a
  mail in the quarantine can be released.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import Protocol

from bridge.api.scanning import MAX_RULE, MAX_SCORES, AnalysisResult, Decision, Scoring
from bridge.service.analysis.default_scores import TAG_SCORES
from bridge.service.analysis.job import utc_now
from bridge.service.decision_settings import DecisionRule, Decisions

INCOMPLETE = "incomplete"
ENGINES, MODEL = "engines", "phishing model"  # what has a score besides tags
_FINAL = frozenset({Decision.BOUNCE, Decision.DROP})
_DOUBTS = frozenset(
    {"auth:dmarc-temperror", "auth:dmarc-permerror"}
)  # a reason to hold a mail, but never to return or drop it

OTHERWISE = "otherwise (no rule matched)"
NOT_DELIVERED = "otherwise (no rule matched; a mail that is incomplete is not delivered)"


@dataclass(frozen=True, slots=True)
class Assessment:
    verdict: str
    decision: Decision
    score: float
    rule: str = ""  # which row of the table decided, in words


class DecisionTable:
    def __init__(self, settings: Decisions) -> None:
        self._scores = {**TAG_SCORES, **settings.scores}
        self._otherwise = settings.otherwise
        self._rules = [
            (
                re.compile("|".join(translate(tag) for tag in rule.tags)) if rule.tags else None,
                rule,
                _in_words(row, rule),
            )
            for row, rule in enumerate(settings.rules, 1)
        ]

    def decide(self, tags: set[str], extra_score: float = 0.0, model_points: float = 0.0) -> Assessment:
        certain = max(0.0, extra_score) + sum(self._scores.get(tag, 0.0) for tag in tags - _DOUBTS)
        doubts = sum(self._scores.get(tag, 0.0) for tag in tags & _DOUBTS)
        score = round(certain + doubts + model_points, 2)
        for pattern, rule, words in self._rules:
            if pattern is not None and not any(map(pattern.match, tags)):
                continue
            if rule.score is not None and (round(certain, 2) if rule.decision in _FINAL else score) < rule.score:
                continue
            if self._unsafe(rule.decision, tags) and not (pattern and pattern.match(INCOMPLETE)):
                continue
            return Assessment(rule.verdict, rule.decision, score, words)
        if self._unsafe(self._otherwise, tags):
            return Assessment("incomplete", Decision.UNDECIDED, score, NOT_DELIVERED)
        return Assessment("clean", self._otherwise, score, OTHERWISE)

    def scoring(
        self, made: Assessment, tags: set[str], extra_score: float = 0.0, model_points: float = 0.0
    ) -> Scoring | None:
        """How an assessment of these tags came about. None if there is nothing to report: no rule matched, no score."""
        parts = {tag: self.score_of(tag) for tag in tags} | {ENGINES: max(0.0, extra_score), MODEL: model_points}
        scores = sorted(((name, round(score, 2)) for name, score in parts.items() if score), key=_largest_first)
        if not scores and made.rule == OTHERWISE:
            return None
        return Scoring(made.rule, made.score, tuple(scores[:MAX_SCORES]))

    def score_of(self, tag: str) -> float:
        return self._scores.get(tag, 0.0)

    @staticmethod
    def _unsafe(decision: Decision, tags: set[str]) -> bool:
        return decision is Decision.DELIVER and INCOMPLETE in tags


def _largest_first(score: tuple[str, float]) -> tuple[float, str]:
    return -abs(score[1]), score[0]


def _in_words(row: int, rule: DecisionRule) -> str:
    """Its place in `decisions.rules`, counted from 1, and its conditions."""
    conditions = [f"tags {', '.join(rule.tags)}"] if rule.tags else []
    conditions += [f"a score of {rule.score:g} or more"] if rule.score is not None else []
    return f"rule {row} ({'; '.join(conditions)})"[:MAX_RULE]


def delivered_anyway(settings: Decisions) -> list[str]:
    """Tags of mail that should not be delivered, but is delivered with these settings if nothing else is found."""
    table = DecisionTable(settings)
    found = {"malware:*": table.decide({"malware:any"}), INCOMPLETE: table.decide({INCOMPLETE})}
    return [tag for tag, assessment in found.items() if assessment.decision is Decision.DELIVER]


class Identified(Protocol):
    """An analysis, whether or not its mail is at hand."""

    @property
    def ggrid(self) -> str: ...

    @property
    def created(self) -> str: ...


def unfinished(job: Identified, tag: str) -> AnalysisResult:
    """The result of an analysis that could not be carried out; the mail is never delivered because of it."""
    return AnalysisResult(
        decision=Decision.UNDECIDED,
        ggrid=job.ggrid,
        verdict=INCOMPLETE,
        tags=(tag, INCOMPLETE),
        created=job.created,
        completed=utc_now(),
    )
