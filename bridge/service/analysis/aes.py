"""AES decryption in Python (FIPS 197), for documents whose password everybody knows: no library is needed for these.

About 0.5 MB per second, so callers charge each byte. Nothing here raises, except for a key of a wrong length.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

BLOCK = 16
_COLUMNS = struct.Struct(">4I")


class _Tables(NamedTuple):
    box: list[int]
    inverse: list[int]
    columns: list[list[int]]  # of InvMixColumns after InvSubBytes, for each of the four bytes of a word


@cache
def _tables() -> _Tables:
    powers, logarithms, value = [0] * 255, [0] * 256, 1
    for power in range(255):
        powers[power], logarithms[value] = value, power
        value ^= (value << 1) ^ (0x11B if value & 0x80 else 0)
    box = [_substituted(powers[-logarithms[byte] % 255] if byte else 0) for byte in range(256)]
    inverse = [0] * 256
    for byte, substituted in enumerate(box):
        inverse[substituted] = byte

    def product(byte: int, factor: int) -> int:
        return powers[(logarithms[byte] + logarithms[factor]) % 255] if byte else 0

    words = [int.from_bytes(bytes(product(inverse[byte], factor) for factor in (14, 9, 13, 11))) for byte in range(256)]
    columns = [[word >> shift | word << (32 - shift) & 0xFFFFFFFF for word in words] for shift in (0, 8, 16, 24)]
    return _Tables(box, inverse, columns)


def _substituted(inverse: int) -> int:
    found = 0x63
    for shift in range(5):
        found ^= inverse << shift | inverse >> (8 - shift)
    return found & 0xFF


def decrypt(data: bytes, key: bytes, initial: bytes | None = None) -> bytes:
    """Whole blocks; with an initial block in CBC mode, else each on its own. Raises ValueError."""
    keys = _round_keys(key)
    size = len(data) // BLOCK * BLOCK
    plain = b"".join(_block(data[at : at + BLOCK], keys) for at in range(0, size, BLOCK))
    if initial is None:
        return plain
    before = (initial.ljust(BLOCK, b"\0")[:BLOCK] + data)[:size]
    return (int.from_bytes(plain) ^ int.from_bytes(before)).to_bytes(size)


def _round_keys(key: bytes) -> list[tuple[int, ...]]:
    """For the equivalent inverse cipher: the last one first."""
    if len(key) not in (16, 24, 32):
        raise ValueError("not a key of AES")
    box, _, columns = _tables()
    count = len(key) // 4
    words, constant = list(struct.unpack(f">{count}I", key)), 1
    while len(words) < 4 * (count + 7):
        word = words[-1]
        if len(words) % count == 0:
            word = _substitute(word << 8 & 0xFFFFFFFF | word >> 24, box) ^ constant << 24
            constant = constant << 1 ^ (0x11B if constant & 0x80 else 0)
        elif count == 8 and len(words) % count == 4:
            word = _substitute(word, box)
        words.append(words[-count] ^ word)
    keys = [tuple(words[at : at + 4]) for at in range(0, len(words), 4)][::-1]
    mixed = [tuple(_mixed(word, box, columns) for word in each) for each in keys[1:-1]]
    return [keys[0], *mixed, keys[-1]]


def _substitute(word: int, box: list[int]) -> int:
    return box[word >> 24] << 24 | box[word >> 16 & 255] << 16 | box[word >> 8 & 255] << 8 | box[word & 255]


def _mixed(word: int, box: list[int], columns: list[list[int]]) -> int:
    first, second, third, fourth = columns
    return (
        first[box[word >> 24]] ^ second[box[word >> 16 & 255]] ^ third[box[word >> 8 & 255]] ^ fourth[box[word & 255]]
    )


def _block(block: bytes, keys: list[tuple[int, ...]]) -> bytes:
    _, inverse, (first, second, third, fourth) = _tables()
    start = keys[0]
    a, b, c, d = (word ^ key for word, key in zip(_COLUMNS.unpack(block), start, strict=True))
    for e, f, g, h in keys[1:-1]:
        a, b, c, d = (
            first[a >> 24] ^ second[d >> 16 & 255] ^ third[c >> 8 & 255] ^ fourth[b & 255] ^ e,
            first[b >> 24] ^ second[a >> 16 & 255] ^ third[d >> 8 & 255] ^ fourth[c & 255] ^ f,
            first[c >> 24] ^ second[b >> 16 & 255] ^ third[a >> 8 & 255] ^ fourth[d & 255] ^ g,
            first[d >> 24] ^ second[c >> 16 & 255] ^ third[b >> 8 & 255] ^ fourth[a & 255] ^ h,
        )
    last = keys[-1]
    shifted = ((a, d, c, b), (b, a, d, c), (c, b, a, d), (d, c, b, a))
    words = (
        inverse[p >> 24] << 24 | inverse[q >> 16 & 255] << 16 | inverse[r >> 8 & 255] << 8 | inverse[s & 255]
        for p, q, r, s in shifted
    )
    return _COLUMNS.pack(*(word ^ key for word, key in zip(words, last, strict=True)))
