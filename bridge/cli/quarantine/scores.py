"""The included service's default scores of tags, by which `bridge.quarantine.worst_tags_first` judges them."""

from __future__ import annotations


def default_scores() -> dict[str, float]:
    """Other services have none."""
    from bridge.service.analysis.default_scores import TAG_SCORES

    return TAG_SCORES
