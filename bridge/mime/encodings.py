"""Transfer encodings: the plain reading of each, and every other reading that mail programs have.

`decode` is for well-formed content; it says whether all programs agree on the result. `readings` is
for content on which they may disagree: it returns the result of each known way to read it. Nothing
here raises, whatever the input, and all work is linear in its length. What may consist of millions of lines or escapes
is decoded in blocks (`bridge/mime/blocks.py`); the result is longer than the input only where the format compresses.
"""

from __future__ import annotations

import binascii
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence

from bridge.mime import yenc
from bridge.mime.base64_text import ALPHABET as _ALPHABET
from bridge.mime.base64_text import WORTH_READING as _WORTH_READING
from bridge.mime.base64_text import base64_readings, is_plain_base64
from bridge.mime.base64_text import decode_base64 as _base64
from bridge.mime.blocks import AFTER_SPACE, BEFORE_EQUALS, blocks, line_blocks
from bridge.mime.references import unescaped

_EVERY = bytes(range(256))

PLAIN = frozenset({"7bit", "8bit", "binary"})
STANDARD = PLAIN | {"base64", "quoted-printable"}
UUENCODE = frozenset({"x-uuencode", "uuencode", "x-uue", "uue", "x-uu"})


def decode(raw: bytes, encoding: str) -> tuple[bytes, bool]:
    """The content, and whether every mail program decodes it to the same bytes."""
    match encoding:
        case "base64":
            is_plain = is_plain_base64(raw)
            return (binascii.a2b_base64(raw) if is_plain else _base64(raw)), is_plain
        case "quoted-printable":
            return binascii.a2b_qp(raw), _ODD_QUOTED.search(raw) is None
        case _ if encoding in UUENCODE:
            return _uuencoded(raw, is_certain=True), False
        case _:
            return raw, encoding in PLAIN


def decoded_blocks(raw: bytes, encoding: str) -> Iterator[bytes]:
    """What `decode` returns, in pieces: the lines of uuencode may leave out nearly all that they stand for."""
    if encoding in UUENCODE:
        yield from _uu_decoded(raw, is_certain=True)
    else:
        yield decode(raw, encoding)[0]


def readings(raw: bytes) -> Iterator[bytes]:
    """The results of all decoders except quoted-printable, whichever encoding the mail declares; without duplicates."""
    seen: set[bytes] = {b""}
    for content in _all_readings(raw):
        if len(content) >= _WORTH_READING and content not in seen:
            seen.add(content)
            yield content


def _all_readings(raw: bytes) -> Iterator[bytes]:
    yield from base64_readings(raw)
    yield _uuencoded(raw)
    yield from embedded(raw)


# Quoted-printable

_ODD_QUOTED = re.compile(rb"=(?![0-9A-F][0-9A-F])(?!\r?\n)")
_SOFT_BREAK = re.compile(rb"=[ \t\v\f\x00]*\r*\n")
# What programs make of a "=" that begins no escape: they show it, or leave it out with up to two characters after it.
_WRONG = (
    (re.compile(rb"=(?![0-9A-F]{2})"), b"=3D"),  # lower-case escapes do not count
    (re.compile(rb"=(?![0-9A-Fa-f]{2})"), b"=3D"),
    (re.compile(rb"=(?![0-9A-Fa-f]{2})"), b""),
    (re.compile(rb"=(?![0-9A-Fa-f]{2})[^=\r\n]?"), b""),
    (re.compile(rb"=(?![0-9A-Fa-f]{2})[^=\r\n]{0,2}"), b""),
)


def quoted_readings(raw: bytes) -> Iterator[bytes]:
    """Results of decoding quoted-printable; of a whole mail, too, because its meaning does not depend on position."""
    if b"=" not in raw:
        return
    yield binascii.a2b_qp(raw)
    if _ODD_QUOTED.search(raw) is None:
        return
    joined = b"".join([_SOFT_BREAK.sub(b"", block) for block in blocks(raw, BEFORE_EQUALS)])
    for wrong, instead in _WRONG:  # then every "=" begins an escape
        yield b"".join([binascii.a2b_qp(wrong.sub(instead, block)) for block in blocks(joined, BEFORE_EQUALS)])


# Formats that mark their own beginning


def embedded(raw: bytes) -> Iterator[bytes]:
    """Files within text: uuencode, yEnc and BinHex are recognised without any header field."""
    if has_begin(raw):
        for block in _uu_blocks(raw):
            for text in (block, *_unescaped(block)):
                yield from _uu_readings(text)
                yield _xxencoded(text)
        if has_word(_UU64, raw, 0, len(raw)):
            yield from map(_base64, _blocks(raw, _UU64_BEGIN, b"\n===="))
    if b"=ybegin" in raw:
        yield from yenc.files(raw)
    if b"\n:" in raw or raw.startswith(b":"):
        for block in _binhex_blocks(raw):
            yield from _binhex(block)


def embedded_names(raw: bytes) -> Iterator[bytes]:
    """What stands in the place of these files' names: the rest of a line, or a field of BinHex."""
    if has_begin(raw):
        yield from (match[1] for match, has_data in _uu_begins(raw) if has_data)
        if has_word(_UU64, raw, 0, len(raw)):
            yield from (match[1] for match in _UU64_BEGIN.finditer(raw))
    if b"=ybegin" in raw:
        yield from (match[1] for match in yenc.BEGIN.finditer(raw))
    if b"\n:" in raw or raw.startswith(b":"):
        for block in _binhex_blocks(raw):
            content = _binhex_content(block)
            name = content[1 : 1 + content[0]] if content else b""
            if name and min(name) >= 32 and content[1 + len(name) : 2 + len(name)] == b"\0":
                yield name


def _blocks(raw: bytes, begin: re.Pattern[bytes], end_mark: bytes) -> Iterator[bytes]:
    """What lies between a line that matches `begin` and the next `end_mark`, or the end."""
    match = begin.search(raw)
    while match is not None:
        end = raw.find(end_mark, match.end() - end_mark.startswith(b"\n"))  # the end may follow immediately
        end = len(raw) if end < 0 else end
        yield raw[match.end() : end]
        match = begin.search(raw, max(end, match.end()))


_UU_BEGIN = re.compile(rb"(?:^|[\r\n])begin[ \t]+[0-7]{1,6}[ \t][^\r\n]*[\r\n]+", re.IGNORECASE)
_UU64 = b"begin-base64"
_UU64_BEGIN = re.compile(rb"begin-base64[ \t]([^\r\n]*)[\r\n]*", re.IGNORECASE)
_BINHEX_BEGIN = re.compile(rb"[\r\n][ \t]*:(?=(?:[ \t\r\n]{0,4}[!-9;-z]){20})")
BINHEX_START = rb":[!-\-0-689@A-NP-VX-Z\[`a-fh-mp-r]{20}"  # of a line; the line that announces it may be missing

# uuencode and xxencode: `begin 644 name`. Programs disagree on the rest of that line and on what may precede it.

_ANY_BEGIN = re.compile(rb"(?<!=y)begin[ \t]([^\r\n]*)[\r\n]*", re.IGNORECASE)
_BEFORE = re.compile(rb"(?:\A|[\r\n])[ \t\f\v>]*(?:<[a-z]*>)*\Z", re.IGNORECASE)
_MAX_BEFORE = 40  # bytes
_MODE = re.compile(rb"-?[0-9]")
_MODE_FOLLOWS = re.compile(rb"begin[ \t]+-?[0-9]{1,9}[ \t]", re.IGNORECASE)
_END_LINES = (b"`", b"+", b"end")
_NO_UU = bytes(set(_EVERY) - set(range(32, 97)))
_ENTITY = re.compile(rb"&(?:lt|gt|amp|quot|#)", re.IGNORECASE)
_NEAR = 1024  # bytes within which lines of data must follow a "begin" in the middle of a line
_LONGEST_LINE = 4096  # bytes of a line of data, with every character escaped; one has 88 characters
_STEP = 1024 * 1024


def has_begin(data: bytes | mmap.mmap, start: int = 0, end: int | None = None) -> bool:
    return has_word(b"begin", data, start, len(data) if end is None else end)


def has_word(word: bytes, data: bytes | mmap.mmap, start: int, end: int) -> bool:
    """In any case. A quick test: fifteen times as fast as a pattern that ignores case (Python 3.11)."""
    return next(places(word, data, start, end), None) is not None


def words_in(words: Sequence[bytes], data: bytes | mmap.mmap, start: int, end: int) -> set[bytes]:
    """Those of the words that are there, in any case: all in one pass."""
    found: set[bytes] = set()
    more = max(map(len, words)) - 1
    for at in range(start, end, _STEP):
        lower = data[at : min(end, at + _STEP + more)].lower()
        found.update(word for word in words if word in lower)
    return found


def places(word: bytes, data: bytes | mmap.mmap, start: int, end: int) -> Iterator[int]:
    """Where the word is, in any case."""
    more = len(word) - 1
    for at in range(start, end, _STEP):
        lower = data[at : min(end, at + _STEP + more)].lower()
        found = lower.find(word)
        while found >= 0:
            yield at + found
            found = lower.find(word, found + 1)


def _begins(data: bytes | mmap.mmap, found: Iterable[int], end: int) -> Iterator[re.Match[bytes]]:
    """The matches of `_ANY_BEGIN` at these places, none of which begins within another."""
    after = 0
    for at in found:
        match = _ANY_BEGIN.match(data, at, end) if at >= after else None
        if match is not None:
            yield match
            after = match.end()


def has_uu_data(data: bytes | mmap.mmap, start: int, end: int) -> bool:
    """Whether a line begins with "begin" and a mode, or one with "begin" is followed by lines that can be decoded."""
    for at in places(b"begin", data, start, end):
        if _UU64_BEGIN.match(data, at, end):
            return True
        if at > start and data[at - 1 : at] == b"\n" and _MODE_FOLLOWS.match(data, at, end):
            return True
    lines = _DataLines(data, start, end, _LONGEST_LINE)
    for match in _begins(data, places(b"begin", data, start, end), end):
        limit = end if _is_at_line_start(data, match.start()) else min(end, match.end() + _NEAR)
        if lines.has_one(match.start(), match.end(), limit):
            return True
    return False


class _DataLines:
    """Reads each line at most once, and only those that matter: most text has a "begin" in the middle of a line."""

    def __init__(self, data: bytes | mmap.mmap, start: int, end: int, longest: int) -> None:
        self._data, self._at, self._end, self._longest = data, start, end, longest
        self._after_one = False
        self._found = -1  # the last line of data that was asked for

    def has_one(self, begin: int, first: int, limit: int) -> bool:
        """Whether a line of data starts at `first` or later, but before `limit`. `begin` is in the line above.

        From call to call, `begin` and `first` increase.
        """
        if self._found >= first:
            return self._found < limit
        if self._at < begin and (line := self._data.rfind(b"\n", self._at, begin) + 1):
            self._at, self._after_one = line, False
        while self._at < limit:
            here, found = self._at, self._data.find(b"\n", self._at, self._end)
            line_end = found if found >= 0 else self._end
            self._at = line_end + 1
            is_data, self._after_one = _data_in(self._data[here : min(line_end, here + self._longest)], self._after_one)
            if is_data and here >= first:
                self._found = here
                return True
        return False


def _uu_begins(raw: bytes) -> Iterator[tuple[re.Match[bytes], bool]]:
    """Lines that may begin a file, because they have a mode or data follows; and whether data follows."""
    lines: _DataLines | None = None
    for match in _begins(raw, places(b"begin", raw, 0, len(raw)), len(raw)):
        lines = lines or _DataLines(raw, match.end(), len(raw), len(raw))
        limit = len(raw) if _is_at_line_start(raw, match.start()) else min(len(raw), match.end() + _NEAR)
        has_data = lines.has_one(match.start(), match.end(), limit)
        if has_data or _MODE.match(match[1].lstrip()):
            yield match, has_data


def _is_at_line_start(data: bytes | mmap.mmap, at: int) -> bool:
    return _BEFORE.search(data[max(0, at - _MAX_BEFORE) : at]) is not None


def _uu_blocks(raw: bytes) -> Iterator[bytes]:
    """What each such line begins, to the next one; and to the end of the file, if such lines may be part of it."""
    start, has_line = 0, False
    for match, _ in _uu_begins(raw):
        if start:
            yield _up_to_end(raw, start, match.start())
        start = match.end()
        has_line = has_line or _UU_BEGIN.match(raw, max(0, match.start() - 1)) is not None
    if start:
        yield _up_to_end(raw, start, len(raw))
    if has_line:
        yield from _blocks(raw, _UU_BEGIN, b"\nend")  # these are among them


def _up_to_end(raw: bytes, start: int, limit: int) -> bytes:
    end = raw.find(b"\nend", start - 1, limit)
    return raw[start : end if end >= 0 else limit]


def _data_in(line: bytes, after_one: bool) -> tuple[bool, bool]:
    """Whether a line is data, and whether the next one may be because of it.

    Some programs accept any characters, even those of prose, so there must be two lines.
    """
    text = line.rstrip(b"\r")
    if not text.strip():
        return False, after_one
    if not _SIZES[text[0]] >> len(text) & 1 and b"&" not in text:  # a quick test: few lines of prose have such a length
        return after_one and text.strip().lower() in _END_LINES, False
    texts = list(filter(None, (text, *_unescaped(text)))) if b"&" in text else [text]
    is_like_data = any(map(_is_like_data, texts))
    is_data = any(map(_is_data, texts)) or (after_one and (is_like_data or text.strip().lower() in _END_LINES))
    return is_data, is_like_data


def _is_data(line: bytes) -> bool:
    return _is_uu_line(line) or (len(line) > _WORTH_READING and _is_xx_line(line))


def _is_like_data(line: bytes) -> bool:
    return _is_like_uu_line(line) or _is_xx_line(line)


def _is_uu_line(line: bytes) -> bool:
    """Whether it has the length that its first character gives; a long line may lack spaces at its end."""
    length = line[0] - 32
    needed = -(-length // 3) * 4
    least = needed if length < 15 else needed // 2
    return length > 0 and least < len(line) <= needed + 3 and len(line.translate(None, _NO_UU)) == len(line)


def _is_like_uu_line(line: bytes) -> bool:
    length = (line[0] - 32) & 63
    needed = -(-length // 3) * 4
    return length > 0 and needed < len(line) <= needed + 2


def _is_xx_line(line: bytes) -> bool:
    length = _XX.find(line[:1])
    needed = -(-length // 3) * 4
    return length > 0 and needed < len(line) <= needed + 3 and not line.rstrip().translate(None, _XX)


def _unescaped(text: bytes) -> Iterator[bytes]:
    """Without HTML's escapes, which some programs undo."""
    if _ENTITY.search(text):
        yield unescaped(text.decode("latin-1")).encode("latin-1", "replace")


_FROM_UU = bytes(_ALPHABET[(byte - 32) % 64] for byte in _EVERY)  # other characters count as their lower six bits


def _uuencoded(raw: bytes, *, is_certain: bool = False, any_first: bool = False) -> bytes:
    """If it is certain that these are such lines, spaces at their ends may be missing.

    With `any_first`, a first character that stands for no length counts as its lower six bits, as the others do.
    """
    return b"".join(_uu_decoded(raw, is_certain=is_certain, any_first=any_first))


_SMALL_LETTERS = re.compile(rb"^[^a-z\r\n]*+[a-z][^\r\n]*+", re.MULTILINE)
_OUT_OF_RANGE = re.compile(rb"(?:\A|[\r\n])[^\r\n -`]")


def _uu_readings(raw: bytes) -> Iterator[bytes]:
    """Some programs leave out lines that are too short, have small letters, or begin with a character out of range."""
    whole = _uuencoded(raw, is_certain=True)
    yield whole
    for reading in _other_uu_readings(raw):
        if reading != whole:
            yield reading


def _other_uu_readings(raw: bytes) -> Iterator[bytes]:
    yield _uuencoded(raw)
    yield b"".join([_uuencoded(_SMALL_LETTERS.sub(b"", block)) for block in line_blocks(raw)])
    if _OUT_OF_RANGE.search(raw):
        yield _uuencoded(raw, is_certain=True, any_first=True)


def _uu_decoded(raw: bytes, *, is_certain: bool, any_first: bool = False) -> Iterator[bytes]:
    for block in line_blocks(raw):
        lines = block.splitlines()
        # Very short lines are often equal.
        decoded = {line: _uu_line(line, is_certain, any_first) for line in set(lines)}
        yield b"".join([decoded[line] for line in lines])


def _uu_line(line: bytes, is_certain: bool, any_first: bool) -> bytes:
    if not line or line == b"end":
        return b""
    if not any_first and (line[0] < 32 or line[0] > 96 or line[:6].lower() == b"begin "):
        return b""
    length = (line[0] - 32) & 63
    needed = -(-length // 3) * 4
    if len(line) < needed and not is_certain:
        return b""  # not such a line
    return binascii.a2b_base64(line[1 : 1 + needed].ljust(needed).translate(_FROM_UU))[:length]


_XX = b"+-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FROM_XX = bytes.maketrans(_XX, _ALPHABET)


def _sizes(first: int) -> int:
    """A bit for each length that a line may have for `_is_data` or `_is_like_data`, by its first byte."""
    lines = (bytes([first]) + b"+" * more for more in range(_LONGEST_DATA))
    return sum(1 << len(line) for line in lines if _is_uu_line(line) or _is_like_data(line))


_LONGEST_DATA = 91  # bytes: 88, and the three more that some programs allow
_SIZES = tuple(map(_sizes, range(256)))


def _xxencoded(raw: bytes) -> bytes:
    """Like uuencode, with other characters."""
    return b"".join(map(_xx_decoded, blocks(raw, AFTER_SPACE)))


def _xx_decoded(block: bytes) -> bytes:
    lines = block.split()
    decoded = {line: _xx_line(line) for line in set(lines)}  # ordinary text repeats most of its words
    return b"".join([decoded[line] for line in lines])


def _xx_line(line: bytes) -> bytes:
    length = _XX.find(line[:1])
    return _base64(line[1:].translate(_FROM_XX))[:length] if length > 0 else b""


_HQX = rb"""!"#$%&'()*+,-012345689@ABCDEFGHIJKLMNPQRSTUVXYZ[`abcdefhijklmpqr"""
_FROM_HQX = bytes.maketrans(_HQX, _ALPHABET)
_NOT_HQX = bytes(set(_EVERY) - set(_HQX))


def _binhex_blocks(raw: bytes) -> Iterator[bytes]:
    """Up to the next colon, with which another one may begin: any line with a colon may precede a file."""
    raw = b"\n" + raw
    for match in _BINHEX_BEGIN.finditer(raw):
        end = raw.find(b":", match.end())
        yield raw[match.end() : end if end >= 0 else len(raw)]


def _binhex(raw: bytes) -> Iterator[bytes]:
    """The data fork, as much as there is of it, and everything: its length may be wrong."""
    content = _binhex_content(raw)
    start = 1 + content[0] + 19 if content else 0  # name with its length, version, type, creator, flags
    length = int.from_bytes(content[start - 8 : start - 4], "big") if start >= 20 else 0
    yield content[start + 2 : start + 2 + length]
    yield content


def _binhex_content(raw: bytes) -> bytes:
    packed = raw.partition(b":")[0].translate(None, _NOT_HQX).translate(_FROM_HQX)
    return _without_runs(_base64(packed))


def _without_runs(content: bytes) -> bytes:
    """0x90 and a count repeat the byte before; 0x90 0x00 is the byte 0x90."""
    return b"".join(_run_blocks(content))


def _run_blocks(content: bytes) -> Iterator[bytes]:
    last = b""
    for block in blocks(content, _BEFORE_RUN):
        first, *rest = block.split(b"\x90")
        out, last = [first], first[-1:] or last
        for piece in rest:
            count = piece[0] if piece else 0
            run = (b"\x90" if count == 0 else last * (count - 1)) + piece[1:]
            last = run[-1:] or last
            out.append(run)
        yield b"".join(out)


_BEFORE_RUN = re.compile(rb"()\x90")
