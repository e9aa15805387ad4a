"""English and its translations, by gettext. The `.mo` files are made from the `.po` files by `make translations`."""

from __future__ import annotations

import gettext
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import cache
from importlib import resources

DOMAIN = "users"
_WANTED = re.compile(r"([A-Za-z]{1,8})(?:-[A-Za-z0-9-]{1,100})?(?:[ \t]*;[ \t]*q=([01](?:\.[0-9]{0,3})?))?")
NAMES = {"en": "English", "de": "Deutsch", "fr": "Français", "es": "Español"}  # each in its own language


@dataclass(frozen=True, slots=True)
class Language:
    code: str
    translations: gettext.NullTranslations

    def say(self, text: str) -> str:
        return self.translations.gettext(text)

    def count(self, one: str, many: str, number: int) -> str:
        return self.translations.ngettext(one, many, number)

    def time(self, moment: float, zone: tzinfo) -> str:
        """As it is written in this language."""
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
    """The language that the browser asks for (Accept-Language, RFC 9110 12.5.4), or the first that is offered."""
    weights: dict[str, float] = {}
    for entry in header[:500].split(","):
        found = _WANTED.fullmatch(entry.strip())
        if found is not None:
            name = found[1].lower()
            weights[name] = max(weights.get(name, 0.0), float(found[2] or 1))
    wanted = [name for name, weight in weights.items() if weight > 0 and name in offered]
    return max(wanted, key=lambda name: weights[name], default=offered[0])
