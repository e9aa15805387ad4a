"""The personal lists in memory: whether a recipient has entries, and which of them match a sender. No I/O.

Holds hashes, 8 bytes for an entry and some 180 for a recipient: a million entries must not cost every worker 100 MB.
Python's hash of a text depends on a secret of the process, so nobody can choose an address that collides with another.

A table never changes: `after` makes another one, in a thread, and mail in processing continues with the old one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from bridge.lists.personal_store import Change, Kind

_MERGE_AT = 1000  # changes that are kept separately until the sorted array is rebuilt


class PersonalTable:
    """While nobody has entries, only `is_empty` is checked for each mail."""

    __slots__ = ("_entries", "_recipients", "is_empty")

    def __init__(self, recipients: dict[int, int], entries: _Hashes) -> None:
        """`recipients`: how many entries they have, and those with the same local part."""
        self._recipients = recipients
        self._entries = entries
        self.is_empty = not entries.size

    @classmethod
    def of(cls, entries: Iterable[Change]) -> PersonalTable:
        recipients: dict[int, int] = {}
        found = _Hashes()
        for entry in entries:
            _count(recipients, entry.recipient, 1)
            found.put(_key(entry.kind, entry.recipient, entry.sender))
        found.merge()
        return cls(recipients, found)

    def __len__(self) -> int:
        return self._entries.size

    def has(self, recipient: str) -> bool:
        """Whether this recipient, or one with this local part, may have entries; in the spelling of entries."""
        return hash(recipient) in self._recipients

    def find(self, kind: str, recipient: str, senders: Sequence[str]) -> str | None:
        """The first of these senders (addresses, `@domain`) about whom the recipient has an entry."""
        entries = self._entries
        return next((sender for sender in senders if _key(kind, recipient, sender) in entries), None)

    def after(self, changes: Iterable[Change]) -> PersonalTable:
        """The table with these changes."""
        recipients, entries = self._recipients.copy(), self._entries.copy()
        for change in changes:
            for kind in Kind:
                if (key := _key(kind, change.recipient, change.sender)) in entries:
                    _count(recipients, change.recipient, -1)
                    entries.discard(key)
            if change.kind:
                _count(recipients, change.recipient, 1)
                entries.put(_key(change.kind, change.recipient, change.sender))
        if entries.is_due:
            entries.merge()
        return PersonalTable(recipients, entries)


class _Hashes:
    """A set of 64-bit numbers: a sorted array, and what has changed since it was made."""

    def __init__(self) -> None:
        self._sorted = array("q")
        self._added: set[int] = set()
        self._removed: set[int] = set()

    @property
    def size(self) -> int:
        return len(self._sorted) + len(self._added) - len(self._removed)

    @property
    def is_due(self) -> bool:
        return len(self._added) + len(self._removed) > _MERGE_AT

    def copy(self) -> _Hashes:
        made = _Hashes()
        made._sorted, made._added, made._removed = self._sorted, set(self._added), set(self._removed)
        return made

    def __contains__(self, number: int) -> bool:
        return number in self._added or (number not in self._removed and self._is_sorted(number))

    def put(self, number: int) -> None:
        self._removed.discard(number)
        if not self._is_sorted(number):
            self._added.add(number)

    def discard(self, number: int) -> None:
        self._added.discard(number)
        if self._is_sorted(number):
            self._removed.add(number)

    def merge(self) -> None:
        if self._added or self._removed:
            kept = [number for number in self._sorted if number not in self._removed]
            self._sorted = array("q", sorted([*kept, *self._added]))
            self._added, self._removed = set(), set()

    def _is_sorted(self, number: int) -> bool:
        place = bisect_left(self._sorted, number)
        return place < len(self._sorted) and self._sorted[place] == number


def _count(recipients: dict[int, int], recipient: str, more: int) -> None:
    """For the recipient, and for the local part alone."""
    for number in (hash(recipient), hash(recipient.rpartition("@")[0])):
        recipients[number] = recipients.get(number, 0) + more
        if not recipients[number]:
            del recipients[number]


def _key(kind: str, recipient: str, sender: str) -> int:
    return hash(f"{kind}\0{recipient}\0{sender}")


EMPTY = PersonalTable.of(())
