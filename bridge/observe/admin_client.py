"""Asks the running daemon at its admin address, for `status`, `top`, `reload` and `check`.

With the standard library's client: httpx2 takes 90 ms to import (Python 3.11), as much as the rest of `status`.
"""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.runtime.endpoints import Endpoint

_TIMEOUT_S = 5.0
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
    """The status and the content of an answer; None if there is no answer."""
    if address.systemd:
        return None
    try:
        with closing(_connection(address, timeout_s)) as connection:
            connection.request("GET", page)
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_ANSWER)
    except (OSError, http.client.HTTPException, ValueError):  # ValueError: an impossible host name
        return None


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
