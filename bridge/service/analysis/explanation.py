"""Why the service decides on a mail as it does, from the mail's bytes alone: no lists, no engines, no network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.service.analysis.decision import INCOMPLETE, DecisionTable
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.phishing_judgement import Judgement, load_model
from bridge.service.analysis.pipeline import limits_of
from bridge.service.detection import reasons
from bridge.service.detection.model import Contribution
from bridge.service.settings import ServiceConfig


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    margin: float
    threshold: float
    profile: str
    points: float
    bias: float
    contributions: list[Contribution]
    context: float  # what all context together counts for: it is bounded
    words: float  # and all words


@dataclass(frozen=True, slots=True)
class Explanation:
    decision: str
    verdict: str
    score: float
    tags: dict[str, float]  # each with its score
    reasons: list[str] = field(default_factory=list)
    model: ModelAnswer | None = None

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("decision", "verdict", "score", "tags", "reasons")}
        if self.model is None:
            return {**plain, "model": None}
        answer = {
            name: getattr(self.model, name)
            for name in ("margin", "threshold", "profile", "points", "bias", "context", "words")
        }
        rows = [
            {"name": contribution.name, "weight": round(contribution.weight, 3), "found_in": contribution.found_in}
            for contribution in self.model.contributions
        ]
        return {**plain, "model": {**answer, "contributions": rows}}


def explain(content: bytes, config: ServiceConfig, envelope_from: str = "") -> Explanation:
    """Raises ConfigError if the configured model cannot be read."""
    settings = config.analyzers.phishing
    found = inspect(content, limits_of(config.analyzers, envelope_from=envelope_from))
    tags = found.tags | {f"limit:{name}" for name in found.limits}
    if found.limits and (config.analyzers.mime is None or config.analyzers.mime.required):
        tags.add(INCOMPLETE)
    points = Judgement(settings).points(found.phishing, tags) if settings else 0.0
    table = DecisionTable(config.decisions)
    assessment = table.decide(tags, model_points=points)
    scores = {tag: table.score_of(tag) for tag in sorted(tags)}
    answer, why = None, []
    if settings and found.phishing is not None and found.phishing.found is not None:
        model = load_model(settings)
        signals = found.phishing.found
        why = reasons.sentences(found.phishing.signals, model.weights)
        if settings.use_model:
            answer = ModelAnswer(
                found.phishing.margin or 0.0,
                model.thresholds[settings.profile],
                settings.profile,
                points,
                model.bias,
                model.contributions(signals),
                round(model.of_context(signals), 3),
                round(model.of_words(signals), 3),
            )
    return Explanation(str(assessment.decision), assessment.verdict, assessment.score, scores, why, answer)
