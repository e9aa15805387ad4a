"""Ambiguous mail: what is found by programs that do not read it as the standards say.

Everything that any of them finds is inspected. If they can disagree only on encoded files in the text of a part, only
these files are decoded in every way. If a part's encoding is in doubt, the whole mail is read: programs that take it
for plain text, or for another encoding, find other links, names and parts in it.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Iterable

from bridge.mime import ambiguity, base64_text, encodings, readings, words
from bridge.mime import names as file_names
from bridge.mime.ambiguity import Buffer
from bridge.mime.structure import Part, TooMuch, is_message
from bridge.service.analysis.content import archives, documents, file_types, recognition, smime
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.file_inspection import FileInspector
from bridge.service.analysis.inspection_state import See
from bridge.service.analysis.limits import Limits

MAX_CHARSETS = 8  # that write ASCII differently, or switch to other characters: with more, TooMuch
NAME_WORK = 20_000  # nanoseconds, for `readings.Budget`: a name that may belong to any part

# Messages whose content is elsewhere: in other mails that the mail program puts together, or on a server.
INCOMPLETE = {"message/partial": "mime:partial", "message/external-body": "mime:external-body"}

ANY_TEXT = Part(0, 0, 0, content_type="text/html", params={"charset": "latin-1"})
ANY_CALENDAR = Part(0, 0, 0, content_type="text/calendar", params={"charset": "latin-1"})


class AmbiguityInspector(FileInspector):
    """One inspection in progress: how doubts are handled."""

    def __init__(self, limits: Limits, size: int, see: See | None) -> None:
        super().__init__(limits, size, see)
        self.declared: set[str] = set()  # codecs that an ambiguous mail declares anywhere

    @abstractmethod
    def may_have_files(self, texts: Iterable[str], part: Part) -> bool:
        """Search for links. Returns whether browsers may find files there, too."""

    def doubtful(self, data: Buffer, parts: list[Part], nesting: int) -> None:
        """Programs may disagree on these parts, and therefore on the whole mail, or only on files in their texts."""
        doubts = set().union(*(part.doubts for part in parts))
        if doubts != {"undeclared-parts"} or not all(_has_only_files(data, part) for part in parts):
            self.readings(data, doubts, nesting)
            return
        self.doubt(doubts)
        for part in parts:
            raw = data[part.body : part.end]
            self.files_in_text(raw, part.names, nesting)
            if part.encoding not in encodings.PLAIN and not part.content_type.startswith("text/"):
                self.files_in_text(encodings.decode(raw, part.encoding)[0], part.names, nesting)  # others: `hidden`

    def doubt(self, doubts: set[str]) -> None:
        self.found.tags |= {f"mime:ambiguous:{reason}" for reason in doubts}

    def files_in_text(self, text: bytes, names: Collection[str], nesting: int) -> None:
        """Encoded files that no field declares. All programs agree on the rest of the mail."""
        embedded = self.names_in(text)
        found = readings.files_in_text(text, self.reading)
        with self.in_doubt(is_in_text=not recognition.has_mark(text)):
            self.objects(((content, True) for content in found), {*names, *embedded}, nesting)

    def names_in(self, text: bytes) -> set[str]:
        """The names of files that are encoded in it."""
        try:
            found = file_names.embedded(text)
        except file_names.TooManyNames:
            raise TooMuch("names") from None
        self.reading.take(NAME_WORK * len(found))
        self.tag_names(found)
        return found

    def readings(self, data: Buffer, doubts: set[str], nesting: int) -> None:
        """Programs may disagree on this mail: look at everything that any of them finds."""
        self.doubt(doubts)
        whole = data[:]
        self.reading.take_text(whole)
        self.declared |= set(words.odd_codecs(whole.decode("latin-1")))
        if len(self.declared) > MAX_CHARSETS:
            raise TooMuch("charsets")
        quoted = list(encodings.quoted_readings(whole)) if readings.may_be_quoted(whole) else []
        seen: set[bytes] = set()
        names: set[str] = set()
        for text in readings.texts_with_fields(whole, self.reading, quoted):
            self.found.tags |= {INCOMPLETE[kind] for kind in readings.elsewhere(text)}
            try:
                names |= file_names.everywhere(text, self.reading.take, seen)
                names |= file_names.embedded(text)
            except file_names.TooManyNames:
                raise TooMuch("names") from None
        self.reading.take(NAME_WORK * len(names))
        self.tag_names(names)
        for text in dict.fromkeys((whole, *quoted)):
            words_only = base64_text.without_base64(text)
            self.text(words_only, 0, len(words_only), ANY_TEXT, nesting)
        with self.in_doubt(is_in_text=doubts == {"undeclared-parts"} and not recognition.has_mark(whole)):
            self.objects(readings.objects(whole, self.reading, quoted), names, nesting)

    def objects(self, found: Iterable[tuple[bytes, bool]], names: Collection[str], nesting: int) -> None:
        """Objects that some program finds, and whether each was decoded."""
        mails: list[bytes] = []
        for content, is_decoded in found:
            self.signatures(content)
            self.show(content, names)
            if is_decoded and readings.may_be_mail(content):
                mails.append(content)
            else:
                self.guess(content, is_decoded, nesting)
        self.enclosed_once(mails, nesting)

    def enclosed_once(self, mails: list[bytes], nesting: int) -> None:
        """Most of these are prefixes of one another: the same encoded message, read to different ends."""
        done = [content for level, content in self.quoted_mails if level == nesting]
        for content in sorted(mails, key=len, reverse=True):
            self.reading.take(2 * sum(map(len, done)))
            if not any(content.rstrip(b"\r") in other for other in done):
                done.append(content)
                self.enclosed(content, nesting)

    def hidden(self, content: bytes, nesting: int, *, is_text: bool) -> None:
        """Encoded content in which some programs find parts or files. In binary files, they look for few marks."""
        if not is_text and not file_types.is_text(content) and not recognition.has_mark(content):
            return
        if self.limits.archives and encodings.has_begin(content):
            self.reading.take_text(content)
        doubts = ambiguity.in_text(b"\n" + content, 0, len(content) + 1)
        if not doubts:
            return
        if not self.limits.archives:
            raise NeedsProcess
        if archives.kind_of(content):
            self.damaged_archives.add_whole(content)  # what is found next is in it
        if ambiguity.has_only_files(content, 0, len(content), is_quoted=False) or _is_only_binary(content):
            self.doubt(doubts)
            self.files_in_text(content, (), nesting)
        else:
            with self.in_doubt(is_in_text=True):
                self.readings(content, doubts, nesting)

    def guess(self, content: bytes, is_decoded: bool, nesting: int) -> None:
        """An object that some program finds. Its name and type are in doubt, so only its bytes count."""
        if is_decoded and file_types.is_text(content):
            words_only = base64_text.without_base64(content)  # in which there are many "//"
            self.text(words_only, 0, len(words_only), ANY_TEXT, nesting)
        if is_decoded and nesting < self.budget.depth:
            self.hidden(content, nesting + 1, is_text=False)
        self.guessed_file(content, nesting)

    def guessed_file(self, content: bytes, nesting: int) -> None:
        """Inspect it like an attachment with these bytes, unless it is one: then that was done already."""
        if len(content) in self.sizes and hashlib.sha256(content).hexdigest() in self.found.digests:
            self.damaged_archives.find_again(content, is_in_text=self.is_in_text)
            return
        if recognition.is_signed(content, ()):
            self.signed(content, (), nesting)
        if recognition.has_calendar(content):
            self.may_have_files([content.decode("latin-1")], ANY_CALENDAR)  # its files are found next
            self.calendar(content, ANY_CALENDAR, nesting)
        kinds = list(documents.kinds_of(content, (), self.limits.formats))
        if kinds or recognition.is_file(content) or archives.may_have_one_behind(content):
            self.found.tags |= file_types.tags_of("", "", content)
            self.file(content, (), nesting, kinds)


def _is_only_binary(content: bytes) -> bool:
    """Whether no program finds parts in it, as in most documents, signed or not.

    They may have Base64: Adobe adds small pictures, and an invoice in XML may have a PDF document.
    """
    is_document = file_types.is_binary(content) or smime.is_cms(content)
    return is_document and not (ambiguity.has_fields(content) or readings.may_be_quoted(content))


def _has_only_files(data: Buffer, part: Part) -> bool:
    """Whether a part has only encoded files in its text, and no parts that it does not declare."""
    if part.content_type.startswith("multipart/") or is_message(part.content_type):
        return False
    return ambiguity.has_only_files(data, part.body, part.end, is_quoted=part.encoding not in encodings.PLAIN)
