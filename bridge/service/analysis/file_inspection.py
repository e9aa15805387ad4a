"""Files in a mail: what their bytes and names reveal, and what is inside of them.

Archives, documents, S/MIME data and calendars are opened here, and each file in them is inspected like an attachment.
What is found inside may be a mail or a text again: the methods for these are abstract here, and `inspection` defines
them. Every step takes from a budget, so that no file occupies the service for long.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from bridge.mime import ambiguity, encodings, line_ends, readings, words
from bridge.mime.ambiguity import Buffer
from bridge.mime.structure import Part, TooMuch
from bridge.service.analysis.content import (
    apple_files,
    archives,
    binary_links,
    calendar_files,
    documents,
    file_types,
    recognition,
    smime,
)
from bridge.service.analysis.content.archives import BadArchive, Budget, CutOff
from bridge.service.analysis.content.decompression import inflated
from bridge.service.analysis.content.links import Links, NeedsProcess
from bridge.service.analysis.content.optional_formats import FORMATS, LIBARCHIVE
from bridge.service.analysis.content.pictures import QR_LINK
from bridge.service.analysis.content.text_windows import BEGINNING as PAGE_START
from bridge.service.analysis.content.text_windows import WINDOW, codecs_of
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.limits import Limits
from bridge.service.detection.material import Material

# In two pieces, so that no virus scanner reports this file.
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-" + b"STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-" + b"STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"

NAME_COST = 1024  # work for each name of a file: an archive may give it thousands
GUESS_COST = 16_384  # work for each file without a name, however short it is
LINK_COST = 256  # work for each link that a document gives: it may have thousands
READING_COST = 100  # work for each byte that is read in every way
MAX_AFTER = 64  # bytes that a delimiter decodes to
BEGINNING = 4096  # bytes by which the type of a file is recognised
INLINE_EVENTS = 300  # lines of a calendar
INLINE_WORK = 1024 * 1024  # of `Budget`: a few milliseconds

# Office documents list the types of the files in them. One may be a page in the form of a mail, whatever its name is.
OFFICE_FILE, CONTENT_TYPES = "office-file", b"[content_types].xml"
MAY_HAVE_MAIL = frozenset({"openpgp", OFFICE_FILE})
MAY_HAVE_TEXT = frozenset({"openpgp", "tnef"})  # of the mail itself

# A text in an archive that mail programs show. The detection of phishing treats it as attached.
SHOWN_TEXT = Part(0, 0, 0, content_type="text/html", params={"charset": "latin-1"})

# Tags that a file gets if it is damaged, as nearly every file is by other line ends, or if it is a piece of a file that
# its name misdescribes.
_UNREAD = frozenset({"document:not-read", "mime:unopened-archive"})
BROKEN, BROKEN_CONTAINER = "mime:broken-archive", "mime:broken-container"
DECEPTIVE = "mime:deceptive-name"
_DAMAGED = _UNREAD | {BROKEN, BROKEN_CONTAINER}

See = Callable[[bytes, Collection[str], bool, str | None], None]


class FileInspector(ABC):
    """One inspection in progress: its state, and how files are inspected."""

    def __init__(self, limits: Limits, size: int, see: See | None) -> None:
        self.limits = limits
        self.see = see
        self.documents = 0  # around the current object
        self.signed_around = 0  # signed data around the current object
        self.opaque = 0  # containers around the current object that engines may not open
        # Already opened, with all that matters; whether they are damaged, and whether not only cut off.
        self.files: dict[tuple[str, frozenset[str], int, int, bool, bool, bool], tuple[bool, bool]] = {}
        self.is_guess, self.is_in_text, self.is_enclosed = False, False, False  # the current file
        self.is_damaged, self.is_refused = False, False  # the current file; the second: not only cut off
        self.archives: list[bytes] = []  # those whose damage, if there is any, already counts
        self.line_forms: list[bytes] = []  # of archives, as some programs decode them; a delimiter may follow
        self.damaged: dict[bytes, str] = {}  # damaged guesses, each with the tag for it
        self.refused: set[bytes] = set()  # those that begin as archives, and are not only cut off
        self.quoted_mails: list[tuple[int, bytes]] = []  # attached in quoted-printable, and their nesting
        self.sizes: set[int] = set()  # of the files in `found.digests`: a file of another size is none of them
        self.found = Inspection()
        self.reading = readings.Budget(size)
        self.links = Links(limits.urls, is_inline=not limits.archives, charge=self.reading.take)
        self.budget = Budget(limits.archive_members, limits.extracted_bytes, limits.archive_depth)
        self.budget.work = max(self.budget.work, limits.extracted_bytes) if limits.archives else INLINE_WORK
        self.material: Material | None = None
        if limits.phishing is not None:
            self.material = Material(
                envelope_from=limits.envelope_from, is_inline=not limits.archives, spend=self.links.spend
            )

    @abstractmethod
    def mail(self, data: Buffer, nesting: int) -> None:
        """A mail, with all its parts."""

    @abstractmethod
    def text(self, content: Buffer, start: int, end: int, part: Part, nesting: int) -> None:
        """A text that a mail program shows, in `content` from `start` to `end`."""

    @abstractmethod
    def page(self, text: str, nesting: int) -> None:
        """A page that a browser shows."""

    @abstractmethod
    def hidden(self, content: bytes, nesting: int, *, is_text: bool) -> None:
        """Encoded content in which some programs find parts or files."""

    @abstractmethod
    def attachment(self, content: bytes, part: Part, nesting: int) -> None:
        """The decoded content of a part that is a file."""

    @abstractmethod
    def guess(self, content: bytes, is_decoded: bool, nesting: int) -> None:
        """An object that some program finds, and whose name and type are in doubt."""

    def show(self, content: bytes, names: Collection[str], content_type: str | None = "") -> None:
        if self.see:
            self.see(content, names, self.opaque > 0, content_type)

    @contextmanager
    def hidden_from_engines(self, is_hidden: bool = True) -> Iterator[None]:
        """For a container that engines may not open: what is in it is kept for them."""
        self.opaque += is_hidden
        try:
            yield
        finally:
            self.opaque -= is_hidden

    def signatures(self, data: Buffer) -> None:
        if data.find(EICAR) >= 0:
            self.found.tags.add("malware:eicar")
        if data.find(GTUBE) >= 0:
            self.found.tags.add("spam:gtube")

    def named(self, names: Collection[str]) -> None:
        """Names that a program may show, of a container or of no part in particular."""
        for name in names:
            self.found.tags |= file_types.tags_of(name, "", b"")

    def names(self, names: Collection[str], content_type: str, content: bytes) -> None:
        """Whatever the names, the whole content is searched only once; its beginning is enough to tell the type."""
        self.budget.take_work(NAME_COST * len(names))
        for number, name in enumerate(names):
            self.found.tags |= file_types.tags_of(name, content_type, content if number == 0 else content[:BEGINNING])

    @contextmanager
    def in_doubt(self, *, is_in_text: bool) -> Iterator[None]:
        """For files that only some programs find, or that no program offers as attachments: those in a text."""
        before = self.is_guess, self.is_in_text
        self.is_guess, self.is_in_text = True, self.is_in_text or is_in_text
        try:
            yield
        finally:
            self.is_guess, self.is_in_text = before

    def damage(self, *, is_cut_off: bool) -> None:
        """Record it. No program can read more of an archive that is only cut off, as those in bounces are."""
        self.is_damaged = True
        self.is_refused |= not is_cut_off
        if not self.is_guess:  # else `file` decides
            self.found.tags.add(BROKEN_CONTAINER if is_cut_off and self.is_enclosed else BROKEN)

    def file(
        self, content: bytes, names: Collection[str], nesting: int, documents_in: Collection[str] | None = None
    ) -> None:
        """A file that is not in an archive. `documents_in`: what `documents.kinds_of` says, if the caller knows."""
        is_damaged, is_refused = self.opened(content, names, nesting, documents_in)
        kind = archives.kind_of(content)
        if self.is_guess and is_damaged:
            if is_refused and kind:
                self.refused.add(content)
            self.found_damaged(content)
        elif kind:
            self.archives.append(content)

    def found_damaged(self, content: bytes) -> None:
        """A guess; perhaps one that was already found in a text."""
        is_attached = content in self.refused and not self.is_in_text
        self.damaged[content] = BROKEN if is_attached else self.damaged.get(content, BROKEN_CONTAINER)

    def judge_damage(self) -> None:
        """Pieces of an archive look damaged, and programs that find only these do not see the archive.

        Any other damaged one may be the attachment that some program shows.
        """
        if not self.damaged:
            return
        wholes = list(map(recognition.without_space, self.archives))
        for content, tag in self.damaged.items():
            if tag not in self.found.tags and not self.is_piece(content, wholes):
                self.found.tags.add(tag)

    def is_piece(self, content: bytes, wholes: Iterable[bytes]) -> bool:
        is_beginning = archives.begins_as_archive(content)
        for form in self.line_forms:
            is_in_form = content.startswith(form) if is_beginning else content[:-MAX_AFTER] in form
            if is_in_form and len(content) <= len(form) + MAX_AFTER:
                return True
        piece = recognition.without_space(content)
        charge = self.reading.take
        return any(recognition.is_piece_of(piece, whole, charge, is_beginning=is_beginning) for whole in wholes)

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
            self.found.tags.add("mime:unopened-archive")
        for kind in archives.behind(content) if is_doubtful else ():  # programs then look for another one in it
            if kind not in kinds:
                self.archive(content, kind, names, nesting, is_certain=False)

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
    def guesses(self, *, may_be_pieces: bool = False) -> Iterator[None]:
        """For files that most programs do not find: damage in them says nothing about the mail.

        With `may_be_pieces`, the tag for a broken archive stays: nothing but its own bytes says that it is one.
        """
        tags, material, self.material = set(self.found.tags), self.material, None
        try:
            yield
        finally:
            self.found.tags -= (_UNREAD if may_be_pieces else _DAMAGED) - tags
            self.material = material

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

    def archive(self, content: bytes, kind: str, names: Collection[str], nesting: int, *, is_certain: bool) -> bool:
        """Whether programs may take it for something else: it is broken, or nothing is in it."""
        if not archives.is_opened(kind, LIBARCHIVE in self.limits.formats):
            self.found.tags.add("mime:unopened-archive")
            self.named(archives.inner_names(names))
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

    def member(self, member: archives.Member, kind: str, nesting: int) -> None:
        content = member.content
        self.found.tags.update(member.tags)
        self.linked(member.links)
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
        self.names(member.names, "", content or b"")
        if any(map(file_types.is_macro_member, member.names)):
            self.found.tags.add("mime:macro")
        if content is None:
            return
        if archives.kind_of(content) and kind not in archives.COMPRESSORS and kind not in FORMATS:
            self.found.tags.add("mime:nested-archive")
        self.signatures(content)
        self.opaque += member.is_disputed
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
                self.linked(binary_links.links(content, self.budget))
            else:
                self.text(content, 0, len(content), SHOWN_TEXT, nesting)
        self.wrapped(content, member.names, nesting)
        self.opened(content, member.names, nesting + 1)
        self.opaque -= member.is_disputed

    def linked(self, links: Collection[str]) -> None:
        """Links outside of any text: in codes, documents and the like."""
        for link in links if self.limits.look_at_urls else ():
            self.budget.take_work(LINK_COST + len(link))
            self.links.scan(link, is_html=False)
            if "@" in link:  # what precedes it may contain what ends a link in a text
                self.links.add(link)

    def wrapped(self, content: bytes, names: Collection[str], nesting: int) -> None:
        """What a file in an archive may be besides another archive: the same as an attachment."""
        if recognition.is_signed(content, names):
            self.signed(content, names, nesting)
        part = Part(0, 0, 0, content_type="application/octet-stream", names=set(names))
        if recognition.is_calendar(part):
            self.calendar(content, part, nesting)
        if recognition.is_binhex(part):
            self.binhex(content, nesting)
        if recognition.is_in_base64(part):
            self.in_base64(content, part.names, nesting)
        if apple_files.is_property_list(content):
            self.property_list(content, nesting)
        if self.limits.look_at_mime and recognition.is_shown(part, content) and recognition.may_have_files(content):
            for codec in codecs_of(content[:PAGE_START], ""):
                self.page(words.decoded(content, codec), nesting + 1)
        is_encoded = file_types.has_extension(names, recognition.ENCODED)
        if is_encoded or recognition.has_mark(content):
            self.encoded(content, nesting + 1, is_certain=is_encoded)

    def encoded(self, content: bytes, nesting: int, *, is_certain: bool) -> None:
        """A file in an archive that programs may decode. A long one only in the formats that mark their beginning."""
        if is_certain or len(content) <= WINDOW:
            if ambiguity.in_text(b"\n" + content, 0, len(content) + 1):
                self.budget.take_work(READING_COST * len(content))
            self.hidden(content, nesting, is_text=is_certain)
            return
        self.reading.take_begins(content)
        with self.in_doubt(is_in_text=True):
            self.decoded_files(encodings.embedded(b"\n" + content), nesting)

    def decoded_files(self, files: Iterable[bytes], nesting: int) -> None:
        """Files in text, without names."""
        for file in files:
            self.budget.take(len(file))
            self.budget.take_work(GUESS_COST)
            self.signatures(file)
            self.show(file, ())
            with self.in_doubt(is_in_text=False):
                self.guess(file, True, nesting)

    def calendar(self, content: bytes, part: Part, nesting: int) -> None:
        if content.count(b"\n") > INLINE_EVENTS and not self.limits.archives:
            raise NeedsProcess
        for codec in codecs_of(content[:PAGE_START], part.params.get("charset", "")):
            self.reading.take_text(content)
            text = calendar_files.unfolded(words.decoded(content, codec), part)
            with self.hidden_from_engines():
                for file, names in calendar_files.files(text):
                    self.calendar_file(file, names, nesting)
                for value in calendar_files.values(text) if self.limits.look_at_mime else ():
                    if "data:" in value.lower():
                        self.page(value, nesting)

    def calendar_file(self, content: bytes, names: Collection[str], nesting: int) -> None:
        if not self.limits.archives and file_types.family_of(content) != file_types.IMAGE:
            raise NeedsProcess
        self.signatures(content)
        self.names(names or [""], "", content)
        self.show(content, names)
        if file_types.is_text(content):  # perhaps a description with links
            self.text(content, 0, len(content), SHOWN_TEXT, nesting)
        self.file(content, names, nesting)

    def binhex(self, content: bytes, nesting: int) -> None:
        """A file that says it is BinHex: programs decode what follows the first colon, whatever its lines look like."""
        if not self.limits.archives:
            raise NeedsProcess
        self.reading.take_text(content)
        data = b":" + content.partition(b":")[2].translate(None, b" \t\r\n")
        with self.hidden_from_engines():
            self.decoded_files(encodings.embedded(data), nesting)

    def in_base64(self, content: bytes, names: Collection[str], nesting: int) -> None:
        """A file that its name says is in Base64: archive programs decode it, however short it is."""
        if not self.limits.archives:
            raise NeedsProcess
        self.reading.take_text(content)
        self.named([name.rpartition(".")[0] for name in names])
        with self.hidden_from_engines():
            self.decoded_files(encodings.readings(content), nesting)

    def property_list(self, content: bytes, nesting: int) -> None:
        """A page that Safari saved, with all that belongs to it."""
        if not self.limits.archives:
            raise NeedsProcess
        self.reading.take_text(content)
        with self.hidden_from_engines():
            self.decoded_files(apple_files.data_in_list(content), nesting + 1)

    def signed(self, content: bytes, names: Collection[str], nesting: int) -> None:
        """S/MIME: mail programs show the message inside, no matter who signed it; or it is a file."""
        stems = recognition.names_in_signed(names)
        if self.signed_around >= smime.MAX_DEPTH:
            raise TooMuch("smime-depth")
        self.signed_around += 1
        try:
            with self.hidden_from_engines():
                for inner in smime.contents(content, self.budget):
                    if not self.limits.archives:
                        raise NeedsProcess
                    for message in (inner, inflated(inner, self.budget)):
                        if message:
                            self.signed_message(message, stems, nesting)
        except smime.BadStructure:
            self.found.tags.add(BROKEN_CONTAINER)
        finally:
            self.signed_around -= 1

    def signed_message(self, message: bytes, stems: Collection[str], nesting: int) -> None:
        self.show(message, ())
        self.signatures(message)
        if stems:
            self.names(stems, "", message)
            self.wrapped(message, stems, nesting)  # signed again, for example: `invoice.pdf.p7m.p7m`
            self.file(message, stems, nesting + 1)
        if readings.may_be_mail(message.replace(b"\0", b"")):
            self.enclosed(message, nesting)
            return
        with self.in_doubt(is_in_text=False):  # a document: `invoice.pdf.p7m`; a mail program shows it as text
            self.guess(message, True, nesting)

    def enclosed(self, content: bytes, nesting: int) -> None:
        if nesting >= self.budget.depth:
            raise TooMuch("archive-depth")
        before, self.is_enclosed = self.is_enclosed, True
        try:
            self.mail(content, nesting + 1)
        finally:
            self.is_enclosed = before
