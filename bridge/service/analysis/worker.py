"""The main loop of a worker process: limit its own resources, then answer one mail after another.

`worker_pool` starts the process and sends it file descriptors over a socket: first the setup, then
for each mail a request (JSON) and the mail. The worker answers each with JSON and, if there are any, bytes as they
are, after the lengths of both: decoding tens of megabytes of JSON would block the parent. It may be
killed at any time and keeps no state. JSON rather than pickle, because the worker reads hostile bytes
and the parent must not have to trust its answers.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from bridge.runtime.early_signals import ignore_hangup

Answer = tuple[dict[str, Any], bytes]
Handler = Callable[[dict[str, Any], int], Answer]  # (request, mail) -> answer

LENGTHS = struct.Struct("!II")  # of an answer: its JSON, its bytes


def serve(begin: Callable[[dict[str, Any]], tuple[dict[str, Any], Handler]]) -> None:
    """`begin` gets the setup and returns a greeting for the parent and the handler for each mail."""
    ignore_hangup()
    connection = socket.socket(fileno=int(sys.argv[1]))
    memory = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    files = _receive(connection)
    if len(files) != 1:
        return
    greeting, handle = begin(_read(files[0]))
    _answer(connection, (greeting, b""))
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


def _answer(connection: socket.socket, answer: Answer) -> None:
    value, content = json.dumps(answer[0]).encode(), answer[1]
    connection.sendall(LENGTHS.pack(len(value), len(content)) + value)
    connection.sendall(content)
