"""A number with its noun, as people read it."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 mail`, `2,000 mails`; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
