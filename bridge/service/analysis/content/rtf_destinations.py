"""RTF as tokens: what is written in templates, instructions of fields and objects. Linear; raises only TooMuch.

Programs differ in what they skip there (groups, what follows `\\uN`, words among digits), which attackers use to hide
things. So each of these destinations has several readings, most often all the same. Knows nothing of what it reads.
See "Word (2007) RTF specification 1.9.1": control words, `\\*`, `\\uN` and `\\ucN`, `\\upr`, `\\bin`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bridge.service.analysis.content.unpacking import Budget

TEMPLATE, FIELD, OBJECT, BASE = b"template", b"fldinst", b"objdata", b"hlinkbase"
_KINDS = frozenset((TEMPLATE, FIELD, OBJECT, BASE))
_TOKEN = re.compile(  # a brace; a word, its number and one space; a code; another symbol; text
    rb"([{}])|\\(?:([a-zA-Z]++)(-?\d++)? ?|'([0-9a-fA-F]{2})|(.))|([^{}\\]++)", re.DOTALL
)
# What counts outside of these destinations.
_MARK = re.compile(rb"[{}]|\\(?:[{}\\]|uc(?![a-zA-Z])(-?\d*+)|(bin|template|fldinst|objdata|hlinkbase)(?![a-zA-Z]))")
_MARKS = (b"{", b"}", b"\\\\", b"\\uc")
_KIND = re.compile(rb"\\(?:template|fldinst|objdata|hlinkbase)(?![a-zA-Z])")
_HIDING = frozenset(  # destinations whose text is not part of the text around them, even without `\*`
    b"annotation author bkmkend bkmkstart buptim category colortbl comment company creatim doccomm filetbl fldrslt"
    b" fonttbl footer footerf footerl footerr footnote ftncn ftnsep ftnsepc header headerf headerl headerr info"
    b" keywords listtable manager nonshppict operator pict printim private revtim rxe sn sp stylesheet subject sv tc"
    b" title txe upr xe".split()
)
_SPACES = frozenset(b"cell column emspace enspace line nestcell page par qmspace row sect tab".split())
_QUOTES = frozenset(b"ldblquote rdblquote".split())
_SYMBOLS = {b"~": b" ", b"_": b"-", b"\r": b" ", b"\n": b" ", b"\t": b" "}
_IGNORED = b"\r\n\0"  # in text
_NOT_HEX = bytes(set(range(256)) - set(b"0123456789abcdefABCDEF"))
_LONGEST_NUMBER = 4000  # digits
_MARK_WORK = 80  # for each brace elsewhere,
_TOKEN_WORK = 300  # for each token within a destination, and
_DESTINATION_WORK = 600  # for each destination

# The readings, as bits. What follows `\uN` for programs without Unicode is skipped in the first three.
_STRICT = 1  # a word counts as one character to skip
_WORDLESS = 2  # it does not
_LOOSE = 4  # with the text of hidden destinations; words count as nothing; in objects, nothing is skipped
_OUTER = 8  # of objects: nothing of the groups in it
_HALVED = 16  # of objects: a code ends a byte of which only one digit has been read
_TEXT_READINGS, _OBJECT_READINGS = (_STRICT, _WORDLESS, _LOOSE), (_STRICT, _WORDLESS, _LOOSE, _OUTER, _HALVED)
_ALL_TEXT, _ALL_OBJECT = sum(_TEXT_READINGS), sum(_OBJECT_READINGS)
_BINARY = 128  # of a piece: bytes, not digits


class Destination:
    """The pieces of one destination, each with the readings that it belongs to."""

    def __init__(self, kind: bytes, depth: int, outer: Destination | None) -> None:
        self.kind, self.depth = kind, depth
        # The outermost object around it, whose loosest reading has everything that is in it.
        self._whole: Destination | None = (outer if outer.is_whole() else outer._whole) if outer else None
        self._pieces: list[bytes] = []
        self._masks = bytearray()
        self._readings = _OBJECT_READINGS if kind == OBJECT else _TEXT_READINGS
        self._all = _ALL_OBJECT if kind == OBJECT else _ALL_TEXT
        self._skip_strict = self._skip_wordless = 0
        self._strict = _STRICT if kind == OBJECT else _STRICT | _LOOSE

    def texts(self) -> list[str]:
        if not self._pieces:
            return []
        found = (b"".join(self._of(bit)) for bit in self._distinct())
        return list(dict.fromkeys(raw.translate(None, _IGNORED).decode("utf-8", "replace") for raw in found))

    def objects(self) -> Iterator[bytes]:
        """Each reading, and from its second digit on if it is not an object otherwise."""
        seen: set[int] = set()
        for bit in self._distinct():
            for start in (0, 1):
                raw = self._bytes(bit, start)
                if hash(raw) not in seen:
                    seen.add(hash(raw))
                    yield raw
                if int.from_bytes(raw[4:8], "little") in (1, 2, 3, 5):  # FormatID (MS-OLEDS 2.2.4)
                    break

    def is_whole(self) -> bool:
        return self.kind == OBJECT and not self._whole

    def ended(self, depth: int) -> Iterator[Destination]:
        """What ends with a group of this depth."""
        if self.depth == depth:
            yield self
            if self._whole:
                yield from self._whole.ended(depth)

    def _distinct(self) -> list[int]:
        masks = sorted(set(self._masks))
        return list({tuple(mask & bit > 0 for mask in masks): bit for bit in reversed(self._readings)}.values())

    def _of(self, bit: int) -> Iterator[bytes]:
        return (piece for piece, mask in zip(self._pieces, self._masks, strict=True) if mask & bit)

    def _bytes(self, bit: int, start: int) -> bytes:
        found: list[bytes] = []
        digits: list[bytes] = []
        for piece, mask in zip(self._pieces, self._masks, strict=True):
            if mask & bit and mask & _BINARY:
                found += [_from_hex(digits, 0 if found else start), piece]
                digits = []
            elif mask & bit:
                digits.append(piece)
        return b"".join((*found, _from_hex(digits, 0 if found else start)))

    def _add(self, piece: bytes, mask: int) -> None:
        if mask:
            self._pieces.append(piece)
            self._masks.append(mask)

    def _mask(self, is_hidden: bool, depth: int) -> int:
        mask = self._all
        if is_hidden:
            mask &= ~(_STRICT | _WORDLESS | _HALVED)
        return mask if depth == self.depth else mask & ~_OUTER

    def add_text(self, text: bytes, is_hidden: bool, depth: int) -> None:
        mask = self._mask(is_hidden, depth)
        if self._whole:
            self._whole._add(text, _LOOSE)
        if self._skip_strict or self._skip_wordless:
            text = text.translate(None, _IGNORED)
            strict, wordless = min(self._skip_strict, len(text)), min(self._skip_wordless, len(text))
            self._skip_strict -= strict
            self._skip_wordless -= wordless
            first, second = sorted((strict, wordless))
            self._add(text[:first], mask & ~self._strict & ~_WORDLESS)
            self._add(text[first:second], mask & ~(self._strict if strict > wordless else _WORDLESS))
            text = text[second:]
        self._add(text, mask)

    def add_code(self, code: bytes, is_hidden: bool, depth: int) -> None:
        if self.kind != OBJECT:
            self.add_text(binascii.unhexlify(code), is_hidden, depth)
            return
        self._skip_strict = max(0, self._skip_strict - 1)
        self._skip_wordless = max(0, self._skip_wordless - 1)
        self._add(b"", _HALVED | _BINARY)

    def add_unicode(self, number: int, following: int, is_hidden: bool, depth: int) -> None:
        skipped = self._count_word()
        if not skipped:
            self._skip_strict = following
        self._skip_wordless = following
        if self.kind != OBJECT:
            character = chr(number & 0xFFFF).encode("utf-8", "replace")
            self._add(character, self._mask(is_hidden, depth) & ~skipped)

    def add_word(self, meaning: bytes, is_hidden: bool, depth: int) -> None:
        skipped = self._count_word() | _LOOSE
        if meaning and self.kind != OBJECT:
            self._add(meaning, self._mask(is_hidden, depth) & ~skipped)

    def add_binary(self, raw: bytes, is_hidden: bool, depth: int) -> None:
        self._count_word()
        if self.kind == OBJECT:
            self._add(raw, self._mask(is_hidden, depth) | _BINARY)
        if self._whole:
            self._whole._add(raw, _LOOSE | _BINARY)

    def end_skipping(self) -> None:
        self._skip_strict = self._skip_wordless = 0

    def _count_word(self) -> int:
        """The readings in which this word is one of the characters to skip."""
        if not self._skip_strict:
            return 0
        self._skip_strict -= 1
        return self._strict


def _from_hex(pieces: list[bytes], start: int) -> bytes:
    digits = b"".join(pieces).translate(None, _NOT_HEX)[start:]
    return binascii.unhexlify(digits[: len(digits) // 2 * 2])


class _Group(NamedTuple):
    """Immutable: a group within it shares it until it changes something."""

    into: Destination | None = None
    following: int = 1  # characters after `\uN` for programs that do not know it (`\ucN`)
    is_hidden: bool = False
    around: bool | None = None  # in `\upr`: whether the text around it is hidden

    def after(self, number: int | None) -> _Group:
        """After the word `uc` with this number."""
        following = 1 if number is None else number
        is_new = following != self.following and 0 <= following < 0x8000
        return self._replace(following=following) if is_new else self


_TOP = _Group()


def destinations(content: bytes, budget: Budget) -> Iterator[Destination]:
    """Each one when it ends. If some may be in binary data, also as read by a program that does not skip that."""
    reader = _Reader(content, budget, skips_binary=True)
    yield from reader.read()
    if reader.is_disputed:
        yield from _Reader(content, budget, skips_binary=False).read()


class _Reader:
    def __init__(self, content: bytes, budget: Budget, skips_binary: bool) -> None:
        self._content, self._budget, self._skips_binary = content, budget, skips_binary
        self.is_disputed = False
        self._at = 0
        self._group = _TOP
        self._stack: list[_Group] = []
        self._is_starred = False
        self._kind_at = 0  # the end of the next word that begins a destination

    def read(self) -> Iterator[Destination]:
        while token := self._next():
            self._at = token.end()
            brace, word, number, code, symbol, text = token.groups()
            into, depth, hidden = self._group.into, len(self._stack), self._group.is_hidden
            self._budget.take_work(_TOKEN_WORK)
            if brace == b"{":
                self._open()
            elif brace:
                yield from self._close()
            elif word in _KINDS:
                yield from self._begin(word)
            elif word:
                self._word(word, _number(number))
            elif not into:
                pass
            elif text:
                into.add_text(text, hidden, depth)
            elif code:
                into.add_code(code, hidden, depth)
            elif symbol in (b"\\", b"{", b"}"):
                into.add_text(symbol, hidden, depth)
            else:
                self._is_starred = self._is_starred or symbol == b"*"
                into.add_word(_SYMBOLS.get(symbol, b""), hidden, depth)
        while self._group.into:  # groups that are not closed
            yield from self._close()

    def _next(self) -> re.Match[bytes] | None:
        if not self._group.into and not self._seek():
            return None
        return _TOKEN.match(self._content, self._at)

    def _seek(self) -> bool:
        """Goes on to the next word that matters. Like reading each token, but fast: most of a file is elsewhere."""
        stack = self._stack
        while self._find_kind():
            group = self._group
            for mark in _MARK.finditer(self._content, self._at, self._kind_at):
                found = mark[0]
                if found == b"{":
                    stack.append(group)
                elif found == b"}":
                    group = stack.pop() if stack else _TOP
                elif mark[2]:
                    self._at, self._group = mark.start(), group
                    return True
                elif mark[1] is not None:
                    group = group.after(_number(mark[1]))
            self._at, self._group = self._kind_at, group
        return False

    def _find_kind(self) -> bool:
        if self._kind_at <= self._at:
            kind = _KIND.search(self._content, self._at)
            if not kind:
                return False
            self._kind_at = kind.end()
            marks = sum(self._content.count(mark, self._at, self._kind_at) for mark in _MARKS)
            self._budget.take_work(_TOKEN_WORK + _MARK_WORK * marks)
        return True

    def _open(self) -> None:
        self._is_starred = False
        self._stack.append(self._group)
        if self._group.into:
            self._group.into.end_skipping()

    def _close(self) -> Iterable[Destination]:
        self._is_starred = False
        into, depth = self._group.into, len(self._stack)
        self._group = self._stack.pop() if self._stack else _TOP
        if not into:
            return ()
        into.end_skipping()
        return into.ended(depth)

    def _begin(self, kind: bytes) -> Iterable[Destination]:
        self._budget.take_work(_DESTINATION_WORK)
        self._is_starred = False
        outer, depth = self._group.into, len(self._stack)
        self._group = self._group._replace(into=Destination(kind, depth, outer), is_hidden=False, around=None)
        # One that began in the same group ends here, unless it is an object: what follows may belong to it, too.
        return (outer,) if outer and outer.depth == depth and not outer.is_whole() else ()

    def _word(self, word: bytes, number: int | None) -> None:
        is_starred, self._is_starred = self._is_starred, False
        group, depth = self._group, len(self._stack)
        if word == b"uc":
            self._group = group = group.after(number)
        elif word == b"bin":
            self._binary(number or 0)
            return
        if not group.into:
            return
        if word == b"u" and number is not None:
            group.into.add_unicode(number, group.following, group.is_hidden, depth)
            return
        meaning = b" " if word in _SPACES else b'"' if word in _QUOTES else b""
        group.into.add_word(meaning, group.is_hidden, depth)
        if word == b"ud" and group.around is not None:
            self._group = group._replace(is_hidden=group.around)
        elif is_starred or word in _HIDING:
            around = group.is_hidden if word == b"upr" else group.around
            self._group = group._replace(is_hidden=True, around=around)

    def _binary(self, number: int) -> None:
        size = number & 0xFFFFFFFF
        if size >= 0x80000000:
            size = 0
        if not self._skips_binary:
            return
        end = self._at + size
        if end > len(self._content) or _KIND.search(self._content, self._at, end):
            self.is_disputed = True
        if self._group.into:
            raw = self._content[self._at : end]
            self._group.into.add_binary(raw, self._group.is_hidden, len(self._stack))
        self._at = min(end, len(self._content))


def _number(written: bytes | None) -> int | None:
    return int(written) if written and written != b"-" and len(written) <= _LONGEST_NUMBER else None
