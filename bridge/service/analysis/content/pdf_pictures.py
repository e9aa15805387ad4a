"""Images in PDF documents that are compressed like PNG, as most QR codes in them are, or not at all, in any encoding.

Such a stream has no header: its description says what it is. Here, it becomes a PNG file for the image reader. What a
predictor wrote is already the content of a PNG file; anything else is decoded. Colours do not matter: from a palette,
only the numbers of its colours are used. The work is limited separately, because a catalogue has thousands of images;
beyond the limit, the document gets the tag for images that were not read. An image that several documents in a mail
share is read once, because each reading of an ambiguous mail may be another document. Nothing here raises.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

from bridge.mime.duplicates import digest
from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.pdf_objects import Objects
from bridge.service.analysis.content.pdf_streams import SPACE, Decoder, Stream
from bridge.service.analysis.content.pictures import MIN_SIDE, NOT_READ
from bridge.service.analysis.content.unpacking import Budget, Member

MAX_PIXELS = 12_000_000  # of all such pictures in a document
_MAX_BYTES, _MAX_WORK = 48 * 1024 * 1024, 64 * 1024 * 1024  # inflated, and looked at
_IMAGE = re.compile(rb"/Image(?:Mask)?(?![A-Za-z0-9])")
_FLATE = re.compile(rb"/F(?:ilter)?" + SPACE + rb"\[?" + SPACE + rb"/Fl(?:ateDecode)?(?![A-Za-z0-9])")
_FILTER = re.compile(rb"/(?:Fl|A85|AHx|RL|LZW|DCT|(?:Flate|ASCII85|ASCIIHex|RunLength|LZW|DCT)Decode)(?![A-Za-z0-9])")
_NOT_DECODED = re.compile(rb"/(?:JPX|JBIG2|CCITTFax)Decode|/CCF(?![A-Za-z0-9])")
_JPEG = b"\xff\xd8\xff"
_NUMBER = re.compile(
    rb"/(Width|Height|BitsPerComponent|Colors|Predictor)[\s\0]++\+?0*+(\d{1,6})(?![\s\0]*+\d++" + SPACE + rb"R)"
)
_BASE = rb"(?:/\w++|\[[^\]]{0,400}\]|\d++[\s\0]++\d++" + SPACE + rb"R)"
_PALETTE = re.compile(rb"/Indexed" + SPACE + _BASE + SPACE + rb"(\d{1,3})")
_PNG_FILTERS = 10  # predictors from this number on are those of PNG
_KINDS = {1: 0, 3: 2, 4: 6}  # the colour types of PNG, by the number of components
_WITH_PALETTE = 3


class Pictures:
    """Those of one document."""

    def __init__(self, content: bytes, objects: Objects, mail: Budget) -> None:
        """`mail`: what all documents of the mail share."""
        self._content = content
        self._mail = mail
        self._budget = Budget(bytes=_MAX_BYTES, work=_MAX_WORK, pixels=MAX_PIXELS)
        self._decoder = Decoder(content, objects, self._budget)

    def members(self, stream: Stream) -> Iterator[Member]:
        """The picture, if it is one that may contain a code."""
        if not _IMAGE.search(stream.about):
            return
        try:
            if picture := self._read(stream):
                yield Member(("",), picture)
        except TooMuch:
            yield Member((), None, tags=(NOT_READ,))

    def _read(self, stream: Stream) -> bytes:
        about = self._decoder.described(stream)
        if _NOT_DECODED.search(about):
            return b""
        numbers = {name: int(value) for name, value in _NUMBER.findall(about)}
        width, height = numbers.get(b"Width", 0), numbers.get(b"Height", 0)
        bits = 1 if b"/ImageMask" in about else numbers.get(b"BitsPerComponent", 8)
        if min(width, height) < MIN_SIDE or bits not in (1, 2, 4, 8, 16):
            return b""
        self._budget.pixels -= width * height
        if self._budget.pixels < 0:
            raise TooMuch("pixels")
        self._take(stream.end - stream.start)  # streams may contain each other
        components, packed = numbers.get(b"Colors", 1), self._content[stream.start : stream.end]
        known = (digest(packed), digest(about))
        if known in self._mail.pictures:
            return b""
        self._mail.pictures.add(known)
        if not _FLATE.search(about) or len(_FILTER.findall(about)) > 1:
            data, _ = self._decoder.decode(stream)
            self._mail.take_picture(len(data))
            if data.startswith(_JPEG):
                return data
            components, packed = _in_rows(data, width, height, bits)
        elif numbers.get(b"Predictor", 1) < _PNG_FILTERS:
            components, packed = _in_rows(self._inflated(packed, width, height, bits), width, height, bits)
        return _png(width, height, bits, components, packed, _palette(about, bits))

    def _take(self, count: int) -> None:
        self._budget.take(count)
        self._mail.take_picture(count)

    def _inflated(self, packed: bytes, width: int, height: int, bits: int) -> bytes:
        largest = -(-width * bits * max(_KINDS) // 8) * height
        self._take(min(largest, 1032 * len(packed)))  # the most by which zlib can expand data
        try:
            return zlib.decompressobj().decompress(packed, largest)
        except zlib.error:
            return b""


def _in_rows(data: bytes, width: int, height: int, bits: int) -> tuple[int, bytes]:
    """The number of components, and the rows as PNG has them: each begins with the number of its filter."""
    for components in sorted(_KINDS, reverse=True):
        row = -(-width * bits * components // 8)
        if row * height <= len(data):
            rows = b"".join(b"\0" + data[at : at + row] for at in range(0, row * height, row))
            return components, zlib.compress(rows, 0)
    return 0, b""


def _palette(about: bytes, bits: int) -> bytes:
    """Greys instead of the colours of a palette: a code has two colours, and which is darker does not matter."""
    found = _PALETTE.search(about)
    last = min(int(found[1]), (1 << bits) - 1) if found else 0
    return bytes(255 * number // last for number in range(last + 1) for _ in range(3)) if last else b""


def _png(width: int, height: int, bits: int, components: int, packed: bytes, palette: bytes) -> bytes:
    if components not in _KINDS or (components > 1 and bits < 8):
        return b""
    has_palette = bool(palette) and components == 1
    kind = _WITH_PALETTE if has_palette else _KINDS[components]
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))]
    chunks += [(b"PLTE", palette)] if has_palette else []
    chunks += [(b"IDAT", packed), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
