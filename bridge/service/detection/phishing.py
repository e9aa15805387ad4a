"""Whether a mail is phishing: its signals, and what the model makes of them.

A failure here must not stop a mail: an error in this package leaves the mail without these signals, with the tag
`failed:phishing`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from bridge.api.reason_texts import SENTENCES
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.detection import signals
from bridge.service.detection.material import Material
from bridge.service.detection.model import model_at
from bridge.service.detection.signals import Signals

log = logging.getLogger("bridge.service")


@dataclass(frozen=True, slots=True)
class Search:
    """How to look for phishing. Plain data, because it is sent to another process."""

    model: str = ""  # a file; empty: the shipped one
    stamp: int = 0  # when the file was changed
    ignored: tuple[str, ...] = ()  # tags that are switched off

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Search:
        return cls(value["model"], value["stamp"], tuple(value["ignored"]))


@dataclass(slots=True)
class Suspicion:
    """What was found. Plain data, because it comes from another process."""

    margin: float | None = None  # log odds, as the model sees them; None: no answer
    signals: dict[str, str] = field(default_factory=dict)  # each tag, and what it was found in
    found: Signals | None = None  # with the words; only where the mail was inspected

    def to_dict(self) -> dict[str, Any]:
        return {"margin": self.margin, "signals": self.signals}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Suspicion:
        return cls(value["margin"], dict(value["signals"]))


def known_signals() -> frozenset[str]:
    """The tags that can be switched off: not the context."""
    weighed = {name for name in model_at("").weights if not name.startswith(signals.CONTEXT)}
    return frozenset(SENTENCES) | weighed | signals.QUIET


def found_in(material: Material, search: Search, tags: set[str]) -> Signals:
    """The signals, without those that are switched off."""
    found = signals.of(material, tags)
    for tag in search.ignored:
        found.tags.pop(tag, None)
    return found


def assess(material: Material, search: Search, tags: set[str]) -> Suspicion:
    """Adds the tags of the signals to `tags`."""
    try:
        found = found_in(material, search, tags)
        margin = round(model_at(search.model, search.stamp).margin(found), 3)
    except NeedsProcess:
        raise
    except Exception as exc:
        log.error("phishing: the mail was not checked: %s", type(exc).__name__)  # its text may quote the mail
        tags.add("failed:phishing")
        return Suspicion()
    tags |= set(filter(signals.is_tag, found.tags))
    return Suspicion(margin, found.tags, found)
