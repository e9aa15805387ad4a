"""Applies the changes that the scanner requests to the header section of one mail.

For a relay, the header section is written again; for a milter, the mail server is told which of its fields to change.
Both take the same fields out. Knows nothing of what is allowed: the scanner's dialect has decided that. If this is
wrong, fields of the mail are lost that nobody asked to remove.
"""

from __future__ import annotations

from collections import defaultdict

from bridge.api.changes import Changes
from bridge.mail.header_fields import field_places
from bridge.runtime.value import value

_MAX_EDITS = 500  # fields; for each, a milter's mail server searches the header section


@value
class FieldEdit:
    """One field of the mail: a new value, or none to delete it."""

    name: bytes  # in lower case
    number: int  # among the fields of this name, from 1
    value: str | None


def changed_head(head: bytes, changes: Changes) -> bytes:
    """The header section as the changes want it, without those fields that are added above it."""
    if not changes.remove and changes.subject is None:
        return head
    new = b"" if changes.subject is None else b"Subject: %b\r\n" % changes.subject.encode("ascii")
    places = field_places(head, _names(changes))
    cuts = []
    for edit in edits(head, changes):
        if edit.number <= len(places.get(edit.name, ())):
            start, end = places[edit.name][edit.number - 1]
            cuts.append((start, end, new if edit.value is not None else b""))
    pieces, position = [], 0
    for start, end, instead in sorted(cuts):
        pieces += [head[position:start], instead]
        position = end
    below = b"".join([*pieces, head[position:]])
    return below if b"subject" in places else new + below


def edits(head: bytes, changes: Changes) -> tuple[FieldEdit, ...]:
    """The same for a mail server that changes its own copy; of each name the last first, so that numbers stay true."""
    if not changes.remove and changes.subject is None:
        return ()
    places = field_places(head, _names(changes))
    gone: dict[bytes, set[int]] = defaultdict(set)
    for name, which in changes.remove:
        count = len(places.get(key := name.encode("ascii"), ()))
        number = which if which >= 0 else count + 1 + which
        gone[key] |= {*range(1, count + 1)} if which == 0 else {number} & {*range(1, count + 1)}
    if changes.subject is not None:
        gone[b"subject"] = set(range(2, len(places.get(b"subject", ())) + 1))
    found = [FieldEdit(name, number, None) for name in gone for number in sorted(gone[name], reverse=True)]
    if changes.subject is not None:
        found.append(FieldEdit(b"subject", 1, changes.subject))
    return tuple(found)


def too_many(head: bytes, changes: Changes) -> bool:
    """Whether there are more of these fields than can be removed."""
    return sum(map(len, field_places(head, _names(changes), _MAX_EDITS + 1).values())) > _MAX_EDITS


def _names(changes: Changes) -> set[bytes]:
    subject = {b"subject"} if changes.subject is not None else set()
    return {name.encode("ascii") for name, _ in changes.remove} | subject
