"""Files in a mail: what their bytes and names reveal, and what is inside of them.

Archives and documents are opened here, and each file in them is inspected like an attachment. What is found inside may
be a mail or a text again: `inspection` defines the methods for these.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from bridge.mime import line_ends, readings
from bridge.mime.structure import Part, TooMuch
from bridge.service.analysis.content import archives, binary_links, documents, file_types, recognition
from bridge.service.analysis.content.archives import BadArchive, CutOff
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.content.optional_formats import FORMATS, LIBARCHIVE
from bridge.service.analysis.content.pictures import QR_LINK
from bridge.service.analysis.content.unpacking import UNOPENED
from bridge.service.analysis.damaged_archives import BROKEN, BROKEN_CONTAINER
from bridge.service.analysis.inspection_state import See
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.wrapped_files import SHOWN_TEXT, WrappedFileInspector

# Office documents list the types of the files in them. One may be a page in the form of a mail, whatever its name is.
OFFICE_FILE, CONTENT_TYPES = "office-file", b"[content_types].xml"
MAY_HAVE_MAIL = frozenset({"openpgp", OFFICE_FILE})
MAY_HAVE_TEXT = frozenset({"openpgp", "tnef"})  # of the mail itself

DECEPTIVE = "mime:deceptive-name"
# Tags that a file gets if it is damaged, as nearly every file is by other line ends.
_DAMAGED = frozenset({"document:not-read", UNOPENED, BROKEN, BROKEN_CONTAINER})


class FileInspector(WrappedFileInspector):
    """One inspection in progress: how files are opened."""

    def __init__(self, limits: Limits, size: int, see: See | None) -> None:
        super().__init__(limits, size, see)
        # Already opened, with all that matters; whether they are damaged, and whether not only cut off.
        self.files: dict[tuple[str, frozenset[str], int, int, bool, bool, bool], tuple[bool, bool]] = {}
        self.is_damaged, self.is_refused = False, False  # the current file; the second: not only cut off

    @abstractmethod
    def attachment(self, content: bytes, part: Part, nesting: int) -> None:
        """The decoded content of a part that is a file."""

    def file(
        self, content: bytes, names: Collection[str], nesting: int, documents_in: Collection[str] | None = None
    ) -> None:
        """A file that is not in an archive. `documents_in`: what `documents.kinds_of` says, if the caller knows."""
        is_damaged, is_refused = self.opened(content, names, nesting, documents_in)
        kind = archives.kind_of(content)
        if self.is_guess and is_damaged:
            is_refused = is_refused and bool(kind)
            self.damaged_archives.add_guess(content, is_refused=is_refused, is_in_text=self.is_in_text)
        elif kind:
            self.damaged_archives.add_whole(content)

    def opened(
        self, content: bytes, names: Collection[str], nesting: int, documents_in: Collection[str] | None = None
    ) -> tuple[bool, bool]:
        """Whether a file, attached or unpacked, is damaged, and not only cut off.

        The same one is opened once: each reading of a mail may contain it again.
        """
        digest = hashlib.sha256(content).hexdigest()
        self.found.digests.add(digest)
        self.sizes.add(len(content))
        seen = (digest, frozenset(names), nesting, self.documents, self.opaque > 0)
        certain, same = (*seen, self.is_enclosed, False), (*seen, self.is_enclosed, self.is_guess)
        known = self.files.get(same) or (self.files.get(certain) if self.is_guess else None)
        if known is None:
            around = self.is_damaged, self.is_refused
            self.is_damaged, self.is_refused = self.files[same] = False, False
            self.open_file(content, names, nesting, documents_in)
            known = self.files[same] = self.is_damaged, self.is_refused
            self.is_damaged, self.is_refused = around
        self.is_damaged |= known[0]
        self.is_refused |= known[1]
        return known

    def open_file(
        self, content: bytes, names: Collection[str], nesting: int, documents_in: Collection[str] | None
    ) -> None:
        """A document may contain pieces of archives: if these are damaged, the document itself is not."""
        if archives.is_other_file(content, names) and not self.is_guess:
            before = self.found.tags & {DECEPTIVE}
            with self.in_doubt(is_in_text=False):
                self.open_archive(content, names, nesting)
            if self.is_damaged:  # the names in it may have bytes of the document in them
                self.found.tags -= {DECEPTIVE} - before
                self.found.tags.add(BROKEN_CONTAINER)
            self.is_damaged, self.is_refused = False, False
        else:
            self.open_archive(content, names, nesting)
        if self.limits.look_at_mime:
            kinds = documents.kinds_of(content, names, self.limits.formats) if documents_in is None else documents_in
            for kind in kinds:
                self.document(content, kind, names, nesting)

    def open_archive(self, content: bytes, names: Collection[str], nesting: int) -> None:
        """As every kind of archive that some program opens it as."""
        is_doubtful, is_opened = False, False
        kinds = archives.kinds_of(content, names)
        for number, kind in enumerate(kinds):
            may_be_other = self.archive(content, kind, names, nesting, is_certain=number == 0 and kind != "lzma")
            is_doubtful, is_opened = is_doubtful or may_be_other, is_opened or not may_be_other
        if not is_opened and archives.is_only_guessed(kinds, names):
            self.found.tags.add(UNOPENED)
        for kind in archives.behind(content) if is_doubtful else ():  # programs then look for another one in it
            if kind not in kinds:
                self.archive(content, kind, names, nesting, is_certain=False)

    def archive(self, content: bytes, kind: str, names: Collection[str], nesting: int, *, is_certain: bool) -> bool:
        """Whether programs may take it for something else: it is broken, or nothing is in it."""
        if not archives.is_opened(kind, LIBARCHIVE in self.limits.formats):
            self.found.tags.add(UNOPENED)
            self.tag_names(archives.inner_names(names))
            return False
        if not self.limits.archives:
            raise NeedsProcess
        if nesting >= self.budget.depth:
            raise TooMuch("archive-depth")
        around = OFFICE_FILE if kind == "zip" and CONTENT_TYPES in content.lower() else kind
        is_empty, is_broken = True, False
        try:
            for member in archives.members(content, kind, names, self.budget):
                self.member(member, around, nesting)
                is_empty = is_empty and not (member.content or member.encrypted)
                is_broken |= member.broken
        except BadArchive as exc:
            if is_certain and kind == "tnef":
                self.found.tags.add(BROKEN_CONTAINER)
            elif is_certain:
                self.damage(is_cut_off=isinstance(exc, CutOff))
            return True
        return is_empty or is_broken

    def document(self, content: bytes, kind: str, names: Collection[str], nesting: int) -> None:
        """What a document, a picture or a page links to, runs and contains. It does not count as an archive level."""
        if not self.limits.archives:
            raise NeedsProcess
        if self.documents >= documents.MAX_NESTED:
            raise TooMuch("archive-depth")
        self.documents += 1
        for member in documents.members(content, kind, names, self.budget, self.limits.formats):
            self.member(member, kind, max(0, nesting - 1))
        self.documents -= 1

    def member(self, member: archives.Member, kind: str, nesting: int) -> None:
        """A file in an archive or a document of this kind."""
        self.found.tags.update(member.tags)
        self.collect_links(member.links)
        if self.material is not None and QR_LINK in member.tags:
            self.material.add_codes(member.links)
        if member.limit:
            self.found.limits.add(member.limit)
        if member.encrypted:
            self.found.tags.add("mime:encrypted-archive")
            if any(file_types.named_family(name) == file_types.EXECUTABLE for name in member.names):
                self.found.tags.add("mime:executable")
            return
        if member.broken:
            self.damage(is_cut_off=member.is_cut_off)
        self.tag_file(member.names, "", member.content or b"")
        if any(map(file_types.is_macro_member, member.names)):
            self.found.tags.add("mime:macro")
        if member.content is not None:
            with self.hidden_from_engines(member.is_disputed):
                self.unpacked(member.content, member, kind, nesting)

    def unpacked(self, content: bytes, member: archives.Member, kind: str, nesting: int) -> None:
        if archives.kind_of(content) and kind not in archives.COMPRESSORS and kind not in FORMATS:
            self.found.tags.add("mime:nested-archive")
        self.signatures(content)
        if self.opaque or member.is_seldom_read or self.limits.show_members:
            content_type = "" if self.opaque else None
            with self.hidden_from_engines(member.is_seldom_read):
                self.show(content, member.names, content_type)
        if recognition.is_mail_file(content, member.names) or (
            (kind in MAY_HAVE_MAIL or recognition.may_be_mail_name(member.names)) and readings.begins_like_mail(content)
        ):
            self.enclosed(content, nesting)
        elif recognition.is_page(member.names) or recognition.is_html(content):
            self.text(content, 0, len(content), SHOWN_TEXT, nesting)  # else a page would hide its links in an archive
        elif kind in MAY_HAVE_TEXT and file_types.is_text(content):
            if file_types.is_binary(content):  # as text, its bytes would be thousands of odd hosts
                self.collect_links(binary_links.links(content, self.budget))
            else:
                self.text(content, 0, len(content), SHOWN_TEXT, nesting)
        self.wrapped(content, member.names, nesting)
        self.opened(content, member.names, nesting + 1)

    def damage(self, *, is_cut_off: bool) -> None:
        """Record it. No program can read more of an archive that is only cut off, as those in bounces are."""
        self.is_damaged = True
        self.is_refused |= not is_cut_off
        if not self.is_guess:  # else `file` decides
            self.found.tags.add(BROKEN_CONTAINER if is_cut_off and self.is_enclosed else BROKEN)

    def other_line_ends(self, raw: bytes, content: bytes, part: Part, nesting: int, *, is_text: bool) -> None:
        """The same file, as saved by programs that change its line ends. `content` is what was already inspected."""
        is_text_type = part.content_type.startswith("text/")
        if part.encoding == "base64" and not is_text_type:
            return
        with self.guesses():
            for form in line_ends.forms(raw, content, part.encoding, is_text=is_text_type):
                if not self.limits.archives:
                    raise NeedsProcess
                self.reading.take_object(form)
                self.signatures(form)
                self.show(form, part.names, part.content_type)
                if self.limits.look_at_mime and (not is_text or recognition.is_file(form)):
                    self.attachment(form, part, nesting)

    @contextmanager
    def guesses(self) -> Iterator[None]:
        """For files that most programs do not find: damage in them says nothing about the mail."""
        tags, material, self.material = set(self.found.tags), self.material, None
        try:
            yield
        finally:
            self.found.tags -= _DAMAGED - tags
            self.material = material
