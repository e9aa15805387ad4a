"""What the inspection of a mail keeps for the detection of phishing: nothing is decoded a second time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from bridge.service.detection import page

MAX_PAGES = 4  # of each kind, however long they are,
MAX_MORE_PAGES = 40  # and further ones that are together no longer than one
MAX_NAMES = 100
MAX_CODES = 20
MAX_PLAIN = 64 * 1024  # characters


@dataclass(slots=True)
class Material:
    fields: list[tuple[str, str]] = field(default_factory=list)
    envelope_from: str = ""  # empty: unknown, or a bounce
    is_inline: bool = False  # in the event loop: raise NeedsProcess if it takes long
    spend: Callable[[str], object] = len  # called with each name that is going to be converted, which takes time
    sources: list[str] = field(default_factory=list)  # pages of the mail itself
    attached_sources: list[str] = field(default_factory=list)
    plain: str = ""
    beside: str = ""  # of the plain text: what is shown besides pages, not instead of them
    codes: list[str] = field(default_factory=list)  # links in QR codes
    is_cut: bool = False  # more pages, or longer ones, than are read
    names: list[str] = field(default_factory=list)  # of attached files, in lower case
    types: set[str] = field(default_factory=set)  # of attached files
    pages: list[page.Page] = field(default_factory=list)  # what `read` makes of the sources
    attached_pages: list[page.Page] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def first(self, name: str) -> str:
        return next((value for key, value in self.fields if key == name), "")

    def add_text(self, text: str, *, is_html: bool, is_attached: bool, is_beside: bool = False) -> None:
        if is_html or is_attached:
            sources = self.attached_sources if is_attached else self.sources
            room = page.MAX_SOURCE - sum(map(len, sources[MAX_PAGES:]))
            has_room = len(sources) < MAX_PAGES or (len(sources) < MAX_PAGES + MAX_MORE_PAGES and len(text) <= room)
            self.is_cut |= not has_room or len(text) > page.MAX_PAGE
            if has_room:
                sources.append(text[: page.MAX_SOURCE])
        elif len(self.plain) < MAX_PLAIN:
            self.plain += text[: MAX_PLAIN - len(self.plain)] + "\n"
            if is_beside and len(self.beside) < MAX_PLAIN:
                self.beside += text[: MAX_PLAIN - len(self.beside)] + "\n"

    def add_codes(self, links: Collection[str]) -> None:
        self.codes += list(links)[: MAX_CODES - len(self.codes)]

    def add_file(self, names: Collection[str], content_type: str) -> None:
        self.types.add(content_type)
        if len(self.names) < MAX_NAMES:
            self.names += [name[-100:].lower() for name in sorted(names)]

    def read(self) -> None:
        """Done last, because it takes longest, and the inspection may give up before."""
        self.pages = [page.read(source) for source in self.sources]
        self.attached_pages = [page.read(source) for source in self.attached_sources]
