"""QR codes that a text draws without a picture: with block characters, the cells of a table, or in SVG.

Mail programs show them, and cameras read them. What may be a code is drawn into a small bitmap and given to the reader
of pictures. Linear; what is drawn is charged to the pixels of the mail. Raises only TooMuch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from bridge.mime import references
from bridge.service.analysis.content.drawn_tables import has_cells, tables
from bridge.service.analysis.content.drawn_vectors import has_shapes, vectors
from bridge.service.analysis.content.pictures import NOT_READ, QR_LINK, codes, links_of
from bridge.service.analysis.content.unpacking import Budget, Member

MAX_CELLS = 512  # in a row: the largest code has 177 modules, each of which may be two characters
_MIN_LINES = 10  # of the smallest code, if each has two rows of modules
_MIN_FULL = 8  # characters that are filled: the marks in the corners have as many
_TEXT_WORK, _SIGN_WORK = 4, 40  # for each character of a text, and of what it draws
_REFERENCE_WORK = 100  # for each "&"
_PIXEL_WORK = 4  # times as long as a picture: it is searched again in other colours and proportions
_MARGIN = 16  # pixels
_FULL = "█▓▒░■⬛"
_REFERENCES = ("&#96", "&#x25", "&#X25", "&block;", "&blk")  # the same characters
_BREAK = re.compile(r"</?(?:br|p|div|tr|li|pre|table|center|h[1-6])\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_SPACE = re.compile(r"[ \t\r\n\f]+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufe0e\ufe0f\ufeff]+")
_BLOCK = re.compile("[\u2580\u2584\u2588\u258c\u2590-\u2593\u2596-\u259f■]")
_NO_BLOCK = re.compile("[^\u2580\u2584\u2588\u258c\u2590-\u2593\u2596-\u259f■]")
_WIDE = (("⬛", "██"), ("⬜", "  "), ("\u3000", "  "))
_SIGNS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"  # by the quarters that are filled: upper left 1, upper right 2, lower left 4
_SHADES = {"■": "\0\0", "▓": "\x40\x40", "▒": "\x80\x80", "░": "\xc0\xc0"}
_PAIRS = ("\xff\xff", "\0\xff", "\xff\0", "\0\0")
_UPPER = str.maketrans(_SHADES | {sign: _PAIRS[number % 4] for number, sign in enumerate(_SIGNS)})
_LOWER = str.maketrans(_SHADES | {sign: _PAIRS[number // 4] for number, sign in enumerate(_SIGNS)})
# The width and the height of a quarter of a character in pixels: as high as it is in most fonts, or as a page shows it.
_CHARACTERS = ((2, 4), (4, 4))
_MODULES, _PIXELS = ((4, 4),), ((1, 1),)


def may_be_drawn(text: str) -> bool:
    """A quick test of a text or a page."""
    return _has_blocks(text) or has_cells(text) or has_shapes(text)


def _has_blocks(text: str) -> bool:
    if not text.isascii() and any(text.count(full) >= _MIN_FULL for full in _FULL):
        return True
    if text.count("&#") + text.count("&b") < _MIN_FULL:
        return False
    return any(text.count(reference) >= _MIN_FULL for reference in _REFERENCES)


def drawn_members(text: str, budget: Budget) -> Iterator[Member]:
    """A member without content for the links in the codes that this text or page draws."""
    budget.take_work(_TEXT_WORK * len(text) + _REFERENCE_WORK * text.count("&"))
    plain = references.unescaped(text)
    for rows in _drawings(plain, budget) if _has_blocks(text) else ():
        yield from _read(rows, _CHARACTERS, budget)
    for rows in tables(plain, budget) if has_cells(text) else ():
        yield from _read(rows, _MODULES, budget)
    for rows in vectors(plain, budget) if has_shapes(text) else ():
        yield from _read(rows, _PIXELS, budget)


def _drawings(text: str, budget: Budget) -> Iterator[list[bytes]]:
    """In shades of grey: a row has two bytes for each character, and each line has two rows."""
    text = _INVISIBLE.sub("", text)
    for sign, narrow in _WIDE:
        text = text.replace(sign, narrow)
    yield from _in_lines(_TAG.sub("", _BREAK.sub("\n", text)).splitlines(), budget)
    if "<" in text:  # a browser breaks a line of a page only at a tag
        budget.take_work(_TEXT_WORK * len(text))
        lines = _TAG.sub("", _BREAK.sub("\n", _SPACE.sub(" ", text))).split("\n")
        yield from _in_lines([line.strip(" ") for line in lines], budget)


def _in_lines(lines: Sequence[str], budget: Budget) -> Iterator[list[bytes]]:
    group: list[str] = []
    for line in (*lines, "end"):
        if _BLOCK.search(line):
            group.append(line)
        elif line.strip():
            for at in range(0, len(group) if len(group) >= _MIN_LINES else 0, MAX_CELLS):
                part = group[at : at + MAX_CELLS]
                budget.take_work(_SIGN_WORK * min(MAX_CELLS, max(map(len, part))) * len(part))
                yield list(_rows(part))
            group = []


def _rows(lines: Sequence[str]) -> Iterator[bytes]:
    start = min(match.start() for match in map(_BLOCK.search, lines) if match)
    for line in lines:
        cells = _NO_BLOCK.sub(" ", line[start : start + MAX_CELLS])
        yield cells.translate(_UPPER).encode("latin-1")
        yield cells.translate(_LOWER).encode("latin-1")


def _read(rows: Sequence[bytes], shapes: Sequence[tuple[int, int]], budget: Budget) -> Iterator[Member]:
    """Each is read once in a mail."""
    from PIL import Image, ImageOps

    width = max(map(len, rows))
    cells = b"".join(row.ljust(width, b"\xff") for row in rows)
    digest = ("drawn", width, hashlib.sha256(cells).digest())
    if digest in budget.pictures:
        return
    budget.pictures.add(digest)
    drawing = Image.frombytes("L", (width, len(rows)), cells)
    for across, down in shapes:
        size = (across * width, down * len(rows))
        pixels = _PIXEL_WORK * (size[0] + 2 * _MARGIN) * (size[1] + 2 * _MARGIN)
        if pixels > budget.pixels:
            yield Member((), None, tags=(NOT_READ,))
            return
        budget.pixels -= pixels
        large = drawing.resize(size, Image.Resampling.NEAREST)
        for image in (large, ImageOps.invert(large)):
            if found := codes(ImageOps.expand(image, _MARGIN, fill=255)):
                links = tuple(link for text in found for link in links_of(text))
                if links:
                    yield Member((), None, tags=(QR_LINK,), links=links)
                return
