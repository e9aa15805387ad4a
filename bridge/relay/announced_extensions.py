"""The extensions that a next hop has recently announced.

If a mail needs an extension that is missing now but was announced within the last hour, it is deferred: a cluster of
mail servers may be in the middle of an upgrade, or a firewall may have interfered. If the extension stays missing, the
mail is returned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from time import monotonic

_REMEMBERED_S = 3600.0
_MAX_REMEMBERED = 100


class AnnouncedExtensions:
    def __init__(self) -> None:
        self._last: dict[str, float] = {}  # when each one was last announced

    def note(self, names: Collection[str]) -> None:
        now = monotonic()
        for name in itertools.islice(names, _MAX_REMEMBERED):
            self._last[name] = now
        if len(self._last) > _MAX_REMEMBERED:
            self._last = dict.fromkeys(itertools.islice(names, _MAX_REMEMBERED), now)

    def was_there(self, name: str) -> bool:
        return monotonic() - self._last.get(name, -math.inf) <= _REMEMBERED_S
