"""Base64: the usual reading, all others that mail programs have, and where it is found without a header field.

Nothing here raises, whatever the input, and all work is linear in its length. Lines and groups are decoded in blocks,
because they may be millions (`bridge/mime/blocks.py`).
"""

from __future__ import annotations

import binascii
import mmap
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import groupby

from bridge.mime.blocks import AFTER_LF, BEFORE_EQUALS, BLOCK, blocks, line_blocks, line_lists

ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
WORTH_READING = 12  # decoded bytes; the smallest file that can do harm is longer
_EVERY = bytes(range(256))
_NOT_BASE64 = bytes(set(_EVERY) - set(ALPHABET))
_NOT_BASE64_OR_PAD = bytes(set(_NOT_BASE64) - {ord("=")})
_NOT_BASE64_PAD_OR_LINE = bytes(set(_NOT_BASE64_OR_PAD) - set(b"\r\n"))


def decode_base64(raw: bytes) -> bytes:
    """Skips everything outside the alphabet, including padding: most mail programs keep reading after it."""
    return _decode_clean(raw.translate(None, _NOT_BASE64))


def _decode_clean(clean: bytes) -> bytes:
    match len(clean) % 4:
        case 0:
            return binascii.a2b_base64(clean)
        case 1:
            return binascii.a2b_base64(clean[:-1])
        case more:
            return binascii.a2b_base64(clean + b"=" * (4 - more))


def is_plain_base64(raw: bytes) -> bool:
    """Nothing but whole groups in each line, and padding at the end: no two programs read that differently."""
    raw = raw.rstrip(b"\r\n")
    others = raw.translate(None, ALPHABET)
    padding = others.translate(None, b"\r\n")
    if padding and (padding not in (b"=", b"==") or not raw.endswith(padding)):
        return False
    return _has_equal_lines(raw, others) or all(map(_has_whole_groups, line_blocks(raw)))


def has_equal_lines(raw: bytes) -> bool:
    """Whether it is nothing but lines of one length, which need not be whole groups, and padding at the end."""
    lines = raw.rstrip(b"\r\n=").split(b"\n")
    lengths = {len(line) for line in lines[:-1]}
    return (
        len(lengths) <= 1
        and len(lines[-1]) <= max(lengths, default=len(raw))
        and not b"".join(lines).translate(None, ALPHABET + b"\r")
    )


def _has_whole_groups(lines: bytes) -> bool:
    return all(len(line) % 4 == 0 for line in lines.split())


def _has_equal_lines(raw: bytes, others: bytes) -> bool:
    """A quick test for what nearly all mail programs write: lines of one length, the last of which may be shorter."""
    step = raw.find(b"\n") + 1
    if step < 2:
        return False
    line_feeds, returns = others.count(b"\n"), others.count(b"\r")
    has_returns = raw.startswith(b"\r", step - 2)
    if returns and not (has_returns and returns == line_feeds and raw[step - 2 :: step] == b"\r" * returns):
        return False  # for some programs, a CR without LF ends a line as well
    width = step - 1 - has_returns
    last = len(raw) - raw.rfind(b"\n") - 1
    return width % 4 == last % 4 == 0 and raw[step - 1 :: step] == b"\n" * line_feeds


def base64_readings(raw: bytes) -> Iterator[bytes]:
    yield decode_base64(raw)
    if is_plain_base64(raw):
        return
    yield _by_lines(raw)
    if b"=" in raw:
        padded = raw.translate(None, _NOT_BASE64_OR_PAD)
        yield decode_base64(padded.lstrip(b"=").partition(b"=")[0])  # ends at the first padding
        yield _restarted(padded)
        yield _by_groups(padded, _without_padding)  # each group separately, with padding anywhere
        yield decode_base64(padded.rstrip(b"=").replace(b"=", b"A"))  # padding counts as the letter that means zero,
        yield _by_groups(padded, _padded_groups)  # and may shorten the result of its group
    if b"-" in raw or b"_" in raw:
        yield decode_base64(raw.translate(_FROM_URL_SAFE))
    if not raw.isascii():
        yield decode_base64(raw.translate(_SEVEN_BITS))
    yield decode_base64(raw[: _JUNK.search(raw + b"#").start()])  # type: ignore[union-attr]  # ends at the first other byte
    yield decode_base64(_without_junk_lines(raw))  # such lines do not count,
    yield decode_base64(_without_junk(raw))  # or their beginning does


def _without_junk(raw: bytes) -> bytes:
    return b"".join([_JUNK_TO_LINE_END.sub(b"", block) for block in blocks(raw, AFTER_LF)])


def line_readings(raw: bytes) -> list[bytes]:
    """Base64 in lines that are not adjacent: programs that skip the lines in between read it as one.

    A line with a few other characters may be one of them, or be words in between.
    """
    other = [decode_base64(raw.translate(_FROM_URL_SAFE))] if b"-" in raw or b"_" in raw else []
    pure = raw if _has_only_base64(raw) else _lines_that(_are_base64, raw)[:-1]
    return [*(content for text in dict.fromkeys((raw, pure)) for content in _whole_and_by_lines(text)), *other]


def _whole_and_by_lines(text: bytes) -> tuple[bytes, ...]:
    whole = decode_base64(text)
    return (whole,) if is_plain_base64(text.lstrip(b"\r\n")) else (whole, _by_lines(text))


def _has_only_base64(lines: bytes) -> bool:
    """A quick test for `_are_base64` of each line, in a fifth of the time: nearly all that is tested is a file."""
    return not lines.replace(b"\r\n", b"\n").translate(None, _BASE64_OR_PAD + b"\n")


def _are_base64(line: bytes) -> bool:
    return not line.strip(_AROUND).translate(None, _BASE64_OR_PAD)


def _lines_that(are_wanted: Callable[[bytes], bool], text: bytes) -> bytes:
    """Each with a line end, the last one too."""
    return b"".join([b"".join([line + b"\n" for line in lines if are_wanted(line)]) for lines in line_lists(text)])


class UnbrokenBase64:
    """Base64 with anything in between, read to the end of a text from any place in it.

    A part of an ambiguous mail may begin in many places, so each block of lines and padded pieces is decoded once.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text

    def readings(self, start: int) -> Iterator[bytes]:
        rest = self._text[start:]
        yield decode_base64(rest)
        yield self._decoded_lines.since(start)
        yield decode_base64(self._kept_lines.since(start))  # others may look like delimiters
        if b"=" in rest:
            yield self._decoded_pieces.since(len(self._text[:start].translate(None, _NOT_BASE64_OR_PAD)))

    @cached_property
    def _decoded_lines(self) -> _Decoded:
        return _Decoded(self._text, AFTER_LF, _by_lines)

    @cached_property
    def _kept_lines(self) -> _Decoded:
        return _Decoded(self._text, AFTER_LF, _without_junk_lines)

    @cached_property
    def _decoded_pieces(self) -> _Decoded:
        return _Decoded(self._text.translate(None, _NOT_BASE64_OR_PAD), BEFORE_EQUALS, _restarted)


class _Decoded:
    """What a decoder makes of a text from any place to its end. It starts again wherever the text is cut."""

    def __init__(self, text: bytes, cut: re.Pattern[bytes], decode: Callable[[bytes], bytes]) -> None:
        self._text, self._decode = text, decode
        self._starts, self._places = array("q"), array("q")  # of the blocks, and of what they decode to
        content, at = bytearray(), 0
        for block in blocks(text, cut, _SMALL_BLOCK):
            self._starts.append(at)
            self._places.append(len(content))
            content += decode(block)
            at += len(block)
        self._starts.append(at)
        self._places.append(len(content))
        self._content = bytes(content)

    def since(self, start: int) -> bytes:
        following = bisect_left(self._starts, start)
        first = self._decode(self._text[start : self._starts[following]])
        return first + self._content[self._places[following] :]


_SMALL_BLOCK = 1024  # bytes: up to this much is decoded again for each place


def base64_runs(text: bytes) -> list[bytes]:
    """Lines of nothing but Base64, wherever they are: some programs need no header field to decode them."""
    found = _line_runs(text)
    if has_long_base64(text, 0, len(text)):
        found += _line_runs(_PIECE.sub(rb"\1\n", text))
    return found


def since_long_lines(runs: Iterable[bytes]) -> list[bytes]:
    """Each run of lines, and each from its first long line on: what precedes that may be words. No duplicates."""
    found: dict[bytes, None] = {}
    for run in runs:
        line = _LONG_LINE.search(run)
        found |= {run: None} if line is None else {run: None, run[line.start() :]: None}
    return list(found)


def is_mostly_base64(text: bytes) -> bool:
    """Whether it is nothing but Base64, line ends and a few other characters, and long enough to be a file."""
    if len(text) < WORTH_READING * 4 // 3 or not _is_mostly_base64(text[:_BEGINNING]):
        return False
    return len(text) <= _BEGINNING or _is_mostly_base64(text)


def _is_mostly_base64(text: bytes) -> bool:
    return len(text.translate(None, _BASE64_IN_LINES)) * _ONE_IN <= len(text)


def similar_lines(text: bytes) -> bytes:
    """The long lines with at most a few characters that are not Base64, and short lines of whole groups.

    Lines may be indented or quoted (`> `), and may use the Base64 letters for links.
    """
    found, at = [b"\n"], -1  # `at`: the end of the line before
    for run in _LONG_LINES.finditer(text):
        if run.start() > at:
            found.append(_lines_that(_are_similar, text[at + 1 : run.start()]))
        found += (run[0][1:], b"\n")
        at = run.end()
    found.append(_lines_that(_are_similar, text[at + 1 :]))
    return b"".join(found)[:-1]


# Lines of a file, which need not be looked at one by one; not more at a time, because each takes memory (Python 3.11).
_LONG_LINES = re.compile(rb"%b(?:%b){0,999}" % (2 * (rb"\n[A-Za-z0-9+/]{20,}+={0,2}\r?(?=\n)",)))


def _are_similar(line: bytes) -> bool:
    line = line.strip(_AROUND)
    if len(line) <= _LONG_ENOUGH:
        return len(line) % 4 == 0 and not line.translate(None, _BASE64_OR_PAD)
    is_other = b":" in line or line.startswith(b"--")  # a field, a delimiter
    return not is_other and len(line.translate(None, _ANY_BASE64)) <= _FEW_OTHERS


def has_long_base64(data: bytes | mmap.mmap, start: int, end: int) -> bool:
    """Whether a long line ends with Base64: some programs read it in pieces, and each piece as a line."""
    while end - start > _TWO_PIECES:
        line_end = data.rfind(b"\n", start, start + _TWO_PIECES)
        if line_end < 0:
            line_end = data.find(b"\n", start + _TWO_PIECES, end)
            line_end = line_end if line_end >= 0 else end
            tail = data[max(start, line_end - _TWO_PIECES) : line_end].rstrip(b"=\r \t")[-_LONG:]
            is_base64 = len(tail) == _LONG and not tail.translate(None, ALPHABET)
            if is_base64 and len(set(data[start:line_end])) > _FEW:
                return True
        start = line_end + 1
    return False


_TWO_PIECES = 2 * 254  # uudeview takes 254 bytes for a line, and two such lines are not enough for it
_LONG = 200  # characters of Base64 at the end of a longer line, which may all be in its last piece
_FEW = 12  # different characters in a line: with no more, it is a rule (`xxxx`) or a sequence of digits, not a file
_PIECE = re.compile(rb"([^\n]{254})(?=[^\n])")


def _line_runs(text: bytes) -> list[bytes]:
    found, start = [], 0
    for other in _OTHER_LINE.finditer(text):  # nearly all of what `split` would make of them may be empty
        if other.start() - start >= WORTH_READING:
            found.append(text[start : other.start()])
        start = other.end()
    if len(text) - start >= WORTH_READING:
        found.append(text[start:])
    return found


_OTHER_LINE = re.compile(rb"\n(?![A-Za-z0-9+/]+={0,3}[ \t\r]*(?:\n|\Z))[^\n]*")
_LONG_LINE = re.compile(rb"\n[A-Za-z0-9+/]{19}")
_LONG_ENOUGH = 19  # characters
_FEW_OTHERS = 2
_BASE64_OR_PAD = ALPHABET + b"="
_BASE64_IN_LINES = _BASE64_OR_PAD + b"\r\n"
_BEGINNING = 1000  # bytes: most texts are known by them
_ONE_IN = 50  # characters
_ANY_BASE64 = _BASE64_OR_PAD + b"-_"
_AROUND = b"> \t\r\v\f"
_GROUPS = re.compile(rb"(?:[^=]{4})+|.{1,4}", re.DOTALL)  # groups without padding, as many as there are; or one
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_SEVEN_BITS = bytes(byte & 0x7F for byte in _EVERY)
_JUNK = re.compile(rb"[^A-Za-z0-9+/\s]")
_JUNK_TO_LINE_END = re.compile(rb"[^A-Za-z0-9+/=\s][^\n]*")
_IN_BASE64_LINE = ALPHABET + b"=\t\v\f "


def _without_junk_lines(raw: bytes) -> bytes:
    """With long lines, two fifths of the time of a pattern with `^`, which is tried at every byte (Python 3.11)."""
    return b"".join([b"".join([line for line in lines if _is_base64_line(line)]) for lines in line_lists(raw)])


def _is_base64_line(line: bytes) -> bool:
    return line.lstrip(_IN_BASE64_LINE)[:1] in (b"", b"\r")


def without_base64(text: bytes) -> bytes:
    """The text without most of its Base64, for callers that look for words: long lines between other such lines."""
    return _INNER_LINES.sub(b"", text)


_INNER_LINES = re.compile(  # begins with a literal byte: much faster (Python 3.11)
    rb"\n(?:(?<=[A-Za-z0-9+/]{64}\n)|(?<=[A-Za-z0-9+/]{64}\r\n))[A-Za-z0-9+/]{64,}+\r?+(?=\n[A-Za-z0-9+/]{64})"
)


def _by_lines(raw: bytes) -> bytes:
    """Each line separately; an incomplete group at the end of a line is dropped unless it is padded."""
    return b"".join([_lines_of(block.translate(None, _NOT_BASE64_PAD_OR_LINE)) for block in line_blocks(raw)])


def _lines_of(text: bytes) -> bytes:
    """Of lines without padding, only whole groups count, so all of them are decoded together."""
    padding = text.find(b"=")
    if padding < 0:
        return _whole_groups(text)
    line = max(text.rfind(b"\n", 0, padding), text.rfind(b"\r", 0, padding)) + 1
    return _whole_groups(text[:line]) + _one_by_one(_in_lines(text[line:]))


def _whole_groups(lines: bytes) -> bytes:
    if not is_plain_base64(lines):
        lines = b"".join([line[: len(line) // 4 * 4] for line in lines.splitlines()])
    return binascii.a2b_base64(lines)


def _in_lines(text: bytes) -> Iterator[bytes]:
    for line in text.splitlines():
        yield line.replace(b"=", b"") if b"=" in line else line[: len(line) // 4 * 4]


def _restarted(padded: bytes) -> bytes:
    """Starts again after each padding. The input has nothing but Base64 and padding, here and below."""
    pieces = (filter(None, block.split(b"=")) for block in blocks(padded, BEFORE_EQUALS))
    return b"".join(map(_one_by_one, pieces))


def _by_groups(padded: bytes, letters: Callable[[bytes], bytes]) -> bytes:
    """Each group separately; `letters` makes groups without padding of some that may have it."""
    parts = (padded[at : at + BLOCK] for at in range(0, len(padded), BLOCK))
    return b"".join([_part_by_groups(part, letters) for part in parts])


def _part_by_groups(part: bytes, letters: Callable[[bytes], bytes]) -> bytes:
    """What precedes the group with the first padding is decoded at once."""
    padding = part.find(b"=")
    start = (padding if padding >= 0 else len(part)) // 4 * 4
    return binascii.a2b_base64(part[:start]) + _one_by_one(map(letters, _GROUPS.findall(part, start)))


def _one_by_one(pieces: Iterable[bytes]) -> bytes:
    """Each piece on its own. They contain only Base64, so nothing is filtered out again.

    Lines of Base64 have the same length, and are decoded together: the result is the same, in a tenth of the time
    (Python 3.11). In other text, lengths vary.
    """
    pieces = list(pieces)
    if len(set(map(len, pieces))) * _VARIED > len(pieces):
        return b"".join(map(_decode_clean, pieces))
    together = (_decode_equal(list(group), length) for length, group in groupby(_joined(pieces), key=len))
    return b"".join(together)


_VARIED = 8  # pieces of each length, on average: with fewer, it takes longer to put them together


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A piece of whole groups is joined with the next one, which decodes to the same."""
    whole: list[bytes] = []
    for piece in pieces:
        whole.append(piece)
        if len(piece) % 4:
            yield b"".join(whole)
            whole.clear()
    if whole:
        yield b"".join(whole)


def _decode_equal(pieces: list[bytes], length: int) -> bytes:
    """Each on its own, as in `_decode_clean`; all have this length."""
    more = length % 4
    if len(pieces) == 1 or more < 2:
        return b"".join(map(_decode_clean, pieces))
    padding = b"A" * (4 - more)  # letters, because decoding ends at real padding; and without what they decode to
    decoded = bytearray(binascii.a2b_base64(padding.join((*pieces, b""))))
    row = (length + len(padding)) // 4 * 3
    for count in range(len(padding)):
        del decoded[row - 1 - count :: row - count]
    return bytes(decoded)


def _without_padding(groups: bytes) -> bytes:
    return groups.replace(b"=", b"")


def _padded_groups(groups: bytes) -> bytes:
    """Padding as the letter that means zero; the group is shortened by as many letters as it has padding."""
    padding = groups.count(b"=")
    if not padding:
        return groups
    return groups.replace(b"=", b"A")[: 4 - padding] if padding < 3 else b""
