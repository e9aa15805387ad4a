"""What the readings of one mail share: each line is decoded once, with the result of decoding it again."""

from __future__ import annotations

import random
import re
from base64 import b64decode

import pytest

from bridge.mime import encodings
from bridge.mime.base64_text import (
    UnbrokenBase64,
    base64_readings,
    decode_base64,
    is_plain_base64,
    line_readings,
    similar_lines,
)

BYTES = b"AbC/+9zQ==\r\n\n# -x\xe9"


@pytest.mark.parametrize("seed", range(40))
def test_base64_is_read_to_the_end_from_every_place_as_if_the_text_began_there(seed: int) -> None:
    """For each place where a part may begin, the rest of the mail was decoded again, line by line."""
    dice = random.Random(seed)
    text = bytes(dice.choice(BYTES) for _ in range(dice.randrange(60)))
    shared = UnbrokenBase64(text)
    for start in range(len(text) + 1):
        assert list(shared.readings(start)) == list(UnbrokenBase64(text[start:]).readings(0))


def test_base64_to_the_end_is_decoded_in_four_ways() -> None:
    """Without what is no Base64, by lines, without lines that have other characters, and again after each padding."""
    whole, by_lines, without_lines, restarted = UnbrokenBase64(b"QUJD\n--boundary\nREVG\nR0g=SUpL\n").readings(0)
    assert whole.startswith(b"ABC") and not whole.endswith(b"IJK")
    assert by_lines == b"ABC" + b64decode(b"boundary") + b"DEF" + b64decode(b"R0gSUpL=")
    assert without_lines.startswith(b"ABCDEF")
    assert restarted.startswith(b"ABC") and restarted.endswith(b"IJK")


PADDED_PIECES = (b"QUJD", 19 * b"QUJD", b"QU", b"Q", b"=", b"==", b"\r\n", b"\n", b"\r", b"#")


@pytest.mark.parametrize("seed", range(20))
def test_lines_and_groups_decoded_together_are_what_each_decodes_to(seed: int) -> None:
    """What precedes the first padding is decoded at once; after it, each line and each group counts separately."""
    dice = random.Random(seed)
    raw = b"".join(dice.choices(PADDED_PIECES, k=dice.randrange(80)))
    lines = raw.translate(None, b"#").splitlines()
    pieces = [line.replace(b"=", b"") if b"=" in line else line[: len(line) // 4 * 4] for line in lines]
    found = list(base64_readings(raw))
    assert is_plain_base64(raw) or found[1] == b"".join(map(decode_base64, pieces))
    letters = raw.translate(None, b"#\r\n")
    groups = re.findall(rb"[^=]{4}|.{1,4}", letters)
    assert b"=" not in raw or is_plain_base64(raw) or found[4] == b"".join(map(decode_base64, groups))


def test_two_lines_may_begin_the_same_file() -> None:
    """The lines of data after the first "begin" are those after the second, too, and are read once."""
    text = b"we begin 1 a.txt\nbegin 644 b.txt\n#86)C\n#86)C\n`\nend\n"
    assert list(encodings.embedded_names(text)) == [b"1 a.txt", b"644 b.txt"]


LINE_PIECES = (
    b"\n",
    b"\r\n",
    b"\r",
    b"QUJD",
    5 * b"QUJD",
    19 * b"QUJD",
    b"=",
    b"==",
    b" ",
    b"> ",
    b"a: b",
    b"--b",
    b"-_",
)


def test_long_lines_of_base64_are_found_as_if_looked_at_one_by_one() -> None:
    """Runs of them are taken at once; what is kept must not depend on that."""
    dice = random.Random(11)
    for _ in range(5000):
        text = b"".join(dice.choices(LINE_PIECES, k=dice.randint(0, 14)))
        kept = [line for line in text.split(b"\n") if similar_lines(line) == b"\n" + line]
        expected = (b"\n" + b"".join(line + b"\n" for line in kept))[:-1]
        assert similar_lines(text) == expected, text


def test_base64_in_lines_is_decoded_as_a_whole_and_line_by_line() -> None:
    """A quick test skips the second where both are the same."""
    plain, cut = b"\n" + b"QUJD" * 19 + b"\r\nREVG", b"\nQUJDRE\nRUZH"
    assert line_readings(plain) == [b"ABC" * 19 + b"DEF"]
    assert line_readings(cut) == [decode_base64(cut), b"ABCEFG"]
