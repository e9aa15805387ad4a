"""TLS settings of our servers, in one place so that listeners and the service cannot differ.

TLS 1.2 and later; of 1.2 only suites with forward secrecy and authenticated encryption (RFC 9325 4.2): the others are
CBC suites, which security scanners report as weak. Every TLS library of the last ten years supports the rest.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from bridge.runtime import whole_file

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


def use_reloaded_certificate(context: ssl.SSLContext, newest: Callable[[], ssl.SSLContext | None]) -> None:
    """A reload brings a new context, but the sockets accept with the first one: it hands each connection over."""

    def hand_over(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        reloaded = newest()
        if reloaded is not None:
            connection.context = reloaded

    context.sni_callback = hand_over


def chain_problem(exc: Exception, cert: Path, key: Path) -> str:
    """Why a certificate and its key cannot be loaded, and what to do: OpenSSL names neither file."""
    found: dict[Path, bytes] = {}
    for path in (cert, key):
        try:
            whole_file.refuse_endless(path)
            with path.open("rb") as file:
                found[path] = file.read(_PEM_BYTES)
        except OSError as unreadable:
            return f"{path}: {unreadable.strerror}"
    if getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate; use the key that the certificate was issued for"
    if b"CERTIFICATE" in found[key] and b"PRIVATE KEY" in found[cert] and b"CERTIFICATE" not in found[cert]:
        return "they are swapped: the first file contains the key and the second the certificate; swap the two names"
    if b"ENCRYPTED" in found[key]:
        return f"the key is encrypted; remove its password: openssl pkey -in {key} -out NEW_FILE"
    for path, kind in ((cert, "CERTIFICATE"), (key, "PRIVATE KEY")):
        if kind.encode() not in found[path]:
            problem = f"{path} has no line with BEGIN {kind}, so it is not PEM"
            return f"{problem}; convert it with openssl, or use another file"
    why = getattr(exc, "reason", None) or "no reason given"
    return f"OpenSSL cannot read them ({why}); check both files, or replace them"
