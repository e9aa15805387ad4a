"""Encoded files that no field declares: what programs decode that need no field is found, without reading the whole
mail in every way.

A long link in quoted-printable looks like lines of Base64, because the "=" of a soft line break looks like padding. A
mail with one took hundreds of milliseconds.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import time
from random import Random

import pytest

from bridge.mime import ambiguity
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.long_cases import by_turns
from tests.mime import ours
from tests.mime.encodings import (
    Encoder,
    binhex,
    lines_of,
    uu_base64,
    uu_text_around,
    uuencoded,
    xxencoded,
    yenc,
)
from tests.mime.test_mime_hidden_parts import BINARY, HEAD, LETTERS, PART, SHORT_LINES, ZIP, encoded, mail, tags
from tests.service.service_kit import EICAR, attached, zipped
from tests.service.test_service_documents import ole

TAG = "mime:ambiguous:undeclared-parts"
QUOTED = b"Content-Transfer-Encoding: quoted-printable\r\n\r\n"
LINK = b"https://example.org/" + base64.b64encode(bytes(range(1, 250))).replace(b"+", b"/")
SOFT_LINK = b"=\r\n".join(lines_of(LINK, 75)) + b"\r\n\r\nHello.\r\n"

LEAVES = {
    "a text in quoted-printable": b"Content-Type: text/plain\r\n" + QUOTED,
    "a page in quoted-printable": b"Content-Type: text/html; charset=utf-8\r\n" + QUOTED,
    "a file in quoted-printable": b"Content-Type: application/octet-stream\r\n" + QUOTED + BINARY,
    "a text": b"Content-Type: text/plain\r\n\r\n",
    "a text that is 7bit": b"Content-Type: text/plain\r\nContent-Transfer-Encoding: 7bit\r\n\r\n",
    "a file that is 8bit": b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: 8bit\r\n\r\n",
}


def soft(length: int) -> list[bytes]:
    *lines, last = lines_of(LETTERS, length)
    return [*(line + b"=" for line in lines), last]


def padded(length: int) -> list[bytes]:
    """Each line for itself, with one "=" at its end: two would be odd in quoted-printable, and reason enough."""
    *pieces, last = lines_of(ZIP, length)
    if len(last) % 3 == 1:
        pieces, last = pieces[:-1], pieces[-1] + last
    return [base64.b64encode(piece) for piece in (*pieces, last)]


def between(line: bytes) -> list[bytes]:
    """After the second line of Base64, and after each further one."""
    first, second, *rest = lines_of(LETTERS, 76)
    return [first, second, *itertools.chain.from_iterable((line, other) for other in rest)]


def once(line: bytes) -> list[bytes]:
    return [*lines_of(LETTERS, 76)[:3], line, *lines_of(LETTERS, 76)[3:]]


LINES = {
    "lines": lines_of(LETTERS, 76),
    "shorter lines": lines_of(LETTERS, 60),
    "soft line breaks": soft(75),
    "soft line breaks that divide groups": soft(73),
    "short lines with soft line breaks": soft(33),
    "one soft line break": [LETTERS[:72] + b"=", *lines_of(LETTERS[72:], 72)],
    "padding in each line": padded(56),
    "padding in each short line": padded(26),
    "spaces at the ends of lines": [line + b"  " for line in lines_of(LETTERS, 72)],
    "long lines": lines_of(LETTERS * 3, 600),
    "a long line after two others": [*lines_of(LETTERS[:152], 76), LETTERS[152:]],
    "short lines after long ones": [*lines_of(LETTERS[:152], 76), *lines_of(LETTERS[152:], 8)],
    "a short line first": [LETTERS[:8], *lines_of(LETTERS[8:], 76)],
    "a short line after another between": [*lines_of(LETTERS[:240], 60), b"-.!", LETTERS[240:]],
    "other lines between": between(b"-.!"),
    "empty lines between": between(b""),
    "an escape between": between(b"=3D"),
    "a line of words between": once(b"Sincerely, Alexanderplatz"),
    "a line of long words between": once(b"Donaudampf schifffahrtsgesellschaft"),
    "other characters in the lines": [
        line if number < 2 else line[:9] + b"!" + line[9:] for number, line in enumerate(lines_of(LETTERS, 76))
    ],
    "spaces in the lines": [
        line if number < 2 else line[:9] + b" " + line[9:] for number, line in enumerate(lines_of(LETTERS, 76))
    ],
}
BROKEN = {name for name in LINES if name.endswith((" between", " in the lines"))}
BEFORE = {
    "nothing": b"",
    "words": b"hello there\r\n",
    "a text": b"Hello, see below.\r\n\r\n",
    "a link": SOFT_LINK,
    "a delimiter": b"x.\r\n--foo\r\n\r\n",
    "a delimiter and a field": b"x.\r\n--foo\r\nX-Field: y\r\n\r\n",
}


def body(lines: str, before: str = "nothing") -> bytes:
    return BEFORE[before] + b"\r\n".join(LINES[lines]) + b"\r\n"


@pytest.mark.parametrize(("leaf", "lines"), by_turns(LEAVES, LINES))
def test_a_file_in_lines_of_base64_is_found_in_any_part(leaf: str, lines: str) -> None:
    """Whatever stands before it, and whatever the part is in."""
    for number, before in enumerate(BEFORE):
        part = LEAVES[leaf] + body(lines, before)
        enclosed = b"Content-Type: message/rfc822\r\n\r\n" + HEAD + part
        content = (HEAD + part, mail(part), mail(enclosed, boundary=b"out"))[number % 3]
        assert {"malware:eicar", TAG} <= tags(content), before
        found = [item.content for item in ours.read(content) or []]
        if before == "a link" and lines in BROKEN:  # no program tells where the file begins, nor do we
            assert any(ZIP in other for other in found)
        else:
            assert any(other.startswith(ZIP) for other in found), before


@pytest.mark.parametrize("encoder", [uuencoded, uu_text_around, uu_base64, xxencoded, yenc, binhex])
@pytest.mark.parametrize("before", BEFORE)
def test_a_file_that_marks_its_own_beginning_is_found_beside_such_lines(encoder: Encoder, before: str) -> None:
    """In a text as it is, and in an encoded one."""
    text = BEFORE[before] + b"\r\n".join(encoder(ZIP, Random(1))) + b"\r\n"
    for part in (LEAVES["a text"] + text, encoded(b"text/plain", text)):
        content = mail(part)
        assert {"malware:eicar", TAG} <= tags(content)
        assert any(item.content.startswith(ZIP) for item in ours.read(content) or [])


@pytest.mark.parametrize("line", [b"end of page", b"====", b"These are words."])
def test_a_line_within_a_uuencoded_file_hid_it(line: bytes) -> None:
    """Some programs skip it and read on."""
    head, *data = uuencoded(ZIP, Random(1))
    content = mail(LEAVES["a text"] + b"\r\n".join([head, *data[:2], line, *data[2:]]) + b"\r\n")
    assert {"malware:eicar", TAG} <= tags(content)


def test_a_uuencoded_file_that_goes_on_in_the_next_part_was_not_read() -> None:
    """The second part has no sign of it."""
    lines = uuencoded(ZIP, Random(1))
    pieces = [LEAVES["a text"] + b"\r\n".join(piece) + b"\r\n" for piece in (lines[:4], lines[4:])]
    assert "malware:eicar" in tags(mail(*pieces))


def test_the_name_of_such_a_file_is_judged() -> None:
    """Programs save it under the name in its first line."""
    lines = b"begin 644 invoice.exe\r\n" + b"\r\n".join(uuencoded(ZIP, Random(1))[1:]) + b"\r\n"
    for part in (LEAVES["a text"] + SOFT_LINK + lines, encoded(b"text/plain", lines)):
        assert "mime:executable" in tags(mail(part))


@pytest.mark.parametrize("lines", LINES)
def test_a_file_in_lines_of_base64_is_found_in_an_encoded_text(lines: str) -> None:
    """uudeview finds it in what a mail program saves."""
    text = b"Hello, see below.\r\n\r\n" + body(lines)
    escaped = b"=\r\n".join(lines_of(b"".join(b"=%02X" % byte for byte in text), 72))
    for part in (encoded(b"text/plain", text), b"Content-Type: text/plain\r\n" + QUOTED + escaped + b"\r\n"):
        assert {"malware:eicar", TAG} <= tags(mail(part))


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_field_beside_such_lines_is_a_reason_to_read_the_whole_mail(leaf: str) -> None:
    """Lines of Base64, or a link that looks like them, do not hide a part that a field declares."""
    short = PART.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + SHORT_LINES
    for decoy in (SOFT_LINK, b"\r\n".join([b"A" * 75 + b"="] * 4) + b"\r\n", body("lines")[:200] + b"\r\n"):
        for hidden in (b"--foo\r\n" + short, b"\r\n" + short, b"--foo\r\nX: y " + short):
            assert {"malware:eicar", TAG} <= tags(mail(LEAVES[leaf] + decoy + hidden, boundary=b"foobar"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: content.rindex(b"--bb--")],
        lambda content: content.replace(b"boundary=bb", b"boundary=bb; boundary=cc"),
        lambda content: content.replace(b"Hello\r\n", b"Hello\n"),
        lambda content: content.replace(b"Hello\r\n", b"\0Hello\r\n"),
    ],
    ids=["no end", "two boundaries", "line ends", "NUL"],
)
def test_another_doubt_is_a_reason_to_read_the_whole_mail(spoil) -> None:
    """Then the structure may be another one, and other characters may be between the lines."""
    part = LEAVES["a text in quoted-printable"] + SOFT_LINK
    declared = PART.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + SHORT_LINES
    found = tags(spoil(mail(part, declared)))
    assert "malware:eicar" in found and len([tag for tag in found if "ambiguous" in tag]) > 1


def test_lines_that_end_with_cr_are_read_in_an_encoded_text() -> None:
    """Two lines of Base64 end with CRLF there, all others with CR only."""
    first, second, *rest = lines_of(LETTERS, 76)
    text = first + b"\r\n" + second + b"\r\n" + b"\r".join(rest) + b"\r\n"
    assert "malware:eicar" in tags(mail(encoded(b"text/plain", text)))


def test_a_long_link_in_quoted_printable_took_hundreds_of_milliseconds() -> None:
    """The objects in such a mail were hundreds of times as large as the mail: now they are a few times as large."""
    page = b"".join(b"<p>Line %d of a page.</p>\r\n" % number for number in range(300))
    content = mail(LEAVES["a page in quoted-printable"] + page + SOFT_LINK + page)
    found = ours.read(content) or []
    assert TAG in tags(content)
    assert sum(len(item.content) for item in found) < 25 * len(content)


@pytest.mark.parametrize(
    ("text", "is_only"),
    [
        (SOFT_LINK, True),
        (b"\r\n".join(lines_of(LETTERS, 76)), True),
        (SOFT_LINK + b"Content-Type: x\r\n", False),
        (SOFT_LINK + b" content-disposition: x\r\n", False),
        (SOFT_LINK + b"x content-transfer-encoding: x\r\n", False),
        (SOFT_LINK + b"begin 644 a.zip\r\n#86)C\r\n#86)C\r\n", False),
        (SOFT_LINK + b"=ybegin line=128\r\n", True),
        (SOFT_LINK + b"a\rb\r\n", False),
        (SOFT_LINK + b"a\nb\r\n", False),
        (SOFT_LINK + b"\0\r\n", False),
    ],
)
def test_what_is_found_besides_files(text: bytes, is_only: bool) -> None:
    """Fields, and line ends on which programs differ, are a reason to read the whole mail."""
    for is_quoted in (True, False):
        assert ambiguity.has_only_files(b"x\r\n" + text, 3, 3 + len(text), is_quoted=is_quoted) is is_only


def test_the_work_for_such_lines_is_bounded() -> None:
    """A text of nothing but short lines is not read to its end at any cost."""
    for unit in (
        b"A" * 32 + b"\r\n" + b"B" * 16 + b"\r\n",
        b"A" * 75 + b"=\r\n",
        b"--x\r\n" + b"A" * 40 + b"\r\nB\r\n",
    ):
        text = b"A" * 40 + b"\r\n" + b"B" * 40 + b"\r\n" + unit * (100_000 // len(unit))
        found = inspect(HEAD + LEAVES["a text"] + text, Limits())
        assert TAG in found.tags


NOISE = Random(2).randbytes(600_000)
OBJECTS = b"%PDF-1.7\r\n%\xb5\xb5\r\n" + b"1 0 obj\r\n<</Type/Catalog>>\r\nendobj\r\n" * 60
STREAM = b"2 0 obj\r\n<</Length 600000>>stream\r\n" + NOISE + b"\r\nendstream\r\nendobj\r\n"


def in_base64(content: bytes) -> bytes:
    return base64.encodebytes(content).replace(b"\n", b"\r\n")


def test_a_pdf_document_with_a_small_picture_in_base64_was_read_as_a_mail() -> None:
    """Adobe's programs add one to their facts about a document. A limit was reached, and it was not delivered."""
    facts = b"<xmpGImg:image>" + in_base64(b"\xff\xd8\xff\xe0" + NOISE[:9000]) + b"</xmpGImg:image>\r\n"
    start = time.process_time()
    found = inspect(attached(OBJECTS + facts + STREAM, "a.pdf", "application/pdf"), Limits())
    assert not found.limits and found.tags == {"mime:ambiguous:undeclared-parts"}
    assert time.process_time() - start < 2


def test_an_old_document_of_mostly_text_was_read_as_a_mail() -> None:
    """Its bytes were thousands of odd hosts."""
    odd = b"".join(b'a="//%x\xe9\xe8.a<br>\r\n' % number for number in range(6000))
    old = ole({"Workbook": b"\x09\x08\x10\0" + bytes(16) + b"\r\nbegin 644 a\r\n" + binascii.b2a_uu(b"a" * 45) + odd})
    found = inspect(attached(old, "a.xls"), Limits())
    assert not found.limits and not found.hosts


FOUND_IN_DOCUMENTS = {
    "Base64": in_base64(zipped(("eicar.com", EICAR + bytes(600)))),
    "uuencode": b"begin 644 a\r\n" + binascii.b2a_uu(EICAR[:45]) + binascii.b2a_uu(EICAR[45:]) + b"`\r\nend\r\n",
    "a part": b"\r\nContent-Type: a/b\r\nContent-Transfer-Encoding: base64\r\n\r\n" + in_base64(EICAR),
    "a part with NULs": b"\r\nCon\0tent-Type: a/b\r\nContent-Transfer-Enc\0oding: base64\r\n\r\n" + in_base64(EICAR),
    "a part after a CR": b"\rContent-Type: a/b\rContent-Transfer-Encoding: base64\r\r" + in_base64(EICAR),
}


@pytest.mark.parametrize("form", FOUND_IN_DOCUMENTS)
def test_whatever_a_program_finds_in_a_document_is_read(form: str) -> None:
    content = OBJECTS + b"2 0 obj\r\n<</Length 2000>>stream\r\n" + NOISE[:2000] + b"\r\n" + FOUND_IN_DOCUMENTS[form]
    assert "malware:eicar" in inspect(attached(content, "a.pdf", "application/pdf"), Limits()).tags
