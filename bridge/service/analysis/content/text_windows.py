"""Text in pieces, decoded in every charset that a program may read it in. Nothing here raises."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from bridge.mime import words
from bridge.mime.ambiguity import Buffer
from bridge.mime.rare_charsets import DECODERS
from bridge.mime.structure import Part

WINDOW = 1024 * 1024  # bytes of text examined at a time
_OVERLAP = 8192  # characters that two pieces share: a tag may contain ">" in quotes, and a link white space
BEGINNING = 1024  # bytes in which a page declares its charset
_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf_8"),
    (b"\xff\xfe\x00\x00", "utf_32_le"),
    (b"\x00\x00\xfe\xff", "utf_32_be"),
    (b"\xff\xfe", "utf_16_le"),
    (b"\xfe\xff", "utf_16_be"),
    (b"+/v", "utf_7"),
)

SELDOM = words.ODD  # links in them are not ASCII
GUESSED = ("gb18030", "cp932", "euc_jp", "big5hkscs", "cp949", "cp1252", "cp1251")  # by browsers and mail programs


def codecs_of(start: bytes, charset: str, others: Iterable[str] = ()) -> list[str]:
    """The charsets to read a text in: as declared, as its beginning says, and ASCII if none of them is like it.

    `others` are codecs that it may be in as well.
    """
    marked = (codec for mark, codec in _BYTE_ORDER_MARKS if start.startswith(mark))
    found = dict.fromkeys((*islice(marked, 1), *words.codecs_of(charset), *others))
    if b"<" in start:
        lower = start.lower()
        if b"charset" in lower or b"encoding" in lower:
            found |= dict.fromkeys(words.odd_codecs(lower.decode("latin-1")))
    for codec in ("utf_16", "utf_32"):  # without a mark, programs do not agree on the order of bytes
        if codec in found:
            found |= dict.fromkeys((codec + "_le", codec + "_be"))
            del found[codec]
    is_ascii = words.ODD.isdisjoint(found) and words.SWITCHING.isdisjoint(found)
    return list(found if is_ascii else found | {"latin_1": None})


def declared_by(part: Part) -> list[str]:
    """Other codecs that programs may find in the fields of a part, if these are in doubt or name several."""
    fields = ";".join(part.values("content-type"))
    if not part.doubts and fields.lower().count("charset") < 2:
        return []
    return words.odd_codecs(fields + ";" + _NEXT_PIECE.sub("", fields))


def detected(content: Buffer, start: int, end: int, charset: str) -> list[str]:
    """The charset that browsers and mail programs recognise by its escape sequences if the text does not declare it."""
    is_marked = content.find(b"\x1b$", start, end) >= 0
    return ["iso2022_jp_2"] if is_marked and words.codec_of(charset) not in words.SWITCHING else []


def undecoded_hosts(content: Buffer, start: int, end: int) -> set[bytes]:
    """What may be a host after two slashes, if it is not ASCII."""
    return {match.group() for match in _AUTHORITY.finditer(content, start, end) if not match.group().isascii()}


_AUTHORITY = re.compile(rb"//[^\s/<>\"'?#]{1,300}")
_NEXT_PIECE = re.compile(r'"?[ \t]?;[ \t]*charset\*0*[1-9][0-9]?\*?[ \t]?=[ \t]?"?', re.IGNORECASE)  # RFC 2231 3


def windows(content: Buffer, start: int, end: int, codec: str) -> Iterator[str]:
    """The text in pieces, so that a long text is never copied as a whole. No piece begins within a word or a tag.

    The end of each piece is also the beginning of the next one.
    """
    if end - start <= WINDOW or codec in DECODERS or content.find(b"<!ENTITY", start, end) >= 0:
        yield words.decoded(content[start:end], codec)  # short, or what comes first determines what the rest means
        return
    decoder = words.decoder(codec)
    rest = ""
    for at in range(start, end, WINDOW):
        raw = content[at : min(at + WINDOW, end)]
        try:
            text = decoder.decode(raw, at + WINDOW >= end) if decoder else words.decoded(raw, codec)
        except (RuntimeError, UnicodeError):  # an escape sequence that Python does not know, or half of one
            yield words.decoded(content[start:end], codec)
            return
        text = rest + words.without_switches(text)
        yield text
        tag = text.rfind("<")
        cut = tag if tag > text.rfind(">") else max(map(text.rfind, " \n\t")) + 1
        rest = text[min(cut, _start_before(text, max(0, len(text) - _OVERLAP))) :]


def _start_before(text: str, at: int) -> int:
    """Where a word or a tag begins, at most the length of an overlap before this place."""
    low = max(0, at - _OVERLAP)
    tag = text.rfind("<", low, at)
    if tag > text.rfind(">", low, at):
        return tag
    return max(text.rfind(space, low, at) + 1 for space in " \n\t") or at
