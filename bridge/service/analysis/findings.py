"""The findings of an inspection, and the form in which an inspecting process sends them back.

If this is wrong, what a process found in a mail is lost on its way to the decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.service.analysis.parts import MailParts, divided
from bridge.service.analysis.yara_rules import YaraAnswer
from bridge.service.detection.phishing import Suspicion


@dataclass(slots=True)
class Inspection:
    """The findings."""

    tags: set[str] = field(default_factory=set)
    limits: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)  # SHA-256 of every attachment and every file in an archive
    senders: list[str] = field(default_factory=list)  # addresses in From and Sender
    authors: list[str] = field(default_factory=list)  # those in From
    rendition: list[bytes] = field(default_factory=list)  # a mail made of what engines may not find, in pieces
    parts: MailParts | None = None  # with `Limits.keep_parts`
    yara: YaraAnswer | None = None  # if there are rules
    phishing: Suspicion | None = None  # None: not looked for

    def to_dict(self) -> dict[str, Any]:
        names = ("tags", "limits", "hosts", "digests", "senders", "authors")
        plain = {name: list(getattr(self, name)) for name in names}
        return {**plain, "phishing": self.phishing and self.phishing.to_dict()}

    @classmethod
    def from_dict(cls, value: dict[str, Any], content: list[bytes] | None = None) -> Inspection:
        """`content`: the bytes of the parts, if there are any, then the rendition."""
        tags, limits, hosts, digests = (set(value[name]) for name in ("tags", "limits", "hosts", "digests"))
        found = cls(tags, limits, hosts, digests, list(value["senders"]), list(value["authors"]), content or [])
        if (described := value.get("parts")) is not None:
            pieces, found.rendition = divided(content or [], sum(size for _, _, size, _ in described))
            found.parts = MailParts(iter(pieces), described, is_complete=not limits)
        if (yara := value.get("yara")) is not None:
            found.yara = YaraAnswer.from_dict(yara)
        if (suspicion := value["phishing"]) is not None:
            found.phishing = Suspicion.from_dict(suspicion)
        return found
