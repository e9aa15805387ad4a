"""`did you mean ...?`: the known name nearest to a mistyped one. Text only: it never chooses for the operator."""

from __future__ import annotations

from collections.abc import Iterable

_SIMILAR = 0.7  # of 1: one or two letters of a short word may be wrong


def nearest(given: str, known: Iterable[str], similar: float = _SIMILAR) -> str:
    """The most similar name, ignoring letter case; or the only one that begins like this; or ""."""
    from difflib import get_close_matches  # only after a mistake

    names = {name.lower(): name for name in known}
    found = get_close_matches(given.lower(), names, 1, similar)
    if found:
        return names[found[0]]
    longer = [name for key, name in names.items() if len(given) > 3 and key.startswith(given.lower())]
    return longer[0] if len(longer) == 1 else ""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """To be appended to a message."""
    found = nearest(given, known)
    return f"; did you mean {found}?" if found else ""
