"""The text and attachments of a mail, for the person who decides what happens to it.

Reads the mail in the plain way (`bridge.mime.structure`), within bounds, and never raises: a mail in the quarantine may
be broken on purpose. HTML becomes text, with the address after each link, because that is what phishing hides.
Nothing is opened, fetched or unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from bridge.mime.digests import Digests
from bridge.mime.encodings import decode
from bridge.mime.part_list import PartList
from bridge.mime.references import unescaped
from bridge.mime.structure import Bounds, Part, TooMuch, is_message, walk
from bridge.mime.words import as_text

MAX_LINES = 200
MAX_LINE = 500  # characters; a longer line continues on the next
MAX_TEXT = 256 * 1024  # bytes of a part that are read as text
MAX_ATTACHMENTS = 100
_BREAKING = {"p", "div", "br", "tr", "li", "ul", "ol", "table", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "hr"}
_UNSEEN = {"script", "style", "title", "template"}
_MAX_TAG = 4000  # characters of a tag that are searched for its attributes
_LINE = re.compile(r"\r\n|\n|\r")
_MARKUP = re.compile(r"[a-z/!?]", re.IGNORECASE)  # after <
_TAG = re.compile(r"/?[a-z][a-z0-9]{0,20}", re.IGNORECASE)
_HREF = re.compile(r"""href\s{0,9}=\s{0,9}("[^"]*"|'[^']*'|[^\s"'>]+)""", re.IGNORECASE)
_ALT = re.compile(r"""alt\s{0,9}=\s{0,9}["']([^"']{1,200})""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Attachment:
    name: str
    content_type: str
    size: int  # decoded, if there is a hash
    sha256: str  # of the decoded content, as in the list blocked-attachments; "": not computed

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "type": self.content_type, "size": self.size, "sha256": self.sha256 or None}


@dataclass(slots=True)
class Reading:
    """The text in lines, and the attachments."""

    lines: list[str] = field(default_factory=list)
    left_out: int = 0  # lines beyond the limit
    is_html: bool = False
    html: str = ""  # as `html_of`
    attachments: list[Attachment] = field(default_factory=list)
    problem: str = ""


def read(mail: bytes, parts: PartList | None = None) -> Reading:
    """`parts`: a list to fill, as `list_parts` does. A mail may take a second to walk, so it is walked once."""
    found, digests = Reading(), Digests(mail)
    texts: dict[str, str] = {}  # the first of each type that says something
    quoted_until = 0  # the end of an attached message: its texts are not those of this mail
    try:
        for part in walk(mail, Bounds(), finds_all_names=False):
            if parts is not None:
                parts.add(part, digests)
            if part.content_type.startswith("multipart/") or (is_message(part.content_type) and part.depth == 0):
                continue
            if not _is_text(part):
                _add_attachment(found, part, digests)
                quoted_until = max(quoted_until, part.end if is_message(part.content_type) else 0)
            elif part.body >= quoted_until and not texts.get(part.content_type, "").strip():
                texts[part.content_type] = _text(mail, part)
    except TooMuch as exc:
        found.problem = f"the mail was read only in part, because it exceeds a limit ({exc})"
        if parts is not None:
            parts.cut(exc)
    found.html = texts.get("text/html", "") if texts.get("text/html", "").strip() else ""
    text = texts.get("text/plain", "")
    if not text.strip() and "text/html" in texts:
        found.is_html, text = True, html_as_text(texts["text/html"])
    _put_lines(found, text)
    return found


def html_of(mail: bytes) -> str:
    """The HTML that a mail program shows: the first part that has some; "" if there is none."""
    quoted_until = 0
    with suppress(TooMuch):
        for part in walk(mail, Bounds(), finds_all_names=False):
            if is_message(part.content_type) and part.depth:
                quoted_until = max(quoted_until, part.end)
            if part.content_type == "text/html" and part.body >= quoted_until and _is_text(part):
                found = _text(mail, part)
                if found.strip():
                    return found
    return ""


def _is_text(part: Part) -> bool:
    is_attached = any(value.lower().lstrip().startswith("attachment") for value in part.values("content-disposition"))
    return part.content_type in ("text/plain", "text/html") and not is_attached and not part.filename


def _text(mail: bytes, part: Part) -> str:
    raw = mail[part.body : min(part.end, part.body + 2 * MAX_TEXT)]
    content = decode(raw, part.encoding)[0][:MAX_TEXT]
    return as_text(content, part.params.get("charset", "").strip())


def _add_attachment(found: Reading, part: Part, digests: Digests) -> None:
    if len(found.attachments) >= MAX_ATTACHMENTS:
        found.problem = f"only the first {MAX_ATTACHMENTS} attachments are shown"
        return
    size, sha256 = digests.of(part)
    found.attachments.append(Attachment(part.filename, part.content_type, size, sha256))
    found.problem = found.problem or digests.problem


def _put_lines(found: Reading, text: str) -> None:
    lines = [piece for line in _LINE.split(text.strip("\r\n")) for piece in _pieces(line.expandtabs().rstrip())]
    found.lines, found.left_out = lines[:MAX_LINES], max(0, len(lines) - MAX_LINES)


def _pieces(line: str) -> Iterator[str]:
    for start in range(0, max(1, len(line)), MAX_LINE):
        yield line[start : start + MAX_LINE]


def html_as_text(html: str) -> str:
    """Without markup, scripts and styles; the address of a link is put after its text."""
    pieces = "".join(_HtmlText(html).pieces())
    lines = (re.sub(r"[ \t\xa0]+", " ", line).strip() for line in pieces.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


class _HtmlText:
    """One pass over the text, in linear time: the standard parser takes minutes for some hostile input (3.11)."""

    def __init__(self, html: str) -> None:
        self._html = html
        self._lower = html.lower() if len(html.lower()) == len(html) else html
        self._at = 0
        self._links: list[str] = []

    def pieces(self) -> Iterator[str]:
        while self._at < len(self._html):
            begin = self._html.find("<", self._at)
            if begin < 0:
                begin = len(self._html)
            yield re.sub(r"\s+", " ", unescaped(self._html[self._at : begin]))
            self._at = begin + 1
            if self._html.startswith("<!--", begin):
                self._skip_past("-->")
            elif _MARKUP.match(self._html, self._at):
                yield self._tag()
            elif begin < len(self._html):
                yield "<"

    def _tag(self) -> str:
        end = self._html.find(">", self._at)
        inside = self._html[self._at : end if end >= 0 else len(self._html)]
        self._at += len(inside) + 1
        name = _TAG.match(inside)
        if name is None:
            return ""
        tag = name[0].lower()
        if tag in _UNSEEN:
            self._skip_past(f"</{tag}")
            self._skip_past(">")
        elif tag == "a":
            href = _HREF.search(inside[:_MAX_TAG])
            self._links.append(unescaped(href[1].strip("\"'")) if href else "")
        elif tag == "/a" and self._links and (address := self._links.pop()):
            return f" <{address[:MAX_LINE]}>"
        elif tag == "img" and (alt := _ALT.search(inside[:_MAX_TAG])):
            return f"[{unescaped(alt[1])}]"
        return "\n" if tag.removeprefix("/") in _BREAKING else " " if tag == "td" else ""

    def _skip_past(self, mark: str) -> None:
        """To the end if there is none: then no reader shows what follows."""
        end = self._lower.find(mark, self._at)
        self._at = end + len(mark) if end >= 0 else len(self._html)
