"""What TLS we speak as a server: one home for it, so that listeners and the service cannot differ.

TLS 1.2 and later; of 1.2 only what has forward secrecy and authenticated encryption (RFC 9325 4.2): the others
are the CBC suites, which scanners mark as weak. Every TLS library of the last ten years has these.
"""

from __future__ import annotations

import ssl

_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context() -> ssl.SSLContext:
    """Without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE  # a handshake costs us more than them
    return context
