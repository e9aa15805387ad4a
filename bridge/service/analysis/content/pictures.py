"""QR codes in pictures: a link in one is a link of the mail, which no other analyzer sees.

Pillow decodes the picture and zxing-cpp finds the codes, both in the process that inspects archives. A picture is
decoded only if its header says that it is small enough, and reduced where the format allows it. The pixels of one mail
are limited; pictures beyond the limit get a tag. Codes that are drawn as text, as table cells or in SVG are not found.
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
MIN_SIDE = 42  # a code has at least 21 modules, and cameras need two pixels for each
MAX_FRAMES = 20  # of an animation; with more, it gets the tag for unread pictures
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF")
_SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xda-\xfe]")  # of JPEG: never in the data of a picture
_SEGMENT_WORK = 1024  # for each; for each chunk of PNG; and for each block of GIF
_MAX_SCANS = 30  # of JPEG, for which the pixels are charged once: libjpeg goes through all of them for each scan
_RLE_COST = 16  # times as long as another picture: Pillow decodes this format in Python
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,30}:[/\\]|https?:", re.IGNORECASE)
_HOST = re.compile(r"(?:www\.|[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,5}\.[a-z]{2,24}(?:[/?#:]|\Z))", re.IGNORECASE)


def is_picture(content: bytes) -> bool:
    """Whether it may contain a code: a picture, and not one that is too small for it."""
    if not content.startswith(_MAGIC):
        return False
    if content.startswith(b"\x89PNG"):
        return len(content) > 24 and min(struct.unpack_from(">II", content, 16)) >= MIN_SIDE
    if content.startswith(b"GIF8"):
        return len(content) > 10 and min(struct.unpack_from("<HH", content, 6)) >= MIN_SIDE
    if content.startswith(b"RIFF"):
        return content[8:12] == b"WEBP"
    return len(content) > 200 and (not content.startswith(b"BM") or content[6:10] == b"\0\0\0\0")


def picture_members(content: bytes, budget: Budget) -> Iterator[Member]:
    """A member without content for the links in its codes."""
    from PIL import Image, ImageFile, PngImagePlugin

    budget.take_work(_SEGMENT_WORK * _blocks(content, budget.work // _SEGMENT_WORK + 1))
    PngImagePlugin.MAX_TEXT_CHUNK = 1  # texts and colour profiles are not inflated: no one here needs them
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # browsers show what there is, and ignore checksums of texts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own limit is higher than ours
            with Image.open(io.BytesIO(content), formats=_FORMATS) as picture:
                yield from _read(picture, _times(content), budget)
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


def _times(content: bytes) -> int:
    """How many times as long as usual it takes to decode the pixels."""
    if content.startswith(b"BM"):
        return _RLE_COST if content[30:34] in (b"\1\0\0\0", b"\2\0\0\0") else 1
    return 1 + content.count(b"\xff\xda") // _MAX_SCANS if content.startswith(b"\xff\xd8") else 1


def _read(picture: Any, times: int, budget: Budget) -> Iterator[Member]:
    pixels = times * picture.width * picture.height
    frames = getattr(picture, "n_frames", 1)
    if frames > MAX_FRAMES:
        yield Member((), None, tags=(NOT_READ,))
    for frame in range(min(frames, MAX_FRAMES)):
        if pixels > times * MAX_PIXELS or pixels > budget.pixels:
            yield Member((), None, tags=(NOT_READ,))
            return
        budget.pixels -= pixels
        if frame:
            picture.seek(frame)
        links = tuple(filter(None, map(link_of, _texts(picture))))
        if links:
            yield Member((), None, tags=(QR_LINK,), links=links)


def _texts(picture: Any) -> list[str]:
    import zxingcpp

    picture.draft("L", (MAX_SIDE, MAX_SIDE))  # JPEG: decoded at a fraction of its size
    grey = _on_white(picture)
    if max(grey.size) > MAX_SIDE:
        grey.thumbnail((MAX_SIDE, MAX_SIDE))
    found = zxingcpp.read_barcodes(grey, formats=zxingcpp.BarcodeFormat.QRCode)
    return [code.text[:4096] for code in found]


def _on_white(picture: Any) -> Any:
    """In grey; what is transparent is shown on white."""
    if "A" not in picture.getbands() and "transparency" not in picture.info:
        return picture.convert("L")
    from PIL import Image

    if picture.mode == "P":  # each colour once, not each pixel
        colours = Image.frombytes("P", (256, 1), bytes(range(256)))
        colours.putpalette(picture.getpalette("RGB"))
        colours.info["transparency"] = picture.info["transparency"]
        return Image.frombytes("L", picture.size, picture.tobytes()).point(_blended(colours).tobytes())
    return _blended(picture)


def _blended(picture: Any) -> Any:
    from PIL import Image

    if picture.mode != "RGBA":  # else it would be copied: 20 ms for 36 megapixels
        picture = picture.convert("RGBA")
    if picture.getchannel("A").getextrema() == (255, 255):  # opaque, as many screenshots are
        return picture.convert("L")
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture).convert("L")


def link_of(text: str) -> str:
    """The address that a camera opens; empty if the text is not one."""
    text = text.strip()
    if _SCHEME.match(text):
        return text
    return "http://" + text if _HOST.match(text) else ""
