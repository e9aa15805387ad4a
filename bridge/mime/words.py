"""Text in mail: charsets and RFC 2047 encoded words, read leniently; nothing here raises, and all time is linear.

The sender chooses the name of a charset, so a name never reaches Python's own search for codecs: that search also finds
codecs that are not charsets or take quadratic time, and it remembers every unknown name forever. Only the charsets in a
fixed table are decoded. Text in any other is read as Latin-1, in which ASCII is ASCII. What switches between the halves
of a charset (ISO 2022) is removed from every text: programs that switch do not show it.
"""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Iterator
from encodings.aliases import aliases
from functools import cache, lru_cache
from itertools import groupby
from urllib.parse import unquote

from bridge.mime import rare_charsets, tokens
from bridge.mime.encodings import decode

_MAX_SUBJECT = 200  # characters

# Python's names for the codecs that are charsets: with one byte for each character, with more, and those in which ASCII
# is not written as ASCII.
_ONE_BYTE, _MORE_BYTES, UNICODE, EBCDIC = (
    frozenset(names.split())
    for names in (
        "cp037 cp1006 cp1026 cp1125 cp1140 cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp273 cp424 "
        "cp437 cp500 cp720 cp737 cp775 cp850 cp852 cp855 cp856 cp857 cp858 cp860 cp861 cp862 cp863 cp864 cp865 cp866 "
        "cp869 cp874 cp875 hp_roman8 iso8859_10 iso8859_11 iso8859_13 iso8859_14 iso8859_15 iso8859_16 iso8859_2 "
        "iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_9 koi8_r koi8_t koi8_u kz1048 "
        "mac_croatian mac_cyrillic mac_farsi mac_greek mac_iceland mac_latin2 mac_roman mac_romanian mac_turkish "
        "ptcp154 tis_620",
        "big5 big5hkscs cp932 cp949 cp950 euc_jis_2004 euc_jisx0213 euc_jp euc_kr gb18030 gb2312 gbk hz iso2022_jp "
        "iso2022_jp_1 iso2022_jp_2 iso2022_jp_2004 iso2022_jp_3 iso2022_jp_ext iso2022_kr johab shift_jis "
        "shift_jis_2004 shift_jisx0213",
        "utf_16 utf_16_be utf_16_le utf_32 utf_32_be utf_32_le utf_7",
        "cp037 cp1026 cp1140 cp273 cp424 cp500 cp875",
    )
)
# Text in them is read as ASCII, too. Those in ODD write ASCII in another way; the others switch to other characters.
ODD = UNICODE | EBCDIC | set(rare_charsets.NAMES)
SWITCHING = {codec for codec in _MORE_BYTES if codec.startswith("iso2022")} | {"hz"}
_MORE_NAMES = {  # that mail programs and browsers know, and Python does not
    "utf_7": "unicode-1-1-utf-7 csunicode11utf7 x-unicode-2-0-utf-7 65000",
    "utf_8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8 utf-8-sig utf8mb4",
    "utf_16": "unicode csunicode ucs-2 iso-10646-ucs-2 utf-16-bom ucs2 unicodelittle x-utf-16",
    "utf_16_le": "unicodefeff ucs-2le x-utf-16le x-utf-16le-bom utf-16-le 1200",
    "utf_16_be": "unicodefffe unicodebig ucs-2be x-utf-16be x-utf-16be-bom 1201",
    "utf_32": "ucs-4 iso-10646-ucs-4 csucs4",
    "utf_32_le": "ucs-4le x-utf-32le 12000",
    "utf_32_be": "ucs-4be x-utf-32be 12001",
    "cp874": "windows-874 dos-874 x-windows-874",
    "cp932": "windows-31j cswindows31j x-sjis x-ms-cp932",
    "cp949": "windows-949 ks-c-5601-1989 x-windows-949",
    "cp950": "windows-950 x-windows-950",
    "euc_jp": "x-euc-jp x-euc",
    "gbk": "x-gbk gb-2312-80 gb2312-80",
    "gb2312": "x-euc-cn cngb",
    "iso8859_8": "iso-8859-8-i iso-8859-8-e csiso88598i csiso88598e logical visual",
    "mac_roman": "x-mac-roman csmacintosh mac",
    "mac_cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "koi8_r": "koi koi8",
    "cp1252": "x-cp1252 x-ansi",
    "cp1251": "x-cp1251",
    "cp1250": "x-cp1250",
    "cp875": "875",
    # The numbers of the other EBCDIC charsets that iconv, Java and Windows know. Letters, digits and most punctuation
    # are the same in nearly all, so this one reads the names of files and the links in them.
    "cp037": "37 38 256 274 275 277 278 280 281 282 284 285 297 420 423 803 833 836 838 870 871 880 905 918 924 "
    "931 933 935 937 939 1025 1027 1047 1070 1079 1081 1084 1097 1112 1122 1123 1130 1132 1137 1141 1142 1143 "
    "1144 1145 1146 1147 1148 1149 1153 1154 1155 1156 1157 1158 1160 1164 1165 1166 1364 1371 1376 1377 1388 "
    "1399 4517 4899 4933 4971 5035 5123 8612 9030 9067 9580 12712 16684 16804 20273 20277 20278 20280 20284 "
    "20285 20297 20420 20423 20424 20833 20838 20871 20880 20905 20924 21025 21027 50931 50933 50935 50937 50939 "
    "ibm-thai csibmthai",
}
_NUMBERED = re.compile(  # also as ICU writes it: ibm-37_P100-1995,swaplfnl
    "(?:x|cs)?(?:cpibm|ibm|cp|ccsid)?0{0,9}([0-9]{2,5})(?:[px][0-9]{7})?(?:s390|v1|a|lf|swaplfnl)?"
)
_EBCDIC_NAME = re.compile("(?:x|cs)?(?:ebcdic|osf1002|posixbc)")  # 1002: the Open Group's prefix of IBM's numbers
_NO_LETTER = re.compile("[^a-z0-9]+")


def _key(charset: str) -> str:
    return _NO_LETTER.sub("", charset.lower())


_CODECS = {
    "": "utf_8",
    **{_key(codec): codec for codec in (*_ONE_BYTE, *_MORE_BYTES, *UNICODE)},
    **{_key(name): codec for name, codec in aliases.items() if codec in _ONE_BYTE | _MORE_BYTES | UNICODE},
    **{_key(name): codec for codec, names in (_MORE_NAMES | rare_charsets.NAMES).items() for name in names.split()},
    **{_key(name): "utf_8" for name, codec in aliases.items() if codec in ("utf_8", "ascii")},
    **dict.fromkeys(("utf8", "ascii", "usascii"), "utf_8"),
}
_LATIN_1 = frozenset(_key(name) for name, codec in aliases.items() if codec == "latin_1") | {"latin1"}
_MAX_CHARSET = 60  # characters; a longer name is not in the table


def codec_of(charset: str) -> str:
    """Python's name for a charset in the table; Latin-1 for every other."""
    return codecs_of(charset)[0]


def codecs_of(charset: str) -> tuple[str, ...]:
    """Those of all charsets that programs find in a value, which may have no quotes: `utf-7/x` is UTF-7 for most."""
    is_short = len(charset) <= 2 * _MAX_CHARSET
    return _codecs_of(charset if is_short else tokens.first(charset)[: 2 * _MAX_CHARSET])


@lru_cache(maxsize=256)  # most mail has one of very few
def _codecs_of(charset: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_codec_of, (charset, tokens.first(charset)))))


def _codec_of(charset: str) -> str:
    name = charset.partition("*")[0].partition("//")[0]  # RFC 2231 5: a language may follow; or what iconv is to do
    if len(name) > _MAX_CHARSET:
        return "latin_1"
    key = _key(name)
    return _CODECS.get(key) or _codec_of_number(key) or ("cp037" if _EBCDIC_NAME.match(key) else "latin_1")


def _codec_of_number(key: str) -> str | None:
    match = _NUMBERED.fullmatch(key)
    return _CODECS.get(match[1]) if match else None


def as_text(raw: bytes, charset: str) -> str:
    """As most programs show it: in a charset that they know."""
    return decoded(raw, next((codec for codec in codecs_of(charset) if codec != "latin_1"), "latin_1"))


def decoded(raw: bytes, codec: str) -> str:
    """The text, in a codec that `codec_of` returned."""
    if codec in rare_charsets.DECODERS:
        text = whole_characters(rare_charsets.DECODERS[codec](raw))
    elif codec == "utf_7":
        text = whole_characters(raw.decode(codec, "replace"))
    elif codec in _TABLES:  # twenty times as fast as the codec itself with bytes that have no meaning (Python 3.11)
        text = codecs.charmap_decode(raw, "strict", _table(codec))[0]
    else:
        text = _decoded(raw, codec)
    return without_switches(text)


def _decoded(raw: bytes, codec: str) -> str:
    """Python's own codec; `iso2022_jp_2` fails on a character of a set that it does not know (Python 3.11 to 3.14)."""
    try:
        return raw.decode(codec, "replace")
    except RuntimeError:
        return _OTHER_SET.sub(b"\x1b.A", raw).decode(codec, "replace")


_OTHER_SET = re.compile(rb"\x1b\.[^AF]")  # only these two are characters after ESC N (RFC 1554)


def whole_characters(text: str) -> str:
    """Joins surrogates into characters. A lone one is not a character: every receiver of the text would fail on it.

    Python's UTF-7, and escapes such as `\\ud800`, produce them.
    """
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def without_switches(text: str) -> str:
    """Without the escape sequences and shifts of ISO 2022, which mean nothing where ASCII follows."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return text.replace("\x0e", "").replace("\x0f", "")  # faster than a pattern with them (Python 3.11)


_ESCAPE = re.compile("\x1b(?:[ -/]{1,4}[0-~]|[NOno|}~])")
_TABLES = _ONE_BYTE | set(rare_charsets.ONE_BYTE)


def decoder(codec: str) -> codecs.IncrementalDecoder | None:
    """For text in pieces; None if each piece can be decoded on its own. It may raise RuntimeError and UnicodeError."""
    if codec in _TABLES or codec in rare_charsets.DECODERS or codec == "latin_1":
        return None
    return codecs.getincrementaldecoder(codec)("replace")


@cache  # as many as `_TABLES` has
def _table(codec: str) -> str:
    return rare_charsets.ONE_BYTE.get(codec) or bytes(range(256)).decode(codec, "replace")


def odd_codecs(text: str) -> list[str]:
    """Those of ODD and SWITCHING that a text declares anywhere: in a field, a page (`<meta charset=`) or XML."""
    lower = text.lower()
    found: dict[str, None] = {}
    for mark in ("charset", "encoding"):
        at = lower.find(mark)
        while at >= 0:
            at += len(mark)
            found |= dict.fromkeys(_declared(lower[at : at + _MAX_DECLARATION]))
            at = lower.find(mark, at)
    return [codec for codec in found if codec in ODD or codec in SWITCHING]


@lru_cache(maxsize=256)  # most pages have one of very few
def _declared(text: str) -> tuple[str, ...]:
    match = _DECLARED.match(text)
    return codecs_of(unquote(match[1])) if match else ()


_MAX_DECLARATION = 200  # characters, with white space
_DECLARED = re.compile(
    r"[^=;<>]{0,20}=[\s\"']{0,99}+(?:\([^()]{0,99}+\)[\s\"']{0,99}+){0,3}"
    r"(?:[^\s\"';]{0,60}'[^\s\"';]{0,20}')?([^\s\"';,()<>]{1,60})"
)


def is_known(charset: str) -> bool:
    return codec_of(charset) != "latin_1" or _key(charset.partition("*")[0]) in _LATIN_1


def readings_of_words(text: str) -> list[str]:
    """What programs make of encoded words."""
    if "=?" not in text:
        return [text]
    return list(dict.fromkeys((decode_words(text), decode_words(text, strict=True), *unusual_readings(text))))


def unusual_readings(text: str) -> Iterator[str]:
    """Encoded words as only some programs decode them.

    Without a byte order mark, UTF-16 is little-endian to most programs, but the standard says that it is big-endian.
    Some join words before they decode them: `=?utf-8?b?YS5?= =?utf-8?b?qcw==?=`. To some, a question mark within a word
    means that it is not one.
    """
    if text.count("=?") > 1:
        yield decode_words(text, strict=True)
    if has_byte_order(text):
        yield decode_words(text, is_big_endian=True)
    joined = _joined(text)
    if joined != text:
        yield decode_words(joined)


def _joined(text: str) -> str:
    """Words that follow each other, in the same charset and encoding, as one; but padding ends Base64."""
    kept: list[str] = []
    done, before = 0, ""
    for start, mark, end in _places(text, known_only=False, strict=False):
        kind = text[start : mark + 3].lower()
        if kind == before and not text[done:start].strip():
            kept[-1] = text[mark + 3 : end]
        else:
            kept += text[done : mark + 3], text[mark + 3 : end]
        kept.append("?=")
        done, before = end + 2, "" if text[end - 1] == "=" and kind.endswith("?b?") else kind
    return "".join((*kept, text[done:]))


def has_byte_order(text: str) -> bool:
    """Whether it may have an encoded word in UTF-16 or UTF-32, whose bytes have an order."""
    return "=?" in text and _BYTE_ORDER.search(text) is not None


_BYTE_ORDER = re.compile("16|32|ucs|unicode", re.IGNORECASE)
_BIG_ENDIAN = {"utf_16": "utf_16_be", "utf_32": "utf_32_be"}


def decode_words(text: str, *, known_only: bool = False, strict: bool = False, is_big_endian: bool = False) -> str:
    """Decode RFC 2047 encoded words: forbidden in parameters, but mail programs write them there.

    With `known_only`, words in other charsets stay as they are. With `strict`, so do those with a question mark within
    their text: in `=?utf-8?q?x=?utf-8?q?y?=`, the second word is decoded. With `is_big_endian`, UTF-16 is, too.
    """
    if "=?" not in text:
        return text
    pieces = _pieces(text, known_only, strict)
    kept = [
        piece
        for i, piece in enumerate(pieces)
        if not (0 < i < len(pieces) - 1 and _is_space(piece) and pieces[i - 1][1] and pieces[i + 1][1])
    ]
    found = []
    for codec, group in groupby(kept, key=lambda piece: piece[1]):  # a character may be divided between two words
        raw = b"".join(content for content, _ in group)
        found.append(decoded(raw, (_BIG_ENDIAN.get(codec) if is_big_endian else None) or codec or "utf_8"))
    return "".join(found)


def subject_text(raw: bytes) -> str:
    """What the value of a Subject field shows, truncated."""
    plain = raw.strip().decode("latin-1")
    if plain.isascii() and plain.isprintable() and "=?" not in plain and "  " not in plain:
        return plain[:_MAX_SUBJECT]  # most of them, in 0.4 us instead of 0.8
    unfolded = raw[: 4 * _MAX_SUBJECT].replace(b"\r\n", b"").replace(b"\0", b" ").decode("utf-8", "replace")
    return " ".join(decode_words(unfolded, known_only=True).split())[:_MAX_SUBJECT]


def _is_space(piece: tuple[bytes, str]) -> bool:
    """White space between encoded words does not count (RFC 2047 6.2)."""
    return not piece[1] and not piece[0].strip()


def _pieces(text: str, known_only: bool, strict: bool) -> list[tuple[bytes, str]]:
    """The content of each word with its codec, and the text between them with none."""
    found: list[tuple[bytes, str]] = []
    done = 0
    for start, mark, end in _places(text, known_only=known_only, strict=strict):
        found.append((text[done:start].encode("utf-8", "replace"), ""))
        found.append((_content(text[mark + 3 : end], text[mark + 1].lower()), codec_of(text[start + 2 : mark])))
        done = end + 2
    found.append((text[done:].encode("utf-8", "replace"), ""))
    return [piece for piece in found if piece[0]]


def _places(text: str, *, known_only: bool, strict: bool) -> Iterator[tuple[int, int, int]]:
    """Where each word begins, where its charset ends, and where its content ends."""
    at = 0
    while (at := text.find("=?", at)) >= 0:
        mark = text.find("?", at + 2)
        encoding, after = text[mark + 1 : mark + 2].lower(), text[mark + 2 : mark + 3]
        if mark < 0:
            return
        if encoding not in ("b", "q") or after != "?" or (known_only and not is_known(text[at + 2 : mark])):
            at += 2
            continue
        end = text.find("?" if strict else "?=", mark + 3)
        if end < 0:  # no word ends after this
            return
        if not text.startswith("?=", end):
            at += 2
            continue
        yield at, mark, end
        at = end + 2


def without_parameters(field: str) -> str:
    """Without what ends a parameter in its encoded words: some programs decode a field before they look at it."""
    kept: list[str] = []
    done = 0
    for start, _, end in _places(field, known_only=False, strict=False):
        kept += field[done:start], field[start:end].replace(";", "").replace('"', "")
        done = end
    return "".join((*kept, field[done:]))


def _content(encoded: str, encoding: str) -> bytes:
    raw = encoded.encode("utf-8", "replace")
    return decode(raw, "base64")[0] if encoding == "b" else binascii.a2b_qp(raw, header=True)
