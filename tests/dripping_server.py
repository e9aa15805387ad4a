"""A server that never comes to an end: an answer of a byte at a time, which no timeout for a single read notices."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bridge.runtime.endpoints import Endpoint


@contextmanager
def dripping(start: bytes) -> Iterator[Endpoint]:
    """A server that answers with `start`, and then with a byte every few milliseconds."""
    done = threading.Event()

    def answer() -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(start)
                while not done.wait(0.02):
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield Endpoint("127.0.0.1", listening.getsockname()[1])
        finally:
            done.set()
            thread.join()
