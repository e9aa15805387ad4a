"""The process that inspects mail which may hurt: large ones, and archives.

Started by `inspector`, one mail at a time over a socket: in come a line of JSON and the file that
holds the mail, out goes a line of JSON. It limits its own memory, keeps nothing between two mails,
and may be killed at any moment. JSON and not pickle: it reads hostile bytes, and its parent must
be able to mistrust its answer.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import socket
import sys

from bridge.service.analysis.inspect import Inspection, Limits, inspect

MAX_REQUEST = 64 * 1024


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    memory = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.nice(5)
    while True:
        request, files, _, _ = socket.recv_fds(connection, MAX_REQUEST, 1)
        if not request or not files:
            return
        limits = Limits.from_dict(json.loads(request))
        connection.sendall(json.dumps(_inspect(files[0], limits).to_dict()).encode() + b"\n")


def _inspect(file: int, limits: Limits) -> Inspection:
    try:
        with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as data:
            return inspect(data, limits)
    except (MemoryError, RecursionError):
        return Inspection(limits={"memory"})
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
