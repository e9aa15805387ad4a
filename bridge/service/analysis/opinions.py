"""What other spam filters count for: each no more than its own threshold says.

Their scores are not added to each other. They look at the same things, and most legitimate newsletters have some points
from each: added, two filters that both call a mail legitimate would quarantine it. Nor are a few points of a filter
that calls the mail legitimate added to ours. Knows scores only; if this is wrong, mail is held that no filter calls
spam, or spam is delivered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

REJECTED = 15.0  # our score of a mail that another filter would just reject: the default table bounces it
UNSURE = 0.0  # at most, from a filter that does not call the mail spam


def opinion_of(score: float, threshold: float, worth: float) -> float:
    """On our scale, where `worth` is what a mail at the filter's own threshold counts for. Raises ValueError."""
    scaled = score * worth / threshold if threshold > 0 else score
    if not math.isfinite(scaled):
        raise ValueError("no score")
    return round(scaled, 2)


def together(opinions: Iterable[float]) -> float:
    """The worst opinion, less what others say in favour of the mail."""
    found = list(opinions)
    return max([0.0, *found]) + sum(opinion for opinion in found if opinion < 0)
