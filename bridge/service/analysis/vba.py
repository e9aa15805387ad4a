"""The source of VBA macros (MS-OVBA 2.4.1), wherever it stands in a stream. Linear; nothing here raises but TooMuch.

The directory of a project says where in a stream the source begins. It may be damaged on purpose, and each source
begins with the same word, so that word is searched for instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.service.analysis.unpacking import Budget

_BEGINNING = re.compile(rb"\x01..\x00?Attribut", re.DOTALL)  # compressed or plain
_CHUNK = 4096
_CHUNK_WORK = 20 * _CHUNK
_MAX_SOURCE = 8 * 1024 * 1024  # bytes


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
