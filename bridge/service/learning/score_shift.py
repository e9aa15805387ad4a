"""What the votes of one scope add to the phishing model, and the bounds that make it safe.

Pure: the votes are the truth, and the layer is computed from them, so it can be exported, reset and checked by hand.
It is built for an attacker who can send any mail, and can make some people press "not spam":

- A sender's votes change the score of that sender only, and only while the mail proves who sent it. Each person counts
  once per sender, however often they report.
- The weight of a signal changes only if several people have reported it in mail from several networks. A network
  counts once, all mail of unknown origin counts as one network, and a person counts for a few networks only.
- A weight changes by half of its value at most, all signals together by `MAX_OF_SIGNALS`, a sender by
  `MAX_OF_SENDER`, and everything by `MAX_SHIFT`.
- The result moves the model's points only. Tags, lists and other engines count as before, and the score of a dangerous
  mail is never lowered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from bridge.service.learning.votes import HAM, SPAM, Vote

MIN_REPORTERS = 2  # before a signal's weight changes
MIN_ORIGINS = 3
ORIGINS_PER_REPORTER = 3
SIGNAL_STEP = 0.1  # for each origin
MAX_OF_WEIGHT = 0.5
MAX_OF_SIGNALS = 1.0
SENDER_STEP = 0.75  # for each person
MAX_OF_SENDER = 2.25
MAX_SHIFT = 2.5


@dataclass(frozen=True, slots=True)
class Layer:
    """The changes of one scope. They are in the units of the model's sum: the logarithm of the odds."""

    signals: dict[str, float] = field(default_factory=dict)  # for each signal; not yet bounded by its weight
    senders: dict[str, float] = field(default_factory=dict)
    votes: int = 0

    def shift(self, senders: Iterable[str], signals: Collection[str], weights: Mapping[str, float]) -> float:
        return self.of_sender(senders) + self.of_signals(signals, weights)

    def of_sender(self, senders: Iterable[str]) -> float:
        """For the strongest proof that has votes."""
        return next((self.senders[sender] for sender in senders if sender in self.senders), 0.0)

    def of_signals(self, signals: Collection[str], weights: Mapping[str, float]) -> float:
        total = sum(self.change(signal, weights) for signal in signals)
        return max(-MAX_OF_SIGNALS, min(total, MAX_OF_SIGNALS))

    def change(self, signal: str, weights: Mapping[str, float]) -> float:
        """What is added to the weight of a signal."""
        most = MAX_OF_WEIGHT * abs(weights.get(signal, 0.0))
        return max(-most, min(self.signals.get(signal, 0.0), most))


EMPTY = Layer()


def combined(layers: Iterable[Layer], senders: Collection[str], signals: Collection[str],
             weights: Mapping[str, float], *, is_dangerous: bool) -> float:  # fmt: skip
    """What the layers of the deployment and of a tenant add to one mail."""
    total = sum(layer.shift(senders, signals, weights) for layer in layers)
    lowest = 0.0 if is_dangerous else -MAX_SHIFT
    return round(max(lowest, min(total, MAX_SHIFT)), 3)


def layer_of(votes: Collection[Vote]) -> Layer:
    return Layer(_signals(votes), _senders(votes), len(votes))


def _signals(votes: Iterable[Vote]) -> dict[str, float]:
    seen: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for vote in votes:
        for signal in vote.signals:
            seen[signal, vote.kind][vote.reporter].add(vote.origin)
    support = {key: _support(by_reporter) for key, by_reporter in seen.items()}
    names = {signal for signal, _ in seen}
    changes = {name: support.get((name, SPAM), 0) - support.get((name, HAM), 0) for name in names}
    return {name: round(SIGNAL_STEP * change, 3) for name, change in changes.items() if change}


def _support(by_reporter: dict[str, set[str]]) -> int:
    """How many networks support the change; each person counts for a limited number of them."""
    origins = set().union(*by_reporter.values())
    if len(by_reporter) < MIN_REPORTERS or len(origins) < MIN_ORIGINS:
        return 0
    return min(len(origins), sum(min(len(own), ORIGINS_PER_REPORTER) for own in by_reporter.values()))


def _senders(votes: Iterable[Vote]) -> dict[str, float]:
    """If a person has voted both ways on a sender, the latest vote counts."""
    newest: dict[tuple[str, str], Vote] = {}
    for vote in votes:
        key = (vote.sender, vote.reporter)
        if vote.sender and (key not in newest or newest[key].at <= vote.at):
            newest[key] = vote
    net: dict[str, int] = defaultdict(int)
    for vote in newest.values():
        net[vote.sender] += 1 if vote.kind == SPAM else -1
    return {
        sender: max(-MAX_OF_SENDER, min(SENDER_STEP * count, MAX_OF_SENDER)) for sender, count in net.items() if count
    }
