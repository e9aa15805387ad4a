"""Wrapped files: those that a program extracts from calendars, S/MIME data, BinHex, Base64 and property lists.

Each of them is inspected like an attachment, or like the mail, text or page that it is: the methods for these are
abstract here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from bridge.mime import ambiguity, encodings, readings, words
from bridge.mime.ambiguity import Buffer
from bridge.mime.structure import Part, TooMuch
from bridge.service.analysis.content import apple_files, calendar_files, file_types, recognition, smime
from bridge.service.analysis.content.decompression import inflated
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.content.text_windows import BEGINNING as PAGE_START
from bridge.service.analysis.content.text_windows import WINDOW, codecs_of
from bridge.service.analysis.damaged_archives import BROKEN_CONTAINER
from bridge.service.analysis.inspection_state import InspectionState

GUESS_COST = 16_384  # work for each file without a name, however short it is
READING_COST = 100  # work for each byte that is read in every way
INLINE_EVENTS = 300  # lines of a calendar

# A text in an archive that mail programs show. The detection of phishing treats it as attached.
SHOWN_TEXT = Part(0, 0, 0, content_type="text/html", params={"charset": "latin-1"})


class WrappedFileInspector(InspectionState, ABC):
    """One inspection in progress: how files are extracted from other forms."""

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
    def file(self, content: bytes, names: Collection[str], nesting: int) -> None:
        """A file that is not in an archive."""

    @abstractmethod
    def guess(self, content: bytes, is_decoded: bool, nesting: int) -> None:
        """An object that some program finds, and whose name and type are in doubt."""

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
            decoded = words.decoded(content, codec)
            for reading in calendar_files.texts(decoded, part) if self.limits.look_at_urls else ():
                self.found.tags.update(calendar_files.tags(reading, self.reading.take))
                self.links.check_paths(reading)
            text = calendar_files.unfolded(decoded, part)
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
        self.tag_file(names or [""], "", content)
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
        self.tag_names([name.rpartition(".")[0] for name in names])
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
            self.tag_file(stems, "", message)
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
