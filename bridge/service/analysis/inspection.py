"""Inspection: everything that the bytes of a mail alone reveal.

This file reads the mail: its header, its parts and its texts. `ambiguous_mail` has the ways in which programs may read
an ambiguous one, `file_inspection` opens the files in it, and `wrapped_files` those in calendars, signed data and the
like.

Pure and synchronous, so that it can run in the event loop (small mail without archives) or in a separate process
(everything else). It trusts nothing and is bounded everywhere: if a bound is reached, the result names it in `limits`,
and the caller must treat the mail as not fully inspected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from bridge.mail.address import comparable_address
from bridge.mime import ambiguity, base64_text, encodings, readings, tokens, words
from bridge.mime import names as file_names
from bridge.mime.ambiguity import Buffer
from bridge.mime.structure import Part, TooMuch, is_message, walk
from bridge.service.analysis import headers
from bridge.service.analysis.ambiguous_mail import ANY_TEXT, INCOMPLETE, NAME_WORK, AmbiguityInspector
from bridge.service.analysis.content import (
    archives,
    calendar_files,
    drawn_codes,
    file_types,
    page_files,
    page_text,
    recognition,
)
from bridge.service.analysis.content.apple_files import is_property_list
from bridge.service.analysis.content.links import NeedsProcess, has_download
from bridge.service.analysis.content.openpgp import BEGIN as OPENPGP
from bridge.service.analysis.content.optional_formats import QR_CODES
from bridge.service.analysis.content.script_files import PAGE_NAME
from bridge.service.analysis.content.text_windows import BEGINNING as PAGE_START
from bridge.service.analysis.content.text_windows import (
    GUESSED,
    SELDOM,
    codecs_of,
    declared_by,
    detected,
    undecoded_hosts,
    windows,
)
from bridge.service.analysis.content.web_documents import is_web_document
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection_state import See
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.parts import Collector, MailParts
from bridge.service.analysis.wrapped_files import SHOWN_TEXT
from bridge.service.detection import phishing

MAX_SENDERS = 200  # with more, TooMuch
PART_WORK = 50_000  # nanoseconds, for `readings.Budget`: a part of an enclosed mail, or a file in a page,
PAGE_WORK = 40  # a character of a page that is searched for them,
REFERENCE_WORK = 1500  # a "&" in it,
PAGE_FILE_WORK = 120  # and a character of an address that is such a file, whatever it decodes to
INLINE_FIELDS = 2048  # characters of all fields with addresses or a date: a few milliseconds
INLINE_FILES = 20  # in a page
INLINE_LINES = 4000  # of a text with "begin" in it, which are all compared with lines of uuencode
INLINE_TEXT = 4096  # bytes in a charset that takes long to decode or is seldom used

_PARSED = frozenset({"from", "sender", "reply-to", "date"})
_ADDRESSES = frozenset({"content-base", "content-location", "list-unsubscribe", "x-mozilla-external-attachment-url"})

# Names under which programs open files of these types, whatever the mail calls them.
_IMPLIED = {kind: {PAGE_NAME} for kind in recognition.PAGE_TYPES} | {"application/pdf": {"document.pdf"}}


def inspect(data: Buffer, limits: Limits, see: See | None = None) -> Inspection:
    """Inspect one mail. Raises NeedsProcess, but only if `limits.archives` is False.

    `see` is called with every object that a mail program may find in the mail, the names it may have, whether it is
    in a container that engines may not open, and its type as declared by the mail: "" if there is none, None for a
    file in an archive that engines open themselves. It may raise TooMuch.
    """
    inspector = _MailInspector(limits, len(data), see)
    try:
        inspector.signatures(data)
        inspector.mail(data, 0)
        inspector.damaged_archives.judge(inspector.found.tags)
    except TooMuch as exc:
        if not limits.archives:
            raise NeedsProcess from None
        inspector.found.limits.add(str(exc))
    return inspector.finish()


def parts_of(data: bytes) -> MailParts:
    """The parts of one mail, read here and now, with the default limits."""
    found = Collector()
    limits = inspect(data, Limits(look_at_urls=False, look_at_headers=False), found.see).limits
    return MailParts(iter(found.contents), found.described, is_complete=not limits and not found.is_full)


class _MailInspector(AmbiguityInspector):
    """One inspection in progress; each method examines one kind of thing in the mail."""

    def __init__(self, limits: Limits, size: int, see: See | None) -> None:
        super().__init__(limits, size, see)
        self.pages = 0  # without a name
        self.reads_codes = QR_CODES in limits.formats and limits.look_at_mime
        self.may_be_drawn = False  # a code, in the current text
        self.alternatives_until = 0  # the end of parts of which programs show one
        self.quoted_until = 0  # the end of an attached mail, whose texts are not those of this one

    def finish(self) -> Inspection:
        self.found.tags |= self.links.tags
        self.found.hosts = self.links.hosts
        if self.material is not None and self.limits.phishing is not None:
            self.found.phishing = phishing.assess(self.material, self.limits.phishing, self.found.tags)
        return self.found

    def mail(self, data: Buffer, nesting: int) -> None:
        outermost = nesting == 0
        doubtful: list[Part] = []
        for part in self.parts(data):
            if part.depth == 0 and outermost:
                self.header(part)
                outermost = False
            self.tag_names(part.titles)
            self.addresses(part)
            if part.content_type.startswith("multipart/"):
                self.tag_names(part.names)
                if nesting == 0 and part.content_type == "multipart/alternative":
                    self.alternatives_until = max(self.alternatives_until, part.end)
            else:
                self.leaf(data, part, nesting)
            if nesting:
                self.reading.take(PART_WORK)
            if part.doubts:
                doubtful.append(part)
            self.check_doubts(part)
        if doubtful and self.limits.look_at_mime:
            self.doubtful(data, doubtful, nesting)

    def parts(self, data: Buffer) -> Iterable[Part]:
        """In the event loop, all of them are checked for doubts first: a process would repeat all other work."""
        parts = walk(data, self.limits.bounds)
        if self.limits.archives:
            return parts
        found = list(parts)
        for part in found:
            self.check_doubts(part)
        return found

    def check_doubts(self, part: Part) -> None:
        if part.doubts and not self.limits.archives:
            raise NeedsProcess

    def header(self, part: Part) -> None:
        length = sum(len(value) for name, value in part.fields if name in _PARSED)
        if length > INLINE_FIELDS and not self.limits.archives:
            raise NeedsProcess
        if self.material is not None:
            self.material.fields = part.fields
        if self.limits.look_at_headers:
            self.found.tags |= headers.check(part.fields)
        authors = part.values("from")
        for number, value in enumerate(authors + part.values("sender")):
            found = headers.addresses(value)
            if len(self.found.senders) + len(found) > MAX_SENDERS:
                raise TooMuch("senders")
            self.links.spend("".join(found))
            self.found.senders += map(comparable_address, found)  # here, because it takes time
            if number < len(authors):
                self.found.authors = list(self.found.senders)

    def leaf(self, data: Buffer, part: Part, nesting: int) -> None:
        if part.content_type in INCOMPLETE:
            self.found.tags.add(INCOMPLETE[part.content_type])
        if nesting == 0:
            self.is_enclosed = part.body < self.quoted_until
        plain = part.encoding in encodings.PLAIN
        if plain and is_message(part.content_type):
            self.message_file(data, part, nesting)
            if nesting == 0 and part.depth:
                self.quoted_until = part.end
            return  # `walk` yields its parts next
        is_text = part.content_type in ("text/plain", "text/html") and not part.names
        if part.encoding != "base64":
            self.check_lines(data, part)
            search = ambiguity.in_text if plain else ambiguity.in_quoted
            part.doubts |= search(data, part.body, part.end)
            self.check_doubts(part)
        if plain and is_text and _is_only_text(data, part):
            self.text_as_sent(data, part, nesting)
        else:
            self.decoded(data, part, nesting, plain=plain, is_text=is_text)

    def text_as_sent(self, data: Buffer, part: Part, nesting: int) -> None:
        """Without decoding. The search for signatures in the whole mail has covered its bytes."""
        self.text(data, part.body, part.end, part, nesting)
        if self.see:
            content = data[part.body : part.end]
            self.show(content, part.names, part.content_type)
            self.other_line_ends(content, content, part, nesting, is_text=True)
        if self.is_file(data, part.body, part.end, part, nesting):
            self.file(data[part.body : part.end], (PAGE_NAME,), nesting)

    def decoded(self, data: Buffer, part: Part, nesting: int, *, plain: bool, is_text: bool) -> None:
        raw = data[part.body : part.end]
        content, agreed = encodings.decode(raw, part.encoding)
        if not agreed:
            part.doubts.add("content-encoding")
            self.check_doubts(part)
        self.show(content, part.names, part.content_type)
        if not plain:
            self.signatures(content)
        if self.limits.look_at_mime and not plain:
            self.hidden(content, nesting, is_text=part.content_type.startswith("text/"))
        if is_message(part.content_type) and part.encoding == "quoted-printable" and not self.opaque:
            self.quoted_mails.append((nesting, content))
        if is_text:
            self.text(content, 0, len(content), part, nesting)
            if self.is_file(content, 0, len(content), part, nesting):
                self.file(content, (PAGE_NAME,), nesting)
        if self.limits.look_at_mime and (not is_text or recognition.is_file(content)):
            self.attachment(content, part, nesting)
        if part.encoding == "base64" and not agreed and archives.begins_as_archive(content):
            self.pieces_in_lines(raw, content)
        self.other_line_ends(raw, content, part, nesting, is_text=is_text)

    def pieces_in_lines(self, raw: bytes, content: bytes) -> None:
        """Lines of 75 characters, say: programs that decode each line separately read only the first one correctly."""
        self.reading.take_text(raw)
        if base64_text.has_equal_lines(raw):
            forms = *encodings.readings(raw), *encodings.readings(raw[: raw.rstrip().rfind(b"\n") + 1])
            self.damaged_archives.add_line_forms(form[:-4] for form in forms if form.startswith(content[:8]))

    def is_file(self, data: Buffer, start: int, end: int, part: Part, nesting: int) -> bool:
        """Whether an unnamed page may be offered as a file: due to its disposition, or because it is not the first.

        A mail that is a file may be a document of Word, and its first page what Word opens.
        """
        if part.content_type != "text/html" or not self.limits.look_at_mime:
            return False
        if nesting:
            return recognition.is_attached(part) or is_web_document(data[start:end])
        if part.body < self.quoted_until:
            return recognition.is_attached(part)
        self.pages += 1
        return self.pages > 1 or recognition.is_attached(part)

    def addresses(self, part: Part) -> None:
        """Fields with the address of a part: programs complete the links in it (RFC 2557), or open it (RFC 2017).

        The field with the address for unsubscribing is shown as a button.
        """
        for name, value in part.fields if self.limits.look_at_urls else ():
            if name in _ADDRESSES or (name == "content-type" and part.content_type == "message/external-body"):
                self.collect_links(words.decode_words("".join(value.split())).replace('"', "<").split("<"))

    def message_file(self, data: Buffer, part: Part, nesting: int) -> None:
        """A message with a name is a file as well: programs save it as it is if they do not know its type."""
        self.tag_names(part.names)
        names = {name for name in part.names if not recognition.is_mail_name(name)}
        if names and self.limits.look_at_mime:
            file = replace(part, content_type="application/octet-stream", names=names, doubts=set())
            self.attachment(data[part.body : part.end], file, nesting)

    def check_lines(self, data: Buffer, part: Part) -> None:
        """In the event loop: not too many lines that may be those of uuencode."""
        if part.end - part.body > 4 * INLINE_LINES and not self.limits.archives:
            body = data[part.body : part.end]
            if body.count(b"\n") > INLINE_LINES and encodings.has_begin(body):
                raise NeedsProcess

    def text(self, content: Buffer, start: int, end: int, part: Part, nesting: int) -> None:
        """Search for links and files, in every charset that a program may read the text in."""
        if start >= end:
            return
        charset = part.params.get("charset", "")
        others = [*(self.declared if part is ANY_TEXT else declared_by(part)), *detected(content, start, end, charset)]
        for codec in codecs_of(content[start : start + PAGE_START], charset, others):
            if codec in SELDOM and end - start > INLINE_TEXT and not self.limits.archives:
                raise NeedsProcess
            texts = windows(content, start, end, codec)
            if self.material is not None and part is not ANY_TEXT and end > self.quoted_until:
                texts = self.kept(texts, part, nesting)
            if self.may_have_files(texts, part):
                self.page(words.decoded(content[start:end], codec), nesting)
            if self.may_be_drawn:
                self.drawn(words.decoded(content[start:end], codec), nesting)
        if content.find(b"\0", start, end) >= 0:  # UTF-16 or UTF-32, whatever the mail says
            texts = (text.replace("\0", "") for text in windows(content, start, end, "latin_1"))
            if self.may_have_files(texts, part):
                self.page(content[start:end].replace(b"\0", b"").decode("latin-1"), nesting)
            if self.may_be_drawn:
                self.drawn(content[start:end].replace(b"\0", b"").decode("latin-1"), nesting)
        if self.links.is_unread:
            self.links.is_unread = False
            self.guessed_hosts(content, start, end)

    def drawn(self, text: str, nesting: int) -> None:
        """Codes that a text draws without a picture."""
        if not self.limits.archives:
            raise NeedsProcess
        self.may_be_drawn = False
        for member in drawn_codes.drawn_members(text, self.budget):
            self.member(member, QR_CODES, nesting)

    def guessed_hosts(self, content: Buffer, start: int, end: int) -> None:
        """Hosts in the charsets that programs guess if a text declares no charset, or a wrong one."""
        if not self.limits.archives:
            raise NeedsProcess
        for host in undecoded_hosts(content, start, end):
            self.reading.take(NAME_WORK * len(GUESSED))
            for codec in GUESSED:
                self.links.guess(words.decoded(host, codec).lstrip("/"))

    def kept(self, texts: Iterator[str], part: Part, nesting: int) -> Iterator[str]:
        """Keep the beginning of a text for the detection of phishing. Returns the same texts."""
        first = next(texts, "")
        if self.material is not None:
            is_beside = not (recognition.is_attached(part) or self.is_other_form(part))
            is_attached = nesting > 0 or bool(part.names) or part is SHOWN_TEXT
            is_html = part.content_type != "text/plain"
            self.material.add_text(first, is_html=is_html, is_attached=is_attached, is_beside=is_beside)
            if part.names and not nesting and part.content_type == "text/html" and not recognition.is_attached(part):
                self.material.add_text(first, is_html=True, is_attached=False)  # also shown in its place (RFC 2183)
        return chain((first,), texts)

    def is_other_form(self, part: Part) -> bool:
        """Whether a text is probably that of the page that follows it: programs prefer the last alternative."""
        return part.body < self.alternatives_until and self.material is not None and not self.material.sources

    def may_have_files(self, texts: Iterable[str], part: Part) -> bool:
        """Search for links. Returns whether browsers may find files there, too."""
        is_html = part.content_type != "text/plain" or bool(part.names)
        is_folded = recognition.is_calendar(part) or tokens.first(part.params.get("delsp", "")).lower() == "yes"
        self.links.has_files = is_html and not self.limits.look_at_urls
        for text in texts if self.limits.look_at_urls else ():
            self.links.scan(text, is_html=is_html, is_certain=part is not ANY_TEXT)
            self.may_be_drawn = self.may_be_drawn or (self.reads_codes and drawn_codes.may_be_drawn(text))
            for reading in calendar_files.texts(text, part) if is_folded else ():
                self.links.scan(reading, is_html=is_html)
        return self.links.has_files and self.limits.look_at_mime

    def page(self, text: str, nesting: int) -> None:
        """Files that a browser saves from a page, in each of its readings."""
        self.reading.take(REFERENCE_WORK * text.count("&"))
        done: dict[page_files.PageFile, None] = {}
        for reading in page_text.every_reading(text):
            self.reading.take(PAGE_WORK * len(reading))
            self.page_reading(reading, nesting, done)

    def page_reading(self, text: str, nesting: int, done: dict[page_files.PageFile, None]) -> None:
        lower = page_text.ascii_lower(text)
        names = page_files.names(text, lower)
        self.tag_names(names)
        is_saved = has_download(lower)
        addresses = page_files.files(text, lambda length: self.reading.take(PAGE_FILE_WORK * length))
        for number, file in enumerate(addresses):
            is_hidden = file_types.family_of(file.content) != file_types.IMAGE  # engines may not find such files
            if (number >= INLINE_FILES or is_hidden) and not self.limits.archives:
                raise NeedsProcess
            if file in done:
                continue
            done[file] = None
            self.reading.take(PART_WORK)
            self.signatures(file.content)
            self.tag_file([""], file.content_type, file.content)
            if is_saved and file_types.is_program_type(file.content_type):
                self.found.tags.add("mime:executable")
            with self.hidden_from_engines(is_hidden):
                self.show(file.content, names)
                if is_hidden:
                    self.inner_page(file, nesting)
                # What searches pages for files that scripts save also searches scripts.
                self.file(file.content, (PAGE_NAME,) if page_files.may_be_script(file) else (), nesting)

    def inner_page(self, file: page_files.PageFile, nesting: int) -> None:
        """A page in an address of another one is shown as a frame, with its links; a script may contain addresses."""
        is_page = recognition.is_web_page(file.content, ()) or recognition.is_page_type(file.content_type)
        if not is_page and not page_files.may_be_script(file):
            return
        if nesting >= self.budget.depth:
            raise TooMuch("archive-depth")
        part = SHOWN_TEXT if file.content_type == "text/html" else ANY_TEXT
        self.text(file.content, 0, len(file.content), part, nesting + 1)

    def attachment(self, content: bytes, part: Part, nesting: int) -> None:
        if self.material is not None and nesting == 0:
            self.material.add_file(part.names, part.content_type)
        self.tag_file(part.names or {""}, part.content_type, content)
        if not any(map(file_types.extension_of, part.names)):
            self.unnamed(content, part)
        if recognition.is_shown(part, content):
            self.text(content, 0, len(content), part, nesting)
        if recognition.is_calendar(part):
            self.calendar(content, part, nesting)
        if recognition.is_binhex(part):
            self.binhex(content, nesting)
        if recognition.is_in_base64(part, content):
            self.in_base64(content, part.names, nesting)
        if is_property_list(content):
            self.property_list(content, nesting)
        if "pkcs7-mime" in part.content_type or recognition.is_signed(content, part.names):
            self.signed(content, part.names, nesting)
        is_mail = is_message(part.content_type) or part.content_type == "application/mbox"
        if (
            is_mail
            or recognition.is_mail_file(content, part.names)
            or (not part.names and readings.begins_like_mail(content))
        ):
            self.enclosed(content, nesting)
        self.file(content, part.names | _IMPLIED.get(part.content_type, set()), nesting)

    def unnamed(self, content: bytes, part: Part) -> None:
        """No name says how to open it, so its type does: some programs add the extension to a name that has none."""
        if file_types.is_program_type(part.content_type):
            self.found.tags.add("mime:executable")
        is_text = part.content_type.startswith("text/")  # whose subject may be about a file
        if not is_text and not part.names and not file_types.family_of(content) and not archives.kind_of(content):
            for subject in part.values("subject"):  # some programs name a mail that is a file after its subject
                self.tag_names(file_names.titles(subject))


def _is_only_text(data: Buffer, part: Part) -> bool:
    """Whether neither an OpenPGP message nor a file without a name is in its place."""
    if data.find(OPENPGP, part.body, part.end) >= 0:
        return False
    return not recognition.is_file(data[part.body : min(part.end, part.body + 512)])
