"""What a scanner says about a mail, made harmless: short, printable, and not too much of it.

Tags, verdict and ggrid go into logs, header fields, databases, JSON and terminals, and a scanner may repeat what a
sender wrote. Whoever shows tags may shorten their list, so in a long one those of dangerous mail come first: they are
looked for in what the scanner said, before anything is left out. If this is wrong, a recipient's own entry delivers
malware because its tag was the last of many.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.api.scanning import MAX_TAGS, AnalysisResult
from bridge.matching.dangerous_tags import has_danger
from bridge.runtime.visible_text import visible

MAX_TAG = 200  # characters
MAX_TAG_TEXT = 20_000  # characters of all tags
MAX_WORD = 300  # characters of verdict, ggrid and times
TAGS_CUT = "limit:tags"  # a dangerous tag itself: nobody knows what the others said
# No list up to here is shortened by events (100 tags), header fields (900 characters with separators) or the history.
_FEW_TAGS, _FEW_CHARACTERS = 100, 600


def bounded(result: AnalysisResult) -> AnalysisResult:
    """The same decision; for nearly every mail the same object, after a single check of all its texts (1 to 3 us)."""
    tags = result.tags
    texts = (result.ggrid, result.verdict, result.created, result.completed, *tags)
    text = "".join(texts)
    is_short = len(text) <= MAX_TAG or (len(text) <= _FEW_CHARACTERS and max(map(len, texts)) <= MAX_TAG)
    if is_short and len(tags) <= _FEW_TAGS and text.isascii() and text.isprintable():
        return result
    return replace(
        result,
        ggrid=_word(result.ggrid),
        verdict=_word(result.verdict),
        tags=_bounded_tags(tags),
        created=_word(result.created),
        completed=_word(result.completed),
    )


def _word(text: str) -> str:
    return visible(text[:MAX_WORD])


def _bounded_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    length = sum(map(len, tags))
    if len(tags) > _FEW_TAGS or length > _FEW_CHARACTERS:
        tags = dangerous_first(tags)
    kept: list[str] = []
    left, is_cut = MAX_TAG_TEXT - len(TAGS_CUT), False
    for tag in tags:
        short = visible(tag[:MAX_TAG])
        if len(kept) == MAX_TAGS - 1 or len(short) > left:
            is_cut = True
            break
        is_cut |= len(tag) > MAX_TAG
        left -= len(short)
        kept.append(short)
    return (TAGS_CUT, *kept) if is_cut else tuple(kept)


def dangerous_first(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, otherwise in their order."""
    return tuple(sorted(dict.fromkeys(tags), key=lambda tag: not has_danger((tag,))))
