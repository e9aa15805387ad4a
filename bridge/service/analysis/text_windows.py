"""Text in pieces, decoded in every charset that a program may read it in. Nothing here raises."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.mime import words
from bridge.mime.ambiguity import Buffer

WINDOW = 1024 * 1024  # bytes of text examined at a time
_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf_8"),
    (b"\xff\xfe\x00\x00", "utf_32_le"),
    (b"\x00\x00\xfe\xff", "utf_32_be"),
    (b"\xff\xfe", "utf_16_le"),
    (b"\xfe\xff", "utf_16_be"),
    (b"+/v", "utf_7"),
)

SELDOM = words.UNICODE | words.EBCDIC  # links in them are not ASCII


def codecs_of(start: bytes, charset: str) -> list[str]:
    """The charsets to read a text in: as declared, as its byte order mark says, and ASCII if neither is like it."""
    declared = words.codec_of(charset)
    marked = next((codec for mark, codec in _BYTE_ORDER_MARKS if start.startswith(mark)), declared)
    found = dict.fromkeys((marked, declared))
    for codec in ("utf_16", "utf_32"):  # without a mark, programs do not agree on the order of bytes
        if codec in found:
            found |= dict.fromkeys((codec + "_le", codec + "_be"))
            del found[codec]
    return [*found, "latin_1"] if not SELDOM.isdisjoint(found) else list(found)


def windows(content: Buffer, start: int, end: int, codec: str) -> Iterator[str]:
    """The text in pieces, so that a long text is never copied as a whole. No piece begins within a word or a tag."""
    decoder = words.decoder(codec) if end - start > WINDOW else None
    rest = ""
    for at in range(start, end, WINDOW):
        raw = content[at : min(at + WINDOW, end)]
        text = decoder.decode(raw, at + WINDOW >= end) if decoder else words.decoded(raw, codec)
        text = rest + text
        yield text
        tag = text.rfind("<")
        rest = text[tag if tag > text.rfind(">") else max(map(text.rfind, " \n\t")) + 1 :]
