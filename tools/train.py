"""Train the phishing model: `python -m tools.train CORPUS --out model.json` (layout of CORPUS: `tools/mail_corpus.py`).

Uses logistic regression (needs `pip install 'scanbridge[train]'`). Each source of legitimate mail is weighted by the
square root of its size, so that no single large archive dominates. The weight of a signal is never negative, and that
of the context is never positive: a sender cannot gain by adding a signal, and mail from a mailing list is never more
suspicious for that reason, whatever the training mails suggest.

The thresholds of the profiles come from mails whose source the model has not seen: for each source of legitimate mail,
a model is trained on all the others. Sources with fewer than 200 mails are treated as one source.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import pickle
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy import optimize, sparse

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.detection import model as models
from bridge.service.detection.phishing import Search
from bridge.service.detection.signals import WORD_BITS, Signals
from tools.mail_corpus import CorpusMail, by_time, envelope_from, mails
from tools.rates import recall, threshold_at

ITERATIONS = 60
SIGNAL_DECAY = 1.0
WORD_DECAY = 1.0
LEAST_WEIGHT = 0.01
SMALL_SOURCE = 200
SMALL = "small sources"
FALSE_ALARMS = {"cautious": 0.0005, "balanced": 0.002, "strict": 0.01}
PLACEHOLDER = models.Model(0.0, {}, array("b", bytes(1 << WORD_BITS)), 0.0, dict.fromkeys(FALSE_ALARMS, 0.0), {})

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


class Matrix:
    """All examples as rows: named features first, then the words."""

    def __init__(self, examples: Sequence[Example], without: Sequence[str] = ()) -> None:
        names = {name for one in examples for name in (*one.signals.tags, *one.signals.context)}
        self.names = sorted(name for name in names if not name.startswith(tuple(without)))
        place = {name: number for number, name in enumerate(self.names)}
        rows, columns, values = [], [], []
        for row, one in enumerate(examples):
            for name, value in one.features():
                column = place.get(name) if isinstance(name, str) else len(self.names) + name
                if column is not None and not (column >= len(self.names) and "words" in without):
                    rows.append(row)
                    columns.append(column)
                    values.append(value)
        self.cells = sparse.csr_matrix(
            (values, (rows, columns)), shape=(len(examples), len(self.names) + (1 << WORD_BITS))
        )
        self.folds = np.array([one.fold for one in examples])
        self.labels = np.array([one.is_phishing for one in examples])

    def fit(self, rows: np.ndarray) -> models.Model:
        cells, sign = self.cells[rows], np.where(self.labels[rows], 1.0, -1.0)
        importance = _importance(self.folds[rows], self.labels[rows])
        decay = np.full(cells.shape[1], WORD_DECAY)
        decay[: len(self.names)] = SIGNAL_DECAY

        def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            weights, bias = parameters[:-1], parameters[-1]
            margins = sign * (cells @ weights + bias)
            slope = -sign * importance / (1 + np.exp(np.clip(margins, -500, 500)))
            value = (importance * np.logaddexp(0, -margins)).sum() + 0.5 * (decay * weights * weights).sum()
            return value, np.append(cells.T @ slope + decay * weights, slope.sum())

        bounds = [(None, 0.0) if name.startswith("context:") else (0.0, None) for name in self.names]
        bounds += [(None, None)] * ((1 << WORD_BITS) + 1)
        start = np.zeros(cells.shape[1] + 1)
        found = optimize.minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": ITERATIONS}
        ).x
        return self._model(found[:-1], float(found[-1]))

    def _model(self, weights: np.ndarray, bias: float) -> models.Model:
        words = weights[len(self.names) :]
        scale = float(np.abs(words).max()) / 127 or 1.0
        packed = array("b", np.round(words / scale).astype(np.int8).tobytes())
        named = zip(self.names, weights, strict=False)
        kept = {name: round(float(weight), 3) for name, weight in named if abs(weight) >= LEAST_WEIGHT}
        return models.Model(round(bias, 4), kept, packed, scale, PLACEHOLDER.thresholds, {})


def _importance(folds: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Phishing and legitimate mail count for a half each; a source of legitimate mail by the root of its size."""
    half = len(folds) / 2
    found = np.where(labels, half / max(1, labels.sum()), 0.0)
    sizes = Counter(folds[~labels])
    roots = sum(math.sqrt(size) for size in sizes.values())
    for fold, size in sizes.items():
        found[(folds == fold) & ~labels] = half * math.sqrt(size) / roots / size
    return found


def read_corpus(corpus: Path, cache: Path | None) -> tuple[list[Example], list[Example]]:
    """Legitimate mail, and phishing with the oldest first."""
    if cache and cache.exists():
        with cache.open("rb") as file:
            ham, phishing = pickle.load(file)  # noqa: S301 (our own file)
            return ham, phishing
    found = examples_of(mails(corpus, "ham")), examples_of(by_time(list(mails(corpus, "phishing"))))
    if cache:
        with cache.open("wb") as file:
            pickle.dump(found, file)
    return found


def unseen_scores(
    examples: Sequence[Example], judged: Sequence[Example], without: Sequence[str] = ()
) -> tuple[dict[str, list[float]], list[float]]:
    """The scores of each source of legitimate mail by a model that has not seen it, and those of `judged`, averaged."""
    matrix = Matrix(examples, without)
    ham: dict[str, list[float]] = {}
    total = [0.0] * len(judged)
    folds = sorted({one.fold for one in examples if not one.is_phishing})
    for fold in folds:
        print(f"training without {fold}", file=sys.stderr)
        found = matrix.fit(np.flatnonzero(matrix.folds != fold))
        ham[fold] = [found.margin(one.signals) for one in examples if one.fold == fold]
        total = [one + found.margin(example.signals) / len(folds) for one, example in zip(total, judged, strict=True)]
    return ham, total


def write(found: models.Model, path: Path) -> None:
    value = {
        "card": found.card,
        "bias": found.bias,
        "thresholds": found.thresholds,
        "weights": found.weights,
        "words": {"scale": found.word_scale, "data": base64.b64encode(found.words.tobytes()).decode("ascii")},
    }
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="keep the signals of all mails in this file, for the next run")
    parser.add_argument(
        "--without", nargs="*", default=[], help="groups of signals to leave out, such as `url:` or `words`"
    )
    parser.add_argument(
        "--newest", type=float, default=0.4, help="share of the phishing mails to test on, newest first"
    )
    given = parser.parse_args()
    ham, phishing = read_corpus(given.corpus, given.cache)
    cut = round(len(phishing) * (1 - given.newest))
    scores, newest = unseen_scores([*ham, *phishing[:cut]], phishing[cut:], given.without)
    together = [score for fold in scores.values() for score in fold]
    thresholds = {name: round(threshold_at(together, rate), 3) for name, rate in FALSE_ALARMS.items()}
    card: dict[str, object] = {
        "trained": datetime.now(UTC).date().isoformat(),
        "legitimate": dict(Counter(one.path.parent.name for one in ham)),
        "phishing": dict(Counter(one.fold for one in phishing)),
        "tested_on_newest_phishing": len(phishing) - cut,
        "recall_on_unseen": {name: round(recall(newest, value), 4) for name, value in thresholds.items()},
        "false_alarms_on_unseen_sources": {
            fold: {name: round(recall(values, thresholds[name]), 4) for name in thresholds}
            for fold, values in scores.items()
        },
    }
    everything = [*ham, *phishing]
    trained = Matrix(everything, given.without).fit(np.arange(len(everything)))
    write(replace(trained, thresholds=thresholds, card=card), given.out)
    print(json.dumps(card, indent=1))


if __name__ == "__main__":
    main()
