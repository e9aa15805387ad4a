"""Where archives begin in other content, found as 7-Zip does: by the mark of each format, and what is around it.

A short mark may be a coincidence, so 7-Zip checks the header as well, and so does this file. 7-Zip also searches for
formats that contain no files of anyone else (the sections of programs, the streams of OLE files, firmware), and for
partition tables; these are not here, but the file systems in the partitions are. `buried_archives` has the formats that
our own decoders open.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection, Iterator

WITHIN = 8 * 1024 * 1024  # bytes in which 7-Zip searches
_FEW = 10_000  # marks whose surroundings are looked at
_LHA_HEAD, _CPIO_HEAD, _CPIO_NAME = 22, 26, 4096
_ARJ_HEAD = range(30, 2601)
_ZSTD_BLOCK = 128 * 1024

Check = Callable[[bytes, int], bool]
_Mark = tuple[bytes, int, Check | None]  # what it is, where it is in the archive, and what must be around it


def places(content: bytes, kind: str) -> Iterator[int]:
    """The positions, in order for each mark."""
    for mark, offset, check in _MARKS.get(kind, ()):
        for number, found in enumerate(places_of(mark, offset, content)):
            if check is None or number >= _FEW or check(content, found):
                yield found


def places_of(mark: bytes, offset: int, content: bytes) -> Iterator[int]:
    """Where the archives with this mark may begin."""
    # One byte is found much faster than several, and most files do not have all of them.
    has_all = all(content.find(byte, 0, WITHIN) >= 0 for byte in _BYTES[mark])
    found = content.find(mark, offset, WITHIN) if has_all else -1
    while found >= 0:
        yield found - offset
        found = content.find(mark, found + 1, WITHIN)


def kinds_in(content: bytes, wanted: Collection[str]) -> list[str]:
    """The wanted kinds that may begin anywhere in it."""
    # No text has the control characters that most formats need, if not in the mark itself, then around it.
    is_text = not any(byte in content for byte in _CONTROL)
    marked = _WITHOUT_CONTROL if is_text else KINDS
    return [kind for kind in marked if kind in wanted and next(places(content, kind), None) is not None]


def _matches(pattern: bytes) -> Check:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda content, at: compiled.match(content, at) is not None


def _is_zstd(content: bytes, at: int) -> bool:
    """The first block follows a header of two to fourteen bytes."""
    facts = content[at + 4 : at + 5]
    if not facts or facts[0] & 8:
        return False
    is_single, size = bool(facts[0] & 32), facts[0] >> 6
    first = at + 5 + (not is_single) + (0, 1, 2, 4)[facts[0] & 3] + (1 << size if size or is_single else 0)
    block = int.from_bytes(content[first : first + 3], "little")
    return first + 3 <= len(content) and block >> 1 & 3 != 3 and block >> 3 <= _ZSTD_BLOCK


_CPIO = re.compile(rb"07070(?:[12][0-9A-Fa-f]{88}([0-9A-Fa-f]{8})[0-9A-Fa-f]{8}|7[0-7]{53}([0-7]{6})[0-7]{11})")


def _is_cpio(content: bytes, at: int) -> bool:
    """Numbers in digits, or binary in either byte order: the name ends where it should."""
    text = _CPIO.match(content, at)
    if text:
        length, start = int(text[1], 16) if text[1] else int(text[2], 8), text.end()
    else:
        is_little = content.startswith(b"\xc7", at)
        length = int.from_bytes(content[at + 20 : at + 22], "little" if is_little else "big")
        start = at + _CPIO_HEAD
    if (not text and content.startswith(b"0", at)) or not 0 < length <= _CPIO_NAME:
        return False
    name = content[start : start + length]
    return name.find(b"\0") == length - 1


def _is_lha(content: bytes, at: int) -> bool:
    head = content[at : at + 2 + _LHA_HEAD]
    if len(head) < 2 + _LHA_HEAD or head[6:7] != b"-" or head[5] not in b"d01234567" or head[20] > 2:
        return False
    length = head[0]
    return head[20] == 2 or (length >= _LHA_HEAD and sum(content[at + 2 : at + 2 + length]) & 0xFF == head[1])


def _is_arj(content: bytes, at: int) -> bool:
    length = int.from_bytes(content[at + 2 : at + 4], "little")
    start, end = at + 4, at + 4 + length
    if length not in _ARJ_HEAD or end + 4 > len(content) or content[start + 6] != 2:
        return False
    return zlib.crc32(content[start:end]) == int.from_bytes(content[end : end + 4], "little")


_DISK: tuple[_Mark, ...] = (
    (b"koly\0\0\0\4\0\0\2\0", 0, None),
    (b"conectix\0\0", 0, None),
    (b"vhdxfile", 0, None),
    (b"KDMV", 0, _matches(rb"KDMV[\1-\4]\0\0\0")),
    (b"QFI\xfb\0\0\0", 0, None),
    (b"\x3a\xff\x26\xed\1\0", 0, None),  # Android's
    (b"NTFS    \0", 3, None),
    (b"NXSB\0", 32, None),
    (b"\x7f\x10\xda\xbe", 64, _matches(rb".{64}\x7f\x10\xda\xbe[\0-\3]\0[\0-\3]\0")),
    (b"Compressed ROMFS", 16, None),
    (b"\0BEA01\1\0", 0x8000, None),
    (b"H+\0\4", 1024, _matches(rb".{1064}\0.{2}\0")),  # the size of its blocks
    (b"HX\0\5", 1024, _matches(rb".{1064}\0.{2}\0")),
    (b"U\xaa", 510, _matches(rb"(?:\xe9..|\xeb.\x90).{8}\0[\2\4\x08\x10][\1\2\4\x08\x10\x20\x40\x80]")),
    (b"\x53\xef", 1080, _matches(rb".{1044}[\0\1]\0\0\0[\0-\6]\0\0\0")),
)
_MARKS: dict[str, tuple[_Mark, ...]] = {
    "rar": ((b"Rar!\x1a\x07", 0, None),),
    "7z": ((b"7z\xbc\xaf\x27\x1c", 0, None),),
    "cab": ((b"MSCF\0\0\0\0", 0, None),),
    "zstd": ((b"\x28\xb5\x2f\xfd", 0, _is_zstd),),
    "iso": ((b"CD001", 0x8001, _matches(rb".{32774}[\0-\2]")),),
    "cpio": (
        (b"07070", 0, _is_cpio),
        (b"\xc7\x71", 0, _is_cpio),
        (b"\x71\xc7", 0, _is_cpio),
    ),
    "lha": ((b"-lh", 2, _is_lha),),
    "rpm": ((b"\xed\xab\xee\xdb", 0, _matches(rb"....[\3-\xff].\0[\0\1]")),),
    # not opened:
    "arj": ((b"\x60\xea", 0, _is_arj),),
    "xar": ((b"xar!\0", 0, None),),
    "wim": ((b"MSWIM\0\0\0", 0, None),),
    "squashfs": tuple(
        (mark, 0, _matches(rb".{28}(?:[\1-\4]\0|\0[\1-\4])")) for mark in (b"hsqs", b"sqsh", b"shsq", b"qshs")
    ),
    "help": ((b"ITSF\3\0\0\0\x60\0\0\0", 0, None), (b"ITOLITLS\1\0\0\0\x28\0\0\0", 0, None)),
    "mslz": ((b"SZDD\x88\xf0\x27\x33A", 0, None),),
    "ppmd": ((b"\x8f\xaf\xac\x84", 0, _matches(rb".{9}[\x60-\xbf].[\0-\2\x40-\x42\x80-\x82]")),),
    "nsis": ((b"\xef\xbe\xad\xdeNullsoftInst", 4, None),),
    "disk": _DISK,
}
_BYTES = {  # the rarest first
    mark: [bytes((byte,)) for byte in sorted(set(mark), reverse=True)]
    for marks in _MARKS.values()
    for mark, _, _ in marks
}
KINDS = tuple(_MARKS)
_CONTROL = (b"\0", b"\1", b"\2", b"\x1a", b"\x1c")  # all kinds need one of these, except:
_WITHOUT_CONTROL = ("zstd", "arj", "mslz", "ppmd", "nsis", "disk")
LONG = ("rar", "7z", "cab")  # marks that are no coincidence, whatever is around them
