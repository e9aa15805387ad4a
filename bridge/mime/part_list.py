"""The parts of a mail for people: type, name, size and hash of each, with its depth in the structure.

The plain reading (`bridge.mime.structure`), within bounds; never raises, because a mail may be broken on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.mime.digests import Digests
from bridge.mime.structure import Bounds, Part, TooMuch, is_message, walk

MAX_PARTS = 300


@dataclass(frozen=True, slots=True)
class PartFacts:
    depth: int
    content_type: str
    name: str
    encoding: str
    charset: str
    size: int  # decoded; of a container, or without a hash, as it is in the mail
    sha256: str  # of the decoded content; "" for a container, or if it was not computed
    doubts: tuple[str, ...]  # why mail programs may read it differently
    is_container: bool


@dataclass(slots=True)
class PartList:
    parts: list[PartFacts] = field(default_factory=list)
    problem: str = ""

    def add(self, part: Part, digests: Digests) -> bool:
        """False if there are too many."""
        if len(self.parts) >= MAX_PARTS:
            self.problem = f"only the first {MAX_PARTS} parts are shown"
            return False
        self.parts.append(_facts(part, digests))
        self.problem = digests.problem
        return True

    def cut(self, limit: TooMuch) -> None:
        if len(self.parts) < MAX_PARTS:
            self.problem = f"the mail was not read to its end, because it exceeds a limit ({limit})"


def list_parts(mail: bytes) -> PartList:
    found, digests = PartList(), Digests(mail)
    try:
        for part in walk(mail, Bounds(), finds_all_names=False):
            if not found.add(part, digests):
                break
    except TooMuch as exc:
        found.cut(exc)
    return found


def _facts(part: Part, digests: Digests) -> PartFacts:
    is_container = part.content_type.startswith("multipart/") or is_message(part.content_type)
    size, sha256 = (part.end - part.body, "") if is_container else digests.of(part)
    charset = part.params.get("charset", "")
    doubts = tuple(sorted(part.doubts))
    return PartFacts(
        part.depth, part.content_type, part.filename, part.encoding, charset, size, sha256, doubts, is_container
    )
