"""A search as it was typed into the form of a page: what it means, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any
from urllib.parse import parse_qsl, urlencode

from bridge.history.parameters import PAGE, value_of
from bridge.runtime import moments
from bridge.runtime.time_zone import time_zone

HELD_FIELDS = (
    *("recipient", "sender", "subject", "tag", "state", "since"),
    *("until", "client", "decision", "tenant", "listener"),
)  # of the quarantine
DECISIONS = ("deliver", "quarantine", "bounce", "drop", "undecided")
_MOMENTS = ("since", "until")
_ZONE = re.compile(r"[A-Za-z0-9_+/-]{1,64}")


@dataclass(frozen=True, slots=True)
class Search:
    """A mistake is kept with its field, so that the page can show both."""

    typed: dict[str, str]
    visible: int  # the number of fields that the form always shows; the others are folded away
    before: str = ""  # the end of the previous page
    wanted: dict[str, Any] = field(default_factory=dict)
    mistakes: dict[str, str] = field(default_factory=dict)

    @property
    def has_more_fields(self) -> bool:
        """Whether one of the fields that are folded away is used."""
        return any(list(self.typed.values())[self.visible :])

    def interpret(self, value: Callable[[str, str], Any], zone: tzinfo) -> None:
        """Fill `wanted` and `mistakes`. `value` gives the meaning of a field's text, or raises ValueError."""
        for name, text in self.typed.items():
            if not text:
                continue
            try:
                self.wanted[name] = moments.parse(text[:100], zone=zone) if name in _MOMENTS else value(name, text)
            except ValueError as exc:
                self.mistakes[name] = str(exc)
        try:
            if self.before:
                value_of("before", self.before, PAGE["before"])
        except ValueError:
            self.mistakes["before"] = "the link to this page is damaged; search again"

    def for_next_page(self, typed: Mapping[str, str]) -> dict[str, str]:
        """These fields with moments written out: `2h` means something else by then."""
        exact = {name: self.wanted[name] for name in _MOMENTS if name in self.wanted}
        return {**typed, **{name: datetime.fromtimestamp(at, UTC).isoformat() for name, at in exact.items()}}


def held_query(text: str) -> str:
    """The fields of a search in the quarantine, from a text that came from a browser."""
    return _kept(text, (*HELD_FIELDS, "before", "like"))


def list_query(text: str) -> str:
    """The same, for a search in a list."""
    return _kept(text, ("tenant", "find", "at"))


def _kept(text: str, names: Iterable[str]) -> str:
    try:
        given = dict(parse_qsl(text[:8000], max_num_fields=50))
    except ValueError:
        return ""
    return urlencode({name: given[name] for name in names if given.get(name)})


def reader_zone(name: str) -> tzinfo:
    """The reader's time zone; a script fills it in."""
    try:
        return time_zone(name) if _ZONE.fullmatch(name) else UTC
    except ValueError:
        return UTC
