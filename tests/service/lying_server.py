"""A server that answers as told, however wrong, on as many connections as there are."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class LyingServer:
    """Reads a little, sends `reply`, then `endless` again and again until the client closes.

    With `is_patient`, it reads the whole request first; with `is_hasty`, nothing after it has sent `reply`; and with
    `is_stuck`, it does not close the connection either.
    """

    def __init__(self) -> None:
        self.reply = self.endless = b""
        self.is_patient = self.is_hasty = self.is_stuck = False
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while request := client.recv(1 << 20):
                while self.is_patient and not is_whole(request):
                    request += client.recv(1 << 20)
                self.requests.append(request)
                reply = self.answer_to(request)
                client.sendall(reply)
                if self.is_stuck:
                    threading.Event().wait(60)
                if self.is_hasty:
                    client.shutdown(socket.SHUT_RDWR)
                    return
                while self.endless and reply == self.reply:
                    client.sendall(self.endless)

    def answer_to(self, _request: bytes) -> bytes:
        return self.reply

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def hasty(reply: bytes, kind: type[LyingServer] = LyingServer, *, is_stuck: bool = False) -> Iterator[LyingServer]:
    """A server that reads a little of a large mail, answers, and reads no more."""
    server = kind()
    server.reply, server.is_hasty, server.is_stuck = reply, True, is_stuck
    try:
        yield server
    finally:
        server.close()


def is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and (length is None or len(body) >= int(length[1]))
