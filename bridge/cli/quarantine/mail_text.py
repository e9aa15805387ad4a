"""What a mail says, and what is attached to it: for a person who decides about it.

Reads the mail in the plain way (`bridge.mime.structure`), within bounds, and never raises: a mail in the quarantine may
be broken on purpose. HTML becomes text, with the address of each link behind it, because that is what phishing hides.
Nothing is opened, fetched or unpacked.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from bridge.mime.encodings import decode
from bridge.mime.structure import Bounds, Part, TooMuch, is_message, walk
from bridge.mime.words import as_text

MAX_LINES = 200
MAX_LINE = 500  # characters; a longer line continues on the next
MAX_TEXT = 256 * 1024  # bytes of a part that are read as text
MAX_ATTACHMENTS = 100
_BREAKING = {"p", "div", "br", "tr", "li", "ul", "ol", "table", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "hr"}
_UNSEEN = {"script", "style", "head", "title", "template"}
_LINE = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Attachment:
    name: str
    content_type: str
    size: int  # decoded
    sha256: str  # of the decoded content, as in the list blocked-attachments

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "type": self.content_type, "size": self.size, "sha256": self.sha256}


@dataclass(slots=True)
class Reading:
    """The text in lines, and the attachments."""

    lines: list[str] = field(default_factory=list)
    left_out: int = 0  # lines beyond the limit
    is_html: bool = False
    attachments: list[Attachment] = field(default_factory=list)
    problem: str = ""


def read(mail: bytes) -> Reading:
    found = Reading()
    texts: dict[str, str] = {}  # the first of each type that says something
    quoted_until = 0  # the end of an attached message: its texts are not those of this mail
    try:
        for part in walk(mail, Bounds()):
            if part.content_type.startswith("multipart/") or (is_message(part.content_type) and part.depth == 0):
                continue
            raw = mail[part.body : part.end]
            if not _is_text(part):
                _add_attachment(found, raw, part)
                quoted_until = max(quoted_until, part.end if is_message(part.content_type) else 0)
            elif part.body >= quoted_until and not texts.get(part.content_type, "").strip():
                texts[part.content_type] = _text(raw, part)
    except TooMuch as exc:
        found.problem = f"the mail was not read to its end: too many or too large ({exc})"
    text = texts.get("text/plain", "")
    if not text.strip() and "text/html" in texts:
        found.is_html, text = True, html_as_text(texts["text/html"])
    _put_lines(found, text)
    return found


def _is_text(part: Part) -> bool:
    is_attached = any(value.lower().lstrip().startswith("attachment") for value in part.values("content-disposition"))
    return part.content_type in ("text/plain", "text/html") and not is_attached and not part.filename


def _text(raw: bytes, part: Part) -> str:
    content = decode(raw[: 2 * MAX_TEXT], part.encoding)[0][:MAX_TEXT]
    charset = part.params.get("charset", "").strip()
    try:
        is_slow = codecs.lookup(charset).name in ("punycode", "idna") if charset else False
    except (LookupError, ValueError):
        is_slow = False
    return as_text(content, "latin-1" if is_slow else charset)  # such names take quadratic time


def _add_attachment(found: Reading, raw: bytes, part: Part) -> None:
    if len(found.attachments) >= MAX_ATTACHMENTS:
        found.problem = f"only the first {MAX_ATTACHMENTS} attachments are shown"
        return
    content = decode(raw, part.encoding)[0]
    found.attachments.append(
        Attachment(part.filename, part.content_type, len(content), hashlib.sha256(content).hexdigest())
    )


def _put_lines(found: Reading, text: str) -> None:
    lines = [piece for line in _LINE.split(text.strip("\r\n")) for piece in _pieces(line.expandtabs().rstrip())]
    found.lines, found.left_out = lines[:MAX_LINES], max(0, len(lines) - MAX_LINES)


def _pieces(line: str) -> Iterator[str]:
    for start in range(0, max(1, len(line)), MAX_LINE):
        yield line[start : start + MAX_LINE]


def html_as_text(html: str) -> str:
    """Without markup, scripts and styles; the address of a link is put behind its text."""
    reader = _HtmlText()
    try:
        reader.feed(html)
        reader.close()
    except Exception:  # the parser raises AssertionError and others for some declarations
        reader.put("")
    lines = (re.sub(r"[ \t\xa0]+", " ", line).strip() for line in "".join(reader.found).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


class _HtmlText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._unseen = 0
        self._links: list[str] = []

    def put(self, text: str) -> None:
        if not self._unseen:
            self.found.append(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen += 1
        elif tag in _BREAKING:
            self.put("\n")
        elif tag == "td":
            self.put(" ")
        elif tag == "a":
            self._links.append(dict(attrs).get("href") or "")
        elif tag == "img" and (alt := dict(attrs).get("alt")):
            self.put(f"[{alt}]")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _UNSEEN and tag != "a":
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        elif tag in _BREAKING:
            self.put("\n")
        elif tag == "a" and self._links and (address := self._links.pop()):
            self.put(f" <{address[:MAX_LINE]}>")

    def handle_data(self, data: str) -> None:
        self.put(re.sub(r"\s+", " ", data))
