"""Pages of a running scanning service, which is asked at the address that its configuration names."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass

from bridge.runtime.endpoints import Endpoint

TIMEOUT_S = 5.0
_MAX_PAGE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    content: bytes
    headers: http.client.HTTPMessage


def get(listen: Endpoint, page: str, *, tls: bool) -> Page | None:
    """None if there is no answer."""
    host = ("::1" if ":" in listen.host else "127.0.0.1") if listen.is_any else listen.host
    connection = http.client.HTTPConnection(host, listen.port, timeout=TIMEOUT_S)
    try:
        with _connect(listen, host) as plain, _unverified(plain) if tls else plain as connection.sock:
            connection.request("GET", page)
            answer = connection.getresponse()
            return Page(answer.status, answer.read(_MAX_PAGE), answer.headers)
    except (OSError, http.client.HTTPException):
        return None


def _connect(listen: Endpoint, host: str) -> socket.socket:
    if not listen.path:
        return socket.create_connection((host, listen.port), TIMEOUT_S)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(TIMEOUT_S)
    try:
        sock.connect(listen.path)
    except OSError:
        sock.close()
        raise
    return sock


def _unverified(plain: socket.socket) -> ssl.SSLSocket:
    """Nothing secret is sent, and `check` looks at the certificate elsewhere."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)
