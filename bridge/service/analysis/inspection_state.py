"""The state of one inspection: what it has found, what surrounds the current object, and what it may still spend.

The classes that read mails and open files derive from this one. Every step takes from a budget, so that no file
occupies the service for long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from bridge.mime import readings
from bridge.mime.ambiguity import Buffer
from bridge.service.analysis.content import file_types
from bridge.service.analysis.content.archives import Budget
from bridge.service.analysis.content.links import Links
from bridge.service.analysis.damaged_archives import DamagedArchives
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.limits import Limits
from bridge.service.detection.material import Material

# In two pieces, so that no virus scanner reports this file.
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-" + b"STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-" + b"STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"

NAME_COST = 1024  # work for each name of a file: an archive may give it thousands
LINK_COST = 256  # work for each link that a document gives: it may have thousands
BEGINNING = 4096  # bytes by which the type of a file is recognised
INLINE_WORK = 1024 * 1024  # of `Budget`: a few milliseconds

See = Callable[[bytes, Collection[str], bool, str | None], None]


class InspectionState:
    """One inspection in progress."""

    def __init__(self, limits: Limits, size: int, see: See | None) -> None:
        self.limits = limits
        self.see = see
        self.documents = 0  # around the current object
        self.signed_around = 0  # signed data around the current object
        self.opaque = 0  # containers around the current object that engines may not open
        self.is_guess, self.is_in_text, self.is_enclosed = False, False, False  # the current file
        self.quoted_mails: list[tuple[int, bytes]] = []  # attached in quoted-printable, and their nesting
        self.sizes: set[int] = set()  # of the files in `found.digests`: a file of another size is none of them
        self.found = Inspection()
        self.reading = readings.Budget(size)
        self.damaged_archives = DamagedArchives(charge=self.reading.take)
        self.links = Links(limits.urls, is_inline=not limits.archives, charge=self.reading.take)
        self.budget = Budget(limits.archive_members, limits.extracted_bytes, limits.archive_depth)
        self.budget.work = max(self.budget.work, limits.extracted_bytes) if limits.archives else INLINE_WORK
        self.material: Material | None = None
        if limits.phishing is not None:
            self.material = Material(
                envelope_from=limits.envelope_from, is_inline=not limits.archives, spend=self.links.spend
            )

    def show(self, content: bytes, names: Collection[str], content_type: str | None = "") -> None:
        if self.see:
            self.see(content, names, self.opaque > 0, content_type)

    def signatures(self, data: Buffer) -> None:
        if data.find(EICAR) >= 0:
            self.found.tags.add("malware:eicar")
        if data.find(GTUBE) >= 0:
            self.found.tags.add("spam:gtube")

    def tag_names(self, names: Collection[str]) -> None:
        """Add the tags for names that a program may show, of a container or of no part in particular."""
        for name in names:
            self.found.tags |= file_types.tags_of(name, "", b"")

    def tag_file(self, names: Collection[str], content_type: str, content: bytes) -> None:
        """Add the tags for a file. Its content is searched once, whatever its names; its beginning tells the type."""
        self.budget.take_work(NAME_COST * len(names))
        for number, name in enumerate(names):
            self.found.tags |= file_types.tags_of(name, content_type, content if number == 0 else content[:BEGINNING])

    def collect_links(self, links: Collection[str]) -> None:
        """Links outside of any text: in codes, documents and the like."""
        for link in links if self.limits.look_at_urls else ():
            self.budget.take_work(LINK_COST + len(link))
            self.links.collect(link)
            if "@" in link:  # what precedes it may contain what ends a link in a text
                self.links.add(link)

    @contextmanager
    def hidden_from_engines(self, is_hidden: bool = True) -> Iterator[None]:
        """For a container that engines may not open: what is in it is kept for them."""
        self.opaque += is_hidden
        try:
            yield
        finally:
            self.opaque -= is_hidden

    @contextmanager
    def in_doubt(self, *, is_in_text: bool) -> Iterator[None]:
        """For files that only some programs find, or that no program offers as attachments: those in a text."""
        before = self.is_guess, self.is_in_text
        self.is_guess, self.is_in_text = True, self.is_in_text or is_in_text
        try:
            yield
        finally:
            self.is_guess, self.is_in_text = before
