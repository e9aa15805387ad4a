"""Whatever a viewer finds in a PDF document is found, however it is written down."""

from __future__ import annotations

import base64
import io
import zlib

import pytest

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.office_attacks import tag_of_field
from bridge.service.analysis.content.pdf_files import pdf_members
from bridge.service.analysis.content.unpacking import Budget
from bridge.service.analysis.default_scores import TAG_SCORES
from tests.processor_time import fair_cpu_s, is_linear
from tests.requirements import library
from tests.service.service_kit import EICAR
from tests.service.test_service_documents import pdf, tags

ACTION = b"<</S/Launch/F(cmd.exe)/A<</S/URI/URI(https://a.example/x)>>>>"
OBJECTS = b"7 0 " + ACTION
FOUND = {"pdf:launch", "mime:executable", "host:a.example"}
PACKED = zlib.compress(OBJECTS)
A85 = base64.a85encode(PACKED)
ABOUT = b"/Type/ObjStm/N 1/First 4/Filter/FlateDecode"


def stream(about: bytes, data: bytes, *, begin: bytes = b"stream\n", end: bytes = b"\nendstream") -> bytes:
    return b"<<" + about + b">>" + begin + data + end


def lzw(data: bytes) -> bytes:
    """Without compression: the table is emptied before codes get longer."""
    bits = ""
    for at in range(0, len(data), 200):
        bits += f"{256:09b}" + "".join(f"{byte:09b}" for byte in data[at : at + 200])
    bits += f"{257:09b}"
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def predicted(data: bytes, columns: int = 5) -> bytes:
    """Rows with the predictors None, Sub, Up, Average and Paeth of PNG."""
    out, above = b"", bytes(columns)
    for number, at in enumerate(range(0, len(data), columns)):
        row, kind = data[at : at + columns].ljust(columns), number % 5
        left, corner = bytes(1) + row[:-1], bytes(1) + above[:-1]
        guesses = {
            0: bytes(columns),
            1: left,
            2: above,
            3: bytes((a + b) // 2 for a, b in zip(left, above, strict=True)),
            4: bytes(
                min((a, b, c), key=lambda v, g=a + b - c: abs(g - v))
                for a, b, c in zip(left, above, corner, strict=True)
            ),
        }[kind]
        out += bytes([kind]) + bytes((a - b) & 255 for a, b in zip(row, guesses, strict=True))
        above = row
    return out


def runs(data: bytes) -> bytes:
    return (
        b"".join(bytes([len(data[at : at + 100]) - 1]) + data[at : at + 100] for at in range(0, len(data), 100))
        + b"\x80"
    )


def stored(data: bytes) -> bytes:
    """zlib data in which the bytes stand as they are."""
    packer = zlib.compressobj(0)
    return packer.compress(data) + packer.flush()


HIDDEN = {
    "no type": pdf(stream(ABOUT.replace(b"/Type/ObjStm", b""), PACKED)),
    "indirect type": pdf(stream(ABOUT.replace(b"/Type/ObjStm", b"/Type 9 0 R"), PACKED)),
    "escaped type": pdf(stream(ABOUT.replace(b"Stm", b"#53t#6d"), PACKED)),
    "far description": pdf(stream(ABOUT + b" " * 9000, PACKED)),
    "far keyword": pdf(stream(ABOUT, PACKED, begin=b"%" + b"x" * 150 + b"\n" * 900 + b"stream\n")),
    "comments": pdf(stream(b"/Type%x\n/ObjStm/N%\n1/First 4/Filter%y>>\n[%z\n/FlateDecode]", PACKED)),
    "other object in a string": pdf(stream(ABOUT + b"/X(8 0 obj)", PACKED)),
    "indirect filter": pdf(stream(b"/Type/ObjStm/First 4/Filter 2 0 R", A85 + b"~>"), b"[/A85/Fl]"),
    "indirect filter behind others": pdf(
        stream(b"/Length 3 0 R" * 9 + b"/Type/ObjStm/First 4/Filter 2 0 R", A85 + b"~>"), b"[/A85/Fl]"
    ),
    "LZW": pdf(stream(b"/Type/ObjStm/First 4/Filter/LZWDecode", lzw(OBJECTS))),
    "hexadecimal and LZW": pdf(stream(b"/Type/ObjStm/First 4/Filter[/AHx/LZW]", lzw(OBJECTS).hex().encode() + b">")),
    "runs": pdf(stream(b"/Type/ObjStm/First 4/Filter/RL", runs(OBJECTS))),
    "odd ASCII85": pdf(stream(b"/Type/ObjStm/First 4/Filter[/A85/Fl]", A85[:9] + b"\0" + A85[9:])),
    "predictor": pdf(stream(ABOUT + b"/DecodeParms<</Predictor 12/Columns 5>>", zlib.compress(predicted(OBJECTS)))),
    "indirect predictor": pdf(
        stream(ABOUT + b"/DecodeParms 2 0 R", zlib.compress(predicted(OBJECTS))), b"<</Predictor 15/Columns 5>>"
    ),
    "end within": pdf(stream(ABOUT, stored(b"7 30 %\nendstream endobj         \n" + ACTION))),
    "spaces after the keyword": pdf(stream(ABOUT, PACKED, begin=b"stream \t\r\n")),
    "carriage return": pdf(stream(ABOUT, PACKED, begin=b"stream\r")),
    "no end": pdf(stream(ABOUT, PACKED, end=b"")),
    "keyword in a string": pdf(b"<</X(>>stream\n)>>", stream(ABOUT, PACKED)),
    "objects in a false stream": pdf(b"(>>stream\n)", ACTION, b"(\nendstream)"),
    "objects in a stream without end": pdf(b"<<>>stream\n", ACTION),
    "zeros as white space": pdf(stream(ABOUT.replace(b" ", b"\0"), PACKED)),
    "spaces in hexadecimal": pdf(
        b"<</S/Launch/F(cmd.exe)/URI<" + b"https://a.example/".hex(" ").replace(" ", "\n" * 4).encode() + b">>>"
    ),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_objects_that_a_viewer_finds_are_found(kind: str) -> None:
    assert tags(HIDDEN[kind], "a.pdf") >= FOUND


@pytest.mark.parametrize(
    "content",
    [
        pdf(stream(b"/Type/EmbeddedFil#65/Filter/Fl", zlib.compress(EICAR))),
        pdf(b"<</EF<</F%x\n2 0 R>>>>", stream(b"/Subtype/text#2fplain/Filter/Fl", zlib.compress(EICAR))),
        pdf(b"<</EF<</UF\0002\0000\0R>>>>", stream(b"/Length 200", EICAR[:20] + b"\nendstream")).replace(
            EICAR[:20] + b"\nendstream", (b"endstream" + EICAR).ljust(200) + b"\nendstream", 1
        ),
    ],
)
def test_embedded_files_are_found(content: bytes) -> None:
    assert tags(content, "a.pdf") >= {"pdf:embedded-file", "malware:eicar"}


SPECIFIED = b"/EF<</F 2 0 R>>>>"
CONTENT = b"<</Type/EmbeddedFile>>stream\nWScript.Echo(1)\nendstream"
NAMED = {
    "parentheses": [b"<</F(invoice(1).js)" + SPECIFIED, CONTENT],
    "empty parentheses": [b"<</UF (x().js)" + SPECIFIED, CONTENT],
    "parentheses first": [b"<</F((x).js)" + SPECIFIED, CONTENT],
    "escaped parentheses": [b"<</F((\\() x\\).js)" + SPECIFIED, CONTENT],
    "Unix": [b"<</Unix(x.js)" + SPECIFIED, CONTENT],
    "DOS": [b"<</DOS(x.js)" + SPECIFIED, CONTENT],
    "Mac": [b"<</Mac<782e6a73>" + SPECIFIED, CONTENT],
    "an object": [b"<</UF 3 0 R" + SPECIFIED, CONTENT, b"(x.js)"],
    "an object in hexadecimal": [b"<</F 3 0 R" + SPECIFIED, CONTENT, b"<782e6a73>"],
    "an object with parentheses": [b"<</F 3 0 R" + SPECIFIED, CONTENT, b"((x).js)"],
    "an object in a stream": [
        b"<</F 8 0 R" + SPECIFIED,
        CONTENT,
        stream(ABOUT.replace(b"First 4", b"First 8"), zlib.compress(b"7 0 8 5 null (x.js)")),
    ],
    "an object in a stream with a wrong offset": [
        b"<</F 8 0 R" + SPECIFIED,
        CONTENT,
        stream(ABOUT.replace(b"First 4", b"First 99"), zlib.compress(b"7 0 8 5 null (x.js)")),
    ],
}


@pytest.mark.parametrize("how", NAMED)
def test_the_name_of_an_attached_program_was_not_seen(how: str) -> None:
    """Viewers save a file under any name that it has; we read only strings without parentheses, for two systems."""
    assert {"pdf:embedded-file", "mime:executable"} <= tags(pdf(*NAMED[how]), "a.pdf")


@pytest.mark.parametrize("user", [b"good.example()", b"good.example\\(", b"a:(b)c", b"'", b"good.example<>"])
@pytest.mark.parametrize("begin", [b"http://", b"https:/", b"HTTP:////"])
def test_parentheses_before_the_host_of_a_link_hid_the_host(user: bytes, begin: bytes) -> None:
    """The string ended there for us, and so did the link; a browser opens the host after the "@"."""
    content = pdf(b"<</S/URI/URI(" + begin + user + b"@evil.example/x)>>")
    assert "host:evil.example" in tags(content, "a.pdf")


def test_the_host_of_a_link_with_parentheses_behind_it_is_found() -> None:
    assert "host:a.example" in tags(pdf(b"<</S/URI/URI(http://a.example/b_(c)?d=e@f.example)>>"), "a.pdf")
    assert "host:f.example" not in tags(pdf(b"<</S/URI/URI(http://a.example/b_(c)?d=e@f.example)>>"), "a.pdf")


def test_strings_that_are_no_names_are_not_taken_for_some() -> None:
    objects = [b"<</Title 2 0 R/F 3 0 R/Contents(see (it) at.js)>>", b"(x.js)", b"<</Type/Font/Name(y.js)>>"]
    assert "mime:executable" not in tags(pdf(*objects), "a.pdf")


def test_names_of_attached_files_take_linear_time() -> None:
    def document(size: int) -> bytes:
        return pdf(*(b"<</F %d 0 R/UF(%b)>>" % (number, b"(" * 200) for number in range(1, size)))

    assert is_linear(lambda content: tags(content, "a.pdf"), document(500), document(2000))


def test_a_script_in_a_form_is_found() -> None:
    form = zlib.compress(b'<subform><event><script contentType="application/x-javascript">app.alert(1)</script>')
    content = pdf(b"<</AcroForm<</XFA[(template) 2 0 R]>>>>", stream(b"/Filter/FlateDecode", form))
    assert "pdf:javascript" in tags(content, "a.pdf")


def test_a_document_that_cannot_be_read_has_a_tag() -> None:
    """Neither here nor by pikepdf, because nothing else in it is right."""
    for about, data in (
        (b"/Filter/JBIG2Decode", b"\0" * 50),
        (b"/Filter/FlateDecode", b"xx"),
        (b"/Filter/FlateDecode", zlib.compress(b"\1" * 50)),
    ):
        assert "document:not-read" in tags(pdf(stream(b"/Type/ObjStm/First 4" + about, data)), "a.pdf")
    assert "document:not-read" in TAG_SCORES


@pytest.mark.parametrize("name", [b"/Encrypt", b"/Encryp#74"])
def test_an_encrypted_document_without_a_password_is_read(name: bytes) -> None:
    pikepdf = library("pikepdf", "documents")
    document, out = pikepdf.new(), io.BytesIO()
    document.add_blank_page()
    document.Root.OpenAction = pikepdf.Dictionary(S=pikepdf.Name.URI, URI=pikepdf.String("https://a.example/x"))
    document.attachments["a.txt"] = EICAR
    document.save(out, encryption=pikepdf.Encryption(owner="x", user=""))
    content = out.getvalue()
    assert b"a.example" not in content
    found = tags(content.replace(b"/Encrypt", name), "a.pdf")
    assert {"host:a.example", "malware:eicar", "pdf:embedded-file"} <= found and "document:encrypted" not in found


def test_a_false_encryption_hid_what_nothing_refers_to() -> None:
    """pikepdf writes only what is in use; older versions of the document are still in the file."""
    pikepdf = library("pikepdf", "documents")
    document, out = pikepdf.new(), io.BytesIO()
    document.add_blank_page()
    document.save(out)
    assert tags(out.getvalue() + b"\n90 0 obj" + ACTION + b"endobj (/Encrypt)", "a.pdf") >= FOUND


def test_documents_of_qpdf_are_read_without_any_tag() -> None:
    """Object streams and tables of references as programs write them."""
    pikepdf = library("pikepdf", "documents")
    document, out = pikepdf.new(), io.BytesIO()
    page = document.add_blank_page()
    page.Annots = pikepdf.Array(
        [pikepdf.Dictionary(A=pikepdf.Dictionary(S=pikepdf.Name.URI, URI=pikepdf.String("https://a.example/x")))]
    )
    document.save(out, object_stream_mode=pikepdf.ObjectStreamMode.generate)
    assert b"a.example" not in out.getvalue()
    assert tags(out.getvalue(), "a.pdf") == {"host:a.example"}


@pytest.mark.parametrize("kind", [b"\0", b"\1", b"\2", b"\3", b"\4"])
def test_a_predictor_with_enormous_rows_took_forty_seconds(kind: bytes) -> None:
    """The document chooses how long a row is: three bytes were padded to 64 MB, of which nothing was counted."""
    numbers = b"/DecodeParms<</Predictor 12/Columns 999999/Colors 32/BitsPerComponent 16>>"
    content = pdf(stream(ABOUT + numbers, zlib.compress(kind + b"ab")))
    assert fair_cpu_s(lambda: tags(content, "a.pdf")) < 1


def test_one_digit_group_that_is_too_large_hid_an_embedded_file() -> None:
    """Viewers decode the rest."""
    data = base64.a85encode(zlib.compress(EICAR)) + b"uuuuu~>"
    content = pdf(stream(b"/Type/EmbeddedFile/Filter[/ASCII85Decode/FlateDecode]", data))
    (member,) = [one for one in pdf_members(content, Budget()) if one.content is not None]
    assert member.content == EICAR


@pytest.mark.parametrize("repeated", [b">>stream\n", b"/F/F/F%(ab", b"(a)"])
def test_every_stream_and_string_counts_as_work(repeated: bytes) -> None:
    """Short ones took six times as long as what the limit on work allows."""
    budget = Budget(work=26 * 1024 * 1024)
    with pytest.raises(TooMuch):
        list(pdf_members(b"%PDF-1.4\n" + repeated * 60_000, budget))


@pytest.mark.parametrize(("pairs", "firsts"), [(100_000, 1), (20_000, 20)])
def test_names_in_an_object_stream_took_quadratic_time(pairs: int, firsts: int) -> None:
    """A file of 547 bytes kept a process busy for seconds: each place copied the rest of the stream."""
    about = b"/Type/ObjStm/Filter/FlateDecode" + b"".join(b"/First %d" % number for number in range(firsts))
    content = pdf(b"<</F 7 0 R>>\n" + stream(about, zlib.compress(b"7 0 " * pairs)))
    assert fair_cpu_s(lambda: tags(content, "a.pdf")) < 1


def test_fields_of_empty_lines_are_read_in_linear_time() -> None:
    assert is_linear(tag_of_field, "\n" * 50_000, "\n" * 200_000)
    assert tag_of_field('\n\n \t"DDEAUTO cmd /c calc') == "office:dde"
