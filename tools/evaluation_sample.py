"""Which mails `make evaluate` asks the other engines about, and which of them are for tuning only.

If this is wrong, the weights of the engines are judged by the mails they were chosen with, and look better than they
are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.mail_corpus import CorpusMail

if TYPE_CHECKING:  # needs SciPy
    from tools.train import Example

# How much the engines count was chosen with these sources of legitimate mail. SpamAssassin's public corpus is among
# them, because its rules were made with it; the small sources are every other one in the order of their names.
TUNED_ON = frozenset(
    (
        *("sa-easy", "sa-hard", "notmuch"),
        *("chatwoot", "enmime", "freescout", "mail", "mail-parser", "mailauth", "messagelib", "mu"),
        *("php-mime-mail-parser", "redmine", "thunderbird-android", "zammad"),
    )
)


@dataclass(frozen=True)
class Chosen:
    example: Example
    margin: float
    is_for_tuning: bool

    @property
    def mail(self) -> CorpusMail:
        return CorpusMail(self.example.fold, self.example.path, self.example.is_phishing)


def _sampled(found: Sequence[Example], scores: Sequence[float], limit: int) -> list[tuple[Example, float]]:
    """Always the same mails, so that their answers can be kept."""
    both = zip(found, scores, strict=True)
    return sorted(both, key=lambda one: hashlib.sha256(one[0].path.name.encode()).digest())[:limit]


def chosen_ham(corpus: Path, ham: Sequence[Example], scores: dict[str, list[float]], limit: int) -> list[Chosen]:
    """At most `limit` mails of each source; small sources count as one."""
    found = []
    for fold, margins in scores.items():
        for example, margin in _sampled([one for one in ham if one.fold == fold], margins, limit):
            source = example.path.relative_to(corpus / "ham").parts[0]
            found.append(Chosen(example, margin, source in TUNED_ON))
    return found


def chosen_phishing(newest: Sequence[Example], margins: Sequence[float], limit: int) -> list[Chosen]:
    """At most `limit` mails of the newer half, and half as many of the older one, which is for tuning."""
    half = len(newest) // 2
    older = _sampled(newest[:half], margins[:half], limit // 2)
    newer = _sampled(newest[half:], margins[half:], limit)
    return [Chosen(*one, True) for one in older] + [Chosen(*one, False) for one in newer]
