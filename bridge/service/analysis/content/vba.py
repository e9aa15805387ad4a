"""The source of VBA macros (MS-OVBA 2.4.1), wherever it is in a stream. Linear; raises only TooMuch.

The directory of a project says where in a stream the source begins. It may be damaged on purpose, so what looks like a
source is searched for as well. Before the source, a stream has the same macro compiled. Office of the same version runs
that, and does not look at the source, which may have been replaced: names of programs in it count, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from bridge.service.analysis.content.excel_files import AUTO_MACRO, MACRO, RUNS_PROGRAM
from bridge.service.analysis.content.ole_files import entries
from bridge.service.analysis.content.unpacking import Budget

_AUTO = re.compile(
    r"\b(?:auto_?(?:open|close|exec|exit|new)|document_?(?:open|close|new|beforeclose)|document_contentcontrolonenter"
    r"|workbook_(?:open|activate|beforeclose|beforesave)|worksheet_(?:activate|calculate|change|selectionchange)"
    r"|presentation_?open|\w{1,50}_(?:layout|painted|gotfocus|mouseenter|resize))\b"
)
_PROGRAMS = re.compile(
    r"\bshell\b|wscript\.shell|shell\.application|urldownloadtofile|xmlhttp|winhttp|adodb\.stream|powershell|mshta"
    r"|rundll32|regsvr32|certutil|bitsadmin|winmgmts|virtualalloc|createthread|executeexcel4macro|\bexec\s*+\("
    r"|shellexecute|\bwinexec\b|\bcreateprocess|swbemlocator|schedule\.service|getobject\s*+\(\s*+\"new:"
)
# Compressed, with eight characters that are not copies; or plain, with its first word: text of a document is like that
_BEGINNING = re.compile(rb"\x01.(?:[\xb0-\xbf]\x00[\t\r\n\x20-\x7e]{8}|[\x30-\x3f](?i:attribut))", re.DOTALL)
_BASIC = re.compile(rb"\battribut|\b(?:sub|function|property|declare|dim|const|option)\s", re.IGNORECASE)
_DIRECTORY = "dir"
_DIRECTORY_NAME = re.compile(rb"d\0i\0r\0\0\0", re.IGNORECASE)
# Records of the directory: PROJECTVERSION, which is two bytes longer than it says; MODULESTREAMNAME in the charset of
# the project and in UTF-16, and MODULEOFFSET
_VERSION, _STREAM_NAME, _WIDE_STREAM_NAME, _OFFSET = 0x09, 0x1A, 0x32, 0x31
_RECORD_WORK = 200
_BYTE_WORK, _SOURCE_WORK = 10, 25  # for each byte of a stream, and of a source in it
_CHUNK = 4096
_CHUNK_WORK = 20 * _CHUNK
_MAX_SOURCE = 8 * 1024 * 1024  # bytes


def tags_of_source(source: bytes) -> tuple[str, ...]:
    """What a macro in any dialect of Basic does: whether it runs by itself, and whether it starts programs."""
    lower = source.decode("latin-1").lower()
    by_itself = (AUTO_MACRO,) if _AUTO.search(lower) else ()
    runs = (RUNS_PROGRAM,) if _PROGRAMS.search(lower) else ()
    return (MACRO, *by_itself, *runs)


class Project:
    """The macros of an OLE2 file, each of whose streams is asked for once."""

    def __init__(self, content: bytes, budget: Budget) -> None:
        self._budget = budget
        self._offsets: dict[str, set[int]] = {}  # of the sources, by the names of streams in lower case
        self._unread: set[str] = set()
        self._read: set[str] = set()
        if _DIRECTORY_NAME.search(content):
            for entry in entries(content, budget, (_DIRECTORY,)):
                for name, offset in _modules(_decompressed(entry.content, 1, budget)[0], budget):
                    self._offsets.setdefault(name, set()).add(offset)

    def sources(self, name: str, stream: bytes) -> Iterator[tuple[bytes, tuple[str, ...]]]:
        """Each source with what it does; and once, with no source, what is compiled but in none of them."""
        known: set[str] = set()
        offsets = self._offsets.get(name, set())
        is_read = False
        for source in sources(stream, self._budget, offsets):
            is_read = True
            self._budget.take_work(_SOURCE_WORK * len(source))
            known |= _programs(source)
            yield source, tags_of_source(source)
        if is_read:
            self._budget.take_work(_BYTE_WORK * len(stream))
            if _programs(stream) - known:
                yield b"", (MACRO, RUNS_PROGRAM)
        if offsets:
            (self._read if is_read else self._unread).add(name)

    @property
    def is_unread(self) -> bool:
        """Whether there is a stream that should contain a source, and has none. Other streams may have its name."""
        return bool(self._unread - self._read)


def _modules(directory: bytes, budget: Budget) -> Iterator[tuple[str, int]]:
    names: tuple[str, ...] = ()
    at = 0
    while at + 6 <= len(directory):
        budget.take_work(_RECORD_WORK)
        kind = int.from_bytes(directory[at : at + 2], "little")
        size = 6 if kind == _VERSION else int.from_bytes(directory[at + 2 : at + 6], "little")
        data = directory[at + 6 : at + 6 + min(size, 1024)]
        if kind == _STREAM_NAME:
            names = (data.decode("latin-1").lower(),)
        elif kind == _WIDE_STREAM_NAME:
            names += (data.decode("utf-16-le", "replace").lower(),)
        elif kind == _OFFSET:
            yield from ((name, int.from_bytes(data[:4], "little")) for name in names)
            names = ()
        at += 6 + size


def sources(stream: bytes, budget: Budget, offsets: Collection[int] = ()) -> Iterator[bytes]:
    """Those at the places that the directory names, and whatever else looks like one."""
    budget.take_work(_RECORD_WORK * len(offsets))
    for offset in offsets:
        if source := _source(stream, offset, budget):
            yield source
    for match in _BEGINNING.finditer(stream):
        if match.start() not in offsets:
            source = _source(stream, match.start(), budget)
            if _BASIC.search(source):
                yield source


def _source(stream: bytes, at: int, budget: Budget) -> bytes:
    return _decompressed(stream, at + 1, budget)[0] if stream[at : at + 1] == b"\x01" else b""


def _programs(text: bytes) -> set[str]:
    return set(_PROGRAMS.findall(text.decode("latin-1").lower()))


def _decompressed(data: bytes, at: int, budget: Budget) -> tuple[bytes, int]:
    """The text, and where it ends. It consists of chunks of at most 4,096 bytes."""
    out: list[bytes] = []
    for _ in range(_MAX_SOURCE // _CHUNK):
        header = int.from_bytes(data[at : at + 2], "little")
        if at + 2 > len(data) or header >> 12 & 7 != 3:
            break
        end = min(len(data), at + (header & 0xFFF) + 3)
        budget.take(_CHUNK)
        budget.take_work(_CHUNK_WORK)
        out.append(_chunk(data, at + 2, end) if header >> 15 else data[at + 2 : end])
        at = end
    return b"".join(out), at


def _chunk(data: bytes, at: int, end: int) -> bytes:
    out = bytearray()
    while at < end:
        flags, at = data[at], at + 1
        for bit in range(8):
            if at >= end or len(out) >= _CHUNK:
                break
            if not flags >> bit & 1:
                out.append(data[at])
                at += 1
                continue
            token = int.from_bytes(data[at : at + 2], "little")
            at += 2
            bits = max(4, (len(out) - 1).bit_length())  # for the distance: the more, the longer the text is
            distance = (token >> (16 - bits)) + 1
            if distance > len(out):
                return bytes(out)
            length = min((token & (0xFFFF >> bits)) + 3, _CHUNK - len(out))
            repeated = bytes(out[-distance:])
            out += (repeated * (length // distance + 1))[:length]
    return bytes(out)
