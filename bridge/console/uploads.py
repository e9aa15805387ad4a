"""Files with list entries that people have sent, and that wait until they are applied."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bridge.console.tokens import new_token
from bridge.lists.plan import Plan

_KEPT_S = 900.0
_MAX = 8


@dataclass(slots=True)
class Uploaded:
    """A file, and what it would change. Belongs to the person who sent it."""

    owner: str
    plan: Plan
    made_at: float
    dangers: dict[str, str]


@dataclass(slots=True)
class Uploads:
    _kept: dict[str, Uploaded] = field(default_factory=dict)

    def keep(self, uploaded: Uploaded) -> str:
        """One for each person, and few in all: they may be large. Returns what it is called."""
        old = time.time() - _KEPT_S
        for number, other in list(self._kept.items()):
            if other.owner == uploaded.owner or other.made_at < old:
                del self._kept[number]
        while len(self._kept) >= _MAX:
            del self._kept[next(iter(self._kept))]
        number = new_token()[:22]
        self._kept[number] = uploaded
        return number

    def find(self, number: str, owner: str) -> Uploaded | None:
        found = self._kept.get(number)
        return found if found is not None and found.owner == owner else None

    def remove(self, number: str) -> None:
        self._kept.pop(number, None)
