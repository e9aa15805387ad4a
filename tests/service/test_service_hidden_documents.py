"""Documents that a program opens and the service did not read, or that kept it busy.

Each case was delivered as clean, or occupied an inspecting process until its time limit.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib

import pytest

from bridge.service.analysis.inspection import inspect
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.requirements import library
from tests.service.service_kit import EICAR, attached, mail, zipped
from tests.service.test_service_documents import ALL, FORM, MACRO, entry, ole, pdf, rar5, relations, tags, vba

MACRO_TAGS = {"mime:macro", "office:auto-macro", "office:macro-runs-program"}
PROGRAM = b"MZ" + bytes(58) + b"\x80\0\0\0" + bytes(64) + b"PE\0\0" + bytes(300)
EVIL = zipped(("evil.js", b"WScript.Echo(1)"))
NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def document() -> bytes:
    return ole({"Module1": vba(MACRO)})


def page(*literals: bytes) -> bytes:
    lines = b"".join(b'x="%s";\n' % base64.b64encode(literal) for literal in literals)
    return b"<html><script>%s</script></html>" % lines


# Ambiguous mail

DOCUMENTS = {
    "macro": (document(), MACRO_TAGS),
    "pdf": (pdf(b"<</OpenAction<</S/Launch/F(cmd.exe)>>>>"), {"pdf:launch", "pdf:open-action", "mime:executable"}),
    "rtf": (b"{\\rtf1{\\*\\template https://a.example/t}%b}" % (b"x" * 200), {"office:remote-template"}),
    "page": (page(PROGRAM), {"mime:executable"}),
    "form": (FORM + b"<script>" + b" " * 200, {"attachment:credential-form"}),
}


@pytest.mark.parametrize("encoding", [b"(c) base64", b"base64;", b'"base64"', b"base64 x"])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_document_in_an_ambiguous_mail_was_not_inspected(kind: str, encoding: bytes) -> None:
    content, expected = DOCUMENTS[kind]
    hidden = attached(content).replace(b"Encoding: base64", b"Encoding: " + encoding)
    assert hidden != attached(content)
    assert expected <= inspect(hidden, ALL).tags


def test_a_file_in_an_appointment_in_an_ambiguous_mail_was_not_inspected() -> None:
    data = base64.b64encode(EICAR).decode()
    event = f"BEGIN:VCALENDAR\r\nATTACH;ENCODING=BASE64;FILENAME=a.js:{data[:40]}\r\n {data[40:]}\r\nEND:VCALENDAR\r\n"
    ambiguous = mail(event.encode(), MIME_Version="1.0", Content_Type="text/calendar; boundary=x")
    assert {"malware:eicar", "mime:executable"} <= inspect(ambiguous, ALL).tags


# PDF


def embedded(about: bytes, data: bytes, names: bytes = b"/F(a.bin)", reference: bytes = b"3 0 R") -> bytes:
    """A file as readers find it: with a table of objects."""
    objects = [
        b"<</Type/Catalog/Pages 4 0 R/Names<</EmbeddedFiles<</Names[(a)2 0 R]>>>>>>",
        b"<</Type/Filespec%b/EF<</F %b>>>>" % (names, reference),
        b"<<%b/Length %d>>stream\n%b\nendstream" % (about, len(data), data),
        b"<</Type/Pages/Kids[]/Count 0>>",
    ]
    out, places = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"xref\n0 5\n0000000000 65535 f \n%btrailer\n<</Size 5/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n"
    return out + end % (table, len(out))


def run_lengths(data: bytes) -> bytes:
    pieces = [data[at : at + 128] for at in range(0, len(data), 128)]
    return b"".join(bytes([len(piece) - 1]) + piece for piece in pieces) + b"\x80"


def rows_above(data: bytes, width: int) -> bytes:
    """With PNG's predictor "up"."""
    out, above = b"", bytes(width)
    for at in range(0, len(data), width):
        row = data[at : at + width].ljust(width, b"\0")
        out += b"\x02" + bytes((byte - up) & 0xFF for byte, up in zip(row, above, strict=True))
        above = row
    return out


def lzw(data: bytes) -> bytes:
    """Without any reference: the table is cleared before the codes become longer."""
    codes = []
    for number, byte in enumerate(data):
        codes += [256, byte] if number % 200 == 0 else [byte]
    bits = "".join(f"{code:09b}" for code in (*codes, 257))
    return int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8))


PACKED = zlib.compress(EVIL)
TYPE, FLATE = b"/Type/EmbeddedFile", b"/Filter/FlateDecode"
_STOPS = b"endstream"
_STORED = b"\x78\x01\x00" + struct.pack("<HH", len(_STOPS), len(_STOPS) ^ 0xFFFF) + _STOPS  # then compressed data
UNSEEN = {
    "filter in another key": embedded(TYPE + b"/X/AHx" + FLATE, PACKED),
    "object in a string": embedded(TYPE + FLATE + b"/X(9 0 obj)", PACKED),
    "object in a comment": embedded(TYPE + FLATE + b"%9 0 obj\n", PACKED),
    "long dictionary": embedded(TYPE + FLATE + b" " * 5000, PACKED),
    "run lengths": embedded(TYPE + b"/Filter[/RunLengthDecode/FlateDecode]", run_lengths(PACKED)),
    "lzw": embedded(TYPE + b"/Filter[/LZWDecode/FlateDecode]", lzw(PACKED)),
    "predictor": embedded(
        TYPE + FLATE + b"/DecodeParms<</Predictor 12/Columns 8>>", zlib.compress(rows_above(EVIL, 8))
    ),
    "marked end in the data": embedded(TYPE + FLATE, _STORED + zlib.compress(EVIL, wbits=-15)),
    "type of a picture": embedded(b"/Subtype/Image" + FLATE, PACKED),
    "space in a reference": embedded(FLATE, PACKED, reference=b" " * 20 + b"3%x\n 0 R"),
}


@pytest.mark.parametrize("kind", UNSEEN)
def test_a_file_in_a_pdf_was_not_found(kind: str) -> None:
    pikepdf = library("pikepdf", "documents")
    with pikepdf.open(io.BytesIO(UNSEEN[kind])) as opened:
        (found,) = opened.attachments.values()
        level = pikepdf.StreamDecodeLevel.specialized
        assert EVIL in found.get_file().obj.read_bytes(level)
    assert {"pdf:embedded-file", "mime:executable"} <= tags(UNSEEN[kind], "a.pdf")


def test_actions_in_an_object_stream_were_not_found() -> None:
    action = run_lengths(b"<</S/Launch/F(x)>> <</S/URI/URI(https://a.example/x)>>")
    about = b"<</Type/ObjStm/Filter/RunLengthDecode/X(9 0 obj)>>stream\n%b\nendstream" % action
    assert tags(pdf(about), "a.pdf") == {"pdf:launch", "host:a.example"}


def test_a_filter_that_is_not_known_makes_the_mail_incomplete() -> None:
    assert "limit:archive-method" in tags(embedded(TYPE + b"/Filter/Crypt", PACKED), "a.pdf")


def test_names_and_links_after_many_others_were_left_out() -> None:
    names = b"".join(b"/F(d%d.b)" % number for number in range(60))
    assert "mime:executable" in tags(pdf(b"<<%b/UF(evil.js)>>" % names), "a.pdf")
    links = b"".join(b"/URI(https://a.example/%d)" % number for number in range(5001))
    assert "host:b.example" in tags(pdf(b"<<%b/URI(https://b.example/)>>" % links), "a.pdf")


# Office documents


def text_part(instruction: str) -> bytes:
    return f'<?xml version="1.0"?><w:p xmlns:w="{NAMESPACE}"><w:instrText>{instruction}</w:instrText></w:p>'.encode()


@pytest.mark.parametrize(
    ("instruction", "path"),
    [
        ("&#68;DEAUTO cmd", "word/document.xml"),
        ("<![CDATA[DDEAUTO cmd]]>", "word/document.xml"),
        ("DD<!-- -->EAUTO cmd", "word/document.xml"),
        ("DDEAUTO cmd", "text/document.xml"),
        ("DDEAUTO cmd", "text/document.bin"),
    ],
)
def test_a_field_that_only_a_parser_reads_was_not_found(instruction: str, path: str) -> None:
    assert "office:dde" in tags(zipped((path, text_part(instruction))), "a.docx")
    assert "office:dde" in tags(zipped((path, text_part(instruction).decode().encode("utf-16"))), "a.docx")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b" TargetMode", b" " * 9000 + b"TargetMode"),
        (b"/t", b"/t?>"),
        (b' Type="', b' Other="a Target=\'x\' " Type="'),
    ],
)
def test_a_template_that_only_a_parser_reads_was_not_found(old: bytes, new: bytes) -> None:
    part = relations("attachedTemplate", "https://a.example/t").replace(old, new) + b"</Relationships>"
    assert "office:remote-template" in tags(zipped(("word/_rels/settings.xml.rels", part)), "a.docx")


def test_macro_sheets_were_found_by_their_path_only() -> None:
    kind = "http://schemas.microsoft.com/office/2006/relationships/xlMacrosheet"
    part = f'<Relationships><Relationship Id="r" Type="{kind}" Target="worksheets/sheet1.xml"/></Relationships>'
    assert "mime:macro" in tags(zipped(("xl/_rels/workbook.xml.rels", part.encode())), "a.xlsm")


def test_entities_of_a_document_are_not_expanded() -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 10}">' for n in range(12))
    part = f"<!DOCTYPE a [{entities}]><instrText>&e11;</instrText>".encode()
    assert fair_cpu_s(lambda: tags(zipped(("word/document.xml", part)), "a.docx")) < 2


def small_ole(source: bytes, *, has_other_root: bool) -> bytes:
    """A macro in the stream for small ones, which the root has; perhaps with another entry of the root's type."""
    size = -(-len(source) // 64) * 64
    other = entry("Root Entry", 5, 0xFFFFFFFE, 0) if has_other_root else b""
    directory = entry("Root Entry", 5, 3, size) + other + entry("Module1", 2, 0, len(source))
    small = [*range(1, size // 64), 0xFFFFFFFE]
    table = [0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFE, *range(4, 3 + -(-size // 512)), 0xFFFFFFFE]
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH", 62, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<IIIIIIIIII", 0, 1, 1, 0, 4096, 2, 1, 0xFFFFFFFE, 0, 0) + b"\xff" * (512 - 80)
    sectors = (struct.pack(f"<{len(table)}I", *table), directory, struct.pack(f"<{len(small)}I", *small))
    first, second, third = (
        sector.ljust(512, fill) for sector, fill in zip(sectors, (b"\xff", b"\0", b"\xff"), strict=True)
    )
    return header + first + second + third + source + bytes(-len(source) % 512)


@pytest.mark.parametrize("has_other_root", [False, True])
def test_a_second_root_hid_small_streams(has_other_root: bool) -> None:
    assert tags(small_ole(vba(MACRO), has_other_root=has_other_root), "a.doc") >= MACRO_TAGS


def test_a_macro_that_is_not_compressed_was_not_found() -> None:
    raw = b"\x01" + struct.pack("<H", 0x3FFF) + MACRO.ljust(4096)
    assert tags(ole({"Module1": raw}), "a.doc") >= MACRO_TAGS


def test_names_and_text_of_an_outlook_message_were_not_read() -> None:
    assert "mime:executable" in tags(ole({"__substg1.0_3707001E": b"evil.js"}), "a.msg")
    text = b'{\\rtf1{\\field{\\*\\fldinst HYPERLINK "https://a.example/x"}}}'
    packed = b"".join(b"\0" + text[at : at + 8] for at in range(0, len(text), 8))
    body = struct.pack("<IIII", len(packed) + 12, len(text), 0x75465A4C, 0) + packed
    assert "host:a.example" in tags(ole({"__substg1.0_10090102": body}), "a.msg")


def active_mime() -> bytes:
    return b"ActiveMime".ljust(50, b"\0") + zlib.compress(document())


def as_references(data: bytes) -> bytes:
    return b"".join(b"&#%d;" % byte for byte in base64.b64encode(data))


def web_archive() -> bytes:
    data = base64.encodebytes(active_mime()).replace(b"\n", b"\r\n")
    head = b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=y\r\n\r\n"
    shown = b"--y\r\nContent-Type: text/html\r\n\r\n<html></html>\r\n"
    macros = b"--y\r\nContent-Type: application/x-mso\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    return head + shown + macros + data + b"--y--\r\n"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (active_mime(), "editdata.mso"),
        (b'<?xml version="1.0"?><d><w:binData xmlns:w="x">%b</w:binData></d>' % as_references(active_mime()), "a.xml"),
        (b'<?xml version="1.0"?><d><binData>%b</binData></d>' % base64.encodebytes(active_mime()), "a.doc"),
        (b'<?xml version="1.0"?><d><binaryData>%b</binaryData></d>' % as_references(document()), "a.xml"),
        (web_archive(), "a.doc"),
        (zipped(("a.doc", web_archive())), "a.zip"),
    ],
)
def test_macros_of_a_document_in_xml_or_mhtml_were_not_read(content: bytes, name: str) -> None:
    assert tags(content, name) >= MACRO_TAGS


# Pages, pictures, archives


def test_a_program_after_500_literals_was_not_found() -> None:
    decoys = [number.to_bytes(36) for number in range(1, 501)]
    assert "mime:executable" in tags(page(*decoys, PROGRAM), "a.html")


def test_too_many_literals_make_the_mail_incomplete() -> None:
    decoys = [b"%036d" % number for number in range(20_000)]
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(tags(page(*decoys, PROGRAM), "a.html"))) < 6
    assert "limit:archive-work" in found


def code_in(kind: str) -> bytes:
    zxingcpp = library("zxingcpp", "pictures")
    image = library("PIL.Image", "pictures")
    code = zxingcpp.create_barcode("https://a.example/x", zxingcpp.BarcodeFormat.QRCode).to_image(scale=4)
    picture = image.fromarray(code).convert("L")
    out = io.BytesIO()
    if kind == "GIF":
        blank = [image.new("L", picture.size, 255 - number) for number in range(4)]
        blank[0].save(out, kind, save_all=True, append_images=[*blank[1:], picture], duration=50)
    else:
        whole = image.new("L", (picture.width, picture.height + 200), 255)
        whole.paste(picture)
        whole.save(out, kind)
    return out.getvalue()


def test_a_code_in_a_picture_that_is_damaged_or_moves_was_not_read() -> None:
    """Browsers show all of them."""
    picture = code_in("PNG")
    wrong_checksum = picture[:33] + struct.pack(">I", 4) + b"tEXtabcd" + bytes(4) + picture[33:]
    expected = {"picture:qr-link", "host:a.example"}
    assert tags(wrong_checksum, "a.png") == expected
    assert tags(code_in("JPEG")[:-100], "a.jpeg") == expected
    assert tags(code_in("GIF"), "a.gif") == expected
    assert tags(picture[:40] + b"?" * 200, "a.png") == {"picture:not-read"}


@pytest.mark.parametrize("before", [zlib.compress(b"x", wbits=31), zipped(("a.txt", b"x")), b"PK\5\6" + bytes(18)])
def test_an_archive_before_the_one_that_the_name_means_hid_it(before: bytes) -> None:
    library("libarchive", "archives")
    assert "mime:executable" in tags(before + rar5("evil.js", b"WScript.Echo(1)"), "a.rar")


# Time


def expanding_macro() -> bytes:
    """A macro of 8 MiB in 14 kB: each chunk is one letter, and a reference that repeats it."""
    first = b"\0Attribut\0e VB"
    chunks = struct.pack("<H", 0xB000 | (len(first) - 1)) + first
    return b"\x01" + chunks + (struct.pack("<H", 0xB003) + b"\x02A\xff\x0f") * 2047


BUSY = {
    "streams": b"%PDF-" + b"1 0 obj<</DCT>>stream\nendstream " * 20_000,
    "files": b"%PDF-" + b"1 0 obj<</EmbeddedFile>>stream\n" * 8000,
    "strings": b"%PDF-" + b"1 0 obj<</A(" * 8000,
    "lzw": embedded(TYPE + b"/Filter/LZWDecode", bytes(range(256)) * 8000),
}


def test_small_macros_that_expand_took_until_the_time_limit() -> None:
    many = b"".join(expanding_macro() for _ in range(3))
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(tags(zipped(("a.doc", one_stream("M", many))), "a.zip"))) < 6
    assert "limit:archive-work" in found


def test_objects_of_slides_that_contain_each_other_took_quadratic_time() -> None:
    marks = b"\0\0\x11\x10\xff\xff\xff\x7f" * 7000
    packed = b"\0\0\x11\x10\xff\xff\xff\x7f----x\x9c" * 4000
    for content in (marks, packed):
        assert fair_cpu_s(lambda content=content: tags(one_stream("PowerPoint Document", content), "a.ppt")) < 3


@pytest.mark.parametrize("kind", few(["streams", "files", "strings", "lzw"], 1))
def test_pdf_files_that_take_long(kind: str) -> None:
    assert fair_cpu_s(lambda: tags(BUSY[kind], "a.pdf")) < 8


def one_stream(name: str, content: bytes) -> bytes:
    """Like `ole`, with one long stream."""
    assert len(content) <= 120 * 512
    return ole({name: content})


@pytest.mark.parametrize(
    "name", ['FILENAME="a;b.js"', 'X-FILENAME="a: b.js"', "LABEL=b.js", 'X-LABEL="b.js"', "NAME=b.js", 'FILENAME="b.js']
)
def test_the_name_of_a_file_in_an_appointment_was_not_seen(name: str) -> None:
    """It ended at a semicolon or a colon within quotes, and other parameters than FILENAME were not read."""
    data = base64.b64encode(b"WScript.Echo(1)").decode()
    event = f"BEGIN:VCALENDAR\r\nATTACH;ENCODING=BASE64;{name}:{data}\r\nEND:VCALENDAR\r\n"
    assert "mime:executable" in tags(event.encode(), "a.ics")
