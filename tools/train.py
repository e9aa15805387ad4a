"""Train the phishing model: `python -m tools.train CORPUS --out model.json` (layout of CORPUS: `tools/mail_corpus.py`).

Logistic regression by stochastic gradient descent with AdaGrad steps, in plain Python: a few minutes for ten thousand
mails. Each source of legitimate mail counts by the square root of its size, so that one large archive does not decide
what legitimate mail is. The weight of a signal is never negative: no sender gains by adding one.

The thresholds of the profiles come from mails whose source the model has not seen: for each source of legitimate mail,
a model is trained on all the others. Sources with fewer than 200 mails are left out together.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bridge.service.analysis.inspection import Limits, inspect
from bridge.service.detection import model as models
from bridge.service.detection.phishing import Search
from bridge.service.detection.signals import WORD_BITS, Signals
from tools.mail_corpus import CorpusMail, by_time, envelope_from, mails

EPOCHS = 12
STEP = 0.3
SIGNAL_DECAY = 1e-4
WORD_DECAY = 1e-3
SMALL_SOURCE = 200
SMALL = "small sources"
FALSE_ALARMS = {"cautious": 0.0005, "balanced": 0.002, "strict": 0.01}
PLACEHOLDER = models.Model(0.0, {}, bytes(1 << WORD_BITS), 0.0, dict.fromkeys(FALSE_ALARMS, 0.0), {})

Feature = str | int  # the name of a signal or context, or the number of a word


@dataclass(frozen=True, slots=True)
class Example:
    fold: str
    is_phishing: bool
    signals: Signals
    path: Path

    def features(self) -> list[tuple[Feature, float]]:
        named: list[tuple[Feature, float]] = [(name, 1.0) for name in (*self.signals.tags, *self.signals.context)]
        header = sum(" " in word for word in self.signals.words.values())
        text = len(self.signals.words) - header
        in_header, in_text = 1 / math.sqrt(header or 1), 1 / math.sqrt(text or 1)
        return named + [(n, in_header if " " in word else in_text) for n, word in self.signals.words.items()]


def read_signals(mail: CorpusMail) -> Signals | None:
    """The signals that the service finds in a mail. The model that it has now does not matter."""
    try:
        content = mail.content()
        found = inspect(content, Limits(phishing=Search(), envelope_from=envelope_from(content)))
    except Exception as exc:
        print(f"{mail.path}: {type(exc).__name__}", file=sys.stderr)
        return None
    return found.phishing.found if found.phishing else None


def examples_of(found: Iterable[CorpusMail]) -> list[Example]:
    found = list(found)
    sizes = Counter(mail.source for mail in found if not mail.is_phishing)
    examples = []
    for number, mail in enumerate(found):
        if number % 1000 == 0:
            print(f"{number} of {len(found)} mails read", file=sys.stderr)
        read = read_signals(mail)
        is_small = not mail.is_phishing and sizes[mail.source] < SMALL_SOURCE
        if read is not None:
            examples.append(Example(SMALL if is_small else mail.source, mail.is_phishing, read, mail.path))
    return examples


class Weights:
    def __init__(self) -> None:
        self.bias = 0.0
        self.of: defaultdict[Feature, float] = defaultdict(float)

    def fit(self, examples: Sequence[Example], epochs: int = EPOCHS) -> Weights:
        importance = _importance(examples)
        rows = [(one.features(), float(one.is_phishing), importance[one.fold]) for one in examples]
        squares: defaultdict[Feature, float] = defaultdict(lambda: 1.0)
        dice = random.Random(1)
        bias_square = 1.0
        for _ in range(epochs):
            dice.shuffle(rows)
            for features, label, weight in rows:
                error = (_probability(self.margin(features)) - label) * weight
                bias_square += error * error
                self.bias -= STEP * error / math.sqrt(bias_square)
                self._step(features, error, squares)
        return self

    def _step(self, features: list[tuple[Feature, float]], error: float, squares: dict[Feature, float]) -> None:
        for name, value in features:
            is_word = isinstance(name, int)
            gradient = error * value + (WORD_DECAY if is_word else SIGNAL_DECAY) * self.of[name]
            squares[name] += gradient * gradient
            weight = self.of[name] - STEP * gradient / math.sqrt(squares[name])
            is_signal = isinstance(name, str) and not name.startswith("context:")
            self.of[name] = max(0.0, weight) if is_signal else weight

    def margin(self, features: list[tuple[Feature, float]]) -> float:
        of = self.of
        return self.bias + sum(of[name] * value for name, value in features)

    def to_model(self, thresholds: dict[str, float], card: dict[str, object]) -> models.Model:
        words = [self.of.get(number, 0.0) for number in range(1 << WORD_BITS)]
        scale = max(map(abs, words)) / 127 or 1.0
        packed = bytes(round(weight / scale) & 0xFF for weight in words)
        named = {str(k): round(v, 3) for k, v in sorted(self.of.items(), key=str) if isinstance(k, str) and abs(v) >= 0.01}
        return models.Model(round(self.bias, 4), named, packed, scale, thresholds, card)


def _probability(margin: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(margin, 30.0))))


def _importance(examples: Sequence[Example]) -> dict[str, float]:
    """Phishing and legitimate mail count for a half each; a source of legitimate mail by the root of its size."""
    phishing = Counter(one.fold for one in examples if one.is_phishing)
    ham = Counter(one.fold for one in examples if not one.is_phishing)
    roots = sum(math.sqrt(size) for size in ham.values())
    half = len(examples) / 2
    found = {fold: half / sum(phishing.values()) for fold in phishing}
    return found | {fold: half * math.sqrt(size) / roots / size for fold, size in ham.items()}


def unseen_scores(examples: Sequence[Example], judged: Sequence[Example]) -> tuple[dict[str, list[float]], list[float]]:
    """The scores of each source of legitimate mail by a model that has not seen it, and those of `judged`, averaged."""
    folds = sorted({one.fold for one in examples if not one.is_phishing})
    ham: dict[str, list[float]] = {}
    total = [0.0] * len(judged)
    for fold in folds:
        print(f"training without {fold}", file=sys.stderr)
        found = Weights().fit([one for one in examples if one.fold != fold]).to_model(PLACEHOLDER.thresholds, {})
        ham[fold] = [found.margin(one.signals) for one in examples if one.fold == fold]
        total = [one + found.margin(example.signals) / len(folds) for one, example in zip(total, judged, strict=True)]
    return ham, total


def threshold_at(scores: Sequence[float], false_alarms: float) -> float:
    ordered = sorted(scores, reverse=True)
    return ordered[min(int(false_alarms * len(ordered)), len(ordered) - 1)] + 0.001


def recall(scores: Sequence[float], threshold: float) -> float:
    return sum(score >= threshold for score in scores) / len(scores) if scores else 0.0


def write(found: models.Model, path: Path) -> None:
    value = {
        "card": found.card,
        "bias": found.bias,
        "thresholds": found.thresholds,
        "weights": found.weights,
        "words": {"scale": found.word_scale, "data": base64.b64encode(found.words).decode("ascii")},
    }
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--newest", type=float, default=0.4, help="share of the phishing to test on, newest first")
    given = parser.parse_args()
    ham = examples_of(mails(given.corpus, "ham"))
    phishing = examples_of(by_time(list(mails(given.corpus, "phishing"))))
    cut = round(len(phishing) * (1 - given.newest))
    scores, newest = unseen_scores([*ham, *phishing[:cut]], phishing[cut:])
    together = [score for fold in scores.values() for score in fold]
    thresholds = {name: round(threshold_at(together, rate), 3) for name, rate in FALSE_ALARMS.items()}
    card: dict[str, object] = {
        "trained": datetime.now(UTC).date().isoformat(),
        "legitimate": dict(Counter(one.path.parent.name for one in ham)),
        "phishing": dict(Counter(one.fold for one in phishing)),
        "tested_on_newest_phishing": len(phishing) - cut,
        "recall_on_unseen": {name: round(recall(newest, value), 4) for name, value in thresholds.items()},
        "false_alarms_on_unseen_sources": {
            fold: {name: round(recall(values, thresholds[name]), 4) for name in thresholds} for fold, values in scores.items()
        },
    }
    write(Weights().fit([*ham, *phishing]).to_model(thresholds, card), given.out)
    print(json.dumps(card, indent=1))


if __name__ == "__main__":
    main()
