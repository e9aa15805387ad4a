"""When certificates expire.

The standard library shows the expiry of a verified peer certificate only, not of our own and not of
one that was not verified. The one field we need is easy to find in the DER encoding.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from bridge.runtime import whole_file

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _VERSION = 0x17, 0xA0


def expiry_by_name(files: Iterable[tuple[str, str, Path]]) -> dict[tuple[str, str], float]:
    """For (role, name, file): when the certificate expires. Files without a readable certificate are left out."""
    found = {(role, name): earliest_expiry(path) for role, name, path in files}
    return {key: expiry for key, expiry in found.items() if expiry is not None}


def earliest_expiry(path: Path) -> float | None:
    """When the first certificate of a PEM file expires, as Unix time; None if there is none to be read."""
    try:
        found = [expiry_of(ssl.PEM_cert_to_DER_cert(pem)) for pem in _certificates(path)]
    except (OSError, ValueError):
        return None
    return min((expiry for expiry in found if expiry is not None), default=None)


def is_chain(path: Path) -> bool:
    """Whether each certificate of a PEM file is followed by its issuer's; True if the file cannot be read."""
    try:
        names = [_names(ssl.PEM_cert_to_DER_cert(pem)) for pem in _certificates(path)]
    except (OSError, ValueError, IndexError):
        return True
    return all(below[0] == above[1] for below, above in pairwise(names))


def _certificates(path: Path) -> list[str]:
    return _PEM.findall(whole_file.read_text(path, "ascii", "replace"))


def _names(der: bytes) -> tuple[bytes, bytes]:
    """Issuer and subject."""
    fields = _certificate_fields(der)
    return fields[2][1], fields[4][1]


def expiry_of(der: bytes) -> float | None:
    """notAfter of one certificate, as Unix time; None if it cannot be found."""
    try:
        kind, text = _elements(_certificate_fields(der)[3][1])[1]  # validity: notBefore, notAfter
        return _time(kind, text.decode("ascii"))
    except (IndexError, ValueError):
        return None


def _certificate_fields(der: bytes) -> list[tuple[int, bytes]]:
    """Of the tbsCertificate: serial, algorithm, issuer, validity, subject, ..."""
    fields = _elements(_elements(_elements(der)[0][1])[0][1])
    return fields[1:] if fields[0][0] == _VERSION else fields


def _elements(value: bytes) -> list[tuple[int, bytes]]:
    """Tags and values of the elements of a SEQUENCE. `value` is its content, or a whole certificate."""
    found, rest = [], value
    while rest:
        tag, length, start = rest[0], rest[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(rest[2:start])
        if start + length > len(rest):
            raise ValueError("the DER encoding is truncated")
        found.append((tag, rest[start : start + length]))
        rest = rest[start + length :]
    return found


def _time(kind: int, text: str) -> float:
    """RFC 5280 4.1.2.5: the year has two digits until 2049, four from 2050 on."""
    if kind == _UTC_TIME:
        text = ("19" if text[0] >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
