"""What one hostile mail may cost a process and the event loop, and that what is cut off is reported as a limit."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import struct
import time
import zlib
from collections.abc import Callable

import pytest

from bridge.mail.message import Spool
from bridge.mime.structure import TooMuch
from bridge.service.analysis.content import archives, office_xml, pdf_files, rar_headers
from bridge.service.analysis.content.apple_files import is_property_list
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.content.pictures import picture_members
from bridge.service.analysis.content.unpacking import Budget
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.worker_pool import WorkerPool
from bridge.service.lists.index import ListIndex, Traits
from bridge.service.lists.store import GLOBAL
from bridge.service.settings import ListDefinition
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import attached, mail, zipped

SIZE = 300_000
HEAD = (
    b"From: a@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n"
    b'Content-Type: multipart/mixed; boundary="a\0b"; x==?quoted-printable\r\n'
    b"Content-Transfer-Encoding: base64, quoted\r\n\r\n"
)
PART = b"--a\r\nContent-Transfer-Encoding: base64\r\n\r\n"

EXPENSIVE = {
    "parts with all kinds of encoding": PART + b"QUJD=-_!\r\n=41=4g\rAAAA\n" * 6,
    "places where a part may begin": b"--\n\n",
    "short lines": PART + b"A\n" * 1000,
    "padding": PART + b"=A" * 1000,
    "links": b"//a\n",
    "encoded links": PART + base64.encodebytes(b"\xff\xfe" + '="//a b &a'.encode("utf-16-le") * 300),
    "begin": b"x begin \n",
    "uuencode": PART + b"begin 644 a\nMAAAAA\nend\n" * 100,
    "names": b"content-type: x;" + b"name=%3d%3f;" * 300 + b"\n",
    "mails in Base64": PART + base64.encodebytes(b"Content-Type: message/rfc822\n\n" * 300),
    "parts in Base64": PART
    + base64.encodebytes(b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\n\n" * 1900),
}


def cpu_of(work) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


@pytest.mark.parametrize("name", few(EXPENSIVE, 1))
def test_an_ambiguous_mail_kept_a_process_busy_for_many_seconds(name: str) -> None:
    """300 KB take about two seconds at most; the test allows for a slow machine."""
    content = (HEAD + EXPENSIVE[name] * (SIZE // len(EXPENSIVE[name]) + 1))[:SIZE]
    found: list[Inspection] = []
    cost = fair_cpu_s(lambda: found.append(inspect(content, Limits())))
    assert cost < 6
    if cost > 3:
        assert found[0].limits


def test_a_mail_that_takes_too_much_work_is_incomplete() -> None:
    """It is cut off, and the result says so."""
    unit = EXPENSIVE["parts with all kinds of encoding"]
    found = inspect((HEAD + unit * (SIZE // len(unit) + 1))[:SIZE], Limits())
    assert found.limits == {"readings"}


def test_a_mildly_ambiguous_mail_is_read_to_its_end() -> None:
    """A boundary that does not end, with a file of a megabyte."""
    content = attached(bytes(range(256)) * 4096, "a.bin").replace(b"--\r\n", b"\r\n")
    found = inspect(content, Limits())
    assert any(tag.startswith("mime:ambiguous:") for tag in found.tags)
    assert not found.limits


def test_begin_in_the_middle_of_many_lines_was_quadratic() -> None:
    """Each of them looked for lines of data in the same kilobyte: 60 KB of text took more than a second."""
    small, large = b"x begin \r\n" * 500, b"x begin \r\n" * 6000
    least = min(cpu_of(lambda: inspect(mail(small), Limits())) for _ in range(3))
    assert min(cpu_of(lambda: inspect(mail(large), Limits())) for _ in range(3)) < 40 * least + 0.05


@pytest.mark.parametrize(
    "content",
    [
        mail(b"x begin \r\n" * 5500),
        mail(b"begin x\r\n" + b"a\r\n" * 16_000),
        b"".join(b"From: " + b"a@b.cc," * 200 + b"\r\n" for _ in range(15)) + mail(),
        mail(b'<img src="data:a/b,c">\r\n' * 1000, Content_Type="text/html"),
    ],
    ids=["begin in lines", "lines after begin", "From fields", "data links"],
)
def test_such_mail_is_left_to_a_process(content: bytes) -> None:
    """In the event loop, it took up to a second."""
    with pytest.raises(NeedsProcess):
        inspect(content, Limits(archives=False))


def compressed_message(content: bytes) -> bytes:
    """OpenPGP: a literal packet in a compressed one (RFC 4880 5.6 and 5.9)."""
    body = b"t\5a.txt" + bytes(4) + content
    literal = bytes([0xC0 | 11, 255]) + len(body).to_bytes(4, "big") + body
    packed = b"\1" + zlib.compress(literal)[2:-4]
    return bytes([0xC0 | 8, 255]) + len(packed).to_bytes(4, "big") + packed


async def test_the_objects_of_a_mail_blocked_the_event_loop() -> None:
    """A process returned tens of megabytes of Base64 in JSON, which were decoded in the event loop for a second."""
    stored = StoredMail(Spool(1 << 20))
    stored.write(attached(compressed_message(b"A line of text\n" * (31 * 1024 * 1024 // 15)), "a.gpg"))
    pool = WorkerPool("bridge.service.analysis.inspector_process", 1, 1 << 30, {})
    try:
        await pool.start()
        before = time.thread_time()
        found = await pool.ask(stored, Limits(keep_objects=True).to_dict(), 60.0, Inspection.from_dict)
        cost = time.thread_time() - before
    finally:
        await pool.stop()
    assert sum(map(len, found.rendition)) > 31 * 1024 * 1024
    assert max(map(len, found.rendition)) <= 256 * 1024
    assert cost < 0.4, "CPU of the event loop's thread"


def test_long_host_names_were_looked_up_with_all_their_parents() -> None:
    """Of a host with 120 labels, only parents are looked up that have as many labels as an entry."""
    index = ListIndex([ListDefinition(name="urls", category="url")], frozenset())
    for entry in ("example", "bad.example.org", "very.long.name.of.a.host.example.net"):
        index.add(GLOBAL, "urls", entry)
    hosts = tuple("a." * 120 + f"x{number}.org" for number in range(3600))
    assert cpu_of(lambda: index.match(None, Traits(hosts=hosts))) < 0.1
    for host in ("example", "a.example", "bad.example.org", "x.y.bad.example.org",
                 "a." * 100 + "bad.example.org", "a.very.long.name.of.a.host.example.net"):  # fmt: skip
        assert index.match(None, Traits(hosts=(*hosts, host))) == ["urls"]
    for host in ("example.org", "notbad.example.org", "long.name.of.a.host.example.net", "org"):
        assert index.match(None, Traits(hosts=(host,))) == []


# In a zip file, 30 to 400 KB. Each short piece takes one step: a beginning, the piece, how many.
COSTLY_FILES = {
    "words in an RTF object": ("a.rtf", b"{\\rtf1 {\\objdata ", b"\\a ", 9_000_000),
    "escapes in RTF fields": ("a.rtf", b"{\\rtf1 ", b"\\fldinst " + b"\\'41" * 10_000, 700),
    "short RTF fields": ("a.rtf", b"{\\rtf1 ", b"\\fldinst", 3_500_000),
    "escapes in scripts": ("a.html", b"<script>", b'"\\x41\\x41\\x41\\x41\\x41\\x41\\x41\\x41"+\n', 300_000),
    "numbers in scripts": ("a.html", b"<script>[", b"41,", 3_500_000),
    "fields of a document": ("word/document.xml", b"<w>", b"<w:instrText>a</w:instrText>", 1_000_000),
    "elements of a document": ("word/document.xml", b"<w><instrText/>", b"<a/>", 7_000_000),
    "links of a document": ("a.rels", b"<w>", b"<Relationship Target='http://a/' TargetMode='External'/>", 500_000),
}


def _kept_busy(content: bytes, limits: frozenset[str] = frozenset({"archive-work"})) -> None:
    found: list[Inspection] = []
    assert fair_cpu_s(lambda: found.append(inspect(content, Limits()))) < 4, "two seconds on a quiet machine"
    assert found[0].limits <= limits
    assert found[0].limits


@pytest.mark.parametrize("kind", few(COSTLY_FILES, 1))
def test_small_files_that_take_many_steps_kept_a_process_busy(kind: str) -> None:
    """Each step counted for less than it takes: 36 KB took five seconds or more, without a limit."""
    name, begin, piece, count = COSTLY_FILES[kind]
    _kept_busy(attached(zipped((name, begin + piece * count)), "a.zip"))


# Compressed twice: less than a kilobyte each.
MANY_SMALL_FILES = {
    "files in a property list": ("a.webarchive", b"<?xml version='1.0'?><plist>", b"<data>QUJD</data>", 25_000),
    "OpenPGP messages": ("a.asc", b"", b"-----BEGIN PGP MESSAGE-----\n\nAAAA\n=\n", 60_000),
    "words of uuencode": ("a.txt", b"", b"begin\na\n", 200_000),
    "words of PDF": ("a.pdf", b"%PDF-1.4\n", b"stream\n", 1_500_000),
    "escapes in names of PDF": ("a.pdf", b"%PDF-1.4\n1 0 obj<<", b"/#41#42", 1_200_000),
    "escapes in a PDF string": ("a.pdf", b"%PDF-1.4\n1 0 obj<</URI(", b"\\101", 2_500_000),
    "the same link of a document": ("a.rels", b"<w>", b"<Relationship Target='http://a/'/>", 120_000),
    "marks of tags": ("a.rels", b"<?xml version='1.0'?>", b"<", 18_000_000),
    "attributes of a TNEF file": ("winmail.dat", b'x\x9f>"\0\0', b"\1\x0f\x80\6\0\1\0\0\0aa\0", 300_000),
    "properties of a TNEF file": (
        "winmail.dat",
        b'x\x9f>"\0\0',
        b"\2\5\x90\6\0\x0c\0\0\0\1\0\0\0\3\0\1\0\0\0\0\0\4\0",
        150_000,
    ),
}


@pytest.mark.parametrize("kind", few(MANY_SMALL_FILES, 1))
def test_many_small_files_kept_a_process_busy(kind: str) -> None:
    """They counted for their bytes only, and 600 bytes of mail for 20 seconds."""
    name, begin, piece, count = MANY_SMALL_FILES[kind]
    packed = gzip.compress(gzip.compress(begin + piece * count))
    _kept_busy(attached(packed, f"{name}.gz.gz"), frozenset({"archive-work", "readings"}))


def test_a_small_pdf_document_with_large_objects_kept_a_process_busy() -> None:
    """What is in an object stream was searched for nothing."""
    packed = zlib.compress(b"/URI (http://a.b/) " * 6_000_000, 9)
    about = b"1 0 obj<</Type/ObjStm/First 1/N 1/Filter/FlateDecode/Length %d>>stream\n" % len(packed)
    _kept_busy(attached(b"%PDF-1.4\n" + about + packed + b"\nendstream endobj\n", "a.pdf"))


@pytest.mark.parametrize(
    ("piece", "end"),
    [
        pytest.param(b"%obj\n", b"", id="comments behind objects"),
        pytest.param(b"obj<<(%)", b"endobj\nstream\n", id="strings in dictionaries", marks=pytest.mark.long),
        pytest.param(b"obj<<\\(", b"endobj\nstream\n", id="escapes in dictionaries", marks=pytest.mark.long),
    ],
)
def test_a_small_pdf_document_in_which_the_same_bytes_are_read_again_kept_a_process_busy(
    piece: bytes, end: bytes
) -> None:
    """A byte that was skipped counted for less than it takes: 100 KB took 10 to 20 seconds, and no limit said so."""
    _kept_busy(attached(b"%PDF-1.4\n" + piece * (100_000 // len(piece)) + end, "a.pdf"))


def test_long_strings_of_a_pdf_document_were_read_byte_by_byte() -> None:
    """42 KB of mail took four seconds."""
    text = b"(" + b"a" * 20_000_000
    assert fair_cpu_s(lambda: pdf_files._STRING.search(text)) < 0.3


def test_headers_of_rar_files_were_read_for_nothing() -> None:
    """There may be 20,000 after each mark: 10 KB of mail took three seconds."""
    budget = Budget()
    before = budget.work
    rar_headers.facts_of(b"Rar!\x1a\7\1\0" + bytes(150_000), budget)
    assert before - budget.work >= 20_000 * 200  # each takes two microseconds


def test_slow_decoders_counted_like_fast_ones() -> None:
    """bzip2 takes ten times as long as gzip: 2 KB of mail took five seconds."""
    files = (gzip.compress, "gzip"), (bz2.compress, "bzip2")
    spent = {}
    for compress, kind in files:
        budget = Budget()
        list(archives.members(compress(bytes(20_000_000)), kind, ("a",), budget))
        spent[kind] = Budget().work - budget.work
    assert spent["bzip2"] > 100 * spent["gzip"]


ORDINARY_FILES = {
    "a document of 1,000 pages": (
        "word/document.xml",
        b"<w:document>" + b'<w:p><w:r><w:t xml:space="preserve">A paragraph of text</w:t></w:r></w:p>' * 150_000
        + b"<w:instrText>PAGE</w:instrText>" * 20_000 + b"</w:document>",
    ),
    "a sheet of 200,000 rows": (
        "xl/worksheets/sheet1.xml",
        b"<worksheet>" + b'<row><c r="A1"><v>1</v></c><c r="B1"><v>2</v></c><c r="C1"><v>3</v></c></row>' * 200_000
        + b"</worksheet>",
    ),
    "a sheet with 30,000 links": (
        "xl/worksheets/_rels/sheet1.xml.rels",
        b"<Relationships>" + b'<Relationship Id="rId1" Type="http://schemas.example/hyperlink" '
        b'Target="https://www.example.org/a/page.html" TargetMode="External"/>' * 30_000 + b"</Relationships>",
    ),
    "a picture in an RTF file": ("a.rtf", b"{\\rtf1 {\\objdata " + (b"0105" * 32 + b"\r\n") * 60_000 + b"}}"),
    "a Cyrillic RTF file": ("a.rtf", b"{\\rtf1 " + b"\\'cf\\'f0\\'e8\\'e2\\'e5\\'f2 " * 200_000 + b"}"),
    "a page with data in a script": ("a.html", b"<script>x = {" + b'"a\\u003cb\\"": [1, 2, 3],\n' * 100_000 + b"}"),
}  # fmt: skip


@pytest.mark.parametrize("name", few(ORDINARY_FILES, 2))
def test_large_and_ordinary_files_are_read_to_their_end(name: str) -> None:
    assert not inspect(attached(zipped(ORDINARY_FILES[name]), "a.zip"), Limits()).limits


def test_zeros_in_a_small_archive_were_stripped_one_by_one() -> None:
    """Two functions that look for the beginning of XML took half a second each for 10 MB."""
    content = bytes(10_000_000) + b"<"
    assert fair_cpu_s(lambda: is_property_list(content), 3) < 0.1
    assert fair_cpu_s(lambda: office_xml.is_likely(content), 3) < 0.05


def test_empty_segments_of_a_jpeg_picture_kept_a_process_busy() -> None:
    """Pillow reads each of them: 600 bytes of mail with five million took half a minute."""
    pytest.importorskip("PIL")
    content = b"\xff\xd8" + b"\xff\xe1\0\2" * 400_000
    with pytest.raises(TooMuch, match="archive-work"):
        list(picture_members(content, Budget()))


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(chunks: bytes) -> bytes:
    size = chunk(b"IHDR", struct.pack(">IIBBBBB", 50, 50, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + size + chunks + chunk(b"IDAT", zlib.compress(bytes(51 * 50))) + chunk(b"IEND")


FRAME = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\2\0"
BLOCKS = {
    "chunks of a PNG picture": png(chunk(b"abCd") * 300_000),
    "frames of a GIF picture": b"GIF89a" + struct.pack("<HHBBB", 50, 50, 0, 0, 0) + FRAME * 300_000 + b";",
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_empty_blocks_of_pictures_kept_a_process_busy(kind: str) -> None:
    """A mail of 50 KB with a zip file of such pictures took 5 seconds."""
    pytest.importorskip("PIL")
    with pytest.raises(TooMuch, match="archive-work"):
        list(picture_members(BLOCKS[kind], Budget()))


def test_compressed_texts_of_a_png_picture_were_inflated() -> None:
    """Up to 64 MB of them in each picture: 30 pictures in 42 KB of mail took 5 seconds."""
    pytest.importorskip("PIL")
    texts = b"".join(chunk(b"zTXt", b"a%d\0\0" % number + zlib.compress(bytes(1_000_000), 9)) for number in range(60))
    assert fair_cpu_s(lambda: [list(picture_members(png(texts), Budget())) for _ in range(20)]) < 1


def with_scans(count: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("L", (3000, 3000)).save(out, "JPEG", progressive=True)
    content = out.getvalue()
    return content[:-2] + content[content.rfind(b"\xff\xda") :][:14] * count + content[-2:]


def run_length_encoded() -> bytes:
    data = b"\1\1\0\0" * 4000
    head = struct.pack("<IiiHHIIiiII", 40, 4000, 4000, 1, 8, 1, len(data), 0, 0, 0, 0) + bytes(1024)
    return b"BM" + struct.pack("<III", 14 + len(head) + len(data), 0, 14 + len(head)) + head + data


@pytest.mark.parametrize("made", [lambda: with_scans(500), run_length_encoded])
def test_a_small_picture_took_seconds_to_decode(made: Callable[[], bytes]) -> None:
    """libjpeg goes through all pixels for each scan, and Pillow fills up lines of such a BMP picture one by one."""
    pytest.importorskip("PIL")
    content = made()
    assert fair_cpu_s(lambda: list(picture_members(content, Budget()))) < 1
    assert [member.tags for member in picture_members(content, Budget())] == [("picture:not-read",)]
    assert [member.tags for member in picture_members(with_scans(10), Budget())] == []
