"""Computes how often each signal occurs in good and bad mail: the table in docs/operate/phishing.md.

`python -m tools.signal_rates CORPUS --cache FILE` replaces this table, and the card of the shipped model below it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from bridge.service.detection import model as models
from bridge.service.detection.reasons import meaning_of
from bridge.service.detection.signals import is_tag
from tools.marked_parts import with_part
from tools.train import Example, read_corpus

PAGE = Path("docs/operate/phishing.md")


def rates(examples: list[Example]) -> dict[str, float]:
    found = Counter(tag for one in examples for tag in one.signals.tags)
    return {tag: 100 * count / len(examples) for tag, count in found.items()}


def signal_table(ham: list[Example], phishing: list[Example], weights: dict[str, float]) -> str:
    good, bad = rates(ham), rates(phishing)
    lines = [
        f"This table shows the weight of each signal, and how often it occurs in {len(phishing)} phishing mails and "
        f"{len(ham)} legitimate ones:",
        "",
        "| tag | phishing | legitimate | weight | what `explain` says |",
        "|---|---|---|---|---|",
    ]
    for tag in sorted({*good, *bad}):
        if is_tag(tag):
            shares = f"{bad.get(tag, 0):.1f} % | {good.get(tag, 0):.2f} %"
            lines.append(f"| `{tag}` | {shares} | {weights.get(tag, 0.0):.2f} | {meaning_of(tag)} |")
    return "\n".join(lines)


def card(found: models.Model) -> str:
    value = found.card
    recall = value["recall_on_unseen"]
    legitimate = sum(value["legitimate"].values())
    trained = sum(value["phishing"].values())
    lines = [
        f"Trained on {value['trained']} on {trained} phishing mails and {legitimate} legitimate ones (sources below).",
        f"For the measurement, models were trained without the newest {value['tested_on_newest_phishing']} phishing",
        "mails, and without the source of the legitimate mail that was judged:",
        "",
        "| profile | newest phishing caught | false alarms by source (not used in training) |",
        "|---|---|---|",
    ]
    for name in ("cautious", "balanced", "strict"):
        sources = value["false_alarms_on_unseen_sources"].items()
        alarms = ", ".join(f"{fold} {100 * by[name]:.2g} %" for fold, by in sources if by[name])
        lines.append(f"| `{name}` | {100 * recall[name]:.1f} % | {alarms or 'none'}; none in the others |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    ham, phishing = read_corpus(given.corpus, given.cache)
    shipped = models.load(models.SHIPPED)
    text = PAGE.read_text(encoding="utf-8")
    for name, part in (("signals", signal_table(ham, phishing, shipped.weights)), ("card", card(shipped))):
        text = with_part(text, name, part)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
