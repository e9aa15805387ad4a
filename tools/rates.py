"""Rates of false alarms and of caught phishing, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence


def threshold_at(scores: Sequence[float], false_alarms: float) -> float:
    ordered = sorted(scores, reverse=True)
    return ordered[min(int(false_alarms * len(ordered)), len(ordered) - 1)] + 0.001


def recall(scores: Sequence[float], threshold: float) -> float:
    return sum(score >= threshold for score in scores) / len(scores) if scores else 0.0


def interval(hits: int, total: int) -> tuple[float, float]:
    """Wilson's interval, 95 %."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, hits / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def percent(hits: int, total: int) -> str:
    low, high = interval(hits, total)
    return f"{100 * hits / total:.1f} % ({100 * low:.1f} to {100 * high:.1f})" if total else "-"
