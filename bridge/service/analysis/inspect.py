"""Inspection: everything that can be learnt from the bytes of a mail alone.

Plain and synchronous, so that it runs wherever there is room: in the event loop for small mail
without archives, in a process of its own for the rest. It draws on bounds, not on trust: the
result says `limits` when a bound ended the look, and whoever decides must treat that as "not
looked at".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.service.analysis import archives
from bridge.service.analysis.archives import BadArchive, Budget
from bridge.service.analysis.structure import Bounds, Buffer, Part, TooMuch, decoded, walk

# In two pieces, so that no scanner ever takes this file for what it looks for.
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-" + b"STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-" + b"STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"


class NeedsProcess(Exception):
    """There is an archive in it: not here, please."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All bounds of one inspection; plain data, because it travels to another process."""

    bounds: Bounds = field(default_factory=Bounds)
    archive_depth: int = 4
    archive_members: int = 10_000
    extracted_bytes: int = 256 * 1024 * 1024
    archives: bool = True  # False: raise NeedsProcess at the first one


@dataclass(slots=True)
class Inspection:
    """What was found."""

    tags: set[str] = field(default_factory=set)
    limits: set[str] = field(default_factory=set)


def inspect(data: Buffer, limits: Limits) -> Inspection:
    """Look at one mail. Raises NeedsProcess, and only when told so."""
    look = _Look(limits)
    try:
        look.signatures(data)
        look.mail(data, 0)
    except TooMuch as exc:
        look.found.limits.add(str(exc))
    return look.found


class _Look:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.found = Inspection()
        self.budget = Budget(limits.archive_members, limits.extracted_bytes, limits.archive_depth)

    def signatures(self, data: Buffer) -> None:
        if data.find(EICAR) >= 0:
            self.found.tags.add("malware:eicar")
        if data.find(GTUBE) >= 0:
            self.found.tags.add("spam:gtube")

    def mail(self, data: Buffer, nesting: int) -> None:
        for part in walk(data, self.limits.bounds):
            if not part.content_type.startswith("multipart/"):
                self.leaf(data, part, nesting)

    def leaf(self, data: Buffer, part: Part, nesting: int) -> None:
        if part.encoding in ("7bit", "8bit", "binary") and part.content_type.startswith(("text/", "message/")):
            return  # its bytes were searched with the whole mail
        content = decoded(data, part)
        self.content(content, part.filename, nesting)

    def content(self, content: bytes, name: str, nesting: int) -> None:
        self.signatures(content)
        kind = archives.kind_of(content)
        if kind:
            self.archive(content, kind, name, nesting)

    def archive(self, content: bytes, kind: str, name: str, nesting: int) -> None:
        if not self.limits.archives:
            raise NeedsProcess
        if nesting >= self.budget.depth:
            raise TooMuch("archive-depth")
        try:
            for member in archives.members(content, kind, name, self.budget):
                if member.content is not None:
                    self.content(member.content, member.name, nesting + 1)
        except BadArchive:
            self.found.tags.add("mime:broken-archive")
