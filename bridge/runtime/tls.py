"""TLS settings of our servers, in one place so that listeners and the service cannot differ.

TLS 1.2 and later; of 1.2 only suites with forward secrecy and authenticated encryption (RFC 9325 4.2): the others
are CBC suites, which security scanners report as weak. Every TLS library of the last ten years supports these.
"""

from __future__ import annotations

import ssl

_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context() -> ssl.SSLContext:
    """A context that still needs a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_CIPHERS)
    context.options |= (
        ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    )  # a handshake costs us more than the client
    return context
