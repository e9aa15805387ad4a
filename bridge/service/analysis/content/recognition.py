"""What a part or a file may be, to one program or another: by its type, its names and its first bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from bridge.mime import base64_text, encodings
from bridge.mime.structure import Part
from bridge.service.analysis.content import archives, file_types, smime
from bridge.service.analysis.content.openpgp import BEGIN as OPENPGP

IN_BASE64 = frozenset({"b64", "base64"})
ENCODED = IN_BASE64 | {"uue", "uu", "xxe", "xx", "hqx", "bhx", "yenc", "ync", "mim", "mime"}
_SIGNED = frozenset({"p7m", "p7z", "tsd"})
_SIGNED_NAME = re.compile(r"(.+\.[^.]+)\.(?:p7[mz]|tsd)", re.IGNORECASE)

# Types besides text/* whose content is shown with its links, by the mail program or by a browser.
_WITH_LINKS = ("application/xhtml+xml", "application/xml", "image/svg+xml", "application/ics", "application/rtf")
_PAGES = frozenset(
    [
        "htm",
        "html",
        "shtm",
        "shtml",
        "ehtml",
        "xht",
        "xhtm",
        "xhtml",
        "svg",
        "svgz",
        "mht",
        "mhtml",
        "hta",
        "url",
        "fpage",
    ]
)
PAGE_TYPES = frozenset({"text/html", "application/xhtml+xml", "image/svg+xml"})
_CALENDAR_NAMES = frozenset({"ics", "ical", "icalendar", "ifb", "vcs", "vcf", "vcard"})
_TEXTS = _PAGES | _CALENDAR_NAMES | {"xml", "xsl", "xslt", "csv", "tsv", "txt", "webarchive"}
_MAILS = frozenset({"eml", "emlx", "mbox", "mbx", "mht", "mhtml", "nws", "m7m"})
_MAY_BE_MAILS = frozenset({"", "email", "mail", "msg", "rfc822"})  # desktops then look at the first line
_PAGE = re.compile(rb"<(?:!doctype|html|head|body|svg|script|meta|base|a\s|\?xml)", re.IGNORECASE)
_HTML = re.compile(rb"\s{0,99}<(?:!doctype\s{1,99}html|html)[\s>]", re.IGNORECASE)
_WEB_ARCHIVE = re.compile(rb"(?:\A|[\r\n])[ \t]{0,99}(?:mime-version|content-[a-z-]{1,40})[ \t]{0,99}:", re.IGNORECASE)
_ARCHIVE_HEAD = 4096  # bytes in which its header section begins
_CALENDAR = re.compile(rb"begin:[ \t]{0,9}v(?:calendar|card)")  # in lower case
_PIECE, _LARGEST_PIECE = 8, 64 * 1024  # bytes
_MAX_GAP = 4096  # bytes between two pieces
_MAX_BEFORE = 256  # bytes before the first one
_PIECE_WORK = 20_000  # nanoseconds, for `readings.Budget`
_CALENDARS = ("calendar", "vcard", "text/directory", "application/ics")  # or a part of the name of a type


def has_mark(content: bytes) -> bool:
    """Whether a format that marks its own beginning may be in it: uuencode, xxencode, yEnc, BinHex."""
    return encodings.has_begin(content) or b"(This file must be " in content


def is_signed(content: bytes, names: Collection[str]) -> bool:
    return file_types.has_extension(names, _SIGNED) or smime.looks_like_cms(content)


def names_in_signed(names: Collection[str]) -> list[str]:
    """The name of the file within, where the name of the signed one has it: `invoice.js.p7m`."""
    return [match[1] for match in map(_SIGNED_NAME.match, names) if match]


def is_mail_name(name: str) -> bool:
    return file_types.has_extension((name,), _MAILS)


def may_be_mail_name(names: Collection[str]) -> bool:
    return not names or file_types.has_extension(names, _MAY_BE_MAILS)


def is_mail_file(content: bytes, names: Collection[str]) -> bool:
    """A mail; or MHTML, a page in the form of one, which Office opens under the name of a document as well."""
    if any(map(is_mail_name, names)):
        return True
    is_document = any(file_types.named_family(name) == file_types.DOCUMENT for name in names)
    return is_document and _WEB_ARCHIVE.search(content[:_ARCHIVE_HEAD]) is not None


def is_file(content: bytes) -> bool:
    """Whether what is declared as text is a file: some programs save it as one."""
    kind = archives.kind_of(content)
    if kind == "gzip":  # whose first two bytes alone could be a coincidence
        return content[2:3] == b"\x08"
    if kind or file_types.family_of(content) == file_types.DOCUMENT:
        return True
    return archives.has_zip_member(content) or file_types.is_program(content) or OPENPGP in content


def is_shown(part: Part, content: bytes) -> bool:
    """Whether a mail program or a browser shows this attachment with its links."""
    if part.content_type.startswith("text/") or part.content_type in _WITH_LINKS:
        return True
    return file_types.has_extension(part.names, _TEXTS) or _PAGE.search(content[:2048].replace(b"\0", b"")) is not None


def is_page(names: Collection[str]) -> bool:
    """Whether a browser or a mail program shows a file of one of these names with its links."""
    return file_types.has_extension(names, _PAGES)


def is_html(content: bytes) -> bool:
    """Whether it is certainly a page, whatever its name is: an Office document may contain a page under any name."""
    return _HTML.match(content) is not None


def is_page_type(content_type: str) -> bool:
    """Whether a file of this type is opened as a page, whatever its name is."""
    return content_type in PAGE_TYPES


def is_attached(part: Part) -> bool:
    """Whether mail programs offer it as a file instead of showing it, even if it has no name (RFC 2183, 2.8)."""
    dispositions = (value.partition(";")[0].strip().lower() for value in part.values("content-disposition"))
    return any(value and value != "inline" for value in dispositions)


def is_web_page(content: bytes, names: Collection[str]) -> bool:
    """Whether a browser opens it as a page, by its name or its beginning."""
    return is_page(names) or (b"<" in content[:2048] and _PAGE.search(content[:2048].replace(b"\0", b"")) is not None)


def may_have_files(page: bytes) -> bool:
    """A quick test: most pages in archives are parts of documents, without such links or escapes for them."""
    text = page.translate(None, b"\0\t\r\n").lower()  # browsers remove tabs and line ends from addresses
    return any(mark in text for mark in (b"data:", b"download", b"&#", b"&tab;", b"&newline;"))


def has_calendar(content: bytes) -> bool:
    """Whether a text has an appointment or a business card in it, whatever its type is."""
    lower = content.lower()
    return b"begin:" in lower and _CALENDAR.search(lower) is not None


def is_binhex(part: Part) -> bool:
    return "binhex" in part.content_type or file_types.has_extension(part.names, ("hqx", "hcx", "bhx"))


def is_in_base64(part: Part, sent: bytes = b"") -> bool:
    """By its name; or by what was sent, in a part with a name and no encoding: some engines then assume Base64."""
    if file_types.has_extension(part.names, IN_BASE64):
        return True
    is_unlabelled = part.encoding in encodings.PLAIN and part.names and not part.doubts  # else it was decoded already
    return bool(is_unlabelled) and base64_text.is_mostly_base64(sent)


def without_space(content: bytes) -> bytes:
    """What programs that change line ends, NUL bytes or spaces leave of a file."""
    return content.translate(None, b"\0\t\n\r ")


def is_piece_of(content: bytes, whole: bytes, charge: Callable[[int], None], *, is_beginning: bool) -> bool:
    """Whether it consists of pieces of another file, in their order; perhaps from its beginning.

    Both come from `without_space`.
    """
    if len(content) > len(whole) + _MAX_BEFORE:
        return False
    at = 0
    if is_beginning and not content.startswith(whole[:_PIECE]):
        return False
    if not is_beginning:  # programs may take what precedes it for Base64
        charge(_MAX_BEFORE * len(whole))
        at = next((at for at in range(_MAX_BEFORE) if content[at : at + 2 * _PIECE] in whole), -1)
    if at < 0 or at >= len(content):
        return False
    place = whole.find(content[at : at + _PIECE])
    while at < len(content):
        charge(_PIECE_WORK)
        size = _LARGEST_PIECE
        while size:  # as much as is the same in both
            piece = content[at : at + size]
            if piece and whole.startswith(piece, place):
                at, place = at + len(piece), place + len(piece)
            else:
                size //= 2
        if at < len(content):
            place = whole.find(content[at : at + _PIECE], place, place + _MAX_GAP)
            if place < 0:
                return False
    return True


def is_calendar(part: Part) -> bool:
    is_type = any(name in part.content_type for name in _CALENDARS)
    return is_type or file_types.has_extension(part.names, _CALENDAR_NAMES)
