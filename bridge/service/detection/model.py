"""The model: a weight for each signal and for each hashed word, and their sum.

The sum is the logarithm of the odds that a mail is phishing, as far as the mails it was trained on tell. It is linear
on purpose: every contribution can be shown. What a sender can add to any mail at will is bounded: context takes at
most `MAX_CONTEXT` away, and words add or take away at most `MAX_WORDS`.
"""

from __future__ import annotations

import base64
import json
import math
from array import array
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bridge.runtime import whole_file
from bridge.service.detection.signals import WORD_BITS, Signals

MAX_CONTEXT = 2.0
MAX_WORDS = 3.0
SHIPPED = Path(__file__).parent / "data" / "model.json"
QUARANTINE_POINTS = 8.0  # at the threshold of the profile: what the decision table quarantines by default
MAX_POINTS = 12.0
POINTS_PER_MARGIN = 1.5


# Signals too rare in the training mails to be learned. A weight in the model takes precedence.
HAND_SET = {"picture:qr-link": 1.0, "html:cut": 1.0}


class BadModel(ValueError):
    """The file is not a model; the text says why."""


@dataclass(frozen=True, slots=True)
class Contribution:
    name: str
    weight: float
    found_in: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    bias: float
    weights: dict[str, float]  # of tags and context
    words: array[int]  # one signed byte each
    word_scale: float
    thresholds: dict[str, float]  # of the profiles
    card: dict[str, Any]

    def margin(self, found: Signals) -> float:
        tags = sum(self.weights.get(tag, 0.0) for tag in found.tags)
        return self.bias + tags + self.of_context(found) + self.of_words(found)

    def of_context(self, found: Signals) -> float:
        return max(-MAX_CONTEXT, sum(self.weights.get(name, 0.0) for name in found.context))

    def of_words(self, found: Signals) -> float:
        total = sum(value for _, value in self.word_values(found))
        return max(-MAX_WORDS, min(total, MAX_WORDS))

    def word_values(self, found: Signals) -> list[tuple[str, float]]:
        """Each word with its contribution. Words of the header (with their field before them) and those of the text
        count as much as each other, however many there are."""
        words = self.words
        header = sum(" " in word for word in found.words.values())
        in_header = self.word_scale / math.sqrt(header or 1)
        in_text = self.word_scale / math.sqrt((len(found.words) - header) or 1)
        return [(word, words[at] * (in_header if " " in word else in_text)) for at, word in found.words.items()]

    def points(self, margin: float, profile: str) -> float:
        """For the decision table: 8 at the threshold of the profile, never enough to bounce a mail."""
        above = margin - self.thresholds[profile]
        return round(max(0.0, min(QUARANTINE_POINTS + POINTS_PER_MARGIN * above, MAX_POINTS)), 2)

    def contributions(self, found: Signals) -> list[Contribution]:
        """All of them, the largest first; words that count for nothing are left out."""
        named = [Contribution(tag, self.weights.get(tag, 0.0), where) for tag, where in found.tags.items()]
        named += [Contribution(name, self.weights.get(name, 0.0)) for name in found.context]
        named += [Contribution(f"word:{word}", value) for word, value in self.word_values(found) if abs(value) >= 0.005]
        return sorted(named, key=lambda contribution: -abs(contribution.weight))


def load(path: Path) -> Model:
    """Raises BadModel and OSError."""
    try:
        value = json.loads(whole_file.read_text(path))
        words = array("b", base64.b64decode(value["words"]["data"]))
        if len(words) != 1 << WORD_BITS:
            raise BadModel(f"{path}: {len(words)} word weights instead of {1 << WORD_BITS}")
        thresholds = {name: float(value["thresholds"][name]) for name in ("cautious", "balanced", "strict")}
        weights = HAND_SET | {str(name): float(weight) for name, weight in value["weights"].items()}
        numbers = [float(value["bias"]), float(value["words"]["scale"]), *thresholds.values(), *weights.values()]
        if not all(map(math.isfinite, numbers)):
            raise BadModel(f"{path}: a weight is not a number")
        return Model(numbers[0], weights, words, numbers[1], thresholds, dict(value["card"]))
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError, ValueError) as exc:
        if isinstance(exc, BadModel):
            raise
        raise BadModel(f"{path}: not a model written by `tools/train.py` ({type(exc).__name__})") from exc


@lru_cache(4)
def model_at(path: str, stamp: int = 0) -> Model:
    """The model in a file; "" is the shipped one. Read once for each `stamp`, so that a reload finds a new model."""
    return load(Path(path) if path else SHIPPED)
