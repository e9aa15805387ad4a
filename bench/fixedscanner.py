"""Runs a scanner with a fixed service time, for benchmarks: each mail occupies one of N workers for a fixed time.

    python bench/fixedscanner.py --workers 20 --service-ms 50

Prints its port. If no worker is free, mail waits in a queue, as in a real service. `GET /stats` returns the scanner's
counts, including the maximum number of mails in flight. Times are accurate to the microsecond, because the millisecond
resolution of an event loop would cost 2% of the capacity to be measured.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import socket
import time
from collections import deque

from bridge.testing import answer, result

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
_DONE = answer(200, result("drop"))  # needs no next hop, so only the peer's own speed is measured
_STATUS = answer(200, json.dumps({"messageQueueStatus": "GREEN"}).encode())


class Client:
    """One connection, persistent or not."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.has_mail = False  # from the head of the request to its answer

    def take_request(self) -> bytes | None:
        """The head of the next request once the whole request has arrived, else None."""
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        found = _LENGTH.search(head)
        length = int(found.group(1)) if found else 0
        if len(body) < length:
            return None
        self.buffer = body[length:]
        return head


class Scanner:
    def __init__(self, workers: int, service_s: float) -> None:
        self._workers, self._service_s = workers, service_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._clients: dict[int, Client] = {}
        self._working: deque[tuple[float, Client]] = deque()  # end time; sorted, because all mails take equally long
        self._waiting: deque[Client] = deque()
        self.seen = {"in_flight": 0, "max_in_flight": 0, "served": 0, "aborted": 0}

    def serve(self) -> None:
        while True:
            wait = max(self._working[0][0] - time.monotonic(), 0) if self._working else None
            select.select([self._epoll], [], [], wait)  # has microsecond resolution; epoll itself has milliseconds
            for fd, _ in self._epoll.poll(0):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(self._clients[fd])
            self._finish(time.monotonic())

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clients[sock.fileno()] = Client(sock)
            self._epoll.register(sock, select.EPOLLIN)

    def _read(self, client: Client) -> None:
        try:
            data = client.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._lose(client)
        client.buffer += data
        if not client.has_mail and b"submitEmail" in client.buffer and b"\r\n\r\n" in client.buffer:
            client.has_mail = True
            self._count(1)
        while (head := client.take_request()) is not None:
            self._answer(client, head)

    def _answer(self, client: Client, head: bytes) -> None:
        if b"submitEmail" in head:
            self._waiting.append(client)
            self._begin(time.monotonic())
        elif b"/stats" in head:
            client.sock.send(answer(200, json.dumps(self.seen).encode()))
        else:
            client.sock.send(_STATUS)

    def _begin(self, now: float) -> None:
        while self._waiting and len(self._working) < self._workers:
            self._working.append((now + self._service_s, self._waiting.popleft()))

    def _finish(self, now: float) -> None:
        while self._working and self._working[0][0] <= now:
            client = self._working.popleft()[1]
            if client.has_mail:  # else the client has disconnected in the meantime
                client.has_mail = False
                self._count(-1)
                self.seen["served"] += 1
                client.sock.send(_DONE)
        self._begin(now)

    def _count(self, change: int) -> None:
        self.seen["in_flight"] += change
        self.seen["max_in_flight"] = max(self.seen["max_in_flight"], self.seen["in_flight"])

    def _lose(self, client: Client) -> None:
        self._epoll.unregister(client.sock)
        del self._clients[client.sock.fileno()]
        client.sock.close()
        if client.has_mail:
            client.has_mail = False
            self._count(-1)
            self.seen["aborted"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=20, help="mails scanned at the same time (default: 20)")
    parser.add_argument("--service-ms", type=float, default=50.0, help="milliseconds for each mail (default: 50)")
    arguments = parser.parse_args()
    scanner = Scanner(arguments.workers, arguments.service_ms / 1000)
    print(scanner.port, flush=True)
    scanner.serve()


if __name__ == "__main__":
    main()
