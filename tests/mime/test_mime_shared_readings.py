"""What the readings of one mail share: each line is decoded once, with the result of decoding it again."""

from __future__ import annotations

import random
from base64 import b64decode

import pytest

from bridge.mime import encodings
from bridge.mime.base64_text import UnbrokenBase64

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


def test_two_lines_may_begin_the_same_file() -> None:
    """The lines of data after the first "begin" are those after the second, too, and are read once."""
    text = b"we begin 1 a.txt\nbegin 644 b.txt\n#86)C\n#86)C\n`\nend\n"
    assert list(encodings.embedded_names(text)) == [b"1 a.txt", b"644 b.txt"]
