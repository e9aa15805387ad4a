"""Whether a mail is phishing: its signals, what the model makes of them, and why, in words.

A failure here must not stop a mail: an error in this package leaves the mail without these signals, with the tag
`failed:phishing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.service.detection import signals
from bridge.service.detection.material import Material


@dataclass(slots=True)
class Suspicion:
    """What was found. Plain data, because it comes from another process."""

    margin: float = 0.0  # log odds, as the model sees them
    signals: dict[str, str] = field(default_factory=dict)  # each tag, and what it was found in

    def to_dict(self) -> dict[str, Any]:
        return {"margin": self.margin, "signals": self.signals}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Suspicion:
        return cls(value["margin"], dict(value["signals"]))


def assess(material: Material, tags: set[str]) -> Suspicion:
    """Adds the tags of the signals to `tags`."""
    try:
        found = signals.of(material, tags)
    except Exception:
        tags.add("failed:phishing")
        return Suspicion()
    tags |= found.tags.keys()
    return Suspicion(0.0, found.tags)
