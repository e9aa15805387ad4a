"""How the answers of other engines are combined with ours in `make evaluate`, and a comparison of weights for them.

`python -m tools.evaluate CORPUS --tune` prints the comparison: for each pair of weights, how much phishing our service
with both engines catches. The defaults of `analyzers.rspamd.spam_score` and `analyzers.spamassassin.spam_score` were
chosen with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from bridge.service.analysis.opinions import together
from tools import evaluation_engines as engines
from tools.evaluation_report import Judged, held
from tools.rates import recall, threshold_at

OWN = "our service"
RSPAMD_WORTH = (0.0, 1.0, 2.0, 3.0, 5.0, 7.5, 15.0)
SPAMASSASSIN_WORTH = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
RATES = (0.001, 0.002, 0.005, 0.01)


@dataclass(frozen=True)
class Case:
    """A mail that all engines have judged."""

    fold: str
    is_phishing: bool
    own: float  # the points of our model
    said: dict[type[engines.Engine], engines.Said]


def compared(cases: Sequence[Case]) -> dict[str, Judged]:
    """Each engine alone, and our service with some of them; our service alone comes first."""
    results: dict[str, Judged] = defaultdict(Judged)
    for case in cases:
        answers = {kind: kind.read(said) for kind, said in case.said.items()}
        scores = {OWN: case.own}
        scores |= {kind.name: answer.score for kind, answer in answers.items()}
        scores |= {f"{OWN} with {kind.name}": case.own + max(0.0, answer.opinion) for kind, answer in answers.items()}
        if len(answers) > 1:
            scores[f"{OWN} with both"] = case.own + max(0.0, together(one.opinion for one in answers.values()))
        for name, score in scores.items():
            results[name].add(case.fold, case.is_phishing, score)
    for kind in engines.installed():
        results[kind.name].threshold = kind.spam_score
    return results


def weights_table(cases: Sequence[Case]) -> list[str]:
    """One line for each pair of weights, the best one first: by the mean of what is caught at the rates."""
    rows = []
    for worth in product(RSPAMD_WORTH, SPAMASSASSIN_WORTH):
        judged = _with(cases, dict(zip((engines.Rspamd, engines.SpamAssassin), worth, strict=True)))
        rows.append((*_caught(judged), judged, worth))
    rows.sort(key=lambda row: -sum(row[: len(RATES)]))
    head = "rspamd SpamAssassin | " + " ".join(f"at {100 * rate:g} %" for rate in RATES) + " | held by default"
    return [head, *(_row(row[: len(RATES)], row[-2], row[-1]) for row in rows)]


def _with(cases: Sequence[Case], worth: dict[type[engines.Engine], float]) -> Judged:
    judged = Judged()
    for case in cases:
        opinions = together(kind.read(said, worth[kind]).opinion for kind, said in case.said.items())
        judged.add(case.fold, case.is_phishing, case.own + max(0.0, opinions))
    return judged


def _caught(judged: Judged) -> list[float]:
    return [recall(judged.phishing, threshold_at(judged.all_ham, rate)) for rate in RATES]


def _row(caught: Sequence[float], judged: Judged, worth: tuple[float, ...]) -> str:
    shares = " ".join(f"{100 * share:.1f}" for share in caught)
    ham = held(judged.all_ham, judged.threshold)
    return f"{worth[0]:g} {worth[1]:g} | {shares} | {held(judged.phishing, judged.threshold)}, legitimate {ham}"
