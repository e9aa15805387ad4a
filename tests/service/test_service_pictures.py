"""Codes in pictures that mail programs show, and that nobody read."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from bridge.service.analysis.content import pictures
from bridge.service.analysis.content.unpacking import Budget
from tests.processor_time import fair_cpu_s
from tests.requirements import library
from tests.service.service_kit import zipped
from tests.service.test_service_documents import in_pdf, ole, pdf, tags

LINK = "https://a.example/x"
FOUND = {"picture:qr-link", "host:a.example"}


def code(text: str = LINK, scale: int = 4) -> Any:
    zxingcpp = library("zxingcpp", "pictures")
    image = library("PIL.Image", "pictures")
    drawn = zxingcpp.create_barcode(text, zxingcpp.BarcodeFormat.QRCode).to_image(scale=scale)
    return image.fromarray(drawn).convert("L")


def saved(picture: Any, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["TIFF", "AVIF"])
def test_a_code_in_a_format_that_mail_programs_show_was_not_read(kind: str) -> None:
    assert tags(saved(code(), kind), f"a.{kind.lower()}") == FOUND


NOT_DECODED = {
    "a.heic": b"\0\0\0\x18ftypheic" + bytes(300),
    "a.jxl": b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(300),
    "b.jxl": b"\xff\x0a" + bytes(300),
    "a.jp2": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(300),
    "a.ico": b"\0\0\1\0\1\0\x40\x40\0\0\1\0\x20\0" + bytes(300),
    "a.tif": b"II+\0\x08\0\0\0" + bytes(300),
}


@pytest.mark.parametrize("name", NOT_DECODED)
def test_a_picture_that_is_not_decoded_had_no_tag(name: str) -> None:
    assert "picture:not-read" in tags(NOT_DECODED[name], name)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_all_pixels_of_16_bits_were_white(kind: str) -> None:
    image = library("PIL.Image", "pictures")
    grey = code()
    pixels = b"".join(struct.pack("<H", 3000 + 200 * pixel) for pixel in grey.tobytes())
    assert tags(saved(image.frombytes("I;16", grey.size, pixels), kind), f"a.{kind.lower()}") == FOUND


def modules() -> Any:
    """A code with one pixel for each module, and nothing around it."""
    invert = library("PIL.ImageOps", "pictures").invert
    whole = code(scale=1)
    return whole.crop(invert(whole).getbbox())


def test_a_code_that_the_page_enlarges_was_too_small() -> None:
    """`<img src="..." width="300" height="300">`, and a PDF document draws pictures in any size as well."""
    small = modules()
    assert min(small.size) < 42
    assert tags(saved(small), "a.png") == FOUND
    assert tags(in_pdf(small.tobytes(), "L", small.size), "a.pdf") == FOUND


@pytest.mark.parametrize("colour", ["white", "black"])
def test_a_transparent_code_on_a_dark_page_was_white_on_white(colour: str) -> None:
    image = library("PIL.Image", "pictures")
    grey = code()
    picture = image.new("RGBA", grey.size, colour)
    picture.putalpha(grey if colour == "white" else grey.point(lambda value: 255 - value))
    assert tags(saved(picture), "a.png") == FOUND
    assert tags(saved(picture.quantize()), "a.png") == FOUND


def test_unused_bytes_in_the_header_of_a_bmp_hid_it() -> None:
    content = bytearray(saved(code(), "BMP"))
    content[6:10] = b"abcd"
    assert tags(bytes(content), "a.bmp") == FOUND


@pytest.mark.parametrize(
    "text",
    [
        f"BEGIN:VCARD\nVERSION:3.0\nURL:{LINK}\nEND:VCARD",
        f"MECARD:N:Anna;URL:{LINK};;",
        "MEBKM:TITLE:Bank;URL:https\\://a.example/x;;",
        "URL:a.example/x",
        f"Pay here: {LINK}",
    ],
)
def test_a_link_within_the_text_of_a_code_was_not_found(text: str) -> None:
    assert tags(saved(code(text)), "a.png") == FOUND


def test_a_code_without_a_link_has_none() -> None:
    assert tags(saved(code("WIFI:T:WPA;S:guest.example;P:secret;;")), "a.png") == set()


@pytest.mark.parametrize("junk", [b"\xff", b"\0", b"\xff\xd0", b"\xff\0"])
def test_junk_in_a_jpeg_took_half_a_microsecond_for_each_byte(junk: bytes) -> None:
    """As much of it as one likes fits into a small archive."""
    library("PIL.Image", "pictures")
    content = zipped(("a.jpg", b"\xff\xd8\xff" + junk * 3_000_000))
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(tags(content, "a.zip"))) < 1.5
    assert "limit:archive-work" in found


# TIFF


def test_each_page_of_a_tiff_is_read() -> None:
    image = library("PIL.Image", "pictures")
    blank = image.new("1", (2000, 100), 1)
    assert tags(saved(blank, "TIFF", save_all=True, append_images=[code()]), "a.tif") == FOUND
    many = saved(blank, "TIFF", save_all=True, append_images=[blank] * pictures.MAX_FRAMES)
    assert tags(many, "a.tif") == {"picture:not-read"}


def test_a_huge_second_page_is_not_decoded() -> None:
    image = library("PIL.Image", "pictures")
    pages = [image.new("1", (100, 100), 1), image.new("1", (6400, 6400), 1)]
    content = saved(pages[0], "TIFF", save_all=True, append_images=pages[1:], compression="group4")
    assert tags(content, "a.tif") == {"picture:not-read"}


def test_thousands_of_pages_are_not_counted() -> None:
    """Pillow compares each one with all before it."""
    library("PIL.Image", "pictures")
    entry = struct.pack("<HHII", 256, 4, 1, 100)
    pages = b"".join(struct.pack("<H12sI", 1, entry, 8 + 18 * number) for number in range(1, 20_000))
    content = b"II*\0" + struct.pack("<I", 8) + pages + bytes(18)
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(tags(content, "a.tif"))) < 1
    assert found == ["picture:not-read"]


def test_values_that_are_copied_again_and_again_are_charged() -> None:
    """Each entry of the directory says that its value is the whole file."""
    entries = b"".join(struct.pack("<HHII", 30_000 + number, 1, 1_000_000, 0) for number in range(1000))
    content = b"II*\0" + struct.pack("<IH", 8, 1000) + entries + bytes(1_000_000)
    budget = Budget(work=2**40)
    assert pictures._pages(content, budget) == 1
    assert 2**40 - budget.work > 1_000_000_000
    assert "limit:archive-work" in tags(content, "a.tif")


# PDF


def encoded_by(*encoders: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def encode(data: bytes) -> bytes:
        for encoder in encoders:
            data = encoder(data)
        return data

    return encode


def ascii_85(data: bytes) -> bytes:
    return base64.a85encode(data) + b"~>"


def in_runs(data: bytes) -> bytes:
    pieces = (data[at : at + 128] for at in range(0, len(data), 128))
    return b"".join(bytes([len(piece) - 1]) + piece for piece in pieces) + b"\x80"


def as_jpeg(data: bytes) -> bytes:
    whole = code()
    assert data == whole.tobytes()
    return saved(whole, "JPEG")


ENCODINGS: dict[bytes, Callable[[bytes], bytes]] = {
    b"": bytes,
    b"/Filter/ASCII85Decode": ascii_85,
    b"/Filter[/ASCII85Decode /FlateDecode]": encoded_by(zlib.compress, ascii_85),  # as ReportLab writes all pictures
    b"/Filter[/FlateDecode/FlateDecode]": encoded_by(zlib.compress, zlib.compress),
    b"/Filter/RunLengthDecode": in_runs,
    b"/Filter[/A85/DCT]": encoded_by(as_jpeg, ascii_85),
    b"/Filter[/FlateDecode/DCTDecode]": encoded_by(as_jpeg, zlib.compress),
    b"/Filter 2 0 R": zlib.compress,
}


@pytest.mark.parametrize("filters", ENCODINGS)
def test_a_picture_in_a_pdf_with_other_filters_was_not_read(filters: bytes) -> None:
    grey = code()
    about = b"/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceGray/BitsPerComponent 8" % grey.size
    stream = b"<<%b%b>>stream\n%b\nendstream" % (about, filters, ENCODINGS[filters](grey.tobytes()))
    assert tags(pdf(stream, b"/FlateDecode"), "a.pdf") == FOUND


def test_a_picture_in_a_pdf_with_16_bits_was_not_read() -> None:
    grey = code()
    pixels = zlib.compress(b"".join(bytes((pixel, pixel)) for pixel in grey.tobytes()))
    about = b"/Subtype/Image/Width %d/Height %d/BitsPerComponent 16/Filter/FlateDecode" % grey.size
    assert tags(pdf(b"<<%b>>stream\n%b\nendstream" % (about, pixels)), "a.pdf") == FOUND


def test_pictures_in_a_pdf_that_take_long_to_decode_are_not_all_read() -> None:
    """The document is still inspected completely."""
    library("zxingcpp", "pictures")
    about = b"/Subtype/Image/Width 1000/Height 1000/BitsPerComponent 8/Filter[/ASCII85Decode/FlateDecode]"
    stream = b"<<%b>>stream\n%b\nendstream" % (about, ascii_85(zlib.compress(bytes(1_000_000), 0)))
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(tags(pdf(*[stream] * 5), "a.pdf"))) < 1
    assert found == ["picture:not-read"]


# Old Office documents and RTF


def record(picture: bytes, digests: int = 1) -> bytes:
    """As Office stores a picture: a header with the length, one or two digests, and a tag."""
    content = bytes(16 * digests) + b"\xff" + picture
    return struct.pack("<HHI", 0x6E00, 0xF01E, len(content)) + content


def as_word(picture: bytes) -> bytes:
    return ole({"WordDocument": b"\xec\xa5" + bytes(5000), "Data": bytes(100) + record(picture) + bytes(100)})


def as_powerpoint(picture: bytes) -> bytes:
    return ole({"PowerPoint Document": bytes(5000), "Pictures": record(b"decoy") + record(picture, digests=2)})


def as_excel(picture: bytes) -> bytes:
    """In pieces: a record of Excel has at most 8,224 bytes."""
    drawings = record(picture)
    pieces = [drawings[:100], drawings[100:300], drawings[300:]]
    records = [
        struct.pack("<HH", kind, len(piece)) + piece for kind, piece in zip((0xEB, 0x3C, 0x3C), pieces, strict=True)
    ]
    beginning = struct.pack("<HHHH12x", 0x0809, 16, 0x0600, 5)
    return ole({"Workbook": beginning + b"".join(records) + struct.pack("<HH", 10, 0)})


def as_rtf(picture: bytes) -> bytes:
    digits = picture.hex()
    lines = "\r\n".join(digits[at : at + 79] for at in range(0, len(digits), 79))
    return ("{\\rtf1 {\\pict\\pngblip\\picw100{\\*\\blipuid 0123}\r\n" + lines + "}}").encode()


@pytest.mark.parametrize("document", [as_word, as_powerpoint, as_excel, as_rtf])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_picture_in_an_old_document_was_not_read(document: Callable[[bytes], bytes], kind: str) -> None:
    assert tags(document(saved(code(), kind)), "a.doc") >= FOUND


def test_pictures_that_contain_each_other_are_charged() -> None:
    """Each record says that its picture is the rest of the stream."""
    start = struct.pack("<HHI", 0x6E00, 0xF01D, 3_000_000) + bytes(17) + b"\xff\xd8\xff"
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(tags(ole({"Data": start * 2000}), "a.doc"))) < 1.5
    assert "limit:archive-work" in found
