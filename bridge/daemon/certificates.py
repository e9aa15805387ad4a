"""When certificates end.

The standard library shows the end of a verified peer's certificate only, not of our own and not of one that
nobody verified; the one field that is wanted is quickly found in the DER by hand.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _VERSION = 0x17, 0xA0


def first_end(path: Path) -> float | None:
    """When the first certificate of a PEM file ends, Unix time; None if that cannot be read."""
    try:
        ends = [end_of(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(path.read_text("ascii", "replace"))]
    except (OSError, ValueError):
        return None
    return min((end for end in ends if end is not None), default=None)


def is_chain(path: Path) -> bool:
    """Whether each certificate of a PEM file is followed by the one that signed it; True when it cannot be read."""
    try:
        names = [_names(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(path.read_text("ascii", "replace"))]
    except (OSError, ValueError, IndexError):
        return True
    return all(below[0] == above[1] for below, above in pairwise(names))


def _names(der: bytes) -> tuple[bytes, bytes]:
    """Issuer and subject."""
    fields = _certificate_fields(der)
    return fields[2][1], fields[4][1]


def end_of(der: bytes) -> float | None:
    """notAfter of one certificate, Unix time; None if there is none to be found."""
    try:
        kind, text = _inside(_certificate_fields(der)[3][1])[1]  # validity: notBefore, notAfter
        return _time(kind, text.decode("ascii"))
    except (IndexError, ValueError):
        return None


def _certificate_fields(der: bytes) -> list[tuple[int, bytes]]:
    """Of its tbsCertificate: serial, algorithm, issuer, validity, subject, ..."""
    fields = _inside(_inside(_inside(der)[0][1])[0][1])
    return fields[1:] if fields[0][0] == _VERSION else fields


def _inside(value: bytes) -> list[tuple[int, bytes]]:
    """The elements in a SEQUENCE: tags and values. `value` is its content, or a whole certificate."""
    found, rest = [], value
    while rest:
        tag, length, start = rest[0], rest[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(rest[2:start])
        if start + length > len(rest):
            raise ValueError("cut off")
        found.append((tag, rest[start : start + length]))
        rest = rest[start + length :]
    return found


def _time(kind: int, text: str) -> float:
    """RFC 5280 4.1.2.5: two digits of the year until 2049, then four."""
    if kind == _UTC_TIME:
        text = ("19" if text[0] >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
