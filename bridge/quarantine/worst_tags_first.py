"""Why a mail is in the quarantine, the worst reason first.

The order is for people who skim a list. The weights of the included service's tags are its default scores
(`docs/operate/service.md`), which the caller supplies; another service's tags are judged by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bridge.quarantine.record import MailRecord

_NAMED = (
    (re.compile("malware|virus|trojan|ransom|worm"), 100.0),
    (re.compile("phish|fraud|exploit"), 90.0),
    (re.compile("list:blocked"), 80.0),
    (re.compile("spam|rspamd:reject"), 70.0),
    (re.compile("incomplete|failed:|limit:"), 9.0),
    (re.compile("list:allowed|[:-](?:pass|none)$"), -1.0),
)
_UNKNOWN = 0.25  # between the scored tags and those that mean nothing bad


def worst_first(tags: Iterable[str], scores: Mapping[str, float]) -> list[str]:
    return sorted(tags, key=lambda tag: (-_weight(tag.lower(), scores), tag))


def why(mail: MailRecord, scores: Mapping[str, float]) -> str:
    """The tags; without any, the verdict or the decision."""
    if mail.is_damaged:
        return "damaged .json"
    if mail.tags:
        return ",".join(worst_first(mail.tags, scores))
    return str(mail.facts.get("verdict") or "") or mail.decision


def _weight(tag: str, scores: Mapping[str, float]) -> float:
    for pattern, weight in _NAMED:
        if pattern.search(tag):
            return weight
    return scores.get(tag, 0.0 if tag.startswith("mime:ambiguous:") else _UNKNOWN)
