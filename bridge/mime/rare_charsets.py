"""Charsets that some mail program knows and Python does not, or that Python reads too slowly for what a sender chooses.

Only what links and file names consist of must be right: ASCII, however it is written. All time is linear, and nothing
here raises.
"""

from __future__ import annotations

import binascii
import re
import unicodedata
from collections.abc import Callable, Mapping

NAMES = {  # spelt as in `words._MORE_NAMES`
    "utf_7_imap": "utf-7-imap utf-7-imap4 utf7imap imap-utf-7 imap-mailbox-name x-imap-mailbox-name mutf-7 x-mutf-7 "
    "imap4-utf-7 x-imap-modified-utf7",
    "unicode_escape": "unicode-escape raw-unicode-escape java c99 x-java",
    "punycode": "punycode idna idna2008 uts46",
    "iso2022_cn": "iso-2022-cn iso-2022-cn-ext csiso2022cn csiso2022cnext iso-2022-cn-cns iso-2022-cn-gb",
    "bocu_1": "bocu-1 csbocu-1 1214 1215",
    "scsu": "scsu csscsu 1212 1213",
    "armscii_8": "armscii-8 armscii8 armscii-8a",
    "cp1133": "ibm-cp1133 1133",
    "cp290": "290 930 1390 4386 5026 8482 9122 20290 50930 ebcdic-jp-kana ebcdicjpkana",
}


def escapes_replaced(text: str) -> str:
    r"""`\x6a`, `\u006a`, `\u{6a}`, `\152` and `\N{LATIN SMALL LETTER J}`: a "j" in Python, Java and JavaScript."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u+([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|u\{0{0,9}([0-9a-fA-F]{1,6})\}|([0-7]{1,3})"
    r"|N\{([^{}]{1,99})\}|([^0-9A-Za-z]))"
)


def _character(match: re.Match[str]) -> str:
    *hexadecimal, octal, name, other = match.groups()
    if name:
        try:
            return unicodedata.lookup(name)
        except KeyError:
            return match[0]
    if other:
        return "" if other in "\r\n" else other
    number = int(octal, 8) if octal else int(next(filter(None, hexadecimal)), 16)
    return chr(number) if number < 0x110000 else "\ufffd"


def _unicode_escape(raw: bytes) -> str:
    return escapes_replaced(raw.decode("latin-1"))


_IMAP_RUN = re.compile(rb"&([A-Za-z0-9+,]*)-?")


def _utf_7_imap(raw: bytes) -> str:
    """RFC 3501 5.1.3: as UTF-7, with `&` for `+` and `,` for `/`. Some programs accept plain UTF-7 as well."""
    return _IMAP_RUN.sub(_imap_run, raw).decode("utf-8", "replace")


def _imap_run(match: re.Match[bytes]) -> bytes:
    run = match[1].replace(b",", b"/")
    if not run:
        return b"&"
    run = run[:-1] if len(run) % 4 == 1 else run
    units = binascii.a2b_base64(run + b"=" * (-len(run) % 4))
    return units[: len(units) // 2 * 2].decode("utf-16-be", "replace").encode()


_ENCODED_LABEL = re.compile(rb"xn--((?:[a-z0-9]+-)*)[a-z0-9]*", re.IGNORECASE)


def _punycode(raw: bytes) -> str:
    """The ASCII in it, which stands before the last hyphen. The rest says where to insert other characters."""
    labels = _ENCODED_LABEL.sub(lambda match: match[1][:-1], raw)
    base = labels.rpartition(b"-")[0] if labels == raw else labels
    return base.decode("utf-8", "replace")


_SHIFTED = re.compile(rb"\x0e([^\x0f\r\n]*)")
_TO_HIGH = bytes(byte | 0x80 for byte in range(256))


def _iso2022_cn(raw: bytes) -> str:
    """Chinese characters are between SO and SI. Those that are not in GB 2312 are read as others that are."""
    shifted = _SHIFTED.sub(lambda match: match[1].translate(_TO_HIGH), raw)
    return shifted.decode("gb2312", "replace")


_MIDDLE = 0x90  # the byte of BOCU-1 that means no difference
_TRAILS = [*range(1, 7), *range(0x10, 0x1A), *range(0x1C, 0x20), *range(0x21, 0x100)]  # bytes that may follow
_TRAIL = {byte: value for value, byte in enumerate(_TRAILS)}


def _bocu_1(raw: bytes) -> str:
    """Unicode Technical Note 6: each character as its difference from the block of the one before it."""
    out: list[str] = []
    before, at = 0x40, 0
    while at < len(raw):
        byte, at = raw[at], at + 1
        if byte <= 0x20:
            out.append(chr(byte))
            before = before if byte == 0x20 else 0x40
            continue
        count, difference = _lead(byte)
        for _ in range(count):
            value = _TRAIL.get(raw[at], 0) if at < len(raw) else 0
            difference, at = difference * len(_TRAILS) + value, at + 1
        difference += _offset(byte, count)
        code = before + difference
        if not 0 <= code < 0x110000 or byte == 0xFF:
            before = 0x40
            continue
        out.append(chr(code))
        before = _middle(code)
    return "".join(out)


def _lead(byte: int) -> tuple[int, int]:
    """How many bytes follow, and the number that the first one stands for."""
    if 0x50 <= byte < 0xD0:
        return 0, byte - _MIDDLE
    if 0xD0 <= byte < 0xFB:
        return 1, byte - 0xD0
    if 0x25 <= byte < 0x50:
        return 1, byte - 0x50
    if 0xFB <= byte < 0xFE:
        return 2, byte - 0xFB
    if 0x22 <= byte < 0x25:
        return 2, byte - 0x25
    return (3, 0) if byte == 0xFE else (3, -1)


def _offset(byte: int, count: int) -> int:
    size = len(_TRAILS)
    reach = {0: 0, 1: 64, 2: 64 + 43 * size, 3: 64 + 43 * size + 3 * size * size}[count]
    return reach if byte >= 0x50 else -reach


def _middle(code: int) -> int:
    """The middle of the block that the next character probably belongs to."""
    if 0x3040 <= code <= 0x309F:
        return 0x3070
    if 0x4E00 <= code <= 0x9FA5:
        return 0x7711
    if 0xAC00 <= code <= 0xD7A3:
        return 0xC1D1
    return (code & ~0x7F) + 0x40


_SCSU = re.compile(rb"\x0e(..)|\x0f((?:\xf0..|[^\xe0-\xf2].)*+)(?:[\xe0-\xe7]|[\xe8-\xef].|\xf1..)?|\x01(.)", re.DOTALL)
_SCSU_QUOTE = re.compile(rb"\xf0(..)|(..)", re.DOTALL)


def _scsu(raw: bytes) -> str:
    """Unicode Technical Standard 6: ASCII is ASCII, but may also stand in pairs of bytes, or be quoted."""
    return _SCSU.sub(_from_scsu, raw).decode("latin-1")


def _from_scsu(match: re.Match[bytes]) -> bytes:
    single, several, quoted = match.groups()
    if quoted is not None:
        return quoted
    units = single or _SCSU_QUOTE.sub(lambda pair: pair[1] or pair[2], several)
    return units.decode("utf-16-be", "replace").encode("latin-1", "replace")


def _table(base: str, changes: Mapping[int, str]) -> str:
    return "".join(changes.get(byte, bytes([byte]).decode(base, "replace")) for byte in range(256))


_KANA = dict(zip(b"bcdefghi", "abcdefgh", strict=True)) | dict(zip(b"qrstuvwx", "ijklmnop", strict=True))
_KANA |= {0x8B: "q", 0x9B: "r", 0xAB: "s", **{0xB3 + place: letter for place, letter in enumerate("tuvwxyz")}}
_KANA |= {0x70: "[", 0x80: "]", 0xA0: "~", 0xB2: "\\", 0xE0: "$"}
ONE_BYTE = {  # the differences from a charset that Python knows
    "armscii_8": _table("latin_1", {0xA4: ")", 0xA5: "(", 0xA9: ".", 0xAB: ",", 0xAC: "-"}),
    "cp1133": _table("latin_1", {0xDF: "k"}),
    "cp290": _table("cp037", _KANA),
}
DECODERS: dict[str, Callable[[bytes], str]] = {
    "utf_7_imap": _utf_7_imap,
    "unicode_escape": _unicode_escape,
    "punycode": _punycode,
    "iso2022_cn": _iso2022_cn,
    "bocu_1": _bocu_1,
    "scsu": _scsu,
}
