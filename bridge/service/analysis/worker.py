"""A worker's own side: bound itself, then answer one mail after the other.

Started by `workers`, which sends files over a socket: first the setup, then for each mail a
request (JSON) and the mail; back goes a line of JSON for each. It may be killed at any moment and
keeps nothing that matters. JSON and not pickle: it reads hostile bytes, and its parent must be
able to mistrust its answer.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

Handler = Callable[[dict[str, Any], int], dict[str, Any]]  # request and mail to answer


def serve(begin: Callable[[dict[str, Any]], tuple[dict[str, Any], Handler]]) -> None:
    """`begin` gets the setup; it gives what to say of ourselves, and what answers a mail."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    memory = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    files = _receive(connection)
    if len(files) != 1:
        return
    greeting, handle = begin(_read(files[0]))
    _answer(connection, greeting)
    while len(files := _receive(connection)) == 2:
        request, mail = files
        try:
            _answer(connection, handle(_read(request), mail))
        finally:
            os.close(mail)


def _receive(connection: socket.socket) -> list[int]:
    return list(socket.recv_fds(connection, 1, 2)[1])


def _read(file: int) -> Any:
    size = os.fstat(file).st_size
    try:
        return json.loads(os.pread(file, size, 0))
    finally:
        os.close(file)


def _answer(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")
