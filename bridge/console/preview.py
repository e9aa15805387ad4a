"""The HTML of a mail as a harmless document: no scripts, styles, frames, forms, links or images.

`nh3` keeps a short list of tags without attributes. The address of a link is written after its text, because that is
what phishing hides; the link itself is removed. The page shows the document in a sandboxed frame with its own policy
(`bridge.console.headers`), so that a mistake here alone does not let code in a mail run. If both are wrong, a mail can
read other mail with its reader's permissions.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape

import nh3

from bridge.mime.mail_text import html_as_text
from bridge.mime.references import unescaped
from bridge.runtime.visible_text import visible, visible_lines

MAX_HTML = 256 * 1024  # characters that are read
MAX_SHOWN = 150 * 1024  # characters of the result
_MAX_ADDRESS = 300


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TAGS = _words(
    "a abbr b big blockquote br caption center cite code col colgroup dd del dfn div dl dt em font h1 h2 h3 h4 h5 h6 "
    "hr i img ins kbd li mark ol p pre q s samp small span strike strong sub sup table tbody td tfoot th thead tr tt u "
    "ul var wbr"
)
# Their text is not shown by mail programs.
_WITH_CONTENT = _words(
    "script style title template noscript noembed noframes iframe frameset object embed applet svg math textarea "
    "select xmp plaintext"
)
_LINK = re.compile(r'<a href="([^"]*)">')
# They reverse what follows: the address of a link would read as another one.
_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "?")
_EMPTY = _words("area base br col embed hr img input link meta param source track wbr")
_MAX_DEPTH = 200
_MAX_OPEN = 2000  # before cleaning; end tags may be missing
_MAX_LOOKS = 5_000_000  # each tag is compared with the elements that are open there: 27 ns for each of them
_MAX_ATTRIBUTES = 2000  # of one tag; the parser compares each with all before it
_MAX_MADE = 50_000  # elements that the parser adds to those in the source; each takes 20 us and 300 bytes
# HTML 13.2.4.3: such an element, if it is not closed, is created again in each element that follows, but at most three
# with the same attributes. So they get no attributes.
_FORMATTING = _words("a b big code em font i nobr s small strike strong tt u")
_MAX_SAME = 3
_FORMATTING_TAG = re.compile(
    rf"<((?!a[\s/>])(?:{'|'.join(sorted(_FORMATTING))}))(?=[\s/])[^>]*+>?", re.IGNORECASE
)  # fmt: skip
# An end tag within one of these does not close an element around it, or is text.
_CELLS = _WITH_CONTENT | _words("td th caption marquee table tr tbody thead tfoot button")
_BLOCKS = _words(
    "address article aside blockquote center dd details dir div dl dt fieldset figcaption figure footer form h1 h2 h3 "
    "h4 h5 h6 header hgroup li main menu nav ol p pre section summary ul"
)
_WITHOUT_END = _words("li p dd dt option")  # the next one of the same name ends it
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NAME = re.compile(r"(/?)([a-z][a-z0-9]*)")
_PLAIN_TAG = re.compile(  # up to its ">", in which no quote could be read differently; possessive (`++`)
    r"""/?[a-z][^\s"'<>=/]*+(?:[\s/]++(?:[^\s"'<>=/]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'<>=`][^\s"'<>`]*+))?)?)*"""
)
_SEPARATOR = re.compile(r"""[\s/]+|["']""")  # what may precede an attribute
_OPEN_VALUE = {sign: re.compile(rf"=\s*+{sign}[^{sign}]*+\Z") for sign in "\"'"}
_CLASSES = ("link", "address")
# Pictures keep the text that stands for them.
_FIRST = {"a": {"href"}, "img": {"alt"}, "td": {"colspan", "rowspan"}, "th": {"colspan", "rowspan"}}
_SECOND = {"span": {"class"}, "img": {"alt"}, "td": {"colspan", "rowspan"}, "th": {"colspan", "rowspan"}}

STYLE = (
    ":root{color-scheme:light dark}"
    "body{margin:12px;font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;max-width:100%}"
    "pre{white-space:pre-wrap}"
    ".link{text-decoration:underline dotted}"
    ".address{font:12px ui-monospace,monospace;opacity:.8;unicode-bidi:isolate;direction:ltr}"
    "img{display:inline-block;border:1px dashed;padding:0 4px;font-size:12px}"
    ".note{font-size:13px;opacity:.8;border-top:1px solid;padding-top:6px}"
)
STYLE_HASH = f"'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"  # the policy allows this style alone


def document(html: str) -> str:
    """A whole HTML document."""
    html = _COMMENT.sub(" ", html.replace("\0", ""))  # a space, so that the rest does not form another comment
    start = html[:MAX_HTML]
    deepest, looks = nesting(start)
    is_deep = (
        deepest > _MAX_OPEN
        or looks > _MAX_LOOKS
        or made_again(start) > _MAX_MADE
        or longest_tag(start) > _MAX_ATTRIBUTES
    )
    shown = "" if is_deep else sanitised(html[:MAX_HTML])
    is_cut = len(html) > MAX_HTML or len(shown) > MAX_SHOWN
    if is_deep or depth(shown) > _MAX_DEPTH:  # browsers would take minutes to show it
        shown = f"<pre>{escape(visible_lines(html_as_text(html[:MAX_HTML])))[:MAX_SHOWN]}</pre>"
    if len(shown) > MAX_SHOWN:
        shown = _cleaned(shown[:MAX_SHOWN], _SECOND)
    note = '<p class="note">Only the beginning of this mail is shown.</p>' if is_cut else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>HTML of the mail</title>'
        f"<style>{STYLE}</style></head><body>{shown}{note}</body></html>"
    )


def sanitised(html: str) -> str:
    """Safe to be the body of a document: the last step is always the one that removes everything else."""
    first = _cleaned(_FORMATTING_TAG.sub(r"<\1>", html.replace("\0", "")), _FIRST)
    # What is in an attribute may look like a link as well: whatever this makes of it is cleaned again.
    return _cleaned(_LINK.sub(_address_first, first).replace("</a>", "</span>"), _SECOND).translate(_DIRECTIONS)


def depth(html: str) -> int:
    """How deeply the tags are nested, at most."""
    return nesting(html)[0]


@dataclass(slots=True)
class _Cell:
    """What is open in a cell of a table, or in another element that end tags do not leave."""

    name: str
    begins: int  # the depth
    open: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    gone: Counter[str] = field(default_factory=Counter)  # of those in order, but not the innermost

    def begin(self, name: str) -> bool:
        """A start tag; whether it also closes an element of the same name, whose end tag may be left out."""
        is_next = name in _WITHOUT_END and self.order[-1:] == [name]
        if not is_next:
            self.open[name] += 1
            self.order.append(name)
        return is_next

    def closes(self, name: str) -> bool:
        """An end tag; whether it closes an element. If that is not the innermost one, it must be a block."""
        if not self.open[name] or (self.order[-1] != name and name not in _BLOCKS):
            return False
        self.open[name] -= 1
        self.gone[name] += 1
        while self.order and self.gone[self.order[-1]]:
            self.gone[self.order.pop()] -= 1
        return True


def nesting(html: str) -> tuple[int, int]:
    """Upper bounds: how deeply the tags are nested, and the sum of the depths at all tags.

    An end tag closes an element of the same name that was opened in the same cell, or nothing; after a tag that readers
    could end elsewhere, it closes nothing. The end of a cell closes everything in it.
    """
    cells = [_Cell("", 0)]
    named: Counter[str] = Counter()  # the open cells
    now = most = total = 0
    is_certain = True
    for piece in html.lower().split("<")[1:]:
        tag, was_certain, is_certain = _NAME.match(piece), is_certain, _is_certain(piece)
        if tag is None or tag[2] in _EMPTY:
            continue
        total += now
        end, name = tag.groups()
        if not end:
            if name in _CELLS:
                cells.append(_Cell(name, now))
                named[name] += 1
            else:
                now -= cells[-1].begin(name)
            now += 1
            most = max(most, now)
        elif was_certain and name in _CELLS:
            while named[name]:
                closed = cells.pop()
                now = closed.begins
                named[closed.name] -= 1
                if closed.name == name:
                    break
        elif was_certain and cells[-1].closes(name):
            now -= 1
    return most, total


def longest_tag(html: str) -> int:
    """Upper bound on the attributes of a tag. A ">" that may be in quotes may not end the tag."""
    most = count = 0
    is_open: set[str] = set()  # quotes in which the text may be
    for piece in html.split(">"):
        tag = piece if is_open else piece.partition("<")[2]
        count = (count if is_open else 0) + len(_SEPARATOR.findall(tag))
        most = max(most, count)
        is_open = {sign for sign in is_open if sign not in piece}
        is_open |= {sign for sign, value in _OPEN_VALUE.items() if value.search(piece)}
    return most


def made_again(html: str) -> int:
    """Upper bound on the elements that the parser creates for unclosed formatting. Comments are removed first.

    What is open where a cell begins or ends counts as open to the end, and an end tag after a tag that readers could
    end elsewhere does not count: only the parser knows which end tags it ignores.
    """
    is_open: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    made, is_certain = 0, True
    for piece in html.lower().split("<")[1:]:
        tag = _NAME.match(piece)
        if tag is not None and tag[2] in _CELLS:
            kept += is_open
            is_open.clear()
        elif tag is not None and tag[2] in _FORMATTING and not tag[1]:
            is_open[tag[2]] += 1
        elif tag is not None and tag[2] in _FORMATTING and is_certain:
            is_open[tag[2]] = max(0, is_open[tag[2]] - 1)
        made += sum(min(_MAX_SAME, kept[name] + is_open[name]) for name in kept.keys() | is_open.keys())
        is_certain = _is_certain(piece)
    return made


def _is_certain(piece: str) -> bool:
    """Whether what follows a "<" is read by every reader as a complete tag, or by none as a tag."""
    if piece[:1] in ("!", "?"):
        return ">" in piece
    if not (piece[:1].isalpha() or piece[:1] == "/"):
        return True
    found = _PLAIN_TAG.match(piece)
    return found is not None and piece.startswith(">", found.end())


def _address_first(found: re.Match[str]) -> str:
    address = escape(visible(unescaped(found[1]))[:_MAX_ADDRESS])
    return f'<span class="address">[{address}]</span> <span class="link">'


def _cleaned(html: str, attributes: dict[str, set[str]]) -> str:
    return nh3.clean(
        html,
        tags=set(_TAGS) if "a" in attributes else set(_TAGS - {"a"}),
        clean_content_tags=set(_WITH_CONTENT),
        attributes=attributes,
        attribute_filter=_attribute,
        # A link of any kind is shown as text, so that none is hidden; none of them stays a link.
        url_schemes={"http", "https", "mailto", "ftp", "tel", "javascript", "data", "vbscript", "file", "blob", "cid"},
        strip_comments=True,
        link_rel=None,
    )


def _attribute(tag: str, name: str, value: str) -> str | None:
    match name:
        case "colspan" | "rowspan":
            return value if value.isascii() and value.isdigit() and len(value) <= 2 else None
        case "class":
            return value if tag == "span" and value in _CLASSES else None
        case "alt":
            return visible(value)[:_MAX_ADDRESS]
        case _:
            return value
