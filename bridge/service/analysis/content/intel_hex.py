"""Intel HEX: a file in lines of digits, which 7-Zip recognises by its first records, whatever its name is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from bridge.service.analysis.content.unpacking import Budget, Member

_RECORD = re.compile(rb":((?:[0-9A-Fa-f]{2}){5,260})[\r\n]{0,16}")
_DATA, _END, _SEGMENT, _UPPER = 0, 1, 2, 4  # types of records
_RECORD_COST = 256  # work for each record


def is_intel_hex(content: bytes) -> bool:
    return content.startswith(b":") and next(_records(content), None) is not None


def intel_hex_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """Records whose addresses follow each other form a file."""
    files: list[list[bytes]] = []
    base, expected = 0, -1
    for kind, address, data in _records(content):
        budget.take_work(_RECORD_COST)
        if kind == _DATA:
            budget.take(len(data))
            if base + address != expected:
                budget.take_member()
                files.append([])
            files[-1].append(data)
            expected = base + address + len(data)
        elif kind in (_SEGMENT, _UPPER):
            base = int.from_bytes(data[:2], "big") << (4 if kind == _SEGMENT else 16)
        elif kind == _END:
            break
    stems = tuple(name.rpartition(".")[0] or name for name in names) or ("",)
    for number, pieces in enumerate(files):
        yield Member(stems if len(files) == 1 else (str(number),), b"".join(pieces), is_disputed=True)


def _records(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The type, the address and the data of each, up to the first one that is damaged."""
    match = _RECORD.match(content)
    while match is not None:
        record = bytes.fromhex(match[1].decode("ascii"))
        if len(record) != record[0] + 5 or sum(record) & 0xFF:
            return
        yield record[3], int.from_bytes(record[1:3], "big"), record[4:-1]
        match = _RECORD.match(content, match.end())
