"""Compare detection: `make evaluate CORPUS=...` (layout of CORPUS: `tools/mail_corpus.py`).

Our service alone, rspamd and SpamAssassin alone, and ours with each of them and with both, on the same mails in one
run. Nothing is judged by what was trained on it: each source of legitimate mail is judged by a model that was trained
without it, and phishing by models that were trained on older phishing only. Writes a table and a picture.

The engines run without network tests, which is not how operators run them; so these numbers say how they compare on
the bytes of a mail alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bridge.service.analysis.connections import BadAnswer
from bridge.service.analysis.opinions import together as opinions_together
from bridge.service.analysis.rspamd import RspamdError
from bridge.service.detection.model import POINTS_PER_MARGIN, QUARANTINE_POINTS
from tools import evaluation_engines as engines
from tools.mail_corpus import CorpusMail, envelope_from
from tools.train import Example, read_corpus, threshold_at, unseen_scores

RATES = (0.001, 0.002, 0.01)
OWN = "our service"
COLOURS = ("#1b6ac9", "#c9541b", "#2e8b57", "#7a4bb5", "#b58900", "#555555")


@dataclass
class Judged:
    """The scores of one engine: legitimate mail by source, and phishing."""

    ham: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    phishing: list[float] = field(default_factory=list)
    threshold: float = QUARANTINE_POINTS  # from which on mail is held by default

    def add(self, example: Example, score: float) -> None:
        (self.phishing if example.is_phishing else self.ham[example.fold]).append(score)

    @property
    def all_ham(self) -> list[float]:
        return [score for scores in self.ham.values() for score in scores]


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


def held(scores: Sequence[float], threshold: float) -> str:
    return percent(sum(score >= threshold for score in scores), len(scores))


def caught(judged: Judged, rate: float) -> str:
    return held(judged.phishing, threshold_at(judged.all_ham, rate))


def by_default(name: str, judged: Judged) -> str:
    return f"| {name} | {held(judged.phishing, judged.threshold)} | {held(judged.all_ham, judged.threshold)} |"


class Answers:
    """What the engines said of each mail, kept in a file: SpamAssassin takes a tenth of a second for one. An engine is
    started for the first mail of which it has said nothing."""

    def __init__(self, path: Path | None, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._running: dict[type[engines.Engine], engines.Engine] = {}
        self._said: dict[str, str] = json.loads(path.read_text()) if path and path.exists() else {}

    def of(self, kind: type[engines.Engine], mail: CorpusMail) -> engines.Answer:
        key = f"{kind.name} {mail.path}"
        try:
            if key not in self._said:
                content = mail.content()
                self._said[key] = self._engine(kind).ask(content, envelope_from(content))
            return kind.read(self._said[key])
        except (OSError, ValueError, KeyError, BadAnswer, RspamdError) as exc:
            print(f"{kind.name}: {mail.path}: {type(exc).__name__}", file=sys.stderr)
            return engines.Answer(0.0, 0.0)

    def _engine(self, kind: type[engines.Engine]) -> engines.Engine:
        if kind not in self._running:
            self._running[kind] = self._stack.enter_context(engines.running(kind))
        return self._running[kind]

    def save(self) -> None:
        if self._path:
            self._path.write_text(json.dumps(self._said, indent=0))


def sampled(found: Sequence[Example], scores: Sequence[float], limit: int) -> list[tuple[Example, float]]:
    """Always the same mails, so that their answers can be kept."""
    both = zip(found, scores, strict=True)
    return sorted(both, key=lambda one: hashlib.sha256(one[0].path.name.encode()).digest())[:limit]


def points(margin: float, threshold: float) -> float:
    """As in the decision table, without its bounds."""
    return max(0.0, QUARANTINE_POINTS + POINTS_PER_MARGIN * (margin - threshold))


def compare(chosen: list[tuple[Example, float]], threshold: float, kept: Path | None) -> dict[str, Judged]:
    """`threshold` is that of our default profile."""
    results: dict[str, Judged] = defaultdict(Judged)
    results[OWN].threshold = threshold
    kinds = engines.installed()
    with ExitStack() as stack:
        said = Answers(kept, stack)
        for number, (example, margin) in enumerate(chosen):
            if number % 100 == 0:
                print(f"{number} of {len(chosen)} mails judged", file=sys.stderr)
                said.save()
            mail = CorpusMail(example.fold, example.path, example.is_phishing)
            answers = {kind: said.of(kind, mail) for kind in kinds}
            own = points(margin, threshold)
            results[OWN].add(example, margin)
            for kind, answer in answers.items():
                results[kind.name].add(example, answer.score)
                results[kind.name].threshold = kind.spam_score
            for kind, answer in answers.items():
                results[f"{OWN} with {kind.name}"].add(example, own + max(0.0, answer.opinion))
            if len(kinds) > 1:
                opinions = opinions_together(answer.opinion for answer in answers.values())
                results[f"{OWN} with both"].add(example, own + max(0.0, opinions))
        said.save()
    return results


def report(whole: Judged, results: dict[str, Judged], thresholds: dict[float, float]) -> list[str]:
    lines = ["# Detection of phishing", "", f"Measured on {datetime.now(UTC).date().isoformat()} with `make evaluate`."]
    lines += [
        "The phishing is newer than anything the models were trained on.",
        "The legitimate mail comes from sources that they have not seen.",
        "Confidence intervals (95 %) are in parentheses.",
        "The engines ran without network tests.",
        "",
        f"## Our service alone, on all {len(whole.phishing)} phishing mails and {len(whole.all_ham)} legitimate ones",
        "",
        "| false alarms | phishing caught |",
        "|---|---|",
        *(f"| {100 * rate:g} % | {caught(whole, rate)} |" for rate in RATES),
        "",
        "False alarms by source, at these thresholds:",
        "",
        "| source | mails | " + " | ".join(f"at {100 * rate:g} %" for rate in RATES) + " |",
        "|---|---|" + "---|" * len(RATES),
    ]
    for source, scores in sorted(whole.ham.items()):
        hits = [percent(sum(score >= thresholds[rate] for score in scores), len(scores)) for rate in RATES]
        lines.append(f"| {source} | {len(scores)} | " + " | ".join(hits) + " |")
    if len(results) > 1:
        sample = results[OWN]
        lines += [
            "",
            f"## All engines, on {len(sample.phishing)} phishing mails and {len(sample.all_ham)} legitimate ones",
            "",
            "All sources have the same share in this sample: newsletters, templates and bounces weigh more than above.",
            f"Below {100 / len(sample.all_ham):.2f} %, no legitimate mail may have a higher score: one mail decides.",
            "The engines count by their own thresholds, and the worse one of them, as in the decisions table.",
            "",
            "| engine | " + " | ".join(f"caught at {100 * rate:g} % false alarms" for rate in RATES) + " |",
            "|---|" + "---|" * len(RATES),
            *(f"| {name} | " + " | ".join(caught(one, rate) for rate in RATES) + " |" for name, one in results.items()),
            "",
            "With the default settings: our profile `balanced`, rspamd from 6 points on, SpamAssassin from 5.",
            "",
            "| engine | phishing held | legitimate mail held |",
            "|---|---|---|",
            *(by_default(name, one) for name, one in results.items()),
            "",
            "![ROC curves](detection.svg)",
        ]
    return [*lines, ""]


def curve(judged: Judged) -> list[tuple[float, float]]:
    ham, bad = sorted(judged.all_ham, reverse=True), judged.phishing
    found = []
    for alarms in range(min(len(ham), max(2, len(ham) // 20))):
        found.append((alarms / len(ham), sum(score > ham[alarms] for score in bad) / max(1, len(bad))))
    return found


def picture(results: dict[str, Judged]) -> str:
    """Up to 5 % false alarms: nobody runs a filter with more. The shade is the interval of the first engine."""
    width, height, left = 640, 400, 60
    place = lambda x, y: f"{left + x / 0.05 * width:.1f},{20 + (1 - y) * height:.1f}"  # noqa: E731
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{height + 60}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for step in range(6):
        drawn.append(f'<text x="{left + step * width / 5 - 8:.0f}" y="{height + 38}">{step} %</text>')
        drawn.append(f'<text x="12" y="{24 + height - step * height / 5:.0f}">{20 * step} %</text>')
    drawn.append(f'<text x="{left + width // 2 - 60}" y="{height + 56}">legitimate mail held</text>')
    drawn.append(f'<text x="{left}" y="16">phishing caught</text>')
    first = next(iter(results.values()))
    total = len(first.phishing)
    bounds = [(x, interval(round(y * total), total)) for x, y in curve(first)]
    outline = [place(x, high) for x, (_, high) in bounds] + [place(x, low) for x, (low, _) in reversed(bounds)]
    drawn.append(f'<polygon points="{" ".join(outline)}" fill="{COLOURS[0]}" opacity="0.15"/>')
    for number, (name, judged) in enumerate(results.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(place(x, y) for x, y in curve(judged))
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        line = height // 2 + 5 + 18 * number
        drawn.append(f'<text x="{left + width - 230}" y="{line}" fill="{colour}">{name}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/detection.md"))
    parser.add_argument("--cache", type=Path, help="the signals of all mails, from `tools.train`")
    parser.add_argument("--answers", type=Path, help="keep the answers of the other engines in this file")
    parser.add_argument("--sample", type=int, default=400, help="mails of each source for the other engines; 0: none")
    parser.add_argument("--newest", type=float, default=0.4, help="share of the phishing to test on, newest first")
    given = parser.parse_args()
    ham, phishing = read_corpus(given.corpus, given.cache)
    cut = round(len(phishing) * (1 - given.newest))
    ham_scores, new_scores = unseen_scores([*ham, *phishing[:cut]], phishing[cut:])
    whole = Judged(ham_scores, new_scores)
    thresholds = {rate: threshold_at(whole.all_ham, rate) for rate in RATES}
    chosen: list[tuple[Example, float]] = []
    if given.sample:
        for fold, scores in ham_scores.items():
            chosen += sampled([one for one in ham if one.fold == fold], scores, given.sample)
        chosen += sampled(phishing[cut:], new_scores, 2 * given.sample)
    results = compare(chosen, thresholds[0.002], given.answers) if chosen else {OWN: whole}
    given.out.write_text("\n".join(report(whole, results, thresholds)), encoding="utf-8")
    given.out.with_suffix(".svg").write_text(picture(results), encoding="utf-8")


if __name__ == "__main__":
    main()
