"""QR codes in pictures: a link in one is a link of the mail, which no other analyzer sees.

Pillow decodes the picture and zxing-cpp finds the codes, both in the process that inspects archives. A picture is
decoded only if its header says that it is small enough, and reduced where the format allows it. The pixels of one mail
are limited; pictures beyond the limit, and those in formats that only some mail programs show, get a tag. Codes that
a text draws are in `drawn_codes`.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from bridge.service.analysis.content.unpacking import Budget, Member

QR_LINK, NOT_READ = "picture:qr-link", "picture:not-read"
MAX_PIXELS = 40_000_000  # of one picture, as its header declares them
MAX_SIDE = 1600  # pixels to which a larger picture is reduced: a code on it is still legible
MIN_SIDE = 21  # the modules of the smallest code, each of which may be one pixel: a page may show it larger
_SMALL, _ENLARGED = 80, 4  # pixels of a picture that is enlarged, and how many times
_MARGIN = 16  # pixels around an enlarged one: a code needs a margin, and the page may be it
MAX_FRAMES = 20  # of an animation; with more, it gets the tag for unread pictures
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "AVIF")
_TIFF = (b"II*\0", b"MM\0*")
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF", *_TIFF)
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)  # bytes
_AVIF = re.compile(rb"....ftyp(?:avi[fs]|m[is]f1.{4}(?:.{4}){0,8}?avi[fs])", re.DOTALL)
_NOT_DECODED = re.compile(  # HEIC, JPEG XL, JPEG 2000, large TIFF and icons
    rb"""....ftyp(?:he[iv][cxms]|m[is]f1) | \xff\x0a | \0\0\0\x0cJXL\x20\r\n\x87\n | \0\0\0\x0cjP\x20\x20\r\n\x87\n
    | \xff\x4f\xff\x51 | II\+\0 | MM\0\+ | \0\0\x01\0[\x01-\x40]\0...\0[\0\x01]\0""",
    re.DOTALL | re.VERBOSE,
)
_VALUE_WORK = 256  # for each value in a directory of TIFF, such as the place of a strip
_BYTES = frozenset({1, 2, 6, 7})  # types of TIFF whose values are single bytes, which Pillow does not convert
_SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xda-\xfe]")  # of JPEG: never in the data of a picture
_SEGMENT_WORK = 1024  # for each; for each chunk of PNG; and for each block of GIF
_FILL = re.compile(rb"\xff++")  # before the number of a segment of JPEG
_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})  # those without a length
_SCAN = 0xDA
_JUNK_WORK = 100  # for each byte that Pillow reads one by one
_MAX_SCANS = 30  # of JPEG, for which the pixels are charged once: libjpeg goes through all of them for each scan
_RLE_COST = 16  # times as long as another picture: Pillow decodes this format in Python
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,30}:[/\\]|https?:", re.IGNORECASE)
_PREFIX = re.compile(r"(?:ur[il]|urlto:[^:]{0,200}):", re.IGNORECASE)
_WITHIN = re.compile(r"https?:[\\/][^\s;]{1,2000}", re.IGNORECASE)
_HOST = re.compile(r"(?:www\.|[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,5}\.[a-z]{2,24}(?:[/?#:]|\Z))", re.IGNORECASE)


def is_picture(content: bytes) -> bool:
    """Whether it may contain a code: a picture, and not one that is too small for it."""
    if not content.startswith(_MAGIC):
        return _AVIF.match(content) is not None or _NOT_DECODED.match(content) is not None
    if content.startswith(b"\x89PNG"):
        return len(content) > 24 and min(struct.unpack_from(">II", content, 16)) >= MIN_SIDE
    if content.startswith(b"GIF8"):
        return len(content) > 10 and min(struct.unpack_from("<HH", content, 6)) >= MIN_SIDE
    if content.startswith(b"RIFF"):
        return content[8:12] == b"WEBP"
    return len(content) > 200 and (not content.startswith(b"BM") or content[14] in _BMP_HEADERS)


def picture_members(content: bytes, budget: Budget) -> Iterator[Member]:
    """A member without content for the links in its codes."""
    if not content.startswith(_MAGIC) and not _AVIF.match(content):
        yield Member((), None, tags=(NOT_READ,))
        return
    from PIL import Image, ImageFile, PngImagePlugin

    budget.take_work(_SEGMENT_WORK * _blocks(content, budget.work // _SEGMENT_WORK + 1))
    if content.startswith(b"\xff\xd8"):
        _charge_junk(content, budget)
    pages = _pages(content, budget) if content.startswith(_TIFF) else 0
    PngImagePlugin.MAX_TEXT_CHUNK = 1  # texts and colour profiles are not inflated: no one here needs them
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # browsers show what there is, and ignore checksums of texts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own limit is higher than ours
            with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
                yield from _read(picture, _times(content), pages or getattr(picture, "n_frames", 1), budget)
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error, MemoryError):
        yield Member((), None, tags=(NOT_READ,))  # damaged, but a browser may show it; Pillow documents no exceptions
    except Image.DecompressionBombError:
        yield Member((), None, tags=(NOT_READ,))


def _blocks(content: bytes, most: int) -> int:
    """How many Pillow reads, one by one, up to this number; of GIF, at least as many."""
    if content.startswith(b"\xff\xd8"):
        return sum(1 for _ in islice(_SEGMENT.finditer(content), most))
    if content.startswith(b"GIF8"):
        return content.count(b"\0,") + content.count(b"\0!")  # each block ends with a zero
    at, count = 8, 0
    while count < most and content.startswith(b"\x89PNG") and at + 8 <= len(content):
        at, count = at + 12 + int.from_bytes(content[at : at + 4], "big"), count + 1
    return count


def _charge_junk(content: bytes, budget: Budget) -> None:
    """What is between the segments of a JPEG file, up to the first scan: a small archive may have megabytes of it."""
    at = 2
    while (fill := _FILL.search(content, at)) is not None and fill.end() < len(content):
        number, end = content[fill.end()], fill.end() + 1
        budget.take_work(_SEGMENT_WORK + _JUNK_WORK * (end - at))
        if number == _SCAN:
            return
        at = end if number in _ALONE else end + _unpacked(">H", content, end)[0]
    budget.take_work(_JUNK_WORK * max(0, len(content) - at))


def _pages(content: bytes, budget: Budget) -> int:
    """Of TIFF, at most one more than are read: Pillow takes quadratic time to count them, and copies all values."""
    order = "<" if content.startswith(b"I") else ">"
    at, count = _unpacked(order + "I", content, 4)[0], 0
    while 0 < at < len(content) and count <= MAX_FRAMES:
        count += 1
        start, entries = at + 2, _unpacked(order + "H", content, at)[0]
        budget.take_work(_SEGMENT_WORK * entries)
        for entry in range(start, start + 12 * entries, 12):
            kind, values = _unpacked(order + "2xHI", content, entry)
            budget.take_work(min(len(content), values) * (1 if kind in _BYTES else _VALUE_WORK))
        at = _unpacked(order + "I", content, start + 12 * entries)[0]
    return max(1, count)


def _unpacked(form: str, content: bytes, at: int) -> tuple[int, ...]:
    size = struct.calcsize(form)
    return struct.unpack(form, content[at : at + size].ljust(size, b"\0"))


def _times(content: bytes) -> int:
    """How many times as long as usual it takes to decode the pixels."""
    if content.startswith(b"BM"):
        return _RLE_COST if content[30:34] in (b"\1\0\0\0", b"\2\0\0\0") else 1
    return 1 + content.count(b"\xff\xda") // _MAX_SCANS if content.startswith(b"\xff\xd8") else 1


def _read(picture: Any, times: int, frames: int, budget: Budget) -> Iterator[Member]:
    if frames > MAX_FRAMES:
        yield Member((), None, tags=(NOT_READ,))
    for frame in range(min(frames, MAX_FRAMES)):
        if frame:
            picture.seek(frame)
        pixels = times * picture.width * picture.height  # the pages of TIFF have different sizes
        if pixels > times * MAX_PIXELS or pixels > budget.pixels:
            yield Member((), None, tags=(NOT_READ,))
            return
        budget.pixels -= pixels
        links = tuple(link for text in _texts(picture) for link in links_of(text))
        if links:
            yield Member((), None, tags=(QR_LINK,), links=links)


def _texts(picture: Any) -> list[str]:
    picture.draft("L", (MAX_SIDE, MAX_SIDE))  # JPEG: decoded at a fraction of its size
    white = _legible(_on(picture, "white"))
    found = codes(white)
    if not found and _is_transparent(picture):  # a code in white, on a page of another colour
        black = _legible(_on(picture, "black"))
        found = codes(black) if black.tobytes() != white.tobytes() else []
    return found


def codes(grey: Any) -> list[str]:
    """The texts of the QR codes in it, light on dark ones as well."""
    import zxingcpp

    found = zxingcpp.read_barcodes(grey, formats=zxingcpp.BarcodeFormat.QRCode)
    return [code.text[:4096] for code in found]


def _legible(grey: Any) -> Any:
    """Neither too large nor too small."""
    from PIL import Image

    if max(grey.size) > MAX_SIDE:
        grey.thumbnail((MAX_SIDE, MAX_SIDE))
    if max(grey.size) > _SMALL:
        return grey
    size = (_ENLARGED * grey.width, _ENLARGED * grey.height)
    around = Image.new("L", (size[0] + 2 * _MARGIN, size[1] + 2 * _MARGIN), "white")
    around.paste(grey.resize(size, Image.Resampling.NEAREST), (_MARGIN, _MARGIN))
    return around


def _is_transparent(picture: Any) -> bool:
    return "A" in picture.getbands() or "transparency" in picture.info


def _on(picture: Any, colour: str) -> Any:
    """In grey; what is transparent is shown on this colour."""
    if picture.mode.startswith(("I", "F")):
        return _in_8_bits(picture)
    if not _is_transparent(picture):
        return picture.convert("L")
    from PIL import Image

    if picture.mode == "P":  # each colour once, not each pixel
        colours = Image.frombytes("P", (256, 1), bytes(range(256)))
        colours.putpalette(picture.getpalette("RGB"))
        colours.info["transparency"] = picture.info["transparency"]
        return Image.frombytes("L", picture.size, picture.tobytes()).point(_blended(colours, colour).tobytes())
    return _blended(picture, colour)


def _in_8_bits(picture: Any) -> Any:
    """With 16 bits for each pixel, or more, Pillow would show all above 255 as white."""
    grey = picture.convert("F")
    darkest, lightest = grey.getextrema()
    scale = 255 / (lightest - darkest) if lightest > darkest else 0.0
    return grey.point(lambda value: value * scale - darkest * scale).convert("L")


def _blended(picture: Any, colour: str) -> Any:
    from PIL import Image

    if picture.mode != "RGBA":  # else it would be copied: 20 ms for 36 megapixels
        picture = picture.convert("RGBA")
    if picture.getchannel("A").getextrema() == (255, 255):  # opaque, as many screenshots are
        return picture.convert("L")
    page = Image.new("RGBA", picture.size, colour)
    return Image.alpha_composite(page, picture).convert("L")


def links_of(text: str) -> list[str]:
    """The addresses that a camera opens or shows: the text itself, or what is in it, as in a business card."""
    text = text.strip()
    prefix = _PREFIX.match(text)
    link = link_of(text[prefix.end() :] if prefix else text)
    return [link] if link else _WITHIN.findall(text.replace("\\:", ":"))


def link_of(text: str) -> str:
    """The address that a camera opens; empty if the text is not one."""
    text = text.strip()
    if _SCHEME.match(text):
        return text
    return "http://" + text if _HOST.match(text) else ""
