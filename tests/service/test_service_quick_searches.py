"""Quick searches find exactly what the slower ones find that they replace."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bridge.mime import base64_text, encodings, references
from bridge.service.analysis.content import archive_marks, office_xml, page_files, page_text, pictures, script_files
from bridge.service.analysis.content.links import Links
from bridge.service.analysis.content.page_text import ascii_lower
from bridge.service.detection import body, signals

ATOMS = {
    "scripts": [*"'\"`+, [(>-=\\", ".concat(", "aGVsbG8" * 6, "12,", "%41", "%u0041"],
    "downloads": ["download", "DownLoad", "=", " ", "'", '"', "`", ".", "/", "x.js", "\u0130", "]", ",", "\u017f"],
    "addresses": ["data:", "DATA:", "text/html", ";base64", ",", "QUJD", "#", "'", '"', " ", ">", "=", "\t", "\u0130"],
    "references": ["&lt;", "&amp;", "&#65;", "&#0064;", "@", "http://", "a", "/", "&nbsp;", "&", "\\", "#"],
    "words": ["abc", "Z", "_", "7", " ", "-", "\n", "\x1f", "x" * 19, "\u00e9", "\u0301", "."],
}  # fmt: skip


def texts(kind: str, length: int = 30) -> list[str]:
    """Random ones; in many, some of the atoms are missing."""
    dice = random.Random(kind)
    found = []
    for _ in range(2000):
        atoms = dice.sample(ATOMS[kind], dice.randrange(1, len(ATOMS[kind]) + 1))
        found.append("".join(dice.choices(atoms, k=dice.randrange(1, length))))
    return found


def without_joints(text: str) -> str:
    return re.sub(r"([\"'`])\s{0,40}(?:[+,]|\.concat\()\s{0,40}[\"'`]", "", text)


def one_kind(text: str) -> str:
    return script_files._with_one(script_files._OTHER_QUOTES, text)


QUOTED: Sequence[tuple[str, Callable[[str], list[str]]]] = (
    (
        r"[\"'`>]\s{0,99}([A-Za-z0-9+/_=-]{40,}+)",
        lambda text: script_files._AFTER_QUOTE.findall(text.replace(">", '"')),
    ),
    (r"[\"'`]([A-Za-z0-9+/_-]{16,}+)={0,2}[\"'`]", script_files._PIECE.findall),
    (
        r"[\[(\"'`]([0-9a-fA-FxX,;|\s-]{31,}+)",
        lambda text: script_files._NUMBERS.findall(script_files._with_one("[(", text)),
    ),
    (r"[\"'`]([^\"'`]{16,}+)", script_files._QUOTED.findall),
    (r"[\"'`]([^\"'`%]{0,200}%(?:u[0-9a-fA-F]{4}|[0-9a-fA-F]{2})[^\"'`]+)", script_files._PERCENT.findall),
)


def test_literals_are_the_same_whatever_their_quotes_are() -> None:
    for text in texts("scripts"):
        assert script_files._without_joints(text) == without_joints(text)
        for pattern, quick in QUOTED:
            assert quick(one_kind(text)) == re.findall(pattern, text)


def test_downloads_and_addresses_are_found_in_any_case() -> None:
    for text in texts("downloads"):
        found = [match.span() for match in page_files._name_matches(text)]
        assert found == [match.span() for match in page_files._NAME.finditer(text)]
    for text in texts("addresses"):
        found = list(page_files._places("data:", ascii_lower(text)))
        assert found == [match.start() for match in re.finditer("data:", text, re.IGNORECASE)]


def test_a_page_has_a_second_reading_only_if_that_differs() -> None:
    for text in texts("references"):
        plain, other = references.unescaped(text), references.in_values(text)
        if plain != other:
            assert references.have_delimiters(text)
        assert page_text.link_readings(text) in ([plain], [plain, other])


def test_hosts_of_a_page_with_one_reading_counted_twice() -> None:
    """600 names that are not ASCII exceeded the limit of 1,000."""
    links = Links()
    links.scan("a&b" + "@ " * 1001 + "".join(f";//\u00e4{number}.example " for number in range(600)), is_html=True)
    assert len(links.hosts) == 600


def test_words_are_those_of_the_patterns() -> None:
    for text in texts("words"):
        assert body.words_of(text, body._WORD, body._SPACES) == body._WORD.findall(text)
        assert signals._words_in(text) == signals._WORD.findall(text)
    for code in set(range(128)) - {ord("@")}:
        text = f"abc{chr(code)}def"
        assert body.words_of(text, body._WORD, body._SPACES) == body._WORD.findall(text)
        assert signals._words_in(text) == signals._WORD.findall(text)


def test_only_the_letters_of_ascii_become_small() -> None:
    for text in ("aBC", "\xc0\xd6Z\xdf", "\u0130Z\u212a", "Z\ud800", "\U0001f600Q", "".join(map(chr, range(300)))):
        assert ascii_lower(text) == re.sub("[A-Z]", lambda match: match[0].lower(), text)


def test_base64_starts_again_after_any_padding() -> None:
    dice = random.Random(1)
    for _ in range(2000):
        padded = bytes(dice.choices(b"ABCDefg=", k=dice.randrange(60)))
        assert base64_text._restarted(padded) == base64_text._one_by_one(re.split(rb"=+", padded))


UU = [
    b"begin 644 x",
    b"Begin\t 7 ",
    b"begin",
    b"BEGIN",
    b" ",
    b"\t",
    b"644",
    b"9",
    b" x",
    b"\n",
    b"\r",
    b"\r\n",
    b"#86)C",
    b"end",
    b"y",
    b"`",
]


def test_a_line_that_begins_a_file_is_among_those_that_may() -> None:
    """So none is searched for if there is none among them."""
    dice = random.Random(2)
    hits = 0
    for _ in range(10_000):
        raw = b"".join(dice.choices(UU, k=dice.randrange(2, 14)))
        expected = list(encodings._blocks(raw, encodings._UU_BEGIN, b"\nend"))
        hits += bool(expected)
        found = list(encodings._uu_blocks(raw))
        assert found[len(found) - len(expected) :] == expected
        assert len(found) - len(expected) == len(list(encodings._uu_begins(raw)))
    assert hits > 100


def test_archives_are_searched_for_in_text_only_if_they_may_be_there() -> None:
    """Nearly all of their marks were searched for in every object of an ambiguous mail."""
    marks = [mark for marks in archive_marks._MARKS.values() for mark, _, _ in marks]
    control = re.compile(rb"[\0\1\2\x1a\x1c]")
    dice = random.Random(5)
    for number in range(2000):
        pieces = [dice.choice(marks) + dice.randbytes(dice.randrange(90)) for _ in range(dice.randrange(1, 6))]
        content = b"x".join(pieces) if number % 4 else control.sub(b" ", b"x".join(pieces))
        expected = [kind for kind in archive_marks.KINDS if list(archive_marks.places(content, kind))]
        assert archive_marks.kinds_in(content, archive_marks.KINDS) == expected


@pytest.mark.parametrize("element", [b"<p:hlinkHover", b"<dbPr", b"<a><webPr", b"<customUI", b"<x:hlinkClick"])
def test_elements_that_open_or_run_something_are_recognised(element: bytes) -> None:
    assert office_xml.is_likely(b"<?xml version='1.0'?><r>" + element)
    assert not office_xml.is_likely(b"<?xml version='1.0'?><r>" + element[:-1])


def on_white(picture: Any) -> Any:
    """As it is shown, computed for each pixel."""
    from PIL import Image

    colours = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours).convert("L")


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_each_colour_of_a_palette_is_shown_on_white(kind: str) -> None:
    image = pytest.importorskip("PIL.Image")
    dice = random.Random(kind)
    for colours in (2, 5, 16, 100, 256) * 8:
        picture = image.frombytes("P", (40, 30), bytes(dice.choices(range(colours), k=1200)))
        picture.putpalette(dice.randbytes(3 * colours))
        shades = [dice.randrange(colours), dice.randbytes(colours), b"\xff" * colours, b"\0"]
        out = io.BytesIO()
        picture.save(out, kind, transparency=dice.choice(shades[: 1 if kind == "GIF" else None]))
        first, second = image.open(io.BytesIO(out.getvalue())), image.open(io.BytesIO(out.getvalue()))
        assert pictures._on(first, "white").tobytes() == on_white(second).tobytes()


@pytest.mark.parametrize("least", [0, 254, 255])
def test_an_opaque_picture_is_shown_as_it_is(least: int) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.frombytes("RGBA", (256, 64), random.Random(3).randbytes(256 * 64 * 4))
    picture.putalpha(image.frombytes("L", (256, 64), bytes(random.Random(4).choices(range(least, 256), k=256 * 64))))
    assert pictures._on(picture, "white").tobytes() == on_white(picture).tobytes()
