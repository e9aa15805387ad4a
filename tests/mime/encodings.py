"""Transfer encodings as senders write them, and as attackers do: each variant is a list of lines.

Every function takes the content and dice and returns the lines; the name of the variant says what is odd
about it. Decoding is what the tests compare, so nothing here decodes.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import struct
import zlib
from collections.abc import Callable
from random import Random

Encoder = Callable[[bytes, Random], list[bytes]]


def lines_of(text: bytes, length: int) -> list[bytes]:
    return [text[at : at + length] for at in range(0, len(text), length)]


# --- base64 --------------------------------------------------------------------------------------


def base64_plain(content: bytes, _dice: Random) -> list[bytes]:
    return lines_of(base64.b64encode(content), 76)


def base64_one_line(content: bytes, _dice: Random) -> list[bytes]:
    return [base64.b64encode(content)]


def base64_odd_lines(content: bytes, dice: Random) -> list[bytes]:
    return lines_of(base64.b64encode(content), dice.choice((1, 2, 3, 4, 5, 7, 61, 63, 75, 77, 990, 2000)))


def base64_mixed_lines(content: bytes, dice: Random) -> list[bytes]:
    text, lines = base64.b64encode(content), []
    while text:
        size = dice.choice((1, 3, 4, 8, 16, 33, 60))
        lines.append(text[:size])
        text = text[size:]
    return lines


def base64_padded_pieces(content: bytes, dice: Random) -> list[bytes]:
    """Every line is encoded for itself, so that padding stands in the middle."""
    return [base64.b64encode(piece) for piece in lines_of(content, dice.choice((1, 2, 4, 5, 31, 55, 56)))]


def base64_padding_between(content: bytes, dice: Random) -> list[bytes]:
    lines = base64_plain(content, dice)
    at = dice.randrange(1, len(lines))
    lines[at - 1 : at] = [lines[at - 1] + dice.choice((b"=", b"==", b"====", b"=\t="))]
    return lines


def base64_no_padding(content: bytes, _dice: Random) -> list[bytes]:
    return lines_of(base64.b64encode(content + b"x" * (-len(content) % 3 + 1)).rstrip(b"="), 76)


def base64_extra_padding(content: bytes, _dice: Random) -> list[bytes]:
    return [*lines_of(base64.b64encode(content), 76), b"====", b"="]


def base64_junk(content: bytes, dice: Random) -> list[bytes]:
    text = bytearray(base64.b64encode(content))
    junk = dice.choice((b"!", b"-", b"_", b" ", b"\t", b"\x0b", b"*", b".", b"\xff", b"\0", b"=", b"(", b"&"))
    for _ in range(dice.choice((1, 1, 5, 40))):
        at = dice.randrange(len(text))
        text[at:at] = junk
    return lines_of(bytes(text), 76)


def base64_junk_lines(content: bytes, dice: Random) -> list[bytes]:
    lines = base64_plain(content, dice)
    junk = dice.choice((b"", b" ", b"!!!!", b"-- ", b"X-Junk: y", b"AAA", b"=", b"--", b"--x", b"\x0c", b"."))
    lines.insert(dice.randrange(len(lines) + 1), junk)
    return lines


def base64_indented(content: bytes, dice: Random) -> list[bytes]:
    before = dice.choice((b" ", b"\t", b"    ", b"> ", b"\x0b"))
    return [before + line for line in base64_plain(content, dice)]


def base64_trailing_space(content: bytes, dice: Random) -> list[bytes]:
    after = dice.choice((b" ", b"\t", b"   ", b"\r", b"\x0b"))
    return [line + after for line in base64_plain(content, dice)]


def base64_url_safe(content: bytes, _dice: Random) -> list[bytes]:
    return lines_of(base64.urlsafe_b64encode(content), 76)


def base64_blank_first(content: bytes, dice: Random) -> list[bytes]:
    return [*dice.choice(([b""], [b"", b""], [b" "], [b"\t", b""])), *base64_plain(content, dice)]


def base64_text_after(content: bytes, dice: Random) -> list[bytes]:
    return [*base64_plain(content, dice), *dice.choice(([b"", b"-- ", b"regards"], [b"regards, me"], [b"=", b"QUJD"]))]


def base64_text_before(content: bytes, dice: Random) -> list[bytes]:
    return [*dice.choice(([b"see the file:"], [b"hello there"], [b"hi!", b""])), *base64_plain(content, dice)]


def base64_twice(content: bytes, dice: Random) -> list[bytes]:
    return base64_plain(b"\r\n".join(base64_plain(content, dice)), dice)


def base64_soft_breaks(content: bytes, dice: Random) -> list[bytes]:
    """In quoted-printable, one long line; otherwise, lines with too much or too little padding."""
    *lines, last = lines_of(base64.b64encode(content), dice.choice((32, 60, 71, 72, 73, 74, 75)))
    return [*(line + b"=" for line in lines), last]


def base64_padded_like_breaks(content: bytes, dice: Random) -> list[bytes]:
    """Every line is encoded for itself, with padding of one "=", which is a soft line break in quoted-printable."""
    return [base64.b64encode(piece) for piece in lines_of(content, dice.choice((26, 47, 50, 53, 56)))]


def base64_behind_link(content: bytes, dice: Random) -> list[bytes]:
    """After a link that quoted-printable divides, as many real mails have it."""
    link = b"https://example.org/" + base64.b64encode(dice.randbytes(150)).rstrip(b"=").replace(b"+", b"/")
    encoder = dice.choice((base64_plain, base64_soft_breaks, base64_padded_like_breaks, base64_junk_lines))
    return [*(line + b"=" for line in lines_of(link, 75)), b"", b"Hello.", b"", *encoder(content, dice)]


def base64_added_cr(content: bytes, dice: Random) -> list[bytes]:
    """Some programs remove CR from a decoded text."""
    return base64_plain(content.replace(b"\n", b"\r\n"), dice)


# --- quoted-printable ----------------------------------------------------------------------------


def qp_all(content: bytes, _dice: Random) -> list[bytes]:
    """Every byte escaped, and soft line breaks."""
    text = b"".join(b"=%02X" % byte for byte in content)
    pieces = lines_of(text, 72)
    return [piece + b"=" for piece in pieces[:-1]] + pieces[-1:]


def qp_plain(content: bytes, _dice: Random) -> list[bytes]:
    text = [b"=%02X" % byte if byte in b"= \t" or not 33 <= byte < 127 else bytes([byte]) for byte in content]
    lines, line = [], b""
    for item in text:
        if len(line) + len(item) > 75:
            lines.append(line + b"=")
            line = b""
        line += item
    return [*lines, line]


def qp_lower_case(content: bytes, dice: Random) -> list[bytes]:
    return [line.lower() for line in qp_all(content, dice)]


def qp_space_after_break(content: bytes, dice: Random) -> list[bytes]:
    after = dice.choice((b" ", b"\t", b"  ", b"\x0b", b"\r"))
    return [line + after if line.endswith(b"=") else line for line in qp_all(content, dice)]


def qp_long_lines(content: bytes, _dice: Random) -> list[bytes]:
    return [b"".join(b"=%02X" % byte for byte in content)]


def qp_broken_escape(content: bytes, dice: Random) -> list[bytes]:
    lines = qp_all(content, dice)
    at = dice.randrange(len(lines))
    lines[at] += dice.choice((b"=", b"==", b"=X", b"=4", b"= =", b"=\0"))
    return lines


def qp_hard_breaks(content: bytes, dice: Random) -> list[bytes]:
    """The line breaks of the content are line breaks of the mail, which some programs change."""
    end = dice.choice((b"\n", b"\n", b"\r\n"))
    return [line for piece in content.split(end) for line in qp_all(piece, dice) or [b""]]


def qp_hard_breaks_after_spaces(content: bytes, dice: Random) -> list[bytes]:
    """Programs that follow RFC 2045 remove the spaces."""
    after = dice.choice((b" ", b"\t", b" \t  "))
    return [line if line.endswith(b"=") else line + after for line in qp_hard_breaks(content, dice)]


def qp_added_cr(content: bytes, dice: Random) -> list[bytes]:
    """Some programs remove CR, or make one of each line end."""
    less = content.replace(b"\r\n", b"\n") if dice.random() < 0.5 else content.replace(b"\n", b"\r\n")
    return qp_all(less, dice)


# --- formats older than MIME ---------------------------------------------------------------------


def uuencoded(content: bytes, dice: Random) -> list[bytes]:
    return [b"begin 644 file.bin", *_uu_lines(content, backtick=dice.random() < 0.5), b"`", b"end"]


def _uu_lines(content: bytes, backtick: bool) -> list[bytes]:
    return [binascii.b2a_uu(piece, backtick=backtick).rstrip(b"\n") for piece in lines_of(content, 45)]


def uu_no_end(content: bytes, dice: Random) -> list[bytes]:
    return uuencoded(content, dice)[: dice.choice((-1, -2))]


def uu_no_begin(content: bytes, dice: Random) -> list[bytes]:
    return uuencoded(content, dice)[1:]


def uu_odd_begin(content: bytes, dice: Random) -> list[bytes]:
    begin = (b"begin 644 a file name.bin", b"begin  0644  file.bin", b"BEGIN 644 file.bin", b"begin 6 file.bin")
    more = (b"begin 644", b"begin 644 ", b" begin 644 file.bin", b"begin 644 file.bin ", b"begin 100644 file.bin")
    return [dice.choice(begin + more), *uuencoded(content, dice)[1:]]


def uu_stripped(content: bytes, _dice: Random) -> list[bytes]:
    """Spaces at the ends of lines got lost on the way."""
    lines = [line.rstrip(b" ") for line in _uu_lines(content, backtick=False)]
    return [b"begin 644 file.bin", *lines, b" ", b"end"]


def uu_with_checksum(content: bytes, _dice: Random) -> list[bytes]:
    return [b"begin 644 file.bin", *(line + b"!" for line in _uu_lines(content, backtick=True)), b"`", b"end"]


def uu_text_around(content: bytes, dice: Random) -> list[bytes]:
    return [b"Hello,", b"here is the file.", b"", *uuencoded(content, dice), b"", b"regards"]


def uu_base64(content: bytes, dice: Random) -> list[bytes]:
    return [b"begin-base64 644 file.bin", *base64_plain(content, dice), b"===="]


def xxencoded(content: bytes, _dice: Random) -> list[bytes]:
    alphabet = b"+-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    table = bytes(alphabet[(code - 32) & 63] if 32 <= code <= 96 else code for code in range(256))
    lines = [line.translate(table) for line in _uu_lines(content, backtick=False)]
    return [b"begin 644 file.bin", *lines, b"+", b"end"]


def yenc(content: bytes, dice: Random) -> list[bytes]:
    lines, line = [], bytearray()
    for byte in content:
        code = (byte + 42) & 255
        line += (
            bytes([61, (code + 64) & 255]) if code in (0, 10, 13, 61) or (code == 46 and not line) else bytes([code])
        )
        if len(line) >= 128:
            lines.append(bytes(line))
            line.clear()
    if line:
        lines.append(bytes(line))
    size, crc = len(content), zlib.crc32(content)
    begin = b"=ybegin line=128 size=%d name=file.bin" % size
    if dice.random() < 0.3:
        part = [b"=ybegin part=1 total=1 line=128 size=%d name=file.bin" % size, b"=ypart begin=1 end=%d" % size]
        return [*part, *lines, b"=yend size=%d part=1 pcrc32=%08x" % (size, crc)]
    return [begin, *lines, b"=yend size=%d crc32=%08x" % (size, crc)]


def yenc_no_end(content: bytes, dice: Random) -> list[bytes]:
    return yenc(content, dice)[:-1]


def yenc_parts(content: bytes, dice: Random) -> list[bytes]:
    """A file in several blocks, perhaps not in their order."""
    blocks = [line for _, lines in yenc_blocks(content, dice) for line in [*lines, b""]]
    return blocks[:-1]


def yenc_blocks(content: bytes, dice: Random) -> list[tuple[int, list[bytes]]]:
    """Each block with its number."""
    pieces = lines_of(content, -(-len(content) // dice.choice((2, 3))))
    found, at = [], 0
    for number, piece in enumerate(pieces, 1):
        _, *lines, _ = yenc(piece, Random(0))  # these dice add no line
        part = [b"=ybegin part=%d total=%d line=128 size=%d name=file.bin" % (number, len(pieces), len(content))]
        part.append(b"=ypart begin=%d end=%d" % (at + 1, at + len(piece)))
        found.append((number, [*part, *lines, b"=yend size=%d part=%d" % (len(piece), number)]))
        at += len(piece)
    if dice.random() < 0.3:
        found.reverse()
    return found


def binhex(content: bytes, _dice: Random) -> list[bytes]:
    def checked(data: bytes) -> bytes:
        return data + struct.pack(">H", binascii.crc_hqx(data, 0))

    head = b"\x08file.bin\0BINAhDmp\0\0" + struct.pack(">II", len(content), 0)
    raw = checked(head) + checked(content) + checked(b"")
    packed = raw.replace(b"\x90", b"\x90\0")
    alphabet = b"!\"#$%&'()*+,-012345689@ABCDEFGHIJKLMNPQRSTUVXYZ[`abcdefhijklmpqr"
    usual = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    text = base64.b64encode(packed).rstrip(b"=").translate(bytes.maketrans(usual, alphabet))
    return [b"(This file must be converted with BinHex 4.0)", b"", *lines_of(b":" + text + b":", 64)]


def tnef(content: bytes) -> bytes:
    """A winmail.dat with the content as an attachment."""

    def attribute(level: int, code: int, data: bytes) -> bytes:
        return struct.pack("<BII", level, code, len(data)) + data + struct.pack("<H", sum(data) & 0xFFFF)

    stream = struct.pack("<IH", 0x223E9F78, 1)
    stream += attribute(1, 0x00089006, struct.pack("<I", 0x00010000)) + attribute(
        1, 0x00069007, struct.pack("<II", 1252, 0)
    )
    stream += attribute(2, 0x00069002, struct.pack("<HIHHII", 1, 0, 32, 32, 0, 0)[:14])
    stream += attribute(2, 0x00018010, b"file.bin\0")
    return stream + attribute(2, 0x0006800F, content)


def tnef_base64(content: bytes, dice: Random) -> list[bytes]:
    return base64_plain(tnef(content), dice)


def tnef_in_tnef(content: bytes, dice: Random) -> list[bytes]:
    return base64_plain(tnef(tnef(content)), dice)


def apple_single(content: bytes) -> bytes:
    """The file and its name in one (RFC 1740)."""
    name, at = b"file.bin", 26 + 2 * 12
    entries = struct.pack(">III", 3, at, len(name)) + struct.pack(">III", 1, at + len(name), len(content))
    return b"\0\x05\x16\0\0\x02\0\0" + bytes(16) + struct.pack(">H", 2) + entries + name + content


def apple_single_base64(content: bytes, dice: Random) -> list[bytes]:
    return base64_plain(apple_single(content), dice)


def base64_short(content: bytes, dice: Random) -> list[bytes]:
    """Lines that are too short to look like those of a file."""
    return lines_of(base64.b64encode(content), dice.choice((8, 12, 16, 20, 24, 28, 30)))


def base64_in_qp(content: bytes, dice: Random) -> list[bytes]:
    """Decoded twice by programs that find Base64 in a text."""
    return qp_plain(b"\r\n".join(base64_plain(content, dice)), dice)


def qp_in_base64(content: bytes, dice: Random) -> list[bytes]:
    return base64_plain(b"\r\n".join(qp_all(content, dice)), dice)


def base64_utf16(content: bytes, dice: Random) -> list[bytes]:
    """Base64 whose letters have two bytes each."""
    return [line.decode().encode("utf-16le") for line in base64_plain(content, dice)]


def gzip_base64(content: bytes, dice: Random) -> list[bytes]:
    return base64_plain(gzip.compress(content, mtime=0), dice)


def layered_base64(content: bytes, dice: Random) -> list[bytes]:
    """One of the older formats in a text that is itself encoded."""
    inner = dice.choice((uuencoded, uu_text_around, uu_base64, xxencoded, yenc, binhex))
    return base64_plain(b"\r\n".join(inner(content, dice)), dice)


def layered_qp(content: bytes, dice: Random) -> list[bytes]:
    inner = dice.choice((uuencoded, uu_text_around, uu_base64, xxencoded, yenc, binhex))
    return qp_all(b"\r\n".join(inner(content, dice)), dice)


def identity(content: bytes, _dice: Random) -> list[bytes]:
    return [content]


def identity_in_lines(content: bytes, dice: Random) -> list[bytes]:
    """The line breaks of the content are those of the mail."""
    return content.split(dice.choice((b"\n", b"\r\n")))


# Encoder, and the transfer encoding that a sender would declare.
ENCODERS: dict[str, tuple[Encoder, bytes]] = {
    "base64": (base64_plain, b"base64"),
    **{
        encoder.__name__.replace("_", "-"): (encoder, b"base64")
        for encoder in (
            *(base64_one_line, base64_odd_lines, base64_mixed_lines, base64_padded_pieces, base64_padding_between),
            *(base64_no_padding, base64_extra_padding, base64_junk, base64_junk_lines, base64_indented),
            *(base64_trailing_space, base64_url_safe, base64_blank_first, base64_text_after, base64_text_before),
            *(base64_added_cr, base64_twice, tnef_base64, gzip_base64, layered_base64),
            *(base64_short, qp_in_base64, base64_utf16, tnef_in_tnef, apple_single_base64),
        )
    },
    **{
        encoder.__name__.replace("_", "-"): (encoder, b"quoted-printable")
        for encoder in (
            qp_all,
            qp_plain,
            qp_lower_case,
            qp_space_after_break,
            qp_long_lines,
            qp_broken_escape,
            qp_hard_breaks,
            qp_hard_breaks_after_spaces,
            qp_added_cr,
            layered_qp,
            base64_soft_breaks,
            base64_padded_like_breaks,
            base64_behind_link,
            base64_in_qp,
        )
    },
    **{
        encoder.__name__.replace("_", "-"): (encoder, b"x-uuencode")
        for encoder in (uuencoded, uu_no_end, uu_no_begin, uu_odd_begin, uu_stripped, uu_with_checksum)
    },
    **{
        encoder.__name__.replace("_", "-"): (encoder, b"7bit")
        for encoder in (uu_text_around, uu_base64, xxencoded, yenc, yenc_no_end, yenc_parts, binhex)
    },
    "identity": (identity, b"8bit"),
    "identity-in-lines": (identity_in_lines, b"8bit"),
}
LINE_ENDS_MATTER = (
    *("qp-hard-breaks", "qp-hard-breaks-after-spaces", "qp-added-cr", "base64-added-cr"),
    *("identity", "identity-in-lines"),
)
