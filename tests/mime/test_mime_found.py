"""Mails that the comparison with other readers found once: each hid its file from ours, or a name that is a program."""

from __future__ import annotations

import base64
import binascii
import struct

import pytest

from bridge.mime import encodings, names, words
from bridge.service.analysis.file_inspection import FileInspector
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.mime import ours
from tests.processor_time import fair_cpu_s, is_linear
from tests.service.service_kit import EICAR, zipped

ZIP = zipped(("eicar.com", EICAR))
LINES = [base64.b64encode(ZIP[at : at + 57]) for at in range(0, len(ZIP), 57)]
HEAD = b"From: a@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n"
TYPE = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nHello\r\n--b\r\n"
BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
UU = bytes(range(32, 96)) + b" "
FIELDS = b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n"


def uuencoded(content: bytes) -> list[bytes]:
    return [binascii.b2a_uu(content[at : at + 45]).rstrip(b"\n") for at in range(0, len(content), 45)]


def quoted(text: bytes) -> bytes:
    """Each byte escaped, in lines that end with CR."""
    return b"=\r".join(b"".join(b"=%02X" % byte for byte in text[at : at + 24]) for at in range(0, len(text), 24))


MAILS = {
    "short lines of Base64 after a line of dashes and a line that is no field": HEAD
    + TYPE
    + FIELDS.replace(b"Type:", b"Type=")
    + b"--\r\n"
    + b"\r\n".join(base64.b64encode(ZIP)[at : at + 3] for at in range(0, len(base64.b64encode(ZIP)), 3))
    + b"\r\n--b--\r\n",
    "words before Base64 that could be Base64": HEAD
    + TYPE
    + FIELDS
    + b"no field\r\n\r\nhello there\r\n"
    + b"\r\n".join(LINES)
    + b"\r\n--b--\r\n",
    "a delimiter of another boundary within Base64": HEAD
    + TYPE
    + b"\xef\xbb\xbf"
    + FIELDS
    + b"\r\n"
    + b"\r\n".join([*LINES[:3], b"--x", *LINES[3:]])
    + b"\r\n--b--\r\n",
    "a line like a delimiter, after another kind of space, within Base64 that no multipart contains": HEAD
    + FIELDS
    + b"\r\n"
    + b"\r\n".join([*LINES[:2], b"\x0b--b0undary--", *LINES[2:]])
    + b"\r\n",
    "a line of uuencode that is shorter than it says": HEAD
    + b"\r\nbegin 644 a.zip\r\n"
    + b"\r\n".join([*uuencoded(ZIP)[:1], b"--in", *uuencoded(ZIP)[1:]])
    + b"\r\n`\r\nend\r\n",
    "a line of uuencode with small letters": HEAD
    + b"\r\nbegin 644 a.zip\r\n"
    + b"\r\n".join([*uuencoded(ZIP)[:1], b"-" + b"abcd" * 5, *uuencoded(ZIP)[1:]])
    + b"\r\n`\r\nend\r\n",
    "NUL for a space in uuencode": HEAD
    + b"\r\nbegin 644 a.zip\r\n"
    + b"\r\n".join(uuencoded(ZIP)).replace(b" ", b"\0", 1)
    + b"\r\nend\r\n",
    "line ends of CR, behind quoted-printable": HEAD
    + b"\r\nContent-Type: multipart/mixed; boundary=o\r\r--o\rContent-Type: message/rfc822\r"
    + b"Content-Transfer-Encoding: quoted-printable\r\r"
    + quoted((TYPE + FIELDS).replace(b"\r\n", b"\r") + b"\r" + b"\r".join(LINES) + b"\r--b--\r")
    + b"\r--o--\r",
}


@pytest.mark.parametrize("name", MAILS)
def test_a_reader_found_the_file_and_ours_did_not(name: str) -> None:
    """The whole file is found, from its first byte, and opened."""
    assert any(item.content.startswith(ZIP) for item in ours.read(MAILS[name]) or [])
    assert "malware:eicar" in inspect(MAILS[name], Limits()).tags


def recoded(end: bytes, container: bytes, part: bytes) -> bytes:
    """A message or a multipart in quoted-printable; in it and around it, lines end with `end`."""
    fields, body = b"", TYPE + part + b"\r\n--b--\r\n"
    if container.startswith(b"multipart"):
        fields, _, body = body.partition(b"\r\n\r\n")
        fields = fields.removeprefix(b"Content-Type: multipart/mixed")
    inner = body.replace(b"\r\n", end)
    escaped = [b"".join(b"=%02X" % byte for byte in inner[at : at + 24]) for at in range(0, len(inner), 24)]
    head = b"Content-Type: " + container + fields + b"\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    start = b"Content-Type: multipart/mixed; boundary=o\r\n\r\n--o\r\n" + head
    return HEAD + (start + b"=\r\n".join(escaped) + b"\r\n--o--\r\n").replace(b"\r\n", end)


CONTAINERS = [b"message/rfc822", b"multipart/mixed"]
LINE_ENDS = pytest.mark.parametrize("end", [b"\r", b"\n\r", b"\r\r\n", b"\n", b"\r\n"], ids=repr)


@LINE_ENDS
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    "name",
    [b'; filename="evil.js"', b'; filename=\r\n "evil.js"', b';\r\n filename="evil.js"', b'\r\n ; filename="evil.js"'],
)
def test_the_names_behind_quoted_printable_were_not_read_with_line_ends_of_cr(
    end: bytes, container: bytes, name: bytes
) -> None:
    """jsmime shows evil.js. We found the part, because its content is looked for with every kind of line end."""
    part = FIELDS + b"Content-Disposition: attachment" + name + b"\r\n\r\n" + base64.b64encode(b"alert(1)" * 9)
    assert {"mime:executable", "held"} & ours.tags(recoded(end, container, part)) == {"mime:executable"}


@LINE_ENDS
@pytest.mark.parametrize("container", CONTAINERS)
def test_quoted_printable_within_quoted_printable_was_decoded_once(end: bytes, container: bytes) -> None:
    """postal-mime decodes both, whatever the line ends. We did if they are those of a mail."""
    fields = FIELDS.replace(b"base64", b"quoted-printable")
    escaped = [b"".join(b"=%02X" % byte for byte in ZIP[at : at + 24]) for at in range(0, len(ZIP), 24)]
    mail = recoded(end, container, fields + b"\r\n" + b"=\r\n".join(escaped))
    assert any(item.content.startswith(ZIP) for item in ours.read(mail) or [])
    assert "malware:eicar" in ours.tags(mail)


@pytest.mark.parametrize("end", [b"\r", b"\n\r"], ids=repr)
def test_a_piece_of_a_mail_behind_quoted_printable_was_not_noticed_with_line_ends_of_cr(end: bytes) -> None:
    piece = b'Content-Type: message/partial; id="x@y"; number=1; total=2\r\n\r\nHello'
    assert "mime:partial" in inspect(recoded(end, b"message/rfc822", piece), Limits()).tags


def test_a_message_in_quoted_printable_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an attachment, and not again because programs may not agree on the encoding of a message."""
    message = HEAD + b"Content-Type: text/plain\r\n\r\nSee http://www.example.net/x=3Dy\r\n"
    fields = b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    read: list[bytes] = []
    known = FileInspector.enclosed
    monkeypatch.setattr(FileInspector, "enclosed", lambda *args: read.append(args[1]) or known(*args))
    found = inspect(HEAD + TYPE + fields + message + b"\r\n--b--\r\n", Limits())
    assert "www.example.net" in found.hosts and "mime:ambiguous:encoded-container" in found.tags
    assert len(read) == 1


def test_a_text_kept_its_line_ends_of_cr() -> None:
    """A program that takes CR for a line end in the header leaves those in the content as they are."""
    content = b"\x7fBIN" + bytes(range(1, 200)).replace(b"\n", b"") + b"\r" + bytes(range(200, 256))
    lines = [
        b"Content-Type: multipart/mixed; boundary=b",
        b"",
        b"--b",
        b"Content-Type: a/b",
        b"",
        content,
        b"--b--",
        b"",
    ]
    found = ours.read(b"\r".join([*HEAD.split(b"\r\n")[:-1], *lines]))
    assert found is not None and any(item.content == content for item in found)


def test_a_damaged_line_of_uuencode_was_left_out() -> None:
    """Most programs take the lower six bits of any character."""
    lines = uuencoded(ZIP)
    lines[1] = lines[1][:30] + b"\v" + lines[1][31:]
    decoded = next(encodings.embedded(b"begin 644 a.zip\r\n" + b"\r\n".join(lines) + b"\r\nend\r\n"))
    assert len(decoded) == len(ZIP)
    assert decoded[:60] == ZIP[:60] and decoded[90:] == ZIP[90:]


@pytest.mark.parametrize("first", [0x01, 0x0F, 0x6D, 0x8D, 0xFF])
@pytest.mark.parametrize("is_first_line", [True, False])
def test_a_line_of_uuencode_with_another_first_character_was_left_out(first: int, is_first_line: bool) -> None:
    """Some programs take the lower six bits of any character as the length, too."""
    length = (first - 32) & 63
    start = 0 if is_first_line else 45
    digits = binascii.b2a_base64(ZIP[start : start + length], newline=False)
    lines = [
        *uuencoded(ZIP[:start]),
        bytes([first]) + digits.translate(bytes.maketrans(BASE64, UU)),
        *uuencoded(ZIP[start + length :]),
    ]
    found = list(encodings.embedded(b"begin 644 a.zip\r\n" + b"\r\n".join(lines) + b"\r\nend\r\n"))
    assert ZIP in found


def test_a_damaged_binhex_file_began_with_its_header() -> None:
    """What there is of the data fork is a file of its own."""
    fork = b"\x05a.zip\0????????\0\0" + struct.pack(">II", len(ZIP), 0) + b"\0\0" + ZIP[: len(ZIP) // 2]
    hqx = base64.b64encode(fork.replace(b"\x90", b"\x90\0")).rstrip(b"=")
    hqx = hqx.translate(bytes.maketrans(encodings._ALPHABET, encodings._HQX))
    assert any(ZIP.startswith(content[:60]) for content in encodings.embedded(b"\r\n:" + hqx + b":\r\n") if content)


def test_the_name_of_a_container_was_ignored() -> None:
    """Some programs show the file of a multipart under the name of the multipart."""
    named = b"Content-Disposition: attachment; filename*0*=utf-8''file; filename*1*=.exe\r\n"
    assert "mime:executable" in inspect(HEAD + named + TYPE + b"\r\nx\r\n--b--\r\n", Limits()).tags
    message = b"Content-Type: message/rfc822; name=file.exe\r\n\r\nSubject: x\r\n\r\nx\r\n"
    assert "mime:executable" in inspect(HEAD + message, Limits()).tags


def test_the_end_of_an_encoded_word_hid_the_end_of_a_name() -> None:
    """The word begins before the name."""
    assert "file.exe" in names.candidates("=?utf-8?q?application/x; name*0*=utf-8''file; name*1=.exe?=")


@pytest.mark.parametrize(
    "parameter",
    [
        "filename*=utf-8''%3D%3Futf-8%3FB%3FZXZpbC5qcw%3D%3D%3F%3D",
        'filename="=?utf-8?B?PT91dGYtOD9CP1pYWnBiQzVxY3c9PT89?="',
        'filename="=?utf-8?Q?evil=2Ejs"',
        'filename="=?utf-8?Q?evil%2Ejs?="',
    ],
)
def test_a_name_encoded_twice_or_without_its_end_was_missed(parameter: str) -> None:
    """postal-mime, mailparser and ripmime show evil.js."""
    assert "evil.js" in names.candidates(f"attachment; {parameter}")


@pytest.mark.parametrize("prefix", [b"X-", b"Original-", b"X-Old-"])
def test_a_field_with_content_in_the_middle_of_its_name_was_ignored(prefix: bytes) -> None:
    """ripmime looks for the fields that describe a part anywhere in a line."""
    fields = prefix + b"Content-Transfer-Encoding: base64\r\n"
    assert (
        "malware:eicar"
        in inspect(HEAD + TYPE + fields + b"\r\n" + b"\r\n".join(LINES) + b"\r\n--b--\r\n", Limits()).tags
    )
    named = prefix + b'Content-Disposition: attachment; filename="evil.js"\r\n'
    assert "mime:executable" in inspect(HEAD + TYPE + named + b"\r\nalert(1)\r\n--b--\r\n", Limits()).tags


def test_lines_of_uuencode_without_their_last_spaces_and_without_a_beginning_were_left_out() -> None:
    """Ruby's library decodes what there is of a line, in a part that says it is uuencoded."""
    content = b"PK\3\4" + bytes(range(1, 200)) + bytes(300)
    lines = [line.rstrip(b" ") for line in uuencoded(content)]
    assert len(set(map(len, lines))) > 2
    fields = FIELDS.replace(b"base64", b"x-uuencode")
    found = ours.read(HEAD + TYPE + fields + b"\r\n" + b"\r\n".join(lines) + b"\r\n--b--\r\n")
    assert found is not None and any(item.content == content for item in found)


@pytest.mark.parametrize("encoding", [b"", b"Content-Transfer-Encoding: 7bit\r\n"])
@pytest.mark.parametrize("width", [3, 8, 30, 400])
def test_base64_in_a_named_part_without_an_encoding_was_not_decoded(width: int, encoding: bytes) -> None:
    """ClamAV takes any such part for Base64; ours looked for lines of at least 32 characters, and two of them."""
    text = base64.b64encode(ZIP)
    lines = [text[at : at + width] for at in range(0, len(text), width)]
    fields = b"Content-Type: application/zip; name=a.zip\r\n" + encoding
    assert "malware:eicar" in ours.tags(HEAD + TYPE + fields + b"\r\n" + b"\r\n".join(lines) + b"\r\n--b--\r\n")


def test_an_attached_text_is_not_taken_for_base64() -> None:
    fields = b"Content-Type: text/plain; name=a.txt\r\n\r\n"
    for text in (b"Thanks", b"See the other file, please. " * 50, b"one two three\r\n" * 40):
        assert not {tag for tag in ours.tags(HEAD + TYPE + fields + text + b"\r\n--b--\r\n") if "mime:" in tag}


OPEN_NAMES = [
    f"a.js{end}txt"
    for end in ("(b)c.", "(b", "()", ")b.", "/b.", "\\b.", "?b.", "@b.", "[b].", "*", " b.", "\x01", "\x7f")
]


def attached(parameter: str) -> bytes:
    """A script, which nothing but its name betrays."""
    fields = f"Content-Type: application/octet-stream\r\nContent-Disposition: attachment; {parameter}\r\n".encode()
    return HEAD + TYPE + fields + b"\r\nWScript.Echo(1)\r\n--b--\r\n"


@pytest.mark.parametrize(
    "name", [*OPEN_NAMES, "(b)a.js/b.txt", "((b) c) a.js/b.txt", "(;)a.js/b.txt", "(b)a.js]c.txt", '"a.js(b).txt']
)
def test_a_name_without_quotes_went_on_behind_the_character_that_ends_it(name: str) -> None:
    """Dovecot, MIME::Parser, uudeview and Python show a.js: for them, the value ends there."""
    assert "mime:executable" in inspect(attached(f"filename={name}"), Limits()).tags
    typed = HEAD + f"Content-Type: application/octet-stream; name={name}\r\n\r\nWScript.Echo(1)\r\n".encode()
    assert "mime:executable" in inspect(typed, Limits()).tags


@pytest.mark.parametrize(
    "pieces",
    [
        "filename*0=a.(b); filename*1=js/c; filename*2=",
        "filename*0=a. b; filename*1=js; filename*2=?txt",
        "filename*0*=utf-8''a.; filename*1=js(c).txt",
    ],
)
def test_pieces_of_a_name_without_quotes_end_at_different_characters(pieces: str) -> None:
    assert "mime:executable" in inspect(attached(pieces), Limits()).tags


@pytest.mark.parametrize(
    "name",
    [
        "report (1).pdf",
        "report(1).pdf",
        "report [final].pdf",
        "a/b/report.pdf",
        "http://www.example.com/logo.gif",
        '"example.com(1).pdf"',
        '"a.js/b.txt"',
    ],
)
def test_an_ordinary_name_without_quotes_is_not_that_of_a_program(name: str) -> None:
    assert "mime:executable" not in inspect(attached(f"filename={name}"), Limits()).tags


def test_thousands_of_names_in_one_field_took_a_minute() -> None:
    """Each kind of name was looked for among all values."""
    field = "attachment; " + "".join(f"x{number}name=a;" for number in range(8000))
    assert fair_cpu_s(lambda: names.candidates(field)) < 1


@pytest.mark.parametrize("charset", ["utf-16/x", "cp037/x", "utf-32=x", "utf-7?x"])
def test_a_charset_without_quotes_replaced_the_reading_of_programs_that_do_not_know_it(charset: str) -> None:
    """They show the bytes as Latin-1; both readings count."""
    assert "latin_1" in words.codecs_of(charset) and len(words.codecs_of(charset)) == 2
    word = base64.b64encode(b"invoice.exe").decode()
    if "?" not in charset:
        assert "invoice.exe" in names.candidates(f'attachment; filename="=?{charset}?b?{word}?="')


def test_names_without_an_equals_sign_cost_more_than_was_charged() -> None:
    """Each character that may end a name is one more reading of it."""
    marks = "()<>@,:/[]?*"
    plain, marked = ("a/b; " + ";".join(f"name x.{n}{ends}" for n in range(200)) for ends in ("a" * len(marks), marks))
    assert names.work(marked) > 5 * names.work(plain)
    in_quotes, simple = (names.work(f'attachment; filename="{name}"') for name in ("a (1) <b>.pdf", "a -1- -b-.pdf"))
    assert in_quotes == simple
    assert is_linear(names.work, 'a/b; name="' + '"' * 2000, 'a/b; name="' + '"' * 8000)
