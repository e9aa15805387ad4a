"""English and its translations, by gettext. The `.mo` files are made from the `.po` files by `make translations`."""

from __future__ import annotations

import gettext
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

DOMAIN = "users"
NAMES = {"en": "English", "de": "Deutsch", "fr": "Français", "es": "Español"}  # each in its own words


@dataclass(frozen=True, slots=True)
class Language:
    code: str
    translations: gettext.NullTranslations

    def say(self, text: str) -> str:
        return self.translations.gettext(text)

    def count(self, one: str, many: str, number: int) -> str:
        return self.translations.ngettext(one, many, number)

    def time(self, moment: float, zone: ZoneInfo) -> str:
        """As people write it in this language."""
        return datetime.fromtimestamp(moment, zone).strftime(self.say("%Y-%m-%d %H:%M"))


@cache
def language(code: str) -> Language:
    """English if there is no such translation."""
    if code not in NAMES or code == "en":
        return Language("en", gettext.NullTranslations())
    file = resources.files("bridge.digests") / "locale" / code / "LC_MESSAGES" / f"{DOMAIN}.mo"
    with file.open("rb") as opened:
        return Language(code, gettext.GNUTranslations(opened))


def preferred(header: str, offered: Sequence[str]) -> str:
    """The language that the browser asks for (Accept-Language), or the first that is offered."""
    wanted = []
    for entry in header[:500].split(","):
        name, _, weight = entry.strip().partition(";q=")
        try:
            wanted.append((-float(weight or 1), name.strip().lower().partition("-")[0]))
        except ValueError:
            continue
    return next((name for _, name in sorted(wanted, key=lambda pair: pair[0]) if name in offered), offered[0])
