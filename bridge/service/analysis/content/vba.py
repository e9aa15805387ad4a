"""The source of VBA macros (MS-OVBA 2.4.1), wherever it is in a stream. Linear; nothing here raises but TooMuch.

The directory of a project says where in a stream the source begins. It may be damaged on purpose, and each source
begins with the same word, so that word is searched for instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.service.analysis.content.excel_files import AUTO_MACRO, MACRO, RUNS_PROGRAM
from bridge.service.analysis.content.unpacking import Budget

_AUTO = re.compile(
    r"\b(?:auto_?(?:open|close|exec|exit|new)|document_?(?:open|close|new|beforeclose)|document_contentcontrolonenter"
    r"|workbook_(?:open|activate|beforeclose|beforesave)|worksheet_(?:activate|calculate|change|selectionchange)"
    r"|presentation_?open|\w{1,50}_(?:layout|painted|gotfocus|mouseenter|resize))\b"
)
_PROGRAMS = re.compile(
    r"\bshell\b|wscript\.shell|shell\.application|urldownloadtofile|xmlhttp|winhttp|adodb\.stream|powershell|mshta"
    r"|rundll32|regsvr32|certutil|bitsadmin|winmgmts|virtualalloc|createthread|\bexecute4macro\b|\bexec\s{0,9}\("
)
_BEGINNING = re.compile(rb"\x01..\x00?Attribut", re.DOTALL)  # compressed or plain
_CHUNK = 4096
_CHUNK_WORK = 20 * _CHUNK
_MAX_SOURCE = 8 * 1024 * 1024  # bytes


def tags_of_source(source: bytes) -> tuple[str, ...]:
    """What a macro in any dialect of Basic does: whether it runs by itself, and whether it starts programs."""
    lower = source.decode("latin-1").lower()
    by_itself = (AUTO_MACRO,) if _AUTO.search(lower) else ()
    runs = (RUNS_PROGRAM,) if _PROGRAMS.search(lower) else ()
    return (MACRO, *by_itself, *runs)


def sources(stream: bytes, budget: Budget) -> Iterator[bytes]:
    at = 0
    while match := _BEGINNING.search(stream, at):
        source, at = _decompressed(stream, match.start() + 1, budget)
        yield source


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
