"""The configuration as a page shows it: keys with their values, section by section."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: str
    origin: str

    @property
    def is_default(self) -> bool:
        return self.origin == "default"


Sections = tuple[list[tuple[str, list[Setting]]], str]  # by name; or what is wrong
