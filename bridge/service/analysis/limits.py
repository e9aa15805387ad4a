"""The limits of an inspection: what it looks at, and how far.

Plain data, made from the configuration, because it is sent to the processes that inspect. If it is wrong, something
in a mail is not looked at, or one mail can use any amount of time and memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bridge.mime.structure import Bounds
from bridge.service.analysis.content.optional_formats import DEFAULT_FORMATS
from bridge.service.detection.phishing import Search


@dataclass(frozen=True, slots=True)
class Limits:
    """What to inspect, and how far."""

    bounds: Bounds = field(default_factory=Bounds)
    archive_depth: int = 4
    archive_members: int = 10_000
    extracted_bytes: int = 256 * 1024 * 1024
    urls: int = 5000
    look_at_mime: bool = True
    look_at_urls: bool = True
    look_at_headers: bool = True
    phishing: Search | None = None  # None: do not look for phishing
    envelope_from: str = ""  # of this mail; only for `phishing`
    archives: bool = True  # False: raise NeedsProcess at the first archive or doubt, or if links take long
    formats: tuple[str, ...] = DEFAULT_FORMATS  # see `optional_formats`
    keep_objects: bool = False  # True: objects that engines may not find themselves are part of the result
    keep_parts: bool = False  # True: so are all parts, for engines that look at one object at a time
    show_members: bool = False  # True: `see` also gets the files in archives that engines would open themselves

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Limits:
        search = Search.from_dict(value["phishing"]) if value["phishing"] else None
        return cls(
            **{**value, "bounds": Bounds(**value["bounds"]), "phishing": search, "formats": tuple(value["formats"])}
        )
