"""The report of `make evaluate`: tables with confidence intervals, and the picture of the ROC curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bridge.service.detection.model import QUARANTINE_POINTS
from tools.rates import interval, percent, threshold_at

RATES = (0.001, 0.002, 0.01)
COLOURS = ("#1b6ac9", "#c9541b", "#2e8b57", "#7a4bb5", "#b58900", "#555555")


@dataclass
class Judged:
    """The scores of one engine: legitimate mail by source, and phishing."""

    ham: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    phishing: list[float] = field(default_factory=list)
    threshold: float = QUARANTINE_POINTS  # from which on mail is held by default

    def add(self, source: str, is_phishing: bool, score: float) -> None:
        (self.phishing if is_phishing else self.ham[source]).append(score)

    @property
    def all_ham(self) -> list[float]:
        return [score for scores in self.ham.values() for score in scores]


def held(scores: Sequence[float], threshold: float) -> str:
    return percent(sum(score >= threshold for score in scores), len(scores))


def caught(judged: Judged, rate: float) -> str:
    return held(judged.phishing, threshold_at(judged.all_ham, rate))


def by_default(name: str, judged: Judged) -> str:
    return f"| {name} | {held(judged.phishing, judged.threshold)} | {held(judged.all_ham, judged.threshold)} |"


@dataclass(frozen=True)
class Measured:
    """What a run found. `compared` has our service first."""

    whole: Judged  # our service alone, on all mails
    thresholds: dict[float, float]  # of `whole`, by rate of false alarms
    compared: dict[str, Judged] = field(default_factory=dict)
    versions: Sequence[str] = ()
    left_out: int = 0  # mails without the answer of an engine


def report(found: Measured) -> str:
    lines = [
        f"Measured on {datetime.now(UTC).date().isoformat()} with `make evaluate`.",
        "The phishing is newer than anything the models were trained on.",
        "The legitimate mail comes from sources that they have not seen.",
        "Confidence intervals (95 %) are in parentheses.",
        "",
        *_alone(found),
    ]
    if found.compared:
        lines += ["", *_together(found), "", *_by_default(found.compared)]
        lines += ["", "![ROC curves](detection.svg)"]
    return "\n".join(lines)


def _alone(found: Measured) -> list[str]:
    whole = found.whole
    lines = [
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
        hits = [held(scores, found.thresholds[rate]) for rate in RATES]
        lines.append(f"| {source} | {len(scores)} | " + " | ".join(hits) + " |")
    return lines


def _together(found: Measured) -> list[str]:
    sample = next(iter(found.compared.values()))
    phishing, ham = len(sample.phishing), len(sample.all_ham)
    lines = [
        f"## All engines, on {phishing} phishing mails and {ham} legitimate ones",
        "",
        f"{' and '.join(found.versions)} ran without network tests.",
        "None of these mails was used to choose the weights of the engines: "
        "the legitimate ones come from other sources, and the phishing is newer.",
        f"0.2 % of the legitimate mail means {int(0.002 * ham)} mails.",
    ]
    if found.left_out:
        lines.append(f"{found.left_out} more mails are left out, because an engine gave no answer.")
    return [
        *lines,
        "",
        "| engine | " + " | ".join(f"caught at {100 * rate:g} % false alarms" for rate in RATES) + " |",
        "|---|" + "---|" * len(RATES),
        *(
            f"| {name} | " + " | ".join(caught(one, rate) for rate in RATES) + " |"
            for name, one in found.compared.items()
        ),
    ]


def _by_default(compared: dict[str, Judged]) -> list[str]:
    (own_name, own), *_, (name_of_all, both) = compared.items()
    lines = [
        "With the default settings: our profile `balanced`, rspamd with at least 6 points, "
        "SpamAssassin with at least 5.",
        "",
        "| engine | phishing held | legitimate mail held |",
        "|---|---|---|",
        *(by_default(name, one) for name, one in compared.items()),
        "",
        "Legitimate mail held with these settings, by source:",
        "",
        f"| source | mails | {own_name} | {name_of_all} |",
        "|---|---|---|---|",
    ]
    for source, scores in sorted(own.ham.items()):
        hits = f"{held(scores, own.threshold)} | {held(both.ham[source], both.threshold)}"
        lines.append(f"| {source} | {len(scores)} | {hits} |")
    return lines


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
