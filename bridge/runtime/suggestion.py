"""`did you mean ...?`: the known name nearest to a mistyped one. Text only: it never chooses for the operator."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SIMILAR = 0.7  # of 1: one or two letters of a short word may be wrong
_WORD_SIMILAR = 0.5  # each word of a longer name: blocked-subjects is not a misspelling of blocked-urls


def nearest(given: str, known: Iterable[str], similar: float = _SIMILAR) -> str:
    """The most similar name, ignoring letter case; or the only one that begins like this; or ""."""
    from difflib import get_close_matches  # needed only after a mistake

    names = {name.lower(): name for name in known}
    for found in get_close_matches(given.lower(), names, 3, similar):
        if _has_similar_words(given.lower(), found):
            return names[found]
    longer = [name for key, name in names.items() if len(given) > 3 and key.startswith(given.lower())]
    return longer[0] if len(longer) == 1 else ""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """To be appended to a message."""
    found = nearest(given, known)
    return f"; did you mean {found}?" if found else ""


def _has_similar_words(given: str, name: str) -> bool:
    from difflib import SequenceMatcher

    words, others = re.split("[-_. ]", given), re.split("[-_. ]", name)
    return len(words) != len(others) or all(
        SequenceMatcher(None, word, other).ratio() >= _WORD_SIMILAR for word, other in zip(words, others, strict=True)
    )
