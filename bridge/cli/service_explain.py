"""The lines of `scanbridge service explain`: the decision, the reasons in words, each tag and each contribution."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.service.analysis.explanation import Explanation, ModelAnswer


def lines_of(found: Explanation) -> Iterator[str]:
    yield f"decision: {found.decision}, verdict: {found.verdict}, score: {found.score:g}"
    if found.reasons:
        yield "why:"
        yield from (f"  {reason}" for reason in found.reasons)
    if found.tags:
        yield "tags, and the score that the decisions table adds for each:"
        yield from (f"  {score:>5g}  {tag}" for tag, score in found.tags.items())
    if found.model is not None:
        yield from _model_lines(found.model)


def _model_lines(answer: ModelAnswer) -> Iterator[str]:
    yield (
        f"model: {answer.margin:.2f}, threshold of the {answer.profile} profile: {answer.threshold:.2f}; "
        f"that is {answer.points:g} points"
    )
    yield f"  {answer.bias:+6.2f}  (every mail)"
    for contribution in answer.contributions:
        detail = f"  ({contribution.found_in.replace('|', ', ')})" if contribution.found_in else ""
        yield f"  {contribution.weight:+6.2f}  {contribution.name}{detail}"
    yield f"  all context together: {answer.context:+.2f}, all words together: {answer.words:+.2f}"
