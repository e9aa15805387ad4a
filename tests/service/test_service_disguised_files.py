"""Files that common programs open, and that looked like nothing in particular.

The program opens the file as well, so that no case claims what no program does.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import lzma
import random
import struct
import subprocess
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.service.analysis.content import archives, office_xml
from bridge.service.analysis.content.buried_archives import has_buried
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.requirements import library, need
from tests.service.container_kit import deflated, tarred
from tests.service.service_kit import EICAR, zipped
from tests.service.test_service_documents import PACKAGE, ole, rar5, tags
from tests.service.test_service_hidden_documents import FLATE, TYPE, embedded

ZIP = zipped(("a.txt", EICAR))
LETTERS = base64.b64encode(EICAR)
SCRIPT = b"WScript.Echo(1)"


def listed_by_7zip(content: bytes, name: str, directory: Path) -> str:
    """Called after our own result is known, which must not depend on it."""
    need("7z")
    (directory / name).write_bytes(content)
    command = ["7z", "l", "-ba", name]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False).stdout


# Archives

UNKNOWN = {
    "a.tx_": b"SZDD\x88\xf0\x27\x33A\0" + struct.pack("<I", 8) + b"\xff" + EICAR[:8],
    "a.pmd": b"\x8f\xaf\xac\x84" + bytes(100),
    "mail.pst": b"!BDN" + bytes(600),
    "a.aar": b"AA01\x20\0TYP1F" + bytes(100),
    "b.aar": b"pbze\0\0\0\0\0\x40\0\0" + bytes(100),
    "a.lzfse": b"bvx2" + bytes(100),
    "a.lrz": b"LRZI\0\6" + bytes(100),
    "lzop.bin": b"\x89LZO\0\r\n\x1a\n" + bytes(100),
    "freearc.bin": b"ArC\x01" + bytes(100),
    "help.hxs": b"ITOLITLS\x01\0\0\0" + bytes(100),
    "ntfs.bin": b"\xeb\x52\x90NTFS    " + bytes(600),
    "gpt.bin": bytes(512) + b"EFI PART" + bytes(600),
    "apple.bin": bytes(1024) + b"H+\0\4" + bytes(600),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_container_that_7zip_outlook_or_a_mac_opens_had_no_tag(name: str) -> None:
    """All but those of Apple and Outlook are recognised by 7-Zip, whatever their name is."""
    assert "mime:unopened-archive" in tags(UNKNOWN[name], name)


@pytest.mark.parametrize("text", [b"AA0123;12.50;paid\r\n", b"LRZIP is a program\r\n", b"pbzip2 is one, too\r\n"])
def test_text_that_begins_like_such_a_container_is_text(text: bytes) -> None:
    assert "mime:unopened-archive" not in tags(text, "a.csv")


def test_an_iso_image_with_a_partition_table_is_opened() -> None:
    """Images for USB sticks have both."""
    content = bytes(512) + b"EFI PART" + bytes(0x8001 - 520) + b"CD001" + bytes(100)
    assert archives.kind_of(content) == "iso"


BEFORE = {
    "openpgp": b"-----BEGIN PGP \r\n\r\n",
    "winmail.dat": b"\x78\x9f\x3e\x22\x01\0" + struct.pack("<BII", 1, 0x00099999, 300),
    "applesingle": b"\0\x05\x16\0" + bytes(20) + b"\0\x01" + struct.pack(">III", 1, 38, 4) + b"abcd",
    "gzip, damaged": b"\x1f\x8b\x08" + bytes(7) + b"\xff\xff\xff",
    "bzip2, damaged": b"BZh9junk",
    "xz, damaged": b"\xfd7zXZ\0junkjunk",
    "zip, damaged": b"PK\3\4junk",
    "zip, damaged and empty": b"PK\5\6" + bytes(10) + b"/" + bytes(7),
}


@pytest.mark.parametrize("kind", BEFORE)
def test_the_beginning_of_another_container_hid_an_archive(kind: str, tmp_path: Path) -> None:
    """7-Zip searches for an archive behind whatever it cannot open; only the name `.rar` made us do the same."""
    library("libarchive", "archives")
    content = BEFORE[kind] + rar5("evil.js", SCRIPT)
    assert "mime:executable" in tags(content, "a")
    assert "evil.js" in listed_by_7zip(content, "a", tmp_path)


FILLED = EICAR + b" " * 40  # compressed, it cannot be seen


def small_tar() -> bytes:
    return tarred(("a.gz", b"0", gzip.compress(EICAR)))


BURIED = {
    "gzip": gzip.compress(EICAR),
    "bzip2": bz2.compress(FILLED),
    "xz": lzma.compress(FILLED),
    "tar": small_tar(),
    "tar in gzip": gzip.compress(small_tar()),
}
PRECEDING = {"text": b"junk", "photograph": b"\xff\xd8\xff\xe0" + bytes(1000), "decoy": b"-\x1f\x8b\x08\0" + bytes(9)}


@pytest.mark.parametrize("before", PRECEDING)
@pytest.mark.parametrize("name", ["a.zip", "a.bin"])
@pytest.mark.parametrize("kind", BURIED)
def test_a_few_bytes_before_it_hid_a_compressed_file(kind: str, name: str, before: str, tmp_path: Path) -> None:
    """7-Zip finds it in the first 8 MiB of any file; we found only RAR, 7z, cab and zip there."""
    content = PRECEDING[before] + BURIED[kind]
    assert "malware:eicar" in tags(content, name)
    assert listed_by_7zip(content, name, tmp_path)


def test_an_empty_archive_hid_another_one(tmp_path: Path) -> None:
    """A zip file with an entry that has no content: 7-Zip does not take it for one."""
    content = b"PK\3\4" + tarred(("e.txt.gz", b"0", gzip.compress(EICAR))) + b"PK\1\2" + bytes(42)
    assert "malware:eicar" in tags(content, "a")
    assert "e.txt.gz" in listed_by_7zip(content, "a", tmp_path)


def test_four_mebibytes_before_it_hid_an_archive() -> None:
    """7-Zip searches in eight."""
    before = random.Random(1).randbytes(6 * 1024 * 1024)
    assert "malware:eicar" in tags(before + gzip.compress(EICAR), "a.bin")
    library("libarchive", "archives")
    assert "mime:executable" in tags(before + rar5("evil.js", SCRIPT), "a.bin")


def test_what_only_looks_like_a_buried_archive_is_no_damage() -> None:
    content = b"GIF89a" + b"\x1f\x8b\x08\0 BZh91AY&SY \xfd7zXZ\0 ustar " * 3
    assert tags(content, "a.bin") == set()
    assert "mime:unopened-archive" in tags(content * 10, "a.bin")


GZIP = b"\x1f\x8b\x08"


@pytest.mark.parametrize("name", ["a.zip", "a.7z", "a.tgz"])
@pytest.mark.parametrize("decoy", [b"", b"-" + GZIP + bytes(6) + b"\3", b"\x5d\0\0\x80\0" + bytes(9)])
def test_a_mark_that_may_be_an_accident_made_an_unknown_archive_known(name: str, decoy: bytes) -> None:
    """Nothing came out of it, and the tag for what is not opened was missing."""
    content = decoy + random.Random(1).randbytes(500).replace(b"\x1f", b"-")
    assert "mime:unopened-archive" in tags(content, name)
    assert "mime:unopened-archive" not in tags(content, "a.bin")


@pytest.mark.parametrize("decoy", [GZIP + bytes(6) + b"\3", GZIP + b"\0"])
def test_thousands_of_decoys_take_little_time(decoy: bytes) -> None:
    assert fair_cpu_s(lambda: tags(b"-" + decoy * (1_200_000 // len(decoy)), "a.bin")) < 5


@pytest.mark.parametrize("mark", few([GZIP + b"\xff", b"ustar", GZIP + b"\0"], 1))
def test_marks_that_begin_no_archive_took_time_that_nothing_paid_for(mark: bytes) -> None:
    """A small zip file with 256 MB of them occupied an inspection process for 40 seconds."""
    content = b"-" + mark * (8_000_000 // len(mark))
    assert fair_cpu_s(lambda: has_buried(content)) < 0.1
    assert "limit:archive-work" in tags(content, "a.bin")
    assert tags(b"-" + mark * 900, "a.bin") == set()


def test_random_bytes_that_look_like_gzip_had_a_deceptive_name() -> None:
    """One large PDF in 250 has such bytes; what follows them was called the name of a file."""
    numbers = random.Random(1)
    for _ in range(200):
        header = GZIP + b"\x08" + numbers.randbytes(4) + b"\0\3"
        content = b"%PDF-1.7\n" + numbers.randbytes(50) + header + numbers.randbytes(2000)
        assert tags(content, "a.pdf") == set(), content


@pytest.mark.parametrize("name", [b"evil.js", b"\1evil.js\2"])
def test_the_name_of_a_buried_file_counts_if_it_is_cut_off(name: bytes) -> None:
    """7-Zip writes what there is, under this name."""
    content = b"junk" + GZIP + b"\x08" + bytes(5) + b"\3" + name + b"\0" + deflated(SCRIPT * 100)[:-3]
    found = tags(content, "a.bin")
    assert "mime:executable" in found
    assert "mime:deceptive-name" not in found


@pytest.mark.parametrize("level", range(9))
def test_only_gzip_that_7zip_opens_is_searched_for(level: int, tmp_path: Path) -> None:
    """The byte for the level makes accidents rarer."""
    packed = gzip.compress(EICAR)
    content = b"junk" + packed[:8] + bytes([level]) + packed[9:]
    assert ("malware:eicar" in tags(content, "a.bin")) == (level in (0, 2, 4))
    assert bool(listed_by_7zip(content, "a.bin", tmp_path)) == (level in (0, 2, 4))


def test_an_archive_that_is_none_by_its_name_alone_had_no_tag() -> None:
    """7-Zip may find one in it that we do not know."""
    assert "mime:unopened-archive" in tags(b"junk", "a.zip")


def test_lzma_of_other_sizes_was_not_read() -> None:
    """7-Zip allows any dictionary and nearly any size, and a byte before the header (lzma86)."""
    packed = lzma.compress(FILLED, format=lzma.FORMAT_ALONE)
    assert "malware:eicar" in tags(b"\0" + packed, "a")
    assert "malware:eicar" in tags(packed[:12] + b"\0" + packed[13:], "a")


@pytest.mark.parametrize("name", ["a.b64", "a.base64"])
def test_a_short_file_in_base64_was_not_decoded(name: str) -> None:
    """7-Zip and WinZip decode it by its name; we wanted two long lines."""
    assert "malware:eicar" in tags(LETTERS, name)
    assert "malware:eicar" in tags(base64.encodebytes(ZIP), name)
    assert "malware:eicar" in tags(zipped((name, LETTERS)), "a.zip")
    assert "mime:executable" in tags(base64.b64encode(SCRIPT), "evil.js.b64")


# Documents


def form(letters: bytes) -> bytes:
    return (
        b'<?xml version="1.0"?><xdp:xdp xmlns:xdp="http://ns.adobe.com/xdp/"><pdf xmlns="http://ns.adobe.com/xdp/pdf/">'
        b"<document><chunk>%b</chunk></document></pdf></xdp:xdp>" % letters
    )


PDF = embedded(TYPE + FLATE, zlib.compress(EICAR))


@pytest.mark.parametrize("width", [12, 28, 100_000])
def test_a_pdf_in_a_form_of_acrobat_was_not_read(width: int) -> None:
    """Acrobat opens an .xdp file as the PDF document in it."""
    letters = base64.b64encode(PDF)
    lines = b"\n".join(letters[at : at + width] for at in range(0, len(letters), width))
    assert {"malware:eicar", "pdf:embedded-file"} <= tags(form(lines), "a.xdp")


def flat(letters: bytes, before: bytes = b"") -> bytes:
    namespace = b'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"'
    data = b"<office:binary-data>%b</office:binary-data>" % letters
    return b"%b<office:document %b>%b</office:document>" % (before, namespace, data)


PACKED = base64.b64encode(ZIP)
IN_XML = {
    "flat OpenDocument": flat(PACKED),
    "after white space": flat(PACKED, b" " * 6000),
    "after an entity": flat(PACKED, b'<!DOCTYPE a [<!ENTITY x "y">]>'),
    "Visio": b'<VisioDocument><ForeignData ForeignType="Object">%b</ForeignData></VisioDocument>' % PACKED,
}


@pytest.mark.parametrize("kind", IN_XML)
def test_a_file_in_a_document_that_is_one_xml_file_was_not_found(kind: str) -> None:
    assert "malware:eicar" in tags(IN_XML[kind], "a.xml")


def test_a_file_that_an_entity_completes_is_not_called_read() -> None:
    content = flat(b"&x;" + PACKED[40:], b'<!DOCTYPE a [<!ENTITY x "%b">]>' % PACKED[:40])
    assert "document:not-read" in tags(content, "a.fodt")


GROWING = {
    "an entity": (b'<!ENTITY e "%b">' % (b"x" * 10_000), b'<Relationship Target="&e;"/>'),
    "nested entities": (
        b'<!ENTITY d "%b"><!ENTITY e "%b">' % (b"x" * 1000, b"&d;" * 10), b'<Relationship Target="&e;"/>'
    ),
    "a default": (b'<!ATTLIST Relationship Target CDATA "%b">' % (b"x" * 10_000), b"<Relationship/>"),
    "many defaults": (b"".join(b'<!ATTLIST a b%d CDATA "">' % at for at in range(1000)), b"<a/><Relationship/>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", GROWING)
def test_what_a_document_declares_made_it_a_hundred_times_as_large(kind: str) -> None:
    """A .docx file of 15 kB took more than a gigabyte of memory."""
    declared, used = GROWING[kind]
    content = b"<!DOCTYPE a [%b]><a>%b</a>" % (declared, used * 5_000)
    tracemalloc.start()
    try:
        found = office_xml.read(content)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert found.has_entities
    packed = zipped(("[Content_Types].xml", b"<Types/>"), ("word/_rels/document.xml.rels", content))
    assert "document:not-read" in tags(packed, "a.docx")


def test_a_document_with_a_few_entities_and_defaults_is_read() -> None:
    """As drawing programs write them."""
    declared = b"".join(b'<!ENTITY ns%d "http://ns.example.org/drawing/%d/">' % (at, at) for at in range(20))
    default = b'<!ATTLIST a version CDATA "1.1" xmlns:x CDATA "http://ns.example.org/x">'
    target = b'<Relationship TargetMode="External" Target="http://evil.example.net/"/>'
    content = b'<!DOCTYPE a [%b%b]><a xmlns="&ns1;" xmlns:b="&ns2;">%b%b</a>' % (
        declared,
        default,
        b"<p/>" * 9000,
        target,
    )
    found = office_xml.read(content)
    assert [relation.target for relation in found.relations] == ["http://evil.example.net/"]
    assert not found.has_entities


def without_line_end(content: bytes) -> bytes:
    """Compressed, with neither CR nor LF in the first 150 bytes, and compressed so that it cannot be seen."""
    numbers = random.Random(1)
    while True:
        packed = zlib.compress(numbers.randbytes(300) + content + content)
        if not {10, 13} & set(packed[:150]):
            return packed


IN_PDF = {
    "for DOS": embedded(FLATE, zlib.compress(EICAR), reference=b"null/DOS 3 0 R"),
    "for Unix": embedded(FLATE, zlib.compress(EICAR), reference=b"null/Unix 3 0 R"),
    "called an object stream": embedded(TYPE + FLATE + b"/X/ObjStm", zlib.compress(EICAR)),
    "the word in its description": embedded(TYPE + b"/X/stream" + FLATE, zlib.compress(EICAR)),
    "the word before it in the same line": embedded(
        TYPE + b"/X(stream)/Filter[/ASCIIHexDecode/FlateDecode]", zlib.compress(EICAR).hex().encode()
    ),
    "no line end": embedded(TYPE + FLATE, without_line_end(EICAR)).replace(b"stream\nx", b"stream x"),
}


@pytest.mark.parametrize("kind", IN_PDF)
def test_a_file_in_a_pdf_was_left_out(kind: str) -> None:
    assert "malware:eicar" in tags(IN_PDF[kind], "a.pdf")
    pikepdf = library("pikepdf", "documents")  # reads the file like a viewer
    with pikepdf.open(io.BytesIO(IN_PDF[kind])) as opened:
        (found,) = opened.attachments.values()
        assert EICAR in found.get_file().read_bytes()


@pytest.mark.parametrize("unit", few([b"1111111111 1#31>>stream\n", b"#41#41#41>>stream\n"], 1))
def test_words_that_only_seem_to_begin_a_stream_take_little_time(unit: bytes) -> None:
    """A kilobyte before each of them was read again, and charged as if it were read once."""
    content = b"%PDF-1.7\n1 0 obj<<>>stream\n" + unit * (2_400_000 // len(unit))
    assert fair_cpu_s(lambda: tags(content, "a.pdf")) < 8


@pytest.mark.parametrize("data", [deflated(EICAR), b"\x78\x9d" + deflated(EICAR), b"\n" + zlib.compress(EICAR)])
def test_a_file_in_a_pdf_was_lost_if_the_first_bytes_of_its_data_are_wrong(data: bytes) -> None:
    assert "malware:eicar" in tags(embedded(TYPE + FLATE, data), "a.pdf")


def test_a_file_in_a_pdf_that_cannot_be_read_had_no_tag() -> None:
    assert "document:not-read" in tags(embedded(TYPE + FLATE, b"\xff" * 60), "a.pdf")
    assert "document:not-read" not in tags(embedded(TYPE + FLATE, zlib.compress(b"")), "a.pdf")


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b" \r\n", b"\0"])
def test_white_space_hid_an_rtf_document(before: bytes) -> None:
    package = b"\x02\0a.txt\0a.txt\0\0\0\x03\0\x01\0\0\0\0" + struct.pack("<I", len(EICAR)) + EICAR
    digits = (struct.pack("<III", 0x501, 2, 8) + b"Package\0" + bytes(8) + bytes(4) + package).hex().encode()
    content = before + b"{\\rtf1{\\object\\objemb{\\*\\objdata " + digits + b"}}}"
    assert {"malware:eicar", "office:embedded-file"} <= tags(content, "a.doc")


@pytest.mark.parametrize("name", ["word/afchunk.dat", "word/a.txt", "a.bin"])
def test_a_web_archive_that_word_inserts_was_read_only_under_its_own_name(name: str) -> None:
    """`altChunk`: the list of types in the document, and not the name, says that it is one."""
    head = b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=y\r\n\r\n--y\r\n"
    packed = base64.encodebytes(gzip.compress(EICAR))
    archive = (
        head
        + b"Content-Type: text/html\r\n\r\n<html></html>\r\n--y\r\nContent-Transfer-Encoding: base64\r\n\r\n%b--y--\r\n"
        % packed
    )
    assert "malware:eicar" in tags(zipped(("[Content_Types].xml", b"<Types/>"), (name, archive)), "a.docx")


def test_a_file_in_a_document_of_hangul_was_not_read() -> None:
    content = ole({"FileHeader": b"HWP Document File", "BIN0001.OLE": deflated(EICAR)})
    assert {"malware:eicar", "office:embedded-file"} <= tags(content, "a.hwp")


@pytest.mark.parametrize("pack", [deflated, bytes])
def test_a_program_in_an_object_of_a_document_of_hangul_was_not_read(pack: Callable[[bytes], bytes]) -> None:
    """The length of the object precedes it."""
    inner = ole({"\x01Ole10Native": PACKAGE})
    content = ole({"FileHeader": b"HWP Document File", "BIN0001.OLE": pack(struct.pack("<I", len(inner)) + inner)})
    assert {"mime:executable", "office:embedded-file"} <= tags(content, "a.hwp")


CALENDAR = b"BEGIN:VCALENDAR\r\nATTACH;ENCODING=BASE64;VALUE=BINARY;X-FILENAME=a:%b\r\nEND:VCALENDAR\r\n"


@pytest.mark.parametrize("name", ["a.ics", "a.ical", "a.icalendar", "a.ifb", "a.vcard"])
def test_a_file_in_a_calendar_of_another_name_was_not_read(name: str) -> None:
    assert "malware:eicar" in tags(CALENDAR % base64.b64encode(gzip.compress(EICAR)), name)


# Pages that build a file


def page(script: bytes, before: bytes = b"") -> bytes:
    return b"<html>%b<script>%b</script></html>" % (before, script)


def lines(width: int) -> bytes:
    return b"\n".join(LETTERS[at : at + width] for at in range(0, len(LETTERS), width))


def listed(separator: bytes, form: bytes = b"%d", offset: int = 0) -> bytes:
    return separator.join(form % (byte + offset) for byte in EICAR)


BUILT = {
    "lines": page(b"atob(`\n%b\n`)" % lines(30)),
    "lines that end with CR LF": page(b"atob(`\r\n%b`)" % lines(36).replace(b"\n", b"\r\n  ")),
    "an element": page(b"atob(d.innerText)", b"<div id=d>\n%b\n</div>" % LETTERS),
    "an attribute without quotes": page(b"atob(d.dataset.x)", b"<div id=d data-x=%b></div>" % LETTERS),
    "a part of an address": page(b"atob(document.links[0].hash.slice(1))", b"<a href='#%b'>a</a>" % LETTERS),
    "a style": page(b"atob(getComputedStyle(d).getPropertyValue('--x'))", b"<style>*{--x:%b}</style>" % LETTERS),
    "a regular expression": page(b"x=/%b/.source" % LETTERS.rstrip(b"=")),
    "the name of a property": page(b"atob(Object.keys({%b:1})[0])" % LETTERS.rstrip(b"=")),
    "a comment in a script": page(b"function f(){/*%b*/};atob(f.toString().slice(15,-3))" % LETTERS),
    "a comment": page(b"atob(document.childNodes[0].data)", b"<!-- %b -->" % LETTERS),
    "variables": page(b'var a="%b";var b="%b";atob(a+b)' % (LETTERS[:48], LETTERS[48:])),
    "signed numbers": page(b"a=[%b]" % listed(b", ", offset=-256)),
    "numbers in a string": page(b'a="%b".split(" ")' % listed(b" ")),
    "numbers with hyphens": page(b'a="%b".split("-")' % listed(b"-")),
    "hexadecimal numbers": page(b'a="%b".split(",")' % listed(b",", b"%02x")),
    "octal escapes": page(b'a="%b"' % listed(b"", b"\\%o")),
    "escapes in braces": page(b'a="%b"' % listed(b"", b"\\u{%x}")),
}


@pytest.mark.parametrize("kind", BUILT)
def test_a_file_that_a_script_contains_was_not_found(kind: str) -> None:
    assert "malware:eicar" in tags(BUILT[kind], "a.html")


@pytest.mark.parametrize(
    "script",
    [
        b"r=new FileReader();r.readAsDataURL(new Blob([a.map(x=>x^1)]))",
        b'navigator.share({files:[new File([a], "x.js")]})',
        b'location="data:application/octet-stream;base64,"+btoa(a)',
        b"location=`data:application/octet-stream;base64,${btoa(a)}`",
        b'location="data:".concat(t, ";base64,", a)',
        b'location=["data:", t, ";base64,", a].join("")',
    ],
)
def test_a_script_that_saves_what_it_decrypts_had_no_tag(script: bytes) -> None:
    assert "attachment:builds-file" in tags(page(script), "a.html")
    assert "attachment:builds-file" not in tags(page(b'i.src="data:image/png;base64,"+a'), "a.html")


@pytest.mark.parametrize(
    "script",
    [
        b'console.log("data:", x)',
        b'console.log("data:", x[0].join(","))',
        b'console.log("userdata:", x)',
        b'console.log("metadata:"+x)',
        b'a={data:".5"}',
        b"i.src=`data:image/png;base64,${img}`",
    ],
)
def test_a_script_with_the_word_data_was_said_to_build_a_file(script: bytes) -> None:
    assert tags(page(script), "a.html") == set()


CODE = rb"""
var rtrim = /^[\s\uFEFF\xA0]+|([^\s\uFEFF\xA0])[\s\uFEFF\xA0]+$/g, space = "[\x20\t\r\n\f]",
  escape = new RegExp("\\[\da-fA-F]{1,6}" + space + "?|\\([^\r\n\f])", "g"),
  attributes = "\\[" + space + "*(" + name + ")(?:" + space + "*([*^$|!~]?=)" + space + '*(?:"((?:\\.|[^\\])*)"';
jQuery.fn.ready = function (fn) { return /\.\/\[\]\(\)\{\}\?/.test(document.readyState) ? fn(document.body) : this; };
var rows = '{"text": "\u003cdiv\u003e\u003ca href=\u0022/1\u0022\u003e1\u003c/a\u003e\u003c/div\u003e"}';
"""


def test_expressions_and_json_in_a_script_were_said_to_build_a_page() -> None:
    """As in jQuery, which many reports contain."""
    assert tags(page(CODE), "a.html") == set()


@pytest.mark.parametrize("form", [b"\\x%02x", b"\\u%04x", b"\\%o"])
@pytest.mark.parametrize("plain", [b"", b"some text that is not hidden at all, " * 9])
def test_a_page_in_escapes_is_still_said_to_be_built(form: bytes, plain: bytes) -> None:
    hidden = b"".join(form % byte for byte in b"<html><body>Your account</body></html>")
    assert "attachment:builds-page" in tags(page(b'document.write("%b%b")' % (hidden, plain)), "a.html")


@pytest.mark.parametrize(
    "text", few([b'"' * 300_000, b"A" * 1_000_000, b"(1," * 100_000, b"data:" * 60_000, b"\\" * 300_000, b"=" * 300_000,
                 b"A" * 16 + b"\n" + b"A" * 300_000, (b"A" * 16 + b"\n") * 20_000], 4)
)  # fmt: skip
def test_pages_that_only_seem_to_build_a_file_take_little_time(text: bytes) -> None:
    assert fair_cpu_s(lambda: tags(page(text), "a.html")) < 5


# Invoices and other documents in XML

INVOICES = {
    "UBL": b'<i xmlns:b="b"><b:EmbeddedDocumentBinaryObject filename="a.pdf">%b</b:EmbeddedDocumentBinaryObject></i>',
    "CII": b'<i xmlns:r="r"><r:AttachmentBinaryObject filename="a.pdf">%b</r:AttachmentBinaryObject></i>',
    "FatturaPA": b"<f><NomeAttachment>a.pdf</NomeAttachment><Attachment>\n%b\n</Attachment></f>",
    "e-book": b'<FictionBook><binary id="a">%b</binary></FictionBook>',
    "signature": b'<d:Signature xmlns:d="d"><d:Object Encoding="base64"><![CDATA[%b]]></d:Object></d:Signature>',
    "another": b"<?xml version='1.0'?><a><!-- x --><b>%b</b></a>",
}
DROPPER = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + bytes(99)


@pytest.mark.parametrize("kind", list(INVOICES))
def test_a_file_in_an_invoice_was_not_read(kind: str) -> None:
    """Programs that show such a document offer the files in it."""
    packed = zipped(("e.com", EICAR), ("a.txt", bytes(99)))
    for codec in ("utf-8", "utf-16"):
        for file, tag in ((DROPPER, "mime:executable"), (packed, "malware:eicar"), (EICAR, "malware:eicar")):
            document = (INVOICES[kind] % base64.b64encode(file)).decode().encode(codec)
            assert tag in tags(document, "invoice.xml")
            assert tag in tags(zipped(("a.xml", document)), "a.zip")


def test_the_name_of_a_file_in_an_invoice_was_not_read() -> None:
    script = base64.b64encode(SCRIPT * 5)
    assert "mime:executable" in tags(INVOICES["UBL"].replace(b"a.pdf", b"a.js") % script, "invoice.xml")
    assert "mime:executable" in tags(INVOICES["FatturaPA"].replace(b"a.pdf", b"a.js") % script, "invoice.xml")


@pytest.mark.parametrize("kind", list(INVOICES))
def test_an_ordinary_invoice_has_no_tags(kind: str) -> None:
    document = b"%PDF-1.4\n1 0 obj\n<</Type/Catalog>>\nendobj\n%%EOF\n"
    company = b"<RegistrationName>Example.com</RegistrationName></"
    content = INVOICES[kind].replace(b"</", company, 1) if kind == "another" else INVOICES[kind]
    assert tags(content % base64.b64encode(document), "invoice.xml") == set()


def test_an_invoice_with_a_large_document_is_read() -> None:
    picture = random.Random(5).randbytes(8_000_000)
    document = b"%%PDF-1.4\n1 0 obj\n<</Length 8000000>>stream\n%b\nendstream\nendobj\n" % picture
    assert "limit:archive-work" not in tags(INVOICES["UBL"] % base64.b64encode(document), "invoice.xml")
