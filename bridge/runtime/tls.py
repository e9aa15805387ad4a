"""TLS settings of our servers, in one place so that listeners and the service cannot differ.

TLS 1.2 and later; of 1.2 only suites with forward secrecy and authenticated encryption (RFC 9325 4.2): the others
are CBC suites, which security scanners report as weak. Every TLS library of the last ten years supports these.
"""

from __future__ import annotations

import ssl
from pathlib import Path

_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_PEM_BYTES = 1 << 20  # far more than any chain


def server_context() -> ssl.SSLContext:
    """A context that still needs a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_CIPHERS)
    context.options |= (
        ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    )  # a handshake costs us more than the client
    return context


def chain_problem(exc: Exception, cert: Path, key: Path) -> str:
    """Why a certificate and its key cannot be loaded, and what to do: OpenSSL names neither file."""
    for path in (cert, key):
        try:
            path.open("rb").close()
        except OSError as unreadable:
            return f"{path}: {unreadable.strerror}"
    if getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate; name the key with which the certificate was requested"
    if _has(key, b"CERTIFICATE") and _has(cert, b"PRIVATE KEY") and not _has(cert, b"CERTIFICATE"):
        return "they are swapped: the first contains the key, the second the certificate; exchange the two names"
    if _has(key, b"ENCRYPTED"):
        return f"the key is encrypted; remove its password: openssl pkey -in {key} -out NEW_FILE"
    for path, kind in ((cert, "CERTIFICATE"), (key, "PRIVATE KEY")):
        if not _has(path, kind.encode()):
            return f"{path} has no line with BEGIN {kind}, so it is not PEM; convert it with openssl, or name another"
    return f"OpenSSL cannot read them ({getattr(exc, 'reason', None) or 'no reason given'}); copy them again"


def _has(path: Path, label: bytes) -> bool:
    return label in path.read_bytes()[:_PEM_BYTES]
