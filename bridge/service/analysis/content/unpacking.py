"""What all containers share: the budget that everything unpacked from one mail is charged to, and a member.

Knows no format. Both what goes into a decoder and what comes out are charged: data that yields nothing takes
time too, and the members of an archive may share their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.mime.structure import TooMuch

UNOPENED = "mime:unopened-archive"  # the tag of a container that is not opened
MAX_MEMBER = 128 * 1024 * 1024  # one member is held in memory during its inspection
_USUAL_RATIO = 20  # of what comes out of a decoder to what goes in; few ordinary files are compressed better


@dataclass(slots=True)
class Budget:
    """What may still be unpacked. `work` counts the bytes that are given to decoders."""

    members: int = 10_000
    bytes: int = 256 * 1024 * 1024
    depth: int = 4
    work: int = 256 * 1024 * 1024
    pixels: int = 60_000_000  # of pictures that are searched for codes
    picture_bytes: int = 128 * 1024 * 1024  # of pictures in documents, compressed and inflated
    pictures: set[object] = field(default_factory=set)  # that were read in documents: the same one is read once

    def take_member(self) -> None:
        self.members -= 1
        if self.members < 0:
            raise TooMuch("archive-members")

    def take(self, count: int) -> None:
        self.bytes -= count
        if self.bytes < 0:
            raise TooMuch("archive-size")

    def take_slow(self, length: int, total: int, given: int, work: int) -> None:
        """What a slow decoder made, besides `take`: `length` bytes, `total` until now, from `given` ones.

        `work` is for each byte beyond the usual ratio.
        """
        self.take_work(work * max(0, min(length, total - _USUAL_RATIO * given)))

    def take_picture(self, count: int) -> None:
        self.picture_bytes -= count
        if self.picture_bytes < 0:
            raise TooMuch("pictures")

    def take_work(self, count: int) -> None:
        self.work -= count
        if self.work < 0:
            raise TooMuch("archive-work")


@dataclass(frozen=True, slots=True)
class Member:
    """A file within a container. `content` is None if nothing of it can be read.

    `names` are all that some program would give it. If it is broken, it may only be cut off: no program can read more
    of it. `limit` names one of our limits: the file is not read, or not completely, but other programs can read it. If
    `is_disputed`, other programs may not find it. If `is_seldom_read`, engines know the format, but some do not unpack
    everything that archive programs write. `tags` and `links` are what the container says: of the container as a whole
    if the member has no content.
    """

    names: tuple[str, ...]
    content: bytes | None
    encrypted: bool = False
    broken: bool = False
    is_cut_off: bool = False
    limit: str = ""
    is_disputed: bool = False
    is_seldom_read: bool = False
    tags: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class BadArchive(Exception):
    """The archive is broken. What could be read of it has been yielded."""


class CutOff(BadArchive):
    """It only ends too early: no program can read more of it."""
