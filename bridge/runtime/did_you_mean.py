"""Suggestions for misspelt words: keys of the configuration, profiles, names of lists."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` to append to an error, or nothing if no known word is similar."""
    found = similar(word, known)
    return f"; did you mean {found}?" if found else ""


def similar(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is spelt most like this one; `cutoff` is how similar it must be, up to 1."""
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None
