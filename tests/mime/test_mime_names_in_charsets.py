"""Names and texts whose ASCII is written in another way: in charsets, in pieces, and in fields that only some read."""

from __future__ import annotations

import base64
import random
import subprocess

import pytest

from bridge.mime import encodings, names, references, words
from bridge.mime.rare_charsets import DECODERS, NAMES
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits

HEAD = b"From: a@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n"
UTF_7 = "a.%2BAGoAcw-"
EBCDIC = "%81%4B%91%A2"  # a.js in cp037

FIELDS = {
    "pieces beside a plain name": f"filename=a.txt; filename*0*=utf-7''{UTF_7[:8]}; filename*1*={UTF_7[8:]}",
    "pieces before a plain name": f"filename*0*=utf-7''{UTF_7[:8]}; filename*1*={UTF_7[8:]}; filename=a.txt",
    "pieces before a whole value": f"filename*0*=utf-7''{UTF_7[:8]}; filename*1*={UTF_7[8:]}; filename*=utf-8''a.txt",
    "the first of two values": f"filename*=utf-7''{UTF_7}; filename*=utf-8''a.txt",
    "the second of two values": f"filename*=utf-8''a.txt; filename*=utf-7''{UTF_7}",
    "EBCDIC, the first of two": f"filename*=cp037''{EBCDIC}; filename*=utf-8''a.txt",
    "a language": f"filename*=utf-7'en-US'{UTF_7}; filename=a.txt",
    "nothing escaped": "filename*=utf-7''a.+AGoAcw-; filename=a.txt",
    "without the asterisk": f"filename=\"utf-7''{UTF_7}\"; filename=a.txt",
    "escaped twice": "filename=a.txt; filename*=utf-7''a.%252BAGoAcw-",
    "apostrophes escaped": "filename=a.txt; filename*=utf-7%27%27a.%2BAGoAcw-",
    "the charset in two pieces": "filename=a.txt; filename*0*=ut; filename*1*=f-7''a.%2BAGoAcw-",
    "pieces in the wrong order": f"filename=a.txt; filename*1*={UTF_7[8:]}; filename*0*=utf-7''{UTF_7[:8]}",
    "each piece with its charset": "filename=a.txt; filename*0*=utf-7''a.%2BAGoA; filename*1*=utf-7''cw-",
    "utf-7-imap": "filename*=utf-7-imap''a.%26AGoAcw-",
    "utf-7-imap in a word": 'filename="=?utf-7-imap?Q?a=2E=26AGoAcw-?="',
    "x-imap-mailbox-name": "filename*=x-imap-mailbox-name''a.%26AGoAcw-",
    "iconv's suffix": f"filename*=utf-7//TRANSLIT''{UTF_7}; filename=a.txt",
    "iso-2022-cn": "filename*=iso-2022-cn''a.j%1B%24%29As",
    "a charset nobody knows, with shifts": "filename*=x-unknown''a.j%0E%0Fs",
    "ibm930": "filename*=ibm930''%62%4B%72%AB",
    "cp1390": "filename*=cp1390''%62%4B%72%AB",
    "posix-bc": f"filename*=posix-bc''{EBCDIC}",
    "cp37": f"filename*=cp37''{EBCDIC}",
    "armscii-8": "filename*=armscii-8''a%a9js",
    "unicode-escape": "filename*=unicode-escape''a.%5Cx6as",
    "unicode-escape, octal": "filename*=unicode-escape''a.%5C152s",
    "unicode-escape, by name": "filename*=unicode-escape''a.%5CN%7BLATIN SMALL LETTER J%7Ds",
    "raw-unicode-escape": "filename*=raw-unicode-escape''a.%5Cu006as",
    "punycode": "filename*=punycode''a.js-",
    "idna": "filename*=idna''a.xn--js-",
    "utf-16": "filename*0*=utf-16''%FF%FEa%00; filename*1*=%FF%FE.%00j%00; filename*2*=%FF%FEs%00",
    "utf-16 without a mark, in a word": 'filename="=?utf-16?B?AGEALgBqAHM=?="',
    "utf-32 without a mark, in a word": "filename==?utf-32?Q?=00=00=00a=00=00=00.=00=00=00j=00=00=00s?=",
    "swapped numbers beside a plain name": "filename*1=a.; filename*0=js; filename=doc.txt",
    "an equals sign after a semicolon": "filename*0;=a.; filename*1=js",
    "a semicolon in a word": "filename==?utf-8?q?a;=2Ejs?=",
    "a word across two parameters": 'filename*0="=?utf-8"; y="?q?a=2Ejs?="',
    "a word across the equals sign": "filen=?utf-8?q?ame=3Da=2Ejs?=",
    "Base64 in two words": 'filename="=?utf-8?b?YS5?= =?utf-8?b?qcw==?="',
    "an escape in two words": 'filename="=?utf-8?q?a.=?=\r\n =?UTF-8?Q?6As?="',
    "a backslash in the word filename": "filena\\me=a.js",
    "a word that begins within another": "filename==?utf-8?q?a= =?utf-8?q?=2Ejs?=",
    "a backslash before a word ends": 'filename="=?utf-8?q\\?a=2Ejs?="',
    "a parameter within a word": 'filename*0="=?utf-8?q?a"; y=.j?=s',
    "a comment in the word filename": "filena(x)me=a.js",
    "comments in the word filename": "filena(x(y))me=a.js",
    "numbers twice": "filename*0=a.; filename*2=j; filename*2=s; filename=doc.txt",
    "two kinds of names in turn": "name*0=a.; filename*0=doc; name*1=js; filename*1=.txt",
    "a semicolon in it": "filename=a;.js",
    "a byte of no charset after it": 'filename="a.js\ufffd"',
    "what ends a token": "filename*0==?us-ascii?Q?a=2Ej?=:; filename*1*=%73",
}


def with_field(field: str) -> bytes:
    return HEAD + b"Content-Disposition: attachment; " + field.encode() + b"\r\n\r\nvar x = 1;\r\n"


@pytest.mark.parametrize("name", FIELDS)
def test_a_name_in_a_charset_was_decoded_only_if_it_won(name: str) -> None:
    """Programs do not agree on which of several parameters wins, nor on the charsets they know."""
    assert "mime:executable" in inspect(with_field(FIELDS[name]), Limits()).tags


@pytest.mark.parametrize(
    "field", ["filename*0=e; filename*1=vil.j; filename*1=s", "filename*0=a; filename*00*=b; filename*1=.js"]
)
def test_pieces_with_the_same_number_are_not_written_by_mail_programs(field: str) -> None:
    """There are as many orders as programs to put them together, so such mail is held."""
    assert "mime:ambiguous:name-pieces" in inspect(with_field(field), Limits()).tags


@pytest.mark.parametrize(
    "field",
    [
        "Content-Description: a.js",
        "Content-Description: =?utf-8?q?a=2Ejs?=",
        'Content-Description: "the file.js"',
        'Content-Disposition: attachment;\r\n, filename="a.js"',
        'Content-Disposition: attachment;\r\n( filename="a.js"',
        'Content-Type: application/octet-stream;\r\n"name="a.js"',
        'Content-Disposition: attachment; filename="a.js\udca0"',
        "Content-Type: a/b; name*0=a.\r\nContent-Type: a/b; name*1=js",
        "Content-Disposition: attachment; filename*0=a.\r\nContent-Disposition: attachment; filename*1=js",
    ],
)
def test_names_stood_where_only_some_programs_look(field: str) -> None:
    """In a description, in a line that is no field, or before a byte that a program removes."""
    mail = HEAD + field.encode("utf-8", "surrogateescape") + b"\r\n\r\nvar x = 1;\r\n"
    assert "mime:executable" in inspect(mail, Limits()).tags


def test_an_ordinary_name_in_two_words_is_read_only_as_such() -> None:
    """Each word of Base64 has its own padding."""
    pieces = (base64.b64encode(piece.encode()).decode() for piece in ("Übersicht 2026.1", "1 für Müller.pdf"))
    name = " ".join(f"=?utf-8?B?{piece}?=" for piece in pieces)
    assert not inspect(with_field(f'filename="{name}"'), Limits()).tags


@pytest.mark.parametrize(
    "description", ["Delivery report", "mail from example.com", "S/MIME Cryptographic Signature", "notes.pdf", "v1.0"]
)
def test_ordinary_descriptions_name_no_program(description: str) -> None:
    mail = HEAD + f"Content-Type: text/plain\r\nContent-Description: {description}\r\n\r\nHello\r\n".encode()
    assert not inspect(mail, Limits()).tags


def test_a_name_in_an_encoded_field_was_not_found() -> None:
    """Some programs decode a multipart in quoted-printable, and find the name in a line that is no field."""
    inner = b'\n--b\r\nContent-Typeam; name="decoy.png"; name*0="file"; name*1=".exe"\r\n\r\nx\r\n--b--\r\n'
    quoted = b"=\r\n".join(b"".join(b"=%02X" % byte for byte in inner[at : at + 24]) for at in range(0, len(inner), 24))
    fields = b"Content-Type: multipart/; boundary=b\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    assert "mime:executable" in inspect(HEAD + fields + quoted + b"\r\n", Limits()).tags


TEXTS = {
    "utf-7-imap": b"see http:&AC8ALw-evil.example/x ok",
    "iso-2022-cn": b"see http://evil\x1b$)A.example/x ok",
    "iso-2022-cn-ext": b"see http://\x1b$)A\x0e#e#v#i#l\x0f.example/x ok",
    "ibm930": b"\xab\x66\x66\x40\x69\xb3\xb3\x78\x7a\x61\x61\x66\xb5\x71\x74\x4b\x66\xb7\x62\x75\x78\x74\x66\x61\xb7",
    "armscii-8": b"see http://evil\xa9example/x ok",
    "unicode-escape": rb"see http:\x2f\u002fevil.example/x ok",
    "utf-7//IGNORE": b"see http:+AC8ALw-evil.example/x ok",
    "hz": b"~{see http://evil.example/x ok",  # as programs read it that do not know it
    "iso-2022-jp": b"see http://ev\x1b(Bil.example/x ok",
    "x-unknown": b"see http://ev\x0e\x0fil.example/x ok",
}


@pytest.mark.parametrize("charset", TEXTS)
def test_links_were_missed_in_charsets_that_programs_know(charset: str) -> None:
    fields = f"Content-Type: text/plain; charset={charset}\r\nContent-Transfer-Encoding: base64\r\n\r\n".encode()
    assert "evil.example" in inspect(HEAD + fields + base64.encodebytes(TEXTS[charset]), Limits()).hosts


@pytest.mark.parametrize(
    "field",
    [
        "text/plain; charset=us-ascii; charset=utf-7",
        "text/plain; charset=utf-7; charset=us-ascii",
        "text/plain; charset=utf-7 (comment)",
        "text/plain; charset*=''utf%2D7; charset=us-ascii",
        "text/plain\r\nContent-Type: text/plain; charset=utf-7",
    ],
)
def test_links_were_missed_in_a_charset_that_only_some_programs_see(field: str) -> None:
    """The field declares it twice, or with a comment."""
    body = base64.encodebytes(b"see http:+AC8ALw-evil.example/x ok, and nothing else in this text\r\n")
    mail = HEAD + f"Content-Type: {field}\r\nContent-Transfer-Encoding: base64\r\n\r\n".encode() + body
    assert "evil.example" in inspect(mail, Limits()).hosts


def test_iconv_knows_no_charset_in_which_our_ascii_differs() -> None:
    """Every charset of the C library, which mutt, notmuch and others use."""
    listed = subprocess.run(["iconv", "-l"], capture_output=True, text=True, check=True).stdout.split()
    charsets = [name.rstrip("/") for name in listed if name.count("/") == 2]
    assert len(charsets) > 100
    text, missed = b"http://evil.example/a.js", []
    for charset in charsets[::7]:  # all of them take half a minute
        encoded = subprocess.run(["iconv", "-f", "ASCII", "-t", charset], input=text, capture_output=True, check=False)
        read = words.as_text(encoded.stdout, charset)
        if encoded.returncode == 0 and text.decode() not in read and text not in encoded.stdout.replace(b"\0", b""):
            missed.append(charset)
    assert missed == []


@pytest.mark.parametrize("codec", sorted({*NAMES, *words.ODD, *words.SWITCHING}))
def test_no_charset_raises(codec: str) -> None:
    dice = random.Random(codec)
    for size in (0, 1, 2, 3, 7, 100, 1000):
        for raw in (
            dice.randbytes(size),
            bytes(dice.choice(b"\\xuUN{}&+-,~\x1b$()AB\x0e\x0f0aZ=") for _ in range(size)),
        ):
            assert isinstance(words.decoded(raw, codec), str)
    assert codec in DECODERS or words.codec_of(codec) == codec


PIECES = [
    "begin ",
    "begin 644 x",
    "\n",
    "\r\n",
    "&#1;",
    "&#",
    "1" * 5000,
    ";",
    "&lt;",
    "&#x0;",
    "M",
    "`",
    "end",
    "=ybegin ",
]


def test_a_reference_to_nothing_stopped_the_inspection() -> None:
    """`&#1;` alone in a line after "begin" raised, and the mail was deferred for ever; so did a very long number."""
    dice = random.Random(1)
    for _ in range(300):
        text = "".join(dice.choices(PIECES, k=12)).encode()
        assert isinstance(list(encodings.embedded(text)), list)
        assert isinstance(list(encodings.embedded_names(text)), list)
        assert encodings.has_uu_data(text, 0, len(text)) in (True, False)
        assert isinstance(names.embedded(text), set)
    for body in (b"begin x\r\n&#1;\r\n", b"let us begin now\r\n&#8;\r\n", b"begin x\r\n&#" + b"1" * 5000 + b";\r\n"):
        assert not inspect(HEAD + b"\r\n" + body, Limits()).limits


def test_references_have_two_readings() -> None:
    assert references.unescaped("a&quot;b&#39;&lt;&#00034;&amp;") == 'a"b\'<"&'
    assert references.in_values("a&quot;b&#39;&lt;&#00034;&amp;&nbsp;") == "a%22b%27%3C%22&%C2%A0"
    assert references.in_values("&#" + "9" * 5000 + ";") == references.unescaped("&#" + "9" * 5000 + ";")


@pytest.mark.parametrize(
    "line",
    [
        b"%b",
        b"> %b",
        b"%b==",
        b"hello world, this is a line " * 9 + b"xx%b",
    ],
)
def test_base64_in_one_long_line_was_not_found(line: bytes) -> None:
    """uudeview reads such a line in pieces, and decodes it without any field."""
    payload = b"PK\x03\x04" + random.Random(2).randbytes(800)
    body = b"Hello,\r\n\r\n" + line % base64.b64encode(payload) + b"\r\nbye\r\n"
    seen: list[bytes] = []
    found = inspect(HEAD + b"\r\n" + body, Limits(), lambda content, *_: seen.append(content))
    assert "mime:ambiguous:undeclared-parts" in found.tags
    assert any(payload[400:] in content for content in seen)
