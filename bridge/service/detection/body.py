"""Signals from what a mail shows, hides, attaches and asks for.

The phrases are in the languages in which phishing is common: English, German, Portuguese, Spanish, French, Italian
and Dutch. They are searched for in the subject and the beginning of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from bridge.service.detection import brands
from bridge.service.detection.domains import DATA
from bridge.service.detection.material import Material
from bridge.service.detection.page import Page
from bridge.service.detection.sender import Sender

MAX_TEXT = 6000  # characters of the text that are searched for phrases
LEAST_TEXT = 1500  # of each page, if there are several
MUCH_HIDDEN = 200  # characters
LITTLE_TEXT = 250
SOME_REFERENCES = 20


def _sections(file: str) -> dict[str, list[str]]:
    """The lines of a data file, by the signal in brackets above them."""
    found: dict[str, list[str]] = {}
    for line in (DATA / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            lines.append(line)
    return found


_PATTERNS = {tag: re.compile(r"(?<!\w)(?:" + "|".join(lines) + ")") for tag, lines in _sections("patterns.txt").items()}
_BUTTON = _PATTERNS.pop("html:button")
# Compared as sets, which is fast in a long text.
_GROUP_OF = {
    phrase.strip(): tag for tag, lines in _sections("text_phrases.txt").items() for phrase in "".join(lines).split(",")
}
_PHRASES = frozenset(_GROUP_OF)
_FIRST_WORDS = frozenset(phrase.partition(" ")[0] for phrase in _PHRASES if " " in phrase)
_WORD = re.compile(r"\w+")
_WALLET = re.compile(
    r"(?<![a-z0-9])(?:bc1[a-z0-9]{25,62}|[13][a-km-zA-HJ-NP-Z1-9]{26,34}|0x[a-fA-F0-9]{40})(?![a-z0-9])"
)
_PAGE_NAME = re.compile(r"\.(?:s?html?|xht(?:ml)?|mht(?:ml)?|svg)\s*$")
_DOCUMENT = re.compile(r"\.(?:pdf|docx?|xlsx?|one)\s*$")


def texts_of(material: Material) -> list[str]:
    """What a reader sees first, in lower case: of several pages, nobody knows which one a program shows."""
    texts = list(dict.fromkeys(page.text for page in material.pages if page.text))
    if texts and material.beside.strip():
        texts.append(_in_one_line(material.beside))
    if texts:
        share = max(MAX_TEXT // len(texts), LEAST_TEXT)
        return [text[:share] for text in texts]
    return [_in_one_line(material.plain)]


def _in_one_line(text: str) -> str:
    return " ".join(text[: 2 * MAX_TEXT].split()).lower()[:MAX_TEXT]


def signals(material: Material, sender: Sender, text: str) -> Iterator[tuple[str, str]]:
    for page in material.pages:
        yield from _shown(page)
    for page in material.attached_pages:
        yield from _attached(page)
    if material.is_cut or any(page.is_cut for page in (*material.pages, *material.attached_pages)):
        yield "html:cut", ""
    yield from _files(material, text)
    yield from _phrases(material, sender, text)


def _shown(page: Page) -> Iterator[tuple[str, str]]:
    if page.hidden > MUCH_HIDDEN and page.hidden > len(page.text):
        yield "html:hidden-text", f"{page.hidden}|{len(page.text)}"
    elif page.hidden > 3 * MUCH_HIDDEN and 2 * page.hidden > len(page.text):
        yield "html:much-hidden-text", str(page.hidden)
    if page.linked_pictures and len(page.text) < LITTLE_TEXT:
        yield "html:picture-link", str(len(page.text))
    if page.pictures and not page.linked_pictures and len(page.text) < LITTLE_TEXT and page.links:
        yield "html:picture-little-text", str(len(page.text))
    for tag, is_there in (
        ("html:form", page.has_form),
        ("html:password-field", page.asks_password),
        ("html:script", page.runs_script),
        ("html:redirect", page.has_redirect),
        ("html:base", page.has_base),
    ):
        if is_there:
            yield tag, ""
    if page.letter_references >= SOME_REFERENCES:
        yield "html:letters-as-numbers", str(page.letter_references)
    if page.split_words >= 3:
        yield "html:split-words", str(page.split_words)
    if len(page.links) == 1 and len(page.text) < 4 * LITTLE_TEXT:
        yield "html:one-link", ""
    if any(_BUTTON.match(link.shown.strip(" >»→[({")) for link in page.links):
        yield "html:button", ""


def _attached(page: Page) -> Iterator[tuple[str, str]]:
    if page.asks_password:  # a script may send it without a form
        yield "attachment:credential-form", ""
    elif page.has_form:
        yield "attachment:form", ""
    if page.runs_script:
        yield "attachment:script", ""
    if page.has_redirect:
        yield "attachment:redirect", ""


def _files(material: Material, text: str) -> Iterator[tuple[str, str]]:
    page = next((name for name in material.names if _PAGE_NAME.search(name)), "")
    if page:
        yield "attachment:page", page
    if "text/calendar" in material.types and not text:
        yield "attachment:calendar-only", ""
    document = next((name for name in material.names if _DOCUMENT.search(name)), "")
    if document and len(text) < LITTLE_TEXT:
        yield "attachment:document-little-text", document


def words_of(text: str, pattern: re.Pattern[str], spaces: bytes) -> list[str]:
    """What the pattern finds: runs of some characters. `spaces` has a space in place of all other ASCII.

    Splitting the text takes half the time of the pattern (Python 3.11).
    """
    return text.encode().translate(spaces).decode().split() if text.isascii() else pattern.findall(text)


def spaces_but(pattern: re.Pattern[str]) -> bytes:
    """The `spaces` of `words_of`: a character is kept if the pattern finds a run of it."""
    return bytes(code if code < 128 and pattern.search(3 * chr(code)) else ord(" ") for code in range(256))


_SPACES = spaces_but(_WORD)


def _phrases(material: Material, sender: Sender, text: str) -> Iterator[tuple[str, str]]:
    subject = sender.subject.lower()
    for tag, pattern in _PATTERNS.items():
        if found := pattern.search(subject):
            yield tag, found[0]
    words = words_of(text, _WORD, _SPACES)
    pairs = [f"{first} {second}" for first, second in pairwise(words) if first in _FIRST_WORDS]
    for phrase in sorted(_PHRASES.intersection((*words, *pairs))):  # the first one is shown, the same in each process
        yield _GROUP_OF[phrase], phrase
    if any(mark in text for mark in ("0x", "bc1", "btc", "bitcoin")) and (
        _WALLET.search(text) or _WALLET.search(material.plain[:MAX_TEXT])
    ):
        yield "text:wallet", ""
    brand = brands.mentioned(text)
    if brand and not brands.owns(brand, sender.domain):
        yield "text:brand", f"{brand}|{sender.domain}"
    if not sender.subject.strip():
        yield "subject:empty", ""
