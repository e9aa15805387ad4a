"""yEnc: files in text that mark their own beginning, each perhaps in several blocks. Nothing here raises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from bridge.mime.blocks import BEFORE_EQUALS, blocks

BEGIN = re.compile(rb"=ybegin ([^\r\n]*)[\r\n]*(?:=ypart ([^\r\n]*)[\r\n]*)?")
_NUMBER = re.compile(rb"(?:^|[ \t])(part|begin)=0*([0-9]{1,18})")
_MINUS_42 = bytes((byte - 42) % 256 for byte in range(256))
_MINUS_106 = bytes((byte - 106) % 256 for byte in range(256))


def files(raw: bytes) -> Iterator[bytes]:
    """Each block, and those of one name put together: as they are, by their part numbers, and by their offsets."""
    named: dict[bytes, list[tuple[dict[bytes, int], bytes]]] = {}
    begins = list(BEGIN.finditer(raw))
    for match, following in zip_longest(begins, begins[1:]):
        limit = following.start() if following else len(raw)
        end = raw.find(b"\n=yend", match.end() - 1, limit)
        content = _decoded(raw[match.end() : end if end >= 0 else limit])
        yield content
        numbers = {key: int(value) for key, value in _NUMBER.findall(match[1] + b" " + (match[2] or b""))}
        named.setdefault(match[1].partition(b"name=")[2].strip(), []).append((numbers, content))
    for parts in named.values():
        for key in (b"", b"part", b"begin") if len(parts) > 1 else ():
            yield b"".join(content for _, content in sorted(parts, key=lambda part: part[0].get(key, 0)))


def _decoded(raw: bytes) -> bytes:
    return b"".join(map(_decoded_block, blocks(raw.translate(None, b"\r\n"), BEFORE_EQUALS)))


def _decoded_block(block: bytes) -> bytes:
    first, *escaped = block.split(b"=")
    return first.translate(_MINUS_42) + b"".join(
        [piece[:1].translate(_MINUS_106) + piece[1:].translate(_MINUS_42) for piece in escaped]
    )
