"""Files encoded within a text: what uudeview and ripmime write to disk is found, and its name is judged."""

from __future__ import annotations

import base64
import binascii

import pytest

from bridge.mime import encodings
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.long_cases import few
from tests.mime.reader import Missing
from tests.mime.readers import Ripmime, Uudeview
from tests.processor_time import is_linear
from tests.service.service_kit import EICAR

HEAD = b"From: a@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n"
PLAIN = HEAD + b"Content-Type: text/plain\r\n\r\nHello\r\n\r\n"
SCRIPT = b"WScript.Echo(1);\r\n" * 9
XX = b"+-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def uuencoded(content: bytes, width: int = 45) -> list[bytes]:
    pieces = (content[at : at + width] for at in range(0, len(content), width))
    return [binascii.b2a_uu(piece, backtick=True).rstrip(b"\n") for piece in pieces]


def xxencoded(content: bytes) -> list[bytes]:
    return [bytes(XX[(byte - 32) & 63] for byte in line) for line in uuencoded(content)]


def in_lower_case(lines: list[bytes]) -> list[bytes]:
    """With other characters of the same meaning: programs take the lower six bits."""
    return [line[:1] + bytes(byte + 64 if 32 < byte < 63 else byte for byte in line[1:]) for line in lines]


def escaped(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b">", b"&gt;") for line in lines]


def mail(begin: bytes, lines: list[bytes], end: bytes = b"`\r\nend\r\n") -> bytes:
    return PLAIN + begin + b"\r\n" + b"\r\n".join(lines) + b"\r\n" + end


def yenc(content: bytes) -> bytes:
    encoded = ((byte + 42) % 256 for byte in content)
    return b"".join(b"=%c" % ((byte + 64) % 256) if byte in b"\0\n\r=" else b"%c" % byte for byte in encoded)


def yenc_part(number: int, start: int, content: bytes, name: bytes = b"a.txt") -> bytes:
    return (
        b"=ybegin part=%d total=2 line=128 size=68 name=%b\r\n=ypart begin=%d end=%d\r\n%b\r\n=yend size=%d part=%d\r\n"
    ) % (number, name, start + 1, start + len(content), yenc(content), len(content), number)


EIGHT_BIT = PLAIN.replace(b"\r\n\r\n", b"; charset=iso-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n\r\n", 1)
BEGINS = {
    "BEGIN 644 {}": Ripmime,
    "Begin 644 {}": Ripmime,
    "begin {}": Uudeview,
    "begin 999 {}": Uudeview,
    "begin 1006447 {}": Uudeview,
    "begin x {}": Uudeview,
    "begin -644 {}": Ripmime,
    "begin         {}": Uudeview,
    "<pre>begin 644 {}": Uudeview,
    "<PRE>Begin {}": Uudeview,
}
BODIES = {
    "as usual": uuencoded,
    "lower case": lambda content: in_lower_case(uuencoded(content)),
    "words before": lambda content: [b"hello there"] * 30 + uuencoded(content),
    "empty lines": lambda content: [b""] * 30 + uuencoded(content),
}
CASES = {
    **{
        f"{begin}, {body}": (mail(begin.format("evil.js").encode(), BODIES[body](SCRIPT)), program)
        for begin, program in BEGINS.items()
        for body in BODIES
        if body != "words before" or program is Uudeview
    },
    "begin 644": (mail(b"begin 644 evil.js", uuencoded(SCRIPT)), Ripmime),
    "HTML": (mail(b"begin evil.js", escaped(uuencoded(SCRIPT))), Uudeview),
    "short lines": (mail(b"begin evil.js", uuencoded(SCRIPT, 3)), Uudeview),
    "one line": (mail(b"begin evil.js", in_lower_case(uuencoded(SCRIPT[:40])), b"end\r\n"), Uudeview),
    "xxencode": (mail(b"begin evil.js", xxencoded(SCRIPT), b"+\r\nend\r\n"), Uudeview),
    "yEnc": (
        EIGHT_BIT + b"=ybegin line=500 size=%d name=evil.js\r\n%b\r\n=yend size=%d\r\n"
        % (len(SCRIPT), yenc(SCRIPT), len(SCRIPT)),
        Uudeview,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_name_of_an_encoded_file_was_ignored(name: str) -> None:
    content, program = CASES[name]
    assert "evil.js" in {found_name[-7:] for found_name in written(program, content)}
    assert "mime:executable" in inspect(content, Limits()).tags


def written(program: type[Uudeview] | type[Ripmime], content: bytes) -> dict[str, bytes]:
    try:
        reader = program()
    except Missing as exc:
        pytest.skip(str(exc))
    try:
        return {found.name or "": found.content for found in reader.read_one(content)}
    finally:
        reader.close()


CONTENTS = {
    **{begin: (mail(begin.format("a.txt").encode(), uuencoded(EICAR)), program) for begin, program in BEGINS.items()},
    "no name": (mail(b"begin 644", uuencoded(EICAR)), Ripmime),
    "HTML": (mail(b"begin 644 a.txt", escaped(uuencoded(EICAR))), Uudeview),
    "a begin line before": (mail(b"begin 644 x.txt\r\nHELLO\r\nbegin 644 a.txt", uuencoded(EICAR)), Uudeview),
    "yEnc in two parts": (EIGHT_BIT + yenc_part(1, 0, EICAR[:30]) + yenc_part(2, 30, EICAR[30:]), Uudeview),
    "yEnc in the wrong order": (EIGHT_BIT + yenc_part(2, 30, EICAR[30:]) + yenc_part(1, 0, EICAR[:30]), Uudeview),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_the_content_of_an_encoded_file_was_missed(name: str) -> None:
    content, program = CONTENTS[name]
    assert any(EICAR in file for file in written(program, content).values())
    assert "malware:eicar" in inspect(content, Limits()).tags


def test_the_name_in_other_encodings_was_ignored() -> None:
    """In Base64 after `begin-base64`, and in the header of BinHex."""
    for begin in (b"begin-base64 644 evil.js", b"BEGIN-BASE64 evil.js"):
        content = PLAIN + begin + b"\r\n" + base64.encodebytes(SCRIPT).replace(b"\n", b"\r\n") + b"====\r\n"
        assert "mime:executable" in inspect(content, Limits()).tags
    assert "mime:executable" in inspect(PLAIN + in_binhex(SCRIPT, b"evil.js"), Limits()).tags


def in_binhex(content: bytes, name: bytes) -> bytes:
    head = bytes([len(name)]) + name + b"\0TEXT????\0\0" + len(content).to_bytes(4, "big")
    fork = head + b"\0\0\0\0\0\0" + content + b"\0\0"
    hqx = base64.b64encode(fork).rstrip(b"=").translate(bytes.maketrans(encodings._ALPHABET, encodings._HQX))
    lines = b"\r\n".join((b":" + hqx + b":")[at : at + 64] for at in range(0, len(hqx) + 2, 64))
    return b"(This file must be converted with BinHex 4.0)\r\n\r\n" + lines + b"\r\n"


@pytest.mark.parametrize(
    "before", [b":\r\n", b" : see the file below, thank you\r\n", b":-) and a smile before it ends\r\n"]
)
def test_a_line_with_a_colon_in_front_of_a_binhex_file_hid_it(before: bytes) -> None:
    """The file's own colon was taken for the end of what seemed to begin before it."""
    content = PLAIN + before + in_binhex(SCRIPT, b"evil.js")
    assert any(file.startswith(SCRIPT) for file in encodings.embedded(before + in_binhex(SCRIPT, b"evil.js")))
    assert "mime:executable" in inspect(content, Limits()).tags


@pytest.mark.parametrize(
    "text",
    [
        b"We begin at 9:00, see www.example.com\r\nfor the program.\r\nBEST REGARDS,\r\nALICE\r\n",
        b"begin 10 November at www.example.com\r\nwith a short talk of ours, as every year at this time.\r\n",
        b"Begin with https://example.com\r\n\r\n1. Open it\r\n2. Log in\r\n\r\nThanks\r\nend\r\n",
        b"-----BEGIN CERTIFICATE----- of example.com\r\n" + base64.encodebytes(bytes(range(200))),
        b"BEGIN TRANSACTION example.com\r\nSELECT * FROM MAIL;\r\nEND\r\n",
    ],
)
def test_ordinary_text_has_no_names(text: bytes) -> None:
    assert "mime:executable" not in inspect(PLAIN + text, Limits()).tags


@pytest.mark.parametrize(
    "piece", few([b"begin ", b"\nbegin 6 a\n#AAAA\n", b"begin 644 a.js\nM", b"\nbegin x\n", b"=ybegin a\n"], 2)
)
def test_many_begin_lines_take_linear_time(piece: bytes) -> None:
    def work(text: bytes) -> None:
        encodings.has_uu_data(text, 0, len(text))
        list(encodings.embedded_names(text))
        list(encodings.embedded(text))

    short, long = (piece * (size // len(piece)) for size in (100_000, 400_000))
    assert is_linear(work, short, long)
