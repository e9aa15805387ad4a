"""S/MIME: the message within signed or compressed data (`smime.p7m`), which every reader shows without asking.

Finds the one place in the DER or BER structure that holds it, without reading the rest: after the object
identifier of the content comes an explicit [0] with an octet string, in one piece or in many.
"""

from __future__ import annotations

from collections.abc import Iterator

_DATA = bytes.fromhex("06092a864886f70d010701")  # pkcs7-data
_OCTETS, _OCTETS_IN_PIECES = 0x04, 0x24
MAX_PIECES = 100_000


def content(der: bytes) -> bytes:
    """The message, or nothing if there is none: encrypted, or signed separately."""
    at = der.find(_DATA)
    while at >= 0:
        start = at + len(_DATA)
        if der[start : start + 1] == b"\xa0":
            found = b"".join(_pieces(der, _after_length(der, start + 1)[0]))
            if found:
                return found
        at = der.find(_DATA, start)
    return b""


def _pieces(der: bytes, at: int) -> Iterator[bytes]:
    for _ in range(MAX_PIECES):
        tag = der[at] if at < len(der) else 0
        start, length = _after_length(der, at + 1)
        if tag == _OCTETS_IN_PIECES:
            at = start
        elif tag == _OCTETS and length is not None:
            yield der[start : start + length]
            at = start + length
        else:
            return


def _after_length(der: bytes, at: int) -> tuple[int, int | None]:
    """Where the value begins, and its length; None if its end is marked instead."""
    first = der[at] if at < len(der) else 0
    if first < 0x80:
        return at + 1, first
    count = first & 0x7F
    return at + 1 + count, int.from_bytes(der[at + 1 : at + 1 + count], "big") if count else None
