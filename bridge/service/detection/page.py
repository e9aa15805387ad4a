"""What a page shows and what it hides: its text, hidden text, links, pictures and forms.

Not a parser: a few searches over the source, each linear in its length, because the whole analysis of a mail may take
only a few milliseconds. Styles in a style sheet are not applied, so text that only a style sheet hides counts as
shown. The time depends on the number of links and hidden elements, which are bounded.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.mime.references import unescaped
from bridge.service.analysis.content.page_text import ascii_lower, escaped_inputs

MAX_PAGE = 128 * 1024  # characters that are read of each page
MAX_SOURCE = 1024 * 1024  # that are searched for links: else padding would hide them
MAX_LINKS = 300  # of the part that is read, and as many of the rest
MAX_SHAPES = 2000  # most have no link
MAX_ATTRIBUTES = 40  # of a tag, in front of the one with the link
MAX_HIDDEN = 200  # elements
MAX_NESTED = 50  # elements of the same name within a hidden one
_MAX_TAG = 4000
_NOT_SHOWN = re.compile(r"<(!--|(?:style|script|title)(?=[\s/>]))")
_END_OF = {
    "!--": re.compile("--!?>"),
    **{name: re.compile(rf"</{name}(?=[\s/>])") for name in ("style", "script", "title")},
}
_MARK = re.compile(  # one search instead of ten
    r"<(img|form(?=[\s/>])|script|base(?=[\s/])|area|!--|!entity|!attlist|style|title)"
)
_TAG = re.compile(r"<[a-z/!?][^<>]*>?")
_ANCHOR = re.compile(r"<a[\s/]")
_ATTRIBUTE = re.compile(r"[\s/]*+([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:\"([^\"]*+)\"?|'([^']*+)'?|([^\s>]*+)))?")
# The beginning of an address, up to the end of its host. It contains no other tag with a link, which has a slash, a
# space or a quote, so no text is read twice.
_HOST = re.compile(r"[^/\\?#\s>\"']*+[/\\]*+[^/\\?#\s>\"']*+")
_HREF = re.compile(r"href\s*+=\s*+(?:\"([^\"]*)|'([^']*)|([^\s>]+))")
_OTHER = re.compile(r"<(area|base|button|form|input|meta)(?=[\s/])")
_OTHER_LINKS = {"area": "href", "base": "href", "button": "formaction", "form": "action", "input": "formaction"}
# Elements with a prefix: shapes of Outlook (VML), and those of XHTML. In a formula, any element may be a link.
_SHAPE = re.compile(r"<[a-z_][\w.-]{0,30}:[a-z]{1,30}(?=[\s/])")
_MAY_HAVE_SHAPES = ("xmlns:", "<v:", "<math")  # the search takes a tenth of the time for a page
_FORMULA = re.compile(r"<m[a-z]{1,15}(?=[\s/])")
_REFRESH = re.compile(r"\s*+[0-9.]*+\s*+[;,]?\s*+(?:url\s*+=\s*+)?[\"']?", re.IGNORECASE)
_HIDING = re.compile(  # begins with one literal character, which `re` searches for fast; most values fail at the next
    r":(?=\s{0,3}[nh01a-])(?:(?<=display:)\s{0,3}none|(?<=visibility:)\s{0,3}hidden|(?<=font-size:)\s{0,3}(?:0(?![.\d])|[01]px)"
    r"|(?:(?<=max-height:)|(?<=[;\s\"']height:))\s{0,3}0(?![.\d])|(?<=opacity:)\s{0,3}0(?![.\d])"
    r"|(?<=text-indent:)\s{0,3}-\d{3}|(?<=mso-hide:)\s{0,3}all)"
)
_NAME = re.compile(r"<([a-z][a-z0-9]{0,20})")
_CLOSED = frozenset({"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "source", "wbr"})
_PASSWORD = re.compile(r"type\s*+=\s*+[\"']?password")
# In XML: a name with a prefix, and what a document declares for all of its elements.
_PREFIXED = re.compile(r"<[^\s<>/:]{1,100}+:(form)(?=[\s/>])")
_DECLARED_PASSWORD = re.compile(r"type\s*+=\s*+[\"'][a-z]{0,8}+&(?!#)|<!attlist[^<>]*[\"']password[\"']")
_LETTER_REFERENCE = re.compile(r"&#(?:x0*[4-7][0-9a-f]|0*(?:6[5-9]|[789]\d|1[01]\d|12[012]));")
_INVISIBLE_CHARACTERS = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
_INVISIBLE = re.compile(f"[{_INVISIBLE_CHARACTERS}]+")
_LETTER = re.compile("[a-z\u00e0-\u024f]")
_NOT_A_TAG = re.compile(r"<(?![a-z/!?])")


class Link(NamedTuple):
    address: str  # as written, with its letter case
    shown: str  # its text, in lower case


@dataclass(slots=True)
class Page:
    text: str = ""  # shown, in lower case, with single spaces
    hidden: int = 0  # characters of text that are not shown
    links: list[Link] = field(default_factory=list)
    other_links: list[str] = field(default_factory=list)  # of forms, areas of a picture, shapes and redirects
    base: str = ""  # the address that completes the others
    pictures: int = 0
    linked_pictures: int = 0
    has_form: bool = False
    asks_password: bool = False
    runs_script: bool = False
    has_redirect: bool = False
    has_base: bool = False
    letter_references: int = 0  # plain letters written as numbers
    split_words: int = 0  # words with invisible characters in them
    is_cut: bool = False  # not all of it was read


def read(source: str) -> Page:
    """All of a usual page; of a longer one, the beginning and the links after it."""
    found = _read(source[:MAX_PAGE])
    if len(source) > MAX_PAGE:
        found.is_cut = True
        rest = source[MAX_PAGE - _MAX_TAG : MAX_SOURCE]
        lower = ascii_lower(rest)
        _add_links(found, rest, lower)
        _add_others(found, rest, lower)
        _add_shapes(found, rest, lower)
    return found


def _read(source: str) -> Page:
    lower = ascii_lower(source)
    marks = Counter(_MARK.findall(lower))
    if ":form" in lower:
        marks.update(_PREFIXED.findall(lower))
    found = Page(
        pictures=marks["img"],
        has_form=marks["form"] > 0,
        asks_password=_asks_password(lower, marks),
        runs_script=marks["script"] > 0,
        has_redirect='http-equiv="refresh' in lower,
        has_base=marks["base"] > 0,
        letter_references=len(_LETTER_REFERENCE.findall(lower)) if "&#" in lower else 0,
    )
    shown, hidden = _split(_without_comments(lower, marks))
    found.text = as_text(shown).lower()
    found.hidden = len(as_text(hidden)) if hidden else 0
    found.split_words = 0 if found.text.isascii() else _split_words(found.text)
    _add_links(found, source, lower)
    has_refresh = "http-equiv" in lower and ("refresh" in lower or "&#" in lower)
    if has_refresh or marks["area"] or marks["form"] or marks["base"] or "formaction" in lower:
        _add_others(found, source, lower)
    if any(map(lower.__contains__, _MAY_HAVE_SHAPES)):
        _add_shapes(found, source, lower)
    return found


def _asks_password(lower: str, marks: Counter[str]) -> bool:
    if "password" in lower and _PASSWORD.search(lower):
        return True
    if (marks["!entity"] or marks["!attlist"]) and _DECLARED_PASSWORD.search(lower):
        return True
    return any(map(_PASSWORD.search, escaped_inputs(lower)))


def as_text(source: str) -> str:
    """Without tags and references, and with single spaces."""
    if "<" not in source:
        text = source
    elif _NOT_A_TAG.search(source):
        text = _TAG.sub(" ", source)
    else:  # the same in a third of the time: a tag ends at the first ">", or before the next tag
        first, *tags = source.split("<")
        text = " ".join([first, *[tag.partition(">")[2] for tag in tags]])
    return " ".join(unescaped(text).split())


def _split_words(text: str) -> int:
    """How often there are invisible characters between two letters; no letter counts twice."""
    count = done = 0
    if not any(map(text.__contains__, _INVISIBLE_CHARACTERS)):  # a tenth of the time of a search for all of them
        return 0
    for run in _INVISIBLE.finditer(text):
        start, end = run.span()
        if start > done and _LETTER.match(text, start - 1) and _LETTER.match(text, end):
            count, done = count + 1, end + 1
    return count


def _without_comments(lower: str, marks: Counter[str]) -> str:
    """What follows a comment or script that does not end is not shown."""
    if marks.keys().isdisjoint(_END_OF):
        return lower
    kept, done = [], 0
    match = _NOT_SHOWN.search(lower)
    while match is not None:
        name, at = match[1], match.end()
        if not _is_in_tag(lower, done, match.start()):
            kept.append(lower[done : match.start()])
            end = _END_OF[name].search(lower, match.start() + 2)  # "<!-->" is a comment as well
            if end is None:
                return " ".join(kept)
            done = at = end.end() if name == "!--" else end.start()
        match = _NOT_SHOWN.search(lower, at)
    return " ".join((*kept, lower[done:]))


def _is_in_tag(lower: str, start: int, at: int) -> bool:
    """Whether it is only text in a tag: `<p title="<style>">`."""
    tag = lower.rfind("<", max(start, at - _MAX_TAG), at)
    return tag >= 0 and lower[tag + 1 : tag + 2].isalpha() and lower.find(">", tag, at) < 0


def _split(lower: str) -> tuple[str, str]:
    """What is shown, and what an element hides by its own style."""
    shown: list[str] = []
    hidden: list[str] = []
    done = count = 0
    for match in _HIDING.finditer(lower):
        start = lower.rfind("<", max(done, match.start() - _MAX_TAG), match.start())
        name = _NAME.match(lower, start) if start >= done else None
        if name is None or name[1] in _CLOSED or lower.find(">", start, match.start()) >= 0:
            continue
        count += 1
        if count > MAX_HIDDEN:
            break
        end = _end_of(lower, match.end(), name[1])
        is_small = lower.startswith("font-size", match.start() - 9)
        if is_small and lower.find("font-size", match.end(), end) >= 0:
            continue  # what is within sets its own size: common around tables
        shown.append(lower[done:start])
        hidden.append(lower[start:end])
        done = end
    return " ".join((*shown, lower[done:])), " ".join(hidden)


def _end_of(lower: str, at: int, name: str) -> int:
    """Where the element ends; elements of its name may be within it."""
    depth = 1
    opening, closing = f"<{name}", f"</{name}"
    for _ in range(MAX_NESTED):
        end = lower.find(closing, at)
        if end < 0:
            return len(lower)
        depth += lower.count(opening, at, end) - 1
        at = end + len(closing)
        if depth <= 0:
            return end
    return at


def _add_links(found: Page, source: str, lower: str) -> None:
    for count, match in enumerate(_ANCHOR.finditer(lower)):
        if count >= MAX_LINKS:
            found.is_cut = True
            return
        start = match.end()
        where = _attribute(lower, start, "href")
        if where is None:  # then the next one counts, as it did when the model was trained
            href = _HREF.search(lower, start, start + _MAX_TAG)
            where = href.span(href.lastindex or 1) if href else None
        end = lower.find(">", where[1]) if where else -1
        if where is None or end < 0:
            continue
        close = lower.find("</a", end, end + _MAX_TAG)
        inside = lower[end + 1 : close if close >= 0 else end + 1]
        if "<img" in inside:
            found.linked_pictures += 1
        address = source[where[0] : where[1]].strip()
        found.links.append(Link(unescaped(address), as_text(inside)[:200].lower()))


def _attribute(lower: str, start: int, wanted: str) -> tuple[int, int] | None:
    """Where the value of an attribute is. The first of its name counts; drawings have it with a prefix."""
    at, end = start, start + _MAX_TAG
    for _ in range(MAX_ATTRIBUTES):
        match = _ATTRIBUTE.match(lower, at, end)
        if match is None:
            return None
        if match[1] == wanted or match[1] == f"xlink:{wanted}":
            if match.lastindex == 1:
                return None
            begin, stop = match.span(match.lastindex or 0)
            if stop >= end:  # the end of a padded host decides where a link leads
                stop = max(stop, _HOST.match(lower, begin).end())  # type: ignore[union-attr]  # it always matches
            return begin, stop
        at = match.end()
    return None


def _add_others(found: Page, source: str, lower: str) -> None:
    """Links that are not anchors."""
    for count, match in enumerate(_OTHER.finditer(lower)):
        if count >= MAX_LINKS:
            found.is_cut = True
            return
        value = _value(source, lower, match.end(), _OTHER_LINKS.get(match[1], "content"))
        if match[1] == "meta":
            is_refresh = _value(source, lower, match.end(), "http-equiv").strip().lower() == "refresh"
            found.has_redirect |= is_refresh
            value = _REFRESH.sub("", value, 1) if is_refresh else ""
        if match[1] == "base":
            found.base = found.base or value
        elif value:
            found.other_links.append(value)


def _add_shapes(found: Page, source: str, lower: str) -> None:
    """Links of other elements. In most pages, they repeat an anchor for Outlook, and would count twice."""
    known = {link.address for link in found.links}
    for pattern in (_SHAPE, _FORMULA) if "<math" in lower else (_SHAPE,):
        for count, match in enumerate(pattern.finditer(lower)):
            if count >= MAX_SHAPES:
                found.is_cut = True
                return
            value = _value(source, lower, match.end(), "href")
            if value and value not in known:
                found.other_links.append(value)


def _value(source: str, lower: str, start: int, wanted: str) -> str:
    where = _attribute(lower, start, wanted)
    return unescaped(source[where[0] : where[1]]).strip() if where else ""
