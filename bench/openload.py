"""Open-loop SMTP load, for benchmarks: mail arrives when it arrives, however the server is doing.

    python bench/openload.py PORT --rate 4000 --seconds 10 [--kept]

With `--kept` a mail takes a connection that is free, as a mail server with a connection cache does, and opens one when
none is; without it each mail has a connection of its own. Prints `measuring` after the warm-up and one line of JSON at
the end. Latencies count from the moment at which the mail was to arrive, so that a connection that is not accepted
costs what it costs, and so does a generator that comes late. One thread, epoll, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator

_CONTENT = (
    b"From: <a@client.example>\r\nTo: <b@example.org>\r\nSubject: load\r\nMessage-ID: <1@client.example>\r\n\r\n"
    + (b"0123456789abcdef" * 4 + b"0123456789\r\n") * 52  # 4 KiB in all
    + b".\r\n"
)
_SOURCES = 8  # client addresses: a port is not used twice within a minute, and there are 28,000 of them for each
_CAP = 8000  # connections at once

# What is said after each reply, and what the next reply is for.
_NEXT = {
    "greeting": (b"220", b"EHLO client.example\r\n", "ehlo"),
    "ehlo": (b"250", b"MAIL FROM:<a@client.example>\r\n", "mail"),
    "mail": (b"250", b"RCPT TO:<b@example.org>\r\n", "rcpt"),
    "rcpt": (b"250", b"DATA\r\n", "data"),
    "data": (b"354", _CONTENT, "dot"),
}


class Client:
    """One connection, and the mail it has."""

    __slots__ = ("arrived", "buffer", "dot_at", "sock", "stage")

    def __init__(self, sock: socket.socket, arrived: float) -> None:
        self.sock = sock
        self.arrived = arrived
        self.stage = "greeting"
        self.buffer = b""
        self.dot_at = 0.0


class Load:
    def __init__(self, port: int, rate: float, kept: bool) -> None:
        self._port, self._rate, self._kept = port, rate, kept
        self._epoll = select.epoll()
        self._clients: dict[int, Client] = {}
        self._idle: list[Client] = []
        self._number = 0
        self._from, self._until = 0.0, float("inf")  # what is measured: mail that arrived in this time
        self._with_mail = 0
        self.begin()

    def begin(self) -> None:
        self.errors: Counter[str] = Counter()
        self.refused: dict[str, list[float]] = {}  # by stage: seconds from the arrival
        self.codes: Counter[str] = Counter()
        self.accepted: list[float] = []  # seconds from the arrival
        self.after_dot: list[float] = []
        self.done_in_time = 0
        self.behind: list[float] = []
        self.most_connections = 0

    def run(self, warm_up_s: float, seconds: float, patience_s: float) -> Iterator[str]:
        began = next_at = time.monotonic()
        self._from, self._until = began + warm_up_s, began + warm_up_s + seconds
        is_measuring = False
        while True:
            now = time.monotonic()
            if not is_measuring and now >= self._from:
                is_measuring = True
                self.begin()
                yield "measuring"
            while next_at <= now and next_at < self._until:
                self._arrive(next_at, now)
                warmth = min(max((next_at - began) / warm_up_s, 0.05), 1.0)  # the rate grows to what it is to be
                next_at += 1 / (self._rate * warmth)
            if now >= self._until and (not self._with_mail or now > self._until + patience_s):
                if self._with_mail:
                    self.errors["no answer"] = self._with_mail
                return
            for fd, _ in self._epoll.poll(0.001, 256):
                self._read(self._clients[fd])

    def _arrive(self, arrived: float, now: float) -> None:
        self.behind.append(now - arrived)
        self._with_mail += 1
        if self._kept and self._idle:
            client = self._idle.pop()
            client.arrived = arrived
            self._send(client, _NEXT["ehlo"][1], "mail")
        elif len(self._clients) >= _CAP:
            self._with_mail -= 1
            self.errors["too many connections at once"] += 1
        else:
            self._connect(arrived)

    def _connect(self, arrived: float) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: the port is chosen for the pair
        self._number += 1
        sock.bind((f"127.0.0.{2 + self._number % _SOURCES}", 0))
        sock.connect_ex(("127.0.0.1", self._port))
        self._clients[sock.fileno()] = Client(sock, arrived)
        self.most_connections = max(self.most_connections, len(self._clients))
        self._epoll.register(sock, select.EPOLLIN)

    def _read(self, client: Client) -> None:
        try:
            data = client.sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._lose(client)
        reply = client.buffer = client.buffer + data if client.buffer else data
        last = reply.rfind(b"\n", 0, -1) + 1
        if reply[-1:] == b"\n" and reply[last + 3 : last + 4] == b" ":
            client.buffer = b""
            self._on_reply(client, reply[last : last + 9])

    def _on_reply(self, client: Client, reply: bytes) -> None:
        if client.stage == "quit":
            return self._close(client)
        if client.stage == "rset":
            return self._rest(client)
        expected, say, stage = _NEXT.get(client.stage, (b"", b"", ""))
        if reply[:3] == expected:
            if stage == "dot":
                client.dot_at = time.monotonic()
            return self._send(client, say, stage)
        refused_at = "" if client.stage == "dot" and reply[:1] == b"2" else client.stage
        self._count(client, refused_at, reply)
        if not self._kept or client.stage in ("greeting", "ehlo"):
            self._send(client, b"QUIT\r\n", "quit")
        elif refused_at not in ("", "mail"):
            self._send(client, b"RSET\r\n", "rset")
        else:
            self._rest(client)
        return None

    def _send(self, client: Client, command: bytes, stage: str) -> None:
        client.stage = stage
        try:
            client.sock.send(command)
        except OSError:
            self._lose(client)

    def _rest(self, client: Client) -> None:
        client.stage = "idle"
        self._idle.append(client)

    def _count(self, client: Client, refused_at: str, reply: bytes) -> None:
        now = time.monotonic()
        self._with_mail -= 1
        if not refused_at and self._from <= now < self._until:
            self.done_in_time += 1
        if client.arrived < self._from:
            return
        self.codes[reply.decode("ascii", "replace").strip()] += 1
        if refused_at:
            self.refused.setdefault(refused_at, []).append(now - client.arrived)
        else:
            self.accepted.append(now - client.arrived)
            self.after_dot.append(now - client.dot_at)

    def _lose(self, client: Client) -> None:
        if client.stage == "idle":
            self._idle.remove(client)
        elif client.stage not in ("quit", "rset"):
            self._with_mail -= 1
            if client.arrived >= self._from:
                self.errors[f"lost at {client.stage}"] += 1
        self._close(client)

    def _close(self, client: Client) -> None:
        self._epoll.unregister(client.sock)
        del self._clients[client.sock.fileno()]
        client.sock.close()


def _spread(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    if not seconds:
        return {"n": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    times = sorted(seconds)
    p50, p99 = times[len(times) // 2], times[min(int(len(times) * 0.99), len(times) - 1)]
    return {"n": len(times), "p50": p50 * 1e3, "p99": p99 * 1e3, "max": times[-1] * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=float, default=4000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=1.5)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds to wait at the end for what is missing")
    parser.add_argument("--kept", action="store_true")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    load = Load(arguments.port, arguments.rate, arguments.kept)
    for said in load.run(arguments.warm_up, arguments.seconds, arguments.patience):
        print(said, flush=True)
    print(
        json.dumps(
            {
                "offered": len(load.behind),
                "goodput": load.done_in_time / arguments.seconds,
                "accepted": _spread(load.accepted),
                "after_dot": _spread(load.after_dot),
                "refused": {stage: _spread(times) for stage, times in load.refused.items()},
                "codes": load.codes,
                "errors": load.errors,
                "behind": _spread(load.behind),
                "most_connections": load.most_connections,
            }
        )
    )


if __name__ == "__main__":
    main()
