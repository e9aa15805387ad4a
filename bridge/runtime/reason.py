"""Why a connection failed, in words that an operator knows from other programs: `Connection refused`.

Libraries say it in their own ways, and hide it in the cause: `All connection attempts failed`,
`[Errno 111] Connect call failed ('192.0.2.1', 25)`, `Multiple exceptions: ...`.
"""

from __future__ import annotations

import os
import re
import socket
import ssl

_NOT_TLS = "the server does not speak TLS on this port"
_NUMBER = re.compile(r"\[Errno -?\d+\] ")

# OpenSSL's reasons when the first bytes of the server are not TLS.
_PLAIN_ANSWERS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})


def reason(exc: BaseException) -> str:
    """Empty if the exception says nothing, like a TimeoutError."""
    cause: BaseException | None = exc
    while cause is not None:
        if found := _own_reason(cause):
            return found
        cause = cause.__cause__ or cause.__context__
    return _NUMBER.sub("", str(exc))


def is_not_tls(exc: BaseException) -> bool:
    """Whether the server answered our TLS handshake with something else."""
    return isinstance(exc, ssl.SSLError) and getattr(exc, "reason", None) in _PLAIN_ANSWERS


def _own_reason(exc: BaseException) -> str:
    if isinstance(exc, BaseExceptionGroup):  # one for each address of the host
        return "; ".join(dict.fromkeys(filter(None, map(_own_reason, exc.exceptions))))
    if is_not_tls(exc):
        return _NOT_TLS
    if not isinstance(exc, OSError) or isinstance(exc, ssl.SSLError) or exc.errno is None:
        return ""
    return exc.strerror or "" if isinstance(exc, socket.gaierror) else os.strerror(exc.errno)
