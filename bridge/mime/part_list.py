"""The parts of a mail for people: type, name, size and hash of each, with its depth in the structure.

The plain reading (`bridge.mime.structure`), within bounds; never raises, because a mail may be broken on purpose.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from bridge.mime.encodings import decode
from bridge.mime.structure import Bounds, Part, TooMuch, is_message, walk

MAX_PARTS = 300


@dataclass(frozen=True, slots=True)
class PartFacts:
    depth: int
    content_type: str
    name: str
    encoding: str
    charset: str
    size: int  # decoded; of a container, as it is in the mail
    sha256: str  # of the decoded content; "" for a container
    doubts: tuple[str, ...]  # why mail programs may read it differently

    @property
    def is_container(self) -> bool:
        return not self.sha256


@dataclass(slots=True)
class PartList:
    parts: list[PartFacts] = field(default_factory=list)
    problem: str = ""


def list_parts(mail: bytes) -> PartList:
    found = PartList()
    try:
        for part in walk(mail, Bounds()):
            if len(found.parts) >= MAX_PARTS:
                found.problem = f"only the first {MAX_PARTS} parts are shown"
                break
            found.parts.append(_facts(mail, part))
    except TooMuch as exc:
        found.problem = f"the mail was not read to its end, because it exceeds a limit ({exc})"
    return found


def _facts(mail: bytes, part: Part) -> PartFacts:
    is_container = part.content_type.startswith("multipart/") or is_message(part.content_type)
    content = mail[part.body : part.end]
    if not is_container:
        content = decode(content, part.encoding)[0]
    sha256 = "" if is_container else hashlib.sha256(content).hexdigest()
    charset = part.params.get("charset", "")
    doubts = tuple(sorted(part.doubts))
    return PartFacts(part.depth, part.content_type, part.filename, part.encoding, charset, len(content), sha256, doubts)
