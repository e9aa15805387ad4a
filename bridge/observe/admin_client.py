"""Asks the running daemon at its admin address, for `status`, `top`, `reload` and `check`.

With the standard library's client: httpx2 takes 90 ms to import (Python 3.11), as much as the rest of `status`.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.runtime.endpoints import Endpoint

_TIMEOUT_S = 5.0
_WHOLE = 3  # times the timeout: for a whole answer
_MAX_ANSWER = 64 * 1024 * 1024  # more than the metrics of any daemon


def ask(address: Endpoint, timeout_s: float = _TIMEOUT_S) -> dict[str, Any] | None:
    """The daemon's /status; None if it does not answer, or if only systemd knows its address."""
    answer = get(address, "/status", timeout_s)
    try:
        state = json.loads(answer) if answer is not None else None
    except (ValueError, RecursionError):  # another program's answer
        return None
    return state if isinstance(state, dict) and "in_processing" in state else None


def get(address: Endpoint, page: str, timeout_s: float = _TIMEOUT_S) -> bytes | None:
    """A page of the admin address; None if it is not available."""
    answer = exchange(address, page, timeout_s)
    return answer[1] if answer is not None and answer[0] == 200 else None


def exchange(address: Endpoint, page: str, timeout_s: float = _TIMEOUT_S) -> tuple[int, bytes] | None:
    """The status and the content of an answer; None if there is no whole answer in time."""
    if address.systemd:
        return None
    try:
        with closing(_connection(address, timeout_s)) as connection, _cut_after(connection, timeout_s * _WHOLE) as cut:
            connection.request("GET", page)
            answer = connection.getresponse()
            status, content = answer.status, answer.read(_MAX_ANSWER)
            return None if cut.is_set() else (status, content)
    except (OSError, http.client.HTTPException):
        return None
    except (ValueError, RuntimeError):  # an impossible host name; no thread is available
        return None


@contextmanager
def _cut_after(connection: http.client.HTTPConnection, limit_s: float) -> Iterator[threading.Event]:
    """Connect, and end the connection after this time: a socket's own timeout begins again with each byte."""
    connection.connect()
    sock, is_cut = connection.sock, threading.Event()

    def cut() -> None:
        is_cut.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(limit_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield is_cut
    finally:
        timer.cancel()


def _connection(address: Endpoint, timeout_s: float) -> http.client.HTTPConnection:
    if address.path:
        return _UnixConnection(address.path, timeout_s)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
