"""What other spam filters count for: a few points, by their own thresholds.

Most of what they find in a phishing mail, our own signals find as well, and they also call some legitimate mail spam.
In measurements, their verdict added as much evidence as 1 or 2 of our points (docs/evidence/detection.md): enough to
quarantine a mail that we suspect ourselves, and not enough to quarantine any other. Each filter's `spam_score` setting
says how much it is. Only a filter that is far above its own threshold decides on its own.

Their scores are not added to each other. They look at the same things, and most legitimate newsletters have some points
from each: added, two filters that both call a mail legitimate would quarantine it. Nor are a few points of a filter
that calls the mail legitimate added to ours. Knows scores only; if this is wrong, mail is held that no filter calls
spam, or spam is delivered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

REJECTED = 15.0  # our score of a mail that rspamd just rejects: the default table bounces it
FAR = 4.0  # the SpamAssassin score, in multiples of its threshold, that is enough by itself to quarantine a mail
SUFFICIENT = 10.0  # quarantined by the default table, even after rspamd deducts points
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
