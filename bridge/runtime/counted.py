"""Numbers with their nouns, as people read them."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 mail`, `2,000 mails`; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"))


def spoken(seconds: float) -> str:
    """`90 s`, `15 minutes`, `7 days`: always at least two of the larger unit, so that little is lost."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{int(seconds // size):,} {unit}"
    return f"{seconds:.0f} s"
