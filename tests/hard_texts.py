"""Texts that make a pattern work hard, made from its own structure.

A pattern takes quadratic time if it can begin at many places of a text and then read on to the end from each of them,
or if two parts of it can share the same characters. For each part that may be repeated without bound, the texts here
therefore repeat what stands before that part, what it reads, or both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_MANY = 64  # repetitions beyond which a part counts as unbounded
_SAMPLES = "a0 \t\n=.-_@/\\\"'[](){}<>,;:?!#%&*+|~^$`\r\x00\xe9"
_MOST_WAYS = 6  # through alternatives, for each part


def attacks(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Pairs of a beginning and a piece that is to be repeated after it."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(source, pattern.flags & ~re.UNICODE)
    found: dict[tuple[str, str], None] = {}
    for before, read in _repeated(tree, [""]):
        found |= dict.fromkeys([(before, read), ("", before + read), ("", before), (before, before + read)])
    yield from (pair for pair in found if pair[1])


def _repeated(tree: Any, befores: list[str]) -> Iterator[tuple[str, str]]:
    """For each part without bound: what stands before it, and what it reads."""
    for kind, argument in tree:
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, inner = argument
            yield from _repeated(inner, befores)
            if most > _MANY:
                yield from ((before, read) for before in befores for read in _ways(inner) if read)
            befores = _joined(befores, [way * max(least, 0) for way in _ways(inner)])
        elif kind is op.SUBPATTERN:
            yield from _repeated(argument[3], befores)
            befores = _joined(befores, _ways(argument[3]))
        elif kind is op.ATOMIC_GROUP:
            yield from _repeated(argument, befores)
            befores = _joined(befores, _ways(argument))
        elif kind is op.BRANCH:
            for branch in argument[1]:
                yield from _repeated(branch, befores)
            befores = _joined(befores, [way for branch in argument[1] for way in _ways(branch)[:1]])
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            yield from _repeated(argument[1], befores)
        else:
            befores = _joined(befores, _ways([(kind, argument)]))


def _ways(tree: Any) -> list[str]:
    """Some texts that the pattern reads."""
    found = [""]
    for kind, argument in tree:
        match kind:
            case op.LITERAL:
                ways = [chr(argument)]
            case op.NOT_LITERAL:
                ways = ["a" if argument != ord("a") else "b"]
            case op.ANY:
                ways = ["a"]
            case op.IN:
                ways = _characters(argument)
            case op.BRANCH:
                ways = [way for branch in argument[1] for way in _ways(branch)[:2]]
            case op.SUBPATTERN:
                ways = _ways(argument[3])
            case op.ATOMIC_GROUP:
                ways = _ways(argument)
            case op.MAX_REPEAT | op.MIN_REPEAT | op.POSSESSIVE_REPEAT:
                ways = [way * max(argument[0], 0) for way in _ways(argument[2])]
                ways += _ways(argument[2])[:1] if argument[0] == 0 else []
            case _:  # a place, an assertion, a reference
                ways = [""]
        found = _joined(found, ways)
    return found


def _characters(members: Any) -> list[str]:
    """Up to three that a class contains, of different kinds."""
    matches = re.compile(_class(members)).fullmatch
    found = [one for one in _SAMPLES if matches(one)]
    for kind, value in members:
        if kind is op.LITERAL:
            found.append(chr(value))
        elif kind is op.RANGE:
            found.append(chr(value[0]))
    found = [one for one in dict.fromkeys(found) if matches(one)]
    return [found[0], *found[-2:]] if len(found) > 2 else found or ["a"]


_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s", "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip


def _class(members: Any) -> str:
    text = ""
    for kind, value in members:
        if kind is op.NEGATE:
            text += "^"
        elif kind is op.LITERAL:
            text += f"\\U{value:08x}"
        elif kind is op.RANGE:
            text += f"\\U{value[0]:08x}-\\U{value[1]:08x}"
        elif kind is op.CATEGORY:
            text += _CATEGORIES[str(value)]
    return f"[{text}]"


def _joined(befores: list[str], ways: list[str]) -> list[str]:
    joined = [before + way for way in ways for before in befores]
    return list(dict.fromkeys(joined))[:_MOST_WAYS]
