"""Ambiguous structure: what counts as ambiguous, and what an ambiguous mail can no longer hide."""

from __future__ import annotations

import base64
import binascii
import bz2
import gzip
import lzma
import struct
import zlib

import pytest

from bridge.mime import ambiguity, encodings, names, readings
from bridge.mime.rendition import as_mail
from bridge.mime.structure import Bounds, TooMuch, doubts, walk
from bridge.service.analysis.content import archives, tnef
from bridge.service.analysis.default_scores import TAG_SCORES
from bridge.service.analysis.inspection import NeedsProcess, inspect
from bridge.service.analysis.limits import Limits
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import EICAR, attached, mail, zipped

ZIP = zipped(("eicar.com", EICAR))
BASE64 = base64.encodebytes(ZIP).replace(b"\n", b"\r\n")
HEAD = b"From: a@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n"
PART = b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n" + BASE64


def multi(fields: bytes, *parts: bytes, boundary: bytes = b"b") -> bytes:
    body = b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts)
    return HEAD + fields + b"\r\n\r\n" + body + b"--%b--\r\n" % boundary


def tags(data: bytes) -> set[str]:
    return inspect(data, Limits()).tags


@pytest.mark.parametrize(
    "data",
    [
        mail(b"Hello\r\n"),
        mail(b"x" * 2000 + b"\r\nand now:\r\n" + b"0123456789" * 200 + b"\r\n"),
        attached(ZIP),
        multi(b'Content-Type: multipart/mixed; boundary="b"', b"Content-Type: text/plain\r\n\r\nHello", PART),
        multi(b"Content-Type: multipart/mixed;\r\n\tboundary=b", b"\r\nHello"),
        multi(b'Content-Type: MULTIPART/Mixed; charset="x"; boundary="b";', b"\r\nHello"),
        HEAD + b"Content-Type: text/plain; charset=utf-8; format=flowed\r\n\r\nHello\r\n",
        HEAD + b'Content-Type: application/pdf; name="=?utf-8?B?w6Q=?="\r\n\r\n%PDF-',
        HEAD + b"Content-Disposition: attachment; filename*0*=utf-8''a%20; filename*1=b.pdf\r\n\r\nx",
        (HEAD + b"\r\nline ends as on Unix\r\n").replace(b"\r\n", b"\n"),
    ],
    ids=lambda data: data[-40:].decode("ascii", "replace"),
)
def test_an_ordinary_mail_is_not_ambiguous(data):
    """Nothing in it can be read in two ways, so it costs nothing more."""
    assert doubts(data, Bounds()) == set()
    assert not any(tag.startswith("mime:ambiguous") for tag in tags(data))


TWO = b"Content-Type: multipart/mixed; boundary=b"
HIDING: list[tuple[str, bytes]] = [
    ("duplicate-type", multi(b"Content-Type: text/plain\r\n" + TWO, PART)),
    ("boundaries", multi(b"Content-Type: multipart/mixed; boundary=x; boundary=b", PART)),
    ("boundary", multi(b"Content-Type: multipart/mixed; oundary=b", PART)),
    ("boundary", multi(b"Content-Type: singlepart/mixed; boundary=b", PART)),
    ("boundary-characters", multi(b'Content-Type: multipart/mixed; boundary="b c"', PART, boundary=b"b c")),
    ("content-type", multi(b"Content-Type: multipart/mixed; boundary=(x)b", PART)),
    ("content-type", multi(b"Content-Type: multipart/mixed, boundary=b", PART)),
    ("header-line", multi(b"X-Foo\r\n Content-Type: multipart/mixed; boundary=b", PART)),
    ("header-line", multi(b"Content-Type : multipart/mixed; boundary=b", PART)),
    ("header-line", multi(TWO, b"X\r\n" + PART)),
    ("line-ends", multi(b"X: y\rContent-Type: multipart/mixed; boundary=b", PART)),
    ("no-end", multi(TWO, PART)[: -len(b"--b--\r\n")]),
    ("delimiter", multi(TWO, PART).replace(b"\r\n--b\r\n", b"\r\n--b x\r\n")),
    ("preamble", multi(b"Content-Type: multipart/mixed; boundary=c", PART) + b"--c\r\n\r\nx\r\n--c--\r\n"),
    ("epilogue", multi(TWO, b"\r\nHello") + b"--b\r\n" + PART + b"--b--\r\n"),
    ("encoding", multi(TWO, PART.replace(b"g: base64", b"g: (x) base64"))),
    ("encoding", multi(TWO, PART.replace(b"g: base64", b"g: x-base64"))),
    ("duplicate-encoding", multi(TWO, PART.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"))),
    ("content-encoding", multi(TWO, PART.replace(b"UEsD", b"U#E#s#D", 1))),
    ("undeclared-parts", HEAD + b"\r\n--b\r\n" + PART + b"--b--\r\n"),
    ("undeclared-parts", HEAD + b"\r\nbegin 644 a.zip\r\n" + b"".join(
        binascii.b2a_uu(ZIP[at : at + 45]) for at in range(0, len(ZIP), 45)).replace(b"\n", b"\r\n") + b"end\r\n"),
    ("encoded-container", HEAD + b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        + base64.encodebytes(multi(TWO, PART))),
    ("nested-boundary", multi(TWO, b"Content-Type: multipart/mixed; boundary=b--\r\n\r\n--b--\r\n" + PART)),
    ("nul", multi(TWO, PART) + b"\0"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "data"), HIDING, ids=[f"{n}-{reason}" for n, (reason, _) in enumerate(HIDING)])
def test_a_file_hidden_by_ambiguous_structure_is_found(reason, data):
    """A gateway that reads the mail in one way finds nothing; some mail program finds the file, and so do we."""
    found = tags(data)
    assert f"mime:ambiguous:{reason}" in found
    assert "malware:eicar" in found


@pytest.mark.parametrize(
    "encoded",
    [
        b"#".join(BASE64[at : at + 1] for at in range(len(BASE64))),
        b"\r\n".join(base64.b64encode(ZIP[at : at + 2]) for at in range(0, len(ZIP), 2)),
        b"".join(base64.b64encode(ZIP[at : at + 1]).replace(b"==", b"=") for at in range(len(ZIP))),
        b"".join(base64.b64encode(ZIP[at : at + 3]) + b"XX\r\n" for at in range(0, len(ZIP), 3)),
        BASE64.replace(b"+", b"-").replace(b"/", b"_"),
        BASE64 + b"====" + base64.b64encode(b"harmless" * 20000),
        base64.b64encode(ZIP).replace(b"AAAA", b"=AAA"),
    ],
    ids=["junk", "padded lines", "half the padding", "incomplete groups", "url-safe", "after the end", "zeroes"],
)  # fmt: skip
def test_every_reading_of_base64_is_tried(encoded):
    """Programs differ in what they skip, where they stop and what padding means."""
    assert any(ZIP in content for content in encodings.readings(encoded))


def test_yenc_and_binhex_are_decoded():
    """Both are recognised without a header field."""
    encoded = b"".join(
        b"=" + bytes([(byte + 106) % 256]) if (byte + 42) % 256 in b"\0\r\n=" else bytes([(byte + 42) % 256])
        for byte in ZIP
    )
    assert ZIP in list(encodings.embedded(b"=ybegin line=128 size=9 name=x\r\n" + encoded + b"\r\n=yend size=9\r\n"))
    fork = b"\x05a.zip\0????????\0\0" + struct.pack(">II", len(ZIP), 0) + b"\0\0" + ZIP + b"\0\0"
    hqx = base64.b64encode(fork.replace(b"\x90", b"\x90\0")).rstrip(b"=")
    hqx = hqx.translate(bytes.maketrans(encodings._ALPHABET, encodings._HQX))
    text = b"(This file must be converted with BinHex 4.0)\r\n\r\n:" + hqx + b":\r\n"
    assert ZIP in list(encodings.embedded(text))
    assert "malware:eicar" in tags(HEAD + b"\r\n" + text)


def test_a_gzip_encoding_is_opened():
    """Some programs remove `gzip64`."""
    data = multi(TWO, PART.replace(b"g: base64", b"g: gzip64").replace(BASE64, base64.encodebytes(gzip.compress(ZIP))))
    assert "malware:eicar" in tags(data)


def test_the_attachments_of_tnef_are_inspected():
    """What Outlook sends as winmail.dat."""

    def attribute(kind: int, value: bytes) -> bytes:
        return struct.pack("<BII", 2, kind, len(value)) + value + b"\0\0"

    content = tnef.MAGIC + b"\0\0" + attribute(0x00069002, b"x" * 14)
    content += attribute(0x00018010, b"invoice.pdf.exe\0") + attribute(0x0006800F, ZIP)
    found = list(archives.members(content, "tnef", (), archives.Budget()))
    assert [(member.names, member.content) for member in found] == [(("invoice.pdf.exe",), ZIP)]
    assert {"malware:eicar", "mime:double-extension"} <= tags(attached(content, "winmail.dat"))
    cut_off = archives.members(content[:-10], "tnef", (), archives.Budget())
    assert next(cut_off).content == ZIP[: len(ZIP) - 8]
    with pytest.raises(archives.BadArchive):
        next(cut_off)


def test_a_zip_that_calls_itself_text_is_opened():
    """A program that saves it as a file does not ask for its type."""
    assert "malware:eicar" in tags(multi(TWO, PART.replace(b"application/octet-stream", b"text/plain")))


@pytest.mark.parametrize(
    ("content_type", "tag"),
    [("message/partial; id=a", "mime:partial"), ("message/external-body; access-type=URL", "mime:external-body")],
)  # fmt: skip
def test_content_that_is_elsewhere_is_tagged(content_type, tag):
    """A part of a message, or a reference to one, says nothing about the whole."""
    assert tag in tags(HEAD + b"Content-Type: " + content_type.encode() + b"\r\n\r\nx\r\n")
    assert TAG_SCORES[tag] > 0


def test_the_parts_of_a_digest_are_messages():
    """The default type in a multipart/digest."""
    inner = b"\r\nSubject: x\r\n" + PART
    assert "malware:eicar" in tags(multi(b"Content-Type: multipart/digest; boundary=b", inner))


@pytest.mark.parametrize(
    "field",
    [
        'application/x; name="file.exe"; name="file.png"',
        'application/x; name="file.png"; name="file.exe"',
        "application/x; name=file.exe x",
        "application/x; name = (comment) file.exe",
        "application/x; name*0=file.; name*1=exe",
        "application/x; name*1=exe; name*0=file.",
        "application/x; name*=utf-8''file%2Eexe",
        'application/x; name="=?utf-8?B?ZmlsZS5leGU=?="',
        'application/x; name="file\\.exe"',
        'application/x; name="file".exe',
        "application/x; name='file.exe'",
        'application/x; name="file.e" "xe"',
        "application/x; name=file.e xe",
        "application/x; name=file.e\t>xe)",
        'application/x; name="file.e" (a comment) "xe"',
    ],
)
def test_every_name_that_a_program_may_show_counts(field):
    """Two names, a name in pieces, quoted or encoded in odd ways."""
    assert any(name.lower().endswith("file.exe") for name in names.candidates(field)), names.candidates(field)


def test_words_in_quotes_are_not_put_together():
    """Only what is outside of quotes: `Dr. Com` within them is no program."""
    assert not any(name.endswith("DrCom") for name in names.candidates('application/x; name="Dr. Com"'))
    assert "mime:executable" not in tags(HEAD + b'Content-Type: application/x; name="to Dr. C om"\r\n\r\nx\r\n')


def test_a_second_name_cannot_hide_the_first():
    """The file is judged by each of its names."""
    fields = (
        b'Content-Type: application/octet-stream; name="a.exe"\r\nContent-Disposition: attachment; filename="a.png"'
    )
    assert "mime:executable" in tags(HEAD + fields + b"\r\n\r\nx\r\n")


def test_ordinary_and_crafted_reasons_weigh_differently():
    """A crafted mail is held by default, sloppiness is not."""
    for reason in ambiguity.CRAFTED:
        assert TAG_SCORES[f"mime:ambiguous:{reason}"] >= 8
    for reason in ambiguity.RARE:
        assert 0 < TAG_SCORES[f"mime:ambiguous:{reason}"] < 8
    assert "mime:ambiguous:no-end" not in TAG_SCORES


def test_an_ambiguous_mail_is_read_in_a_separate_process():
    """Reading it in every way takes too long for the event loop."""
    with pytest.raises(NeedsProcess):
        inspect(multi(TWO, PART)[:-9], Limits(archives=False))


@pytest.mark.parametrize(
    "data",
    [
        b"Content-Type: multipart/mixed\r\n\r\n" + b"".join(b"--%d\r\n\r\n" % n for n in range(5000)),
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + b"--x\r\nA:\r\n\r\n" * 1500 + b"--y\r\n:\r\n" * 1500,
        pytest.param(b"Content-Transfer-Encoding: x\r\n\r\n" + b"=\r\n" * 100_000, marks=pytest.mark.long),
        b"Content-Transfer-Encoding: x\r\n\r\n" + b"A=" * 200_000,
        b"Content-Transfer-Encoding: x\r\n\r\n" + b"begin 644 x\r\n" * 20_000,
        pytest.param(
            b"Content-Transfer-Encoding: x\r\n\r\n" + b"\r\n:" + b"!" * 30 + b"\r\n:" * 100_000,
            marks=pytest.mark.long,
        ),
        pytest.param(b"Content-Type: x; " + b"name=" * 300 + b"\r\n\r\n" + b"\r\n" * 200_000, marks=pytest.mark.long),
        b"Content-Type: " + b" " * 1900 + b";\r\n" * 1 + b"\r\n" + b"-" * 500_000,
    ],
    ids=["names", "delimiters", "soft breaks", "padding", "begin", "binhex", "empty lines", "spaces"],
)
def test_the_work_for_an_ambiguous_mail_is_bounded(data):
    """Its budget is proportional to its size; a mail that needs more is not called clean."""
    budget = readings.Budget(len(data))
    total = 0
    try:
        for content, _ in readings.objects(data, budget):
            total += len(content)
    except TooMuch:
        return
    assert total < 250 * len(data) + 64 * 1024 * 1024


def test_a_rendition_is_a_plain_mail():
    """Every program reads it alike."""
    data = as_mail([ZIP, EICAR])
    assert doubts(data, Bounds()) == set()
    parts = list(walk(data, Bounds()))[1:]
    assert [encodings.decode(data[part.body : part.end], part.encoding) for part in parts] == [
        (ZIP, True),
        (EICAR, True),
    ]


TEXT = b"Content-Type: text/plain\r\n\r\nHello"
FIELDS = b"".join(b"X-%d: y\r\n" % number for number in range(12))


@pytest.mark.parametrize(
    "data",
    [
        multi(b'Content-Type: multipart/mixed; boundary="=?us-ascii?Q?b?="', PART, boundary=b"=?us-ascii?Q?b?="),
        multi(b"Content-Type: multipart/mixed; boundary*0=us-ascii''b", PART, boundary=b"us-ascii''b"),
        multi(b"Content-Type: multipart/mixed; boundary=\x1cb", PART, boundary=b"\x1cb"),
        multi(TWO, TEXT) + b"--b\r\n" + FIELDS + PART + b"--b--\r\n",
        multi(TWO, TEXT) + b"--b\r\nX-Pad: " + b"x" * 80_000 + b"\r\n" + PART + b"--b--\r\n",
        multi(TWO, b"X" * 120 + b": y\r\n z\r\n" + PART.replace(b"base64\r\n\r\n", b"base64\r\n")),
        multi(TWO, b"Content-Type: message/foo\r\n\r\n" + multi(TWO.replace(b"=b", b"=c"), PART, boundary=b"c")),
        multi(TWO, b"Content-Type: text/x-foo; name=a.txt\r\n\r\n" + PART),
    ],
    ids=["encoded word", "piece", "control", "fields", "long head", "long name", "message", "any text"],
)
def test_an_auditor_found_a_reading_that_was_missing(data):
    """Values are taken literally, and no bound ends the search in silence."""
    found = inspect(data, Limits())
    assert "malware:eicar" in found.tags or found.limits


def pdf(size: int) -> bytes:
    content = base64.encodebytes(b"%PDF-1.7" + bytes(range(256)) * (size // 256)).replace(b"\n", b"\r\n")
    return b"Content-Type: application/pdf; name=a.pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n" + content


@pytest.mark.parametrize(
    "data",
    [
        multi(TWO, TEXT, pdf(1_000_000)) + b"-- \r\nlist footer of example.com\r\n",
        multi(TWO, TEXT + b"\r\nContent-Type: text/html\r\nsee example.com\r\n", pdf(300_000)),
        multi(TWO, TEXT, pdf(300_000))[:-9],
        multi(TWO, TEXT, pdf(300_000).replace(b"name=a.pdf", b"name=a report of example.pdf")),
        multi(TWO, TEXT, pdf(300_000).replace(b"\r\n", b" \r\n").replace(b" \r\n \r\n", b"\r\n\r\n")),
        multi(b'Content-Type: multipart/mixed; boundary="example.com (b)"', TEXT, boundary=b"example.com (b)"),
        HEAD + b"\r\n-----BEGIN PGP MESSAGE-----\r\n\r\n" + base64.encodebytes(bytes(range(256)) * 400),
    ],
    ids=["footer", "quoted field", "cut", "name", "spaces", "boundary", "pgp"],
)  # fmt: skip
def test_an_ordinary_mail_with_a_flaw_is_not_held(data):
    """Sloppiness costs time, but the mail is read completely and nothing in it looks dangerous."""
    found = inspect(data, Limits())
    assert any(tag.startswith("mime:ambiguous:") for tag in found.tags)
    assert not found.limits
    tagged = {tag for tag in found.tags if TAG_SCORES.get(tag)} - {"header:missing-message-id"}
    assert sum(TAG_SCORES[tag] for tag in tagged) < 8, tagged


@pytest.mark.parametrize(
    "field",
    [
        b'Content-Type: text/csv; charset="us-ascii"; name="data.csv"',
        b"Content-Disposition: attachment; filename=a.pdf; filename*=utf-8''a%20b.pdf",
        b'Content-Disposition: attachment; size=10; filename="a (1).pdf"',
    ],
)
def test_what_common_programs_write_is_not_ambiguous(field):
    """Gmail, Outlook, and everything that writes a name in two ways."""
    assert doubts(HEAD + field + b"\r\n\r\nx\r\n", Bounds()) == set()


def test_the_message_in_signed_data_is_inspected():
    """S/MIME: mail programs show it, whoever signed it."""
    message = multi(TWO, PART)
    octets = b"\x04\x83" + len(message).to_bytes(3, "big") + message
    der = b"\x30\x80" + bytes.fromhex("06092a864886f70d010702") + b"\xa0\x80\x30\x80"
    der += bytes.fromhex("06092a864886f70d010701") + b"\xa0\x80\x24\x80" + octets + b"\0\0" * 6
    data = b"Content-Type: application/pkcs7-mime; smime-type=signed-data; name=smime.p7m\r\n"
    data += b"Content-Transfer-Encoding: base64\r\n\r\n" + base64.encodebytes(der)
    assert "malware:eicar" in tags(HEAD + data)


def test_names_and_contents_in_tnef_properties_count():
    """The long name is what Outlook shows, and an attached message is there alone."""
    name, title = "invoice.js".encode("utf-16-le") + b"\0\0", b"INVOICE.TXT\0"
    properties = b"\x02\0\0\0" + b"\x1f\0\x07\x37" + struct.pack("<II", 1, len(name)) + name
    properties += b"\x0d\0\x01\x37" + struct.pack("<II", 1, len(ZIP) + 16) + b"g" * 16 + ZIP
    parts = [(0x00069002, b"x"), (0x00018010, title), (0x00069005, properties)]
    content = tnef.MAGIC + b"\0\0" + b"".join(struct.pack("<BII", 2, k, len(v)) + v + b"\0\0" for k, v in parts)
    assert {"malware:eicar", "mime:executable"} <= tags(attached(content, "winmail.dat"))


@pytest.mark.parametrize(
    "content",
    [
        ZIP + zipped(("a.txt", b"harmless")),
        ZIP + b"x" * 70_000,
        ZIP[: ZIP.rfind(b"PK\x01\x02")],
        ZIP.replace(ZIP[14:18], b"\0\0\0\0"),
        gzip.compress(EICAR)[:-8] + b"\0" * 8,
    ],
    ids=["two archives", "a long tail", "no directory", "wrong checksum", "wrong checksum in gzip"],
)
def test_archives_that_other_programs_open_are_opened(content):
    """In spite of a wrong checksum, a missing directory, or another archive behind them."""
    assert "malware:eicar" in tags(attached(content, "a.bin"))


@pytest.mark.parametrize(
    ("kind", "pack", "count"),
    [("gzip", gzip.compress, 150_000), pytest.param("xz", lzma.compress, 60_000, marks=pytest.mark.long)],
)
def test_concatenated_streams_cost_no_more_than_their_bytes(kind, pack, count):
    """The rest of the file was copied for each stream: these three megabytes took minutes, now half a second."""
    packed, found = pack(b"hello") * count, []
    assert fair_cpu_s(lambda: found.extend(archives.members(packed, kind, "a", archives.Budget()))) < 20
    [member] = found
    assert member.content == b"hello" * count


def test_a_file_in_lzma_is_opened():
    """The format before xz, which 7-Zip opens."""
    assert "malware:eicar" in tags(attached(lzma.compress(EICAR, format=lzma.FORMAT_ALONE), "a.lzma"))


@pytest.mark.parametrize("content", [b"MSCF\0\0\0\0x", b"\x28\xb5\x2f\xfdx", b"LZIPx"], ids=["cab", "zstd", "lzip"])
def test_an_archive_that_we_cannot_open_is_tagged(content):
    """Windows and 7-Zip can."""
    assert "mime:unopened-archive" in tags(attached(content, "a.bin"))


def pgp(tag: int, body: bytes) -> bytes:
    """A packet of OpenPGP."""
    return bytes([0xC0 | tag, 255]) + len(body).to_bytes(4, "big") + body


def compressed(algorithm: int, content: bytes) -> bytes:
    literal = pgp(11, b"b\x05a.zip\0\0\0\0" + content)
    packer = zlib.compressobj(wbits=-15)
    packed = (packer.compress(literal) + packer.flush(), zlib.compress(literal), bz2.compress(literal))[algorithm - 1]
    return b"\xa3" + bytes([algorithm]) + packed


def armored(message: bytes) -> bytes:
    text = base64.encodebytes(message).replace(b"\n", b"\r\n")
    return b"-----BEGIN PGP MESSAGE-----\r\nVersion: 1\r\n\r\n" + text + b"=abcd\r\n-----END PGP MESSAGE-----\r\n"


@pytest.mark.parametrize("algorithm", [1, 2, 3])
@pytest.mark.parametrize("wrap", [bytes, armored], ids=["binary", "armored"])
def test_a_pgp_message_that_is_only_compressed_is_opened(algorithm, wrap):
    """Anyone can read it, and mail programs show it."""
    message = wrap(compressed(algorithm, ZIP))
    assert "malware:eicar" in tags(attached(message, "a.pgp"))
    assert "malware:eicar" in tags(attached(wrap(pgp(4, b"\x03" + b"x" * 12) + compressed(algorithm, ZIP)), "a.pgp"))


def test_a_pgp_message_in_the_text_is_opened():
    """Links in it count, and so does a mail within it."""
    inner = b"Content-Type: text/html\r\n\r\n<a href=http://evil.example/>x</a>\r\n"
    for content in (b"see http://evil.example/ " * 9, inner):
        found = inspect(mail(armored(compressed(1, content))), Limits())
        assert "evil.example" in found.hosts and not found.limits


def test_an_encrypted_pgp_message_is_no_archive():
    """It is ordinary mail of people who encrypt."""
    message = armored(pgp(1, b"\3" + b"k" * 300) + pgp(18, b"\1" + bytes(range(256)) * 8))
    found = inspect(attached(message, "encrypted.asc"), Limits())
    assert not found.limits and not {tag for tag in found.tags if tag.startswith(("mime:broken", "mime:unopened"))}


@pytest.mark.parametrize("charset", ["ucs-2", "unicode", "iso-10646-ucs-2", "utf16", "", "x-unknown"])
def test_links_in_utf16_are_found_whatever_its_label(charset):
    """Programs know more labels of it than Python does, or look at the first bytes."""
    text = base64.encodebytes("see http://evil.example/ x".encode("utf-16")).replace(b"\n", b"\r\n")
    fields = b"Content-Type: text/plain; charset=%b\r\nContent-Transfer-Encoding: base64\r\n\r\n" % charset.encode()
    assert inspect(HEAD + fields + text, Limits()).hosts == {"evil.example"}


@pytest.mark.parametrize("field", [b"From", b"Sender"])
def test_a_sender_beyond_the_bound_of_a_field_is_not_ignored(field):
    """A list may block the address that the mail program shows."""
    data = field + b": " + b"(x)" * 700 + b" <bad@evil.example>\r\n\r\nx\r\n"
    assert inspect(data, Limits()).senders == ["bad@evil.example"]


def test_many_parts_do_not_search_the_same_lines_without_end():
    """Each of five thousand delimiters searched all lines behind it: 260 kB took more than a minute."""
    data = b"Content-Type: x\r\n\r\n" + b"--a: b\n" * 4900 + b"c: d\n" * 45_000
    found = []
    assert fair_cpu_s(lambda: found.append(inspect(data, Limits()))) < 20
    assert found[0].limits == {"readings"}


def test_many_unlisted_members_cost_no_more_than_their_bytes():
    """Each was inflated from a copy of everything behind it: a mail of a few megabytes took minutes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(b"hello") + packer.flush()
    member = b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, 0, len(body), 5, 1, 0) + b"a" + body
    seen = []

    class Counting(archives.Budget):
        def take(self, count: int) -> None:
            seen.append(count)

    with pytest.raises(archives.BadArchive):
        list(archives.members(member * 9000 + b"x" * 20_000_000, "zip", "a.zip", Counting()))
    assert seen == [5] * 9000
