"""Decoders work in blocks: with the results of decoding everything at once, and without its memory."""

from __future__ import annotations

import binascii
import html
import html.entities
import itertools
import random
import re
import tracemalloc
from collections.abc import Callable, Iterable

import pytest

from bridge.mime import base64_text, encodings, references, words
from bridge.mime.blocks import AFTER_LF, BEFORE_EQUALS, BLOCK, blocks, line_blocks, line_lists
from tests.long_cases import few

SIZE = 512 * 1024
HQX = rb"""!"#$%&'()*+,-012345689@ABCDEFGHIJKLMNPQRSTUVXYZ[`abcdefhijklmpqr"""
UU_ATOMS = [b"!", b"M", b"#86)C", b"M" + b"A" * 60, b"\r\n", b"\n", b"\r", b"begin 1 ", b"end", b"\x1c", b"\xff", b" "]
TEXT_ATOMS = [
    b"QUJD",
    b"QU",
    b"Q",
    b"=",
    b"==",
    b"#",
    b"\r\n",
    b"\n",
    b"\r",
    b"=41",
    b"=4",
    b"= \n",
    b"-",
    b"1a ",
    b"\v",
]


def text_of(atoms: list[bytes], seed: int, size: int = 3 * BLOCK // 2) -> bytes:
    """Long enough for several blocks, and sometimes nearly all of one atom."""
    dice = random.Random(seed)
    weights = [dice.choice((1, 1, 10, 1000)) for _ in atoms]
    return b"".join(dice.choices(atoms, weights, k=size // 2))[: size + dice.randrange(9)]


@pytest.mark.parametrize("cut", [AFTER_LF, None, BEFORE_EQUALS])
@pytest.mark.parametrize("size", [1, 2, 5, 300])
def test_blocks_are_the_text_and_are_cut_where_they_may_be(cut, size: int) -> None:
    """Never between CR and LF."""
    text = text_of([b"a", b"\r\n", b"\n", b"\r", b"="], 1, 3000)
    found = list(blocks(text, cut, size) if cut else line_blocks(text, size))
    assert b"".join(found) == text and len(found) > 1
    assert min(map(len, found[:-1])) >= size
    if cut is BEFORE_EQUALS:
        assert all(block.startswith(b"=") for block in found[1:])
    else:
        assert [line for block in found for line in block.splitlines()] == text.splitlines()
        assert all(block.endswith((b"\n", b"\r")) for block in found[:-1])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_blocks_of_lines_end_where_a_pattern_finds_the_end_of_a_line(size: int) -> None:
    """In all texts of a few characters."""
    for text in map(bytes, itertools.product(b"a\r\n", repeat=7)):
        expected = list(blocks(text, re.compile(rb"\r\n?|\n"), size))
        assert list(line_blocks(text, size)) == expected


class Searched(bytes):
    """Counts the bytes that are searched."""

    searched = 0

    def find(self, what: bytes, start: int, end: int | None = None) -> int:  # type: ignore[override]
        found = super().find(what, start, end)
        self.searched += (found if found >= 0 else len(self) if end is None else end) - start
        return found


@pytest.mark.parametrize("lines", [b"a\n", b"a\r", b"a\r\n", b"a"])
def test_blocks_of_lines_take_linear_time_whatever_ends_the_lines(lines: bytes) -> None:
    """Each byte is searched at most once for each of the two characters that may end a line."""
    text = Searched(lines * 5000)
    assert b"".join(line_blocks(text, 10)) == text
    assert text.searched <= 2 * len(text)


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"\n" * (BLOCK + 1), b"a\n" * BLOCK, b"a\n" * BLOCK + b"b"])
def test_lists_of_lines_are_all_lines(text: bytes) -> None:
    """Also the empty one after the last line end."""
    assert [line for lines in line_lists(text) for line in lines] == text.split(b"\n")


@pytest.mark.parametrize("seed", range(3))
def test_uuencode_in_blocks_is_uuencode(seed: int) -> None:
    """Line by line, as it was decoded before there were blocks."""
    text = text_of(UU_ATOMS, seed)
    for is_certain in (False, True):
        assert encodings._uuencoded(text, is_certain=is_certain) == b"".join(_uu_lines(text, is_certain))
    assert b"".join(encodings.decoded_blocks(text, "x-uuencode")) == encodings.decode(text, "x-uuencode")[0]


def _uu_lines(text: bytes, is_certain: bool) -> Iterable[bytes]:
    for line in text.splitlines():
        if not line or line[:6].lower() == b"begin " or line == b"end":
            continue
        length = (line[0] - 32) & 63
        needed = -(-length // 3) * 4
        if 32 <= line[0] <= 96 and (len(line) >= needed or is_certain):
            sextets = bytes(base64_text.ALPHABET[(byte - 32) % 64] for byte in line[1 : 1 + needed].ljust(needed))
            yield binascii.a2b_base64(sextets)[:length]


@pytest.mark.parametrize("seed", range(3))
def test_escapes_in_blocks_are_escapes(seed: int) -> None:
    """yEnc, the wrong "=" of quoted-printable, runs of BinHex, references of HTML."""
    text = text_of(TEXT_ATOMS, seed)
    first, *escaped = text.translate(None, b"\r\n").split(b"=")
    plain = bytes((byte - 42) % 256 for byte in range(256))
    pieces = [bytes((byte - 106) % 256 for byte in piece[:1]) + piece[1:].translate(plain) for piece in escaped]
    (yenc,) = encodings.embedded(b"=ybegin name=x\n" + text.replace(b"=y", b"=x"))
    assert yenc == b"".join((first.translate(plain), *pieces))
    joined = encodings._SOFT_BREAK.sub(b"", text)
    _, *found = encodings.quoted_readings(text + b"=")
    expected = [binascii.a2b_qp(wrong.sub(instead, joined + b"=")) for wrong, instead in encodings._WRONG]
    assert found == expected
    runs = text.replace(b"=", b"\x90")
    assert encodings._without_runs(runs) == b"".join(_runs(runs))
    html = text.replace(b"=", b"&lt;").replace(b"#", b"&#0065;").decode("latin-1")
    assert references.unescaped(html) == html.replace("&lt;", "<").replace("&#0065;", "A")


def _runs(content: bytes) -> Iterable[bytes]:
    first, *rest = content.split(b"\x90")
    last = first[-1:]
    yield first
    for piece in rest:
        count = piece[0] if piece else 0
        run = (b"\x90" if count == 0 else last * (count - 1)) + piece[1:]
        last = run[-1:] or last
        yield run


@pytest.mark.parametrize("seed", range(2))
def test_base64_in_blocks_is_base64(seed: int) -> None:
    """Of a text without lines, of lines, of groups: what is decoded in parts that no block cuts is the same."""
    text = text_of(TEXT_ATOMS, seed)
    padded = text.translate(None, base64_text._NOT_BASE64_OR_PAD)
    lines = text.translate(None, base64_text._NOT_BASE64_PAD_OR_LINE).splitlines()
    by_lines = (line.replace(b"=", b"") if b"=" in line else line[: len(line) // 4 * 4] for line in lines)
    groups = [padded[at : at + 4] for at in range(0, len(padded), 4)]
    decode = base64_text._decode_clean
    found = list(base64_text.base64_readings(text))
    assert found[1] == b"".join(map(decode, by_lines))
    assert found[3] == b"".join(map(decode, padded.split(b"=")))
    assert found[4] == b"".join(decode(group.replace(b"=", b"")) for group in groups)
    assert base64_text.similar_lines(text) == b"".join(
        b"\n" + line for line in text.split(b"\n") if base64_text._are_similar(line)
    )
    shared = base64_text.UnbrokenBase64(text)
    for start in (0, 1, len(text) // 2, len(text) - 1, len(text)):
        assert list(shared.readings(start)) == list(base64_text.UnbrokenBase64(text[start:]).readings(0))


def _binhex(content: bytes) -> bytes:
    letters = binascii.b2a_base64(content, newline=False).rstrip(b"=")
    return b"\n:" + letters.translate(bytes.maketrans(base64_text.ALPHABET, HQX)) + b":"


_OF_ONE_BLOCK = 5_000_000  # bytes: of empty lines, say

HOSTILE: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "uuencode, short lines": (b"!\r\n", lambda text: encodings.decode(text, "x-uuencode")),
    "uuencode, empty lines": (b"\r", lambda text: encodings.decode(text, "x-uuencode")),
    "uuencode, missing spaces": (b"M\n", lambda text: sum(map(len, encodings.decoded_blocks(text, "x-uuencode")))),
    "uuencode, beginnings": (b"begin 1 \n", lambda text: sum(map(len, encodings.embedded(text)))),
    "xxencode": (b"1a ", encodings._xxencoded),
    "Base64, short lines": (b"QUJD\nQUJDQUJD\n", lambda text: encodings.decode(text, "base64")),
    "Base64, one letter in each line": (b"Q\r\n", lambda text: max(map(len, base64_text.base64_readings(text)))),
    "Base64, padding": (b"QQ=", lambda text: max(map(len, base64_text.base64_readings(text)))),
    "Base64, other lines": (b"#\nQ\n", lambda text: max(map(len, base64_text.base64_readings(text)))),
    "Base64, lines": (b"\n", base64_text.line_readings),
    "Base64, runs": (b"\n", base64_text.base64_runs),
    "Base64, similar lines": (b"QUJD\n", base64_text.similar_lines),
    "Base64 to the end": (b"Q=\n", lambda text: max(map(len, base64_text.UnbrokenBase64(text).readings(5)))),
    "quoted-printable": (b"aa=", lambda text: max(map(len, encodings.quoted_readings(text)))),
    "quoted-printable, soft breaks": (b"aa= \n", lambda text: max(map(len, encodings.quoted_readings(text)))),
    "yEnc": (b"=M", lambda text: sum(map(len, encodings.embedded(b"=ybegin name=x\n" + text)))),
    "BinHex": (b"", lambda _: sum(map(len, encodings.embedded(_binhex(b"\x90\x00a" * (SIZE // 4)))))),
    "references": (b"&lt;", lambda text: references.unescaped(text.decode("latin-1"))),
}


@pytest.mark.parametrize("name", few(HOSTILE, 3))
def test_decoders_take_a_few_times_the_memory_of_their_input(name: str) -> None:
    """An object for each line took thirty times the size of a mail, and the console was killed for one view of it."""
    unit, work = HOSTILE[name]
    text = unit * (SIZE // len(unit)) if unit else b""
    tracemalloc.start()
    try:
        work(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * SIZE + _OF_ONE_BLOCK


def test_references_in_binary_data_are_those_of_html() -> None:
    """Only what begins like a name is looked up, as none of the names begins in another way."""
    assert all(name[:2].isascii() and name[0].isalpha() and name[1].isalnum() for name in html.entities.html5)
    dice = random.Random(4)
    pieces = ["&", "&#", "&#x", "&amp", "&ampx;", "&l", "&lt", "&\xe9t", "&1t", "&notit;", "9", "F;", "\xe9", " ", "x"]
    for _ in range(200):
        text = "".join(dice.choices(pieces, k=40))
        assert references.unescaped(text) == html.unescape(text)


def test_removing_a_shift_makes_no_escape_sequence() -> None:
    """`ESC SO ( B` is none, although it is one without the shift in it."""
    assert words.without_switches("a\x1b(Bb\x0ec\x0fd\x1b\x0e(Be") == "abcd\x1b(Be"
