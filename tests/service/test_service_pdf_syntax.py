"""Tokens of a PDF document are read as viewers read them: white space, comments, numbers, names and strings.

Each case was delivered as clean, because a pattern allowed less than a viewer does, or kept an inspecting process busy.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable

import pytest

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.pdf_files import pdf_members
from bridge.service.analysis.content.pdf_objects import Objects, Reader, Reference, number_of
from bridge.service.analysis.content.unpacking import Budget
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.requirements import library
from tests.service.service_kit import EICAR
from tests.service.test_service_documents import pdf, tags

PACKED, FLATE = zlib.compress(EICAR), b"/Filter/FlateDecode"
DIGITS, HEXADECIMAL = EICAR.hex().encode() + b">", b"/Filter/ASCIIHexDecode"
FOUND = {"pdf:embedded-file", "malware:eicar"}
MANY = b" " * 100


def document(reference: bytes = b"/F 5 0 R", about: bytes = FLATE, data: bytes = PACKED, *others: bytes) -> bytes:
    """With a file as object 5, which has no type, and a table of objects."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R/Names<</EmbeddedFiles<</Names[(a.txt)4 0 R]>>>>>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>",
        b"<</Type/Filespec/F(a.txt)/EF<<%b>>>>" % reference,
        b"<<%b/Length %d>>stream\n%b\nendstream" % (about, len(data), data),
        *others,
    ]
    out, places = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n"
    return out + end % (len(objects) + 1, table, len(objects) + 1, len(out))


def encoded(about: bytes, *others: bytes) -> bytes:
    return document(b"/F 5 0 R", about, DIGITS, *others)


def packed(content: bytes) -> bytes:
    """With all objects that are no streams in an object stream."""
    pikepdf = library("pikepdf", "documents")
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(content)) as opened:
        opened.save(
            out,
            object_stream_mode=pikepdf.ObjectStreamMode.generate,
            stream_decode_level=pikepdf.StreamDecodeLevel.none,
            compress_streams=False,
        )
    return out.getvalue()


REFERENCES = {
    "plain": b"/F 5 0 R",
    "100 spaces": b"/F" + MANY + b"5 0 R",
    "100,000 spaces": b"/F" + MANY * 1000 + b"5 0 R",
    "spaces within": b"/F 5" + b" " * 21 + b"0" + MANY + b"R",
    "leading zero": b"/F 05 0 R",
    "many zeros": b"/F 0000000000005 0 R",
    "sign": b"/F +5 0 R",
    "long generation": b"/F 5 000000 R",
    "comments": b"/F%/F 1 0 R\n5%x\r0%%y\n%z\nR",
    "comment after a percent sign in a string": b"/X(%)/F %c\n5 0 R",
    "escaped line end in a comment": b"/F %#0a x\n5 0 R",
    "escaped key": b"/U#46 5 0 R",
}
DESCRIPTIONS = {
    "100 spaces": b"/Filter" + MANY + b"/ASCIIHexDecode",
    "comment": b"/Filter %x\n /ASCIIHexDecode",
    "escapes": b"/F#69lter/#41SCIIHexDecode",
    "spaces in an array": b"/Filter[" + MANY * 50 + b"/ASCIIHexDecode]",
    "bracket in a comment": b"/Filter[%]\n/ASCIIHexDecode]",
    "word in a string": HEXADECIMAL + b"/X(obj)",
    "percent sign in a string": b"/X(%)" + HEXADECIMAL,
    "objects in a string": HEXADECIMAL + b"/X(9 0 obj 9 0 obj 9 0 obj 9 0 obj)",
    "end of an object in a string": b"/X(endobj 9 0 obj 9 0 obj 9 0 obj 9 0 obj)" + HEXADECIMAL,
    "end of an object in a comment": b"%endobj\n" + HEXADECIMAL,
    "end of an object as a value": b"/X endobj" + HEXADECIMAL,
    "stream in a string": b"/X(>>stream\n)" + MANY * 20 + HEXADECIMAL,
    "stream and its end in a string": b"/X(>>stream\nendstream)" + HEXADECIMAL,
    "stream in a string, and spaces": HEXADECIMAL + b"/X(>>stream\n)" + MANY * 4,
    "escaped parenthesis": b"/X#28 1" + HEXADECIMAL,
}
READ_BY_QPDF = {
    **{f"reference, {kind}": document(reference) for kind, reference in REFERENCES.items()},
    **{f"description, {kind}": encoded(about) for kind, about in DESCRIPTIONS.items()},
    "filter as an object": encoded(b"/Filter 6 0 R", b"/ASCIIHexDecode"),
    "filter as an object, with spaces": encoded(b"/Filter" + MANY * 2 + b"06 000000 R", MANY * 9 + b"/ASCIIHexDecode"),
    "filter as an object in an array": encoded(b"/Filter[6 0 R]", b"/ASCIIHexDecode"),
    "zeros in the number of an object": document().replace(b"5 0 obj", b"00005 00 obj"),
    "comment in the number of an object": document().replace(b"5 0 obj", b"5%x\n0 obj"),
    "spaces in the number of an object": document().replace(b"5 0 obj", b"5" + MANY + b"0" + MANY + b"obj"),
    "spaces after the keyword": encoded(HEXADECIMAL).replace(b"stream\n", b"stream" + MANY * 3 + b"\n"),
    "spaces before the end": encoded(HEXADECIMAL).replace(b"\nendstream", MANY + b"\nendstream"),
}


@pytest.mark.parametrize("kind", READ_BY_QPDF)
def test_a_file_that_qpdf_finds_was_not_inspected(kind: str) -> None:
    content = READ_BY_QPDF[kind]
    pikepdf = library("pikepdf", "documents")
    with pikepdf.open(io.BytesIO(content)) as opened:
        (found,) = opened.attachments.values()
        assert found.get_file().read_bytes() == EICAR
    assert tags(content, "a.pdf") == FOUND


@pytest.mark.parametrize("kind", ["reference, plain", "filter as an object", "filter as an object in an array"])
def test_a_filter_in_an_object_stream_was_not_found(kind: str) -> None:
    content = packed(READ_BY_QPDF[kind])
    assert b"/ObjStm" in content
    assert tags(content, "a.pdf") == FOUND


@pytest.mark.parametrize(
    "reference", [b"/F 5.0 0 R", b"/F 5 0R", b"/F 50e-1 .0 R", b"/F +\n5 0 R", b"/F 5+0R", b"/RF<</F[(a)5 0 R]>>"]
)
def test_a_reference_that_other_viewers_read_is_read(reference: bytes) -> None:
    """pdf.js ends a number where the next token begins, and takes any number that is whole."""
    assert tags(document(reference), "a.pdf") == FOUND


def test_the_predictor_of_tiff_hid_a_file() -> None:
    differences = bytes((byte - before) & 0xFF for before, byte in zip(b"\0" + EICAR, EICAR, strict=False))
    about = FLATE + b"/DecodeParms<</Predictor 2/Columns %d>>" % len(EICAR)
    assert tags(document(about=about, data=zlib.compress(differences)), "a.pdf") == FOUND


@pytest.mark.parametrize(
    "content",
    [
        encoded(b"/Filter 9 0 R"),
        encoded(b"/Filter[9 0 R]"),
        encoded(HEXADECIMAL + FLATE),
        encoded(b"/Filter 6 0 R", b"null\nendobj\n6 0 obj\n/ASCIIHexDecode"),
        encoded(b"/Filter/" + b"A" * 100),
    ],
)
def test_a_filter_that_is_not_clear_makes_the_mail_incomplete(content: bytes) -> None:
    """Previously, what is not known counted as no filter, and the encoded text was inspected."""
    assert "limit:archive-method" in tags(content, "a.pdf")


@pytest.mark.parametrize("between", [MANY, MANY * 9, b"%x\n", b"%(\n\0"])
def test_names_behind_white_space_were_not_seen(between: bytes) -> None:
    assert "mime:executable" in tags(pdf(b"<</F" + between + b"(x.js)/EF<<>>>>"), "a.pdf")
    assert "mime:executable" in tags(pdf(b"<</UF" + between + b"((x).js)/EF<<>>>>"), "a.pdf")
    assert "mime:executable" in tags(pdf(b"<</UF" + between + b"<782e6a73>/EF<<>>>>"), "a.pdf")
    assert "mime:executable" in tags(pdf(b"<</UF 2 0 R/EF<<>>>>", MANY * 9 + between + b"(x.js)"), "a.pdf")


SCRIPT = b'<script contentType="application/x-javascript">'


@pytest.mark.parametrize(
    "script",
    [
        SCRIPT,
        SCRIPT.replace(b"<", b"<a-b:"),
        SCRIPT.replace(b"<", b"<%b:" % (b"x" * 99)),
        SCRIPT.replace(b" ", b" " * 999),
        SCRIPT.replace(b" ", b" name='>' "),
        SCRIPT.replace(b"javas", b"java&#115;"),
        SCRIPT.decode().encode("utf-16"),
    ],
)
@pytest.mark.parametrize(
    "reference",
    [
        [b"/XFA 2 0 R"],
        [b"/XFA" + MANY + b"02" + MANY + b"0 R"],
        [b"/XFA[(])2 0 R]"],
        [b"/XFA[%]\n(template)2 0 R]"],
        [b"/XFA[(%b)2 0 R]" % (b"x" * 5000)],
        [b"/XFA 3 0 R", b"[(template)2 0 R]"],
    ],
)
def test_a_script_in_a_form_was_not_seen(script: bytes, reference: list[bytes]) -> None:
    form = zlib.compress(script + b"app.alert(1)</script>")
    content = pdf(
        b"<<%b>>" % reference[0], b"<</Filter/FlateDecode>>stream\n%b\nendstream" % form, *(reference[1:] or [b"null"])
    )
    assert "pdf:javascript" in tags(content, "a.pdf")


def test_a_script_that_is_split_between_the_streams_of_a_form_was_not_seen() -> None:
    first, second = (b"<<>>stream\n%b\nendstream" % half for half in (SCRIPT[:5], SCRIPT[5:]))
    content = pdf(b"<</XFA[(a)2 0 R(b)3 0 R]>>", first, second)
    assert "pdf:javascript" in tags(content.replace(b"\nendstream", b"endstream"), "a.pdf")


def test_what_only_looks_like_a_file_or_a_script_is_harmless() -> None:
    font, content = b"<</Type/Font/Name(y.js)>>", b"<</Length 9>>stream\nBT ET\nendstream"
    assert not tags(pdf(b"<</Font<</F5 2 0 R/F1 3 0 R>>/F 4>>", content, content), "a.pdf")
    assert not tags(pdf(b"<</Font<</F 2 0 R>>/Contents 4 0 R>>", font, b"<<>>", content), "a.pdf")
    form = b"<<>>stream\n<script contentType='application/x-formcalc'> javascript </script>\nendstream"
    assert not tags(pdf(b"<</XFA 2 0 R>>", form), "a.pdf")
    assert not tags(pdf(b"<</XFA 3 0 R>>", b"<<>>stream\n%b\nendstream" % SCRIPT, b"<<>>"), "a.pdf")


def test_numbers() -> None:
    cases = {b"5": 5, b"+05": 5, b"0": 0, b"5.0": 5, b"50e-1": 5, b".5E1": 5, b"1-2": 12, b"5.5": None, b"e5": None}
    assert {text: number_of(text) for text in cases} == cases
    assert number_of(b"0" * 5000 + b"7") == 7
    assert number_of(b"1" * 5000) is None and number_of(b"1e999") is None and number_of(b"1.e-") is None


def test_values() -> None:
    text = b"<</A[1 2 0 R(\\)(]))/B#43<41>]/D<</E true/E 7>>%>>\n/F 3 4>>"
    value, end = Reader(text, Budget()).value(0)
    assert value == {b"A": [[1, Reference(2), None, b"BC", None]], b"D": [{b"E": [None, 7]}], b"F": [3]}
    assert end == len(text)
    assert Reader(b"12 0 R", Budget()).value(0)[0] == Reference(12)
    assert Reader(b"12 0 obj", Budget()).value(0)[0] == 12


LARGE = 40 * 1024 * 1024
ABOUT = b"/Type/ObjStm/N 1/First 4"
BUSY: dict[str, Callable[[], bytes]] = {
    "form": lambda: of_stream(b"<</XFA 2 0 R>>", b"<script" * (LARGE // 7)),
    "form of quotes": lambda: of_stream(b"<</XFA 2 0 R>>", b"<script" + b"'\"" * (LARGE // 2)),
    "script of slashes": lambda: of_stream(b"<</S/JavaScript/JS 2 0 R>>", b"/" * LARGE),
    "slashes": lambda: of_stream(b"null", b"1 0 <<" + b"/" * LARGE, ABOUT),
    "escapes in names": lambda: of_stream(b"null", b"1 0 <<" + b"/F#41" * (LARGE // 5), ABOUT),
    "addresses": lambda: of_stream(b"null", b"1 0 <<" + b"/URI(http://a.b)" * (LARGE // 16), ABOUT),
    "short rows": lambda: of_stream(b"null", b"\4a" * 500_000, b"/EmbeddedFile/DecodeParms<</Predictor 15/Columns 1>>"),
    "forms": lambda: of_stream(b"null", b"1 0 <<" + b"/XFA[" * (LARGE // 5), ABOUT),
    "files": lambda: of_stream(b"null", b"1 0 <<" + (b"/F" + b" " * 99) * (LARGE // 101), ABOUT),
    "files and comments": lambda: of_stream(b"null", b"1 0 <<" + b"/F%" * (LARGE // 3), ABOUT),
    "numbers and comments": lambda: pdf(b"1 %" * 1_000_000 + b"\n0 obj"),
    "objects and comments": lambda: pdf(b"1 0 obj%" * 300_000 + b"\n<<"),
    "dictionaries": lambda: pdf(b"1 0 obj<<" * 300_000 + b"stream\n"),
    "dictionaries with an end": lambda: pdf(b"1 0 obj<<" * 300_000 + b"endobj stream\n"),
    "strings": lambda: pdf(b"1 0 obj<</A(" * 300_000 + b"stream\n"),
    "references": lambda: pdf(b"<</F 7 0 R>>7 0 obj[" * 200_000),
}


def of_stream(first: bytes, data: bytes, about: bytes = b"") -> bytes:
    return pdf(first, b"<<%b/Filter/FlateDecode>>stream\n%b\nendstream" % (about, zlib.compress(data, 9)))


@pytest.mark.parametrize("kind", few(BUSY, 2))
def test_a_small_document_kept_a_process_busy(kind: str) -> None:
    """A mail of 1,507 bytes took 49 seconds: what was found in forms and scripts was searched without being counted."""
    content = BUSY[kind]()

    def read() -> None:
        try:
            list(pdf_members(content, Budget()))
        except TooMuch:
            pass

    assert fair_cpu_s(read) < 5


def test_the_objects_of_a_large_document_are_found_in_linear_time() -> None:
    """Nearly all of them have no stream, which is seen without reading their tokens."""
    one = b"<</Type/Annot/Rect[0 0 1 1]/A<</URI(https://a.example/%20\\(x\\))>>>>"
    content, budget = pdf(*[one] * 20_000), Budget()
    Objects(content + b"stream", budget)
    assert Budget().work - budget.work < 4 * len(content)


def _work_of(content: bytes) -> int:
    budget = Budget()
    Objects(content, budget)
    return Budget().work - budget.work


def test_strings_were_free_where_a_dictionary_is_searched_for_the_first_time() -> None:
    """16 MiB of them took four seconds for a sixteenth of the allowed work. An ordinary document uses hardly more."""
    assert _work_of(b"1 0 obj<</A " + rb"(\))" * 100_000 + b">>endobj\nstream\n") > 60 * 100_000
    link = b"1 0 obj<</Subtype/Link/Rect[1 2 3 4]/Border[0 0 0]/A<</S/URI/URI(http://a.example/\\(b\\))>>>>endobj\n"
    names = b"1 0 obj<</Names[" + b"".join(rb"(section.1.\(%d\))%d 0 R" % (at, at) for at in range(32)) + b"]>>endobj\n"
    document = (link * 20 + names + b"2 0 obj<</Length 500>>stream\n" + b"x" * 500 + b"\nendstream endobj\n") * 100
    assert _work_of(document) < 6 * len(document)


def test_a_table_of_objects_that_is_compressed_twice_kept_a_process_busy() -> None:
    """qpdf inflated it to a gigabyte: 3 KB of mail took 3.5 seconds, and could name several such tables."""
    settings = pytest.importorskip("pikepdf").settings
    if not hasattr(settings, "set_qpdf_limits"):
        pytest.skip("this version of pikepdf has no limits")
    packed = zlib.compress(zlib.compress(bytes(300_000_000), 9), 9)
    about = b"/Type/XRef/Size 5/W[1 2 1]/Root 1 0 R/Filter[/FlateDecode/FlateDecode]/Length %d" % len(packed)
    head = b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n/Encrypt\n"
    table = b"4 0 obj<<" + about + b">>stream\n" + packed + b"\nendstream endobj\nstartxref\n%d\n%%%%EOF\n" % len(head)
    assert fair_cpu_s(lambda: list(pdf_members(head + table, Budget()))) < 0.5
