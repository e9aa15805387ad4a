"""What a page shows and what it hides: its text, hidden text, links, pictures and forms.

Not a parser: a few searches over the source, each linear in its length, because the whole analysis of a mail may take
a few milliseconds only. Styles in a style sheet are not applied, so text that only a style sheet hides counts as
shown. The time depends on the number of links and hidden elements, which are bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape

MAX_PAGE = 128 * 1024  # characters that are read of each page
MAX_LINKS = 300
MAX_HIDDEN = 200  # elements
MAX_NESTED = 50  # elements of the same name within a hidden one
_MAX_TAG = 4000
_NOT_SHOWN = (("<!--", "-->"), ("<style", "</style"), ("<script", "</script"), ("<title", "</title"))
_TAG = re.compile(r"<[a-z/!?][^<>]*>?")
_SPACE = re.compile(r"\s+")
_ANCHOR = re.compile(r"<a[\s/]")
_HREF = re.compile(r"href\s{0,9}=\s{0,9}(?:\"([^\"]*)|'([^']*)|([^\s>\"']+))")
_HIDING = re.compile(  # begins with one literal character, which `re` searches for fast
    r":(?:(?<=display:)\s{0,3}none|(?<=visibility:)\s{0,3}hidden|(?<=font-size:)\s{0,3}(?:0(?![.\d])|[01]px)"
    r"|(?:(?<=max-height:)|(?<=[;\s\"']height:))\s{0,3}0(?![.\d])|(?<=opacity:)\s{0,3}0(?![.\d])"
    r"|(?<=text-indent:)\s{0,3}-\d{3}|(?<=mso-hide:)\s{0,3}all)"
)
_NAME = re.compile(r"<([a-z][a-z0-9]{0,20})")
_CLOSED = frozenset({"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "source", "wbr"})
_PASSWORD = re.compile(r"type\s{0,9}=\s{0,9}[\"']?password")
_LETTER_REFERENCE = re.compile(r"&#(?:x0*[4-7][0-9a-f]|0*(?:6[5-9]|[789]\d|1[01]\d|12[012]));")
_INVISIBLE = re.compile("[a-z\u00e0-\u024f][\u00ad\u200b-\u200f\u2060-\u2064\ufeff]+[a-z\u00e0-\u024f]")


@dataclass(frozen=True, slots=True)
class Link:
    address: str  # as written, with its letter case
    shown: str  # its text, in lower case


@dataclass(slots=True)
class Page:
    text: str = ""  # shown, in lower case, with single spaces
    hidden: int = 0  # characters of text that are not shown
    links: list[Link] = field(default_factory=list)
    pictures: int = 0
    linked_pictures: int = 0
    has_form: bool = False
    asks_password: bool = False
    runs_script: bool = False
    has_redirect: bool = False
    has_base: bool = False
    letter_references: int = 0  # plain letters written as numbers
    split_words: int = 0  # words with invisible characters in them


def read(source: str) -> Page:
    source = source[:MAX_PAGE]
    lower = source.lower()
    if len(lower) != len(source):  # a few letters have longer lower-case forms
        source = lower
    found = Page(
        pictures=lower.count("<img"),
        has_form="<form" in lower,
        asks_password=_PASSWORD.search(lower) is not None,
        runs_script="<script" in lower,
        has_redirect='http-equiv="refresh' in lower,
        has_base="<base " in lower,
        letter_references=len(_LETTER_REFERENCE.findall(lower)) if "&#" in lower else 0,
    )
    shown, hidden = _split(_without_comments(lower))
    found.text = as_text(shown)
    found.hidden = len(as_text(hidden)) if hidden else 0
    found.split_words = 0 if found.text.isascii() else len(_INVISIBLE.findall(found.text))
    _add_links(found, source, lower)
    return found


def as_text(source: str) -> str:
    text = _TAG.sub(" ", source)
    return _SPACE.sub(" ", unescape(text) if "&" in text else text).strip()


def _without_comments(lower: str) -> str:
    """What follows a comment or script that does not end is not shown."""
    for begin, end in _NOT_SHOWN:
        at = lower.find(begin)
        if at < 0:
            continue
        kept, done = [], 0
        while at >= 0:
            kept.append(lower[done:at])
            done = lower.find(end, at + len(begin))
            if done < 0:
                break
            at = lower.find(begin, done)
        lower = " ".join((*kept, lower[done:] if done >= 0 else ""))
    return lower


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
            return
        start = match.end()
        href = _HREF.search(lower, start, start + _MAX_TAG)
        end = lower.find(">", href.end() if href else start)
        if href is None or end < 0:
            continue
        where = href.span(href.lastindex or 1)
        close = lower.find("</a", end, end + _MAX_TAG)
        inside = lower[end + 1 : close if close >= 0 else end + 1]
        if "<img" in inside:
            found.linked_pictures += 1
        address = source[where[0] : where[1]].strip()
        found.links.append(Link(unescape(address) if "&" in address else address, as_text(inside)[:200]))
