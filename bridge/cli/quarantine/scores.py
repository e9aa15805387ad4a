"""The included service's default scores of tags: what `bridge.quarantine.worst_tags_first` judges tags by."""

from __future__ import annotations


def default_scores() -> dict[str, float]:
    """Another service has none."""
    from bridge.service.analysis.default_scores import TAG_SCORES

    return TAG_SCORES
