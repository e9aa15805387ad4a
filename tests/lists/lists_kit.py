"""Shared by the tests of the lists: the real service, a misbehaving server, the command line."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from sqlalchemy import delete

from bridge.api.lists import ListEntry
from bridge.cli.lists.command import lists
from bridge.lists import ListClient, ListSettings, RetrySettings
from bridge.runtime import yaml_file
from bridge.service.keys import KeyRing
from bridge.service.server import ServiceServer
from bridge.service.settings import ServiceConfig
from bridge.service.store import Store, list_entry, list_state

TENANT = "123e4567-e89b-12d3-a456-426614174000"
OTHER = "00000000-0000-4000-8000-000000000001"
DEADLINE_S = 120.0
SECRET = "5ecretkey" * 6

CONFIG = """
listen: 127.0.0.1:0
database: {database}
lists:
  - {{name: partners, displayName: Partners, category: sender, description: Who we work with, maxSize: 3}}
  - {{name: notes, category: notes, maxSize: 1000000}}
  - {{name: large, category: sender, maxSize: 1000000}}
"""


class Service:
    """The real service in a thread, with a key that is valid from the start."""

    def __init__(self, directory: Path, config: ServiceConfig) -> None:
        self.config = config
        self.store = Store(config.database_url)
        self.store.open()
        self.key = KeyRing(self.store).create("tests")
        self.key_file = directory / "api-key"
        self.key_file.write_text(self.key + "\n")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = ServiceServer()
        self._call(self._server.start(config))
        self.url = f"{config.scheme}://127.0.0.1:{self._server.addresses[0].port}"

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        self._call(self._server.stop(5))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        self.store.close()

    def clear(self) -> None:
        with self.store.writing() as connection:
            connection.execute(delete(list_entry))
            connection.execute(delete(list_state))

    def settings(self, **more: Any) -> ListSettings:
        return ListSettings(self.url, self.key, **more)

    def entries(self, name: str, tenant: str | None = None) -> dict[str, str]:
        """The content of a list, read by the client in the thread of the service."""

        async def read() -> dict[str, str]:
            async with ListClient(self.settings()) as client:
                return {entry.entry: entry.comment async for entry in client.entries(name, tenant)}

        return self._call(read())

    def add(self, name: str, entries: dict[str, str], tenant: str | None = None) -> None:
        async def send() -> None:
            async with ListClient(self.settings()) as client:
                await client.add(name, [ListEntry(*item) for item in entries.items()], tenant)

        self._call(send())

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """`scanbridge lists ...` against this service."""
        return command(self.url, self.key_file, *arguments, stdin=stdin)


@contextmanager
def running_service(directory: Path, database: str = "sqlite:///service.sqlite", more: str = "") -> Iterator[Service]:
    text = CONFIG.format(database=database) + more
    service = Service(directory, yaml_file.load(directory / "service.yml", ServiceConfig, text))
    try:
        yield service
    finally:
        service.stop()


def command(url: str, key_file: Path, *arguments: str, stdin: str | bytes | None = None) -> Result:
    """`scanbridge lists ...` in this process. Its output must never contain a key."""
    given = [arguments[0], "--url", url, "--api-key-file", str(key_file), *arguments[1:]]
    result = CliRunner().invoke(lists, given, input=stdin, catch_exceptions=False)
    assert key_file.read_text().strip() not in result.output
    return result


def process(url: str, key_file: Path, *arguments: str, first: str = "", **more: Any) -> subprocess.Popen[str]:
    """The same in a separate process, after the statement `first`."""
    given = [arguments[0], "--url", url, "--api-key-file", str(key_file), *arguments[1:]]
    program = f"{first}\nfrom bridge.cli.lists.command import lists\nlists()"
    return subprocess.Popen([sys.executable, "-c", program, *given], text=True, **more)


# Not getrusage: until a child calls exec, it counts the memory of its parent too.
SAY_PEAK = "import atexit, sys; atexit.register(lambda: print(open('/proc/self/status').read(), file=sys.stderr))"


def peak_kib(status: str) -> int:
    """The peak memory of a process, from the output of SAY_PEAK."""
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


QUICK = RetrySettings(patience_s=2.0, first_delay_s=0.001, max_delay_s=0.002)


def http(status: int, body: Any = None, *headers: str) -> bytes:
    """A complete answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(raw)}", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + raw


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


STREAM = b"HTTP/1.1 200 X\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
INFOS = {"listFileInfos": [{"listName": "large", "listInfo": {"category": "sender", "maxSize": 1000000}}]}


def lines(*entries: str) -> bytes:
    return b"".join(json.dumps({"entry": entry, "comment": ""}).encode() + b"\n" for entry in entries)


def whole(*entries: str) -> bytes:
    return STREAM + (chunk(lines(*entries)) if entries else b"") + b"0\r\n\r\n"


@dataclass(frozen=True)
class Seen:
    """One received request."""

    operation: str
    head: str
    body: dict[str, Any]


class Misbehaving:
    """A raw socket with scripted answers: `answer` gets each request and returns the bytes to send.

    After an answer that begins with CUT, the connection is closed immediately.
    """

    CUT = b"<cut>"

    def __init__(self, directory: Path, answer: Callable[[Seen], bytes]) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.most_at_once = self._at_once = 0
        self.key_file = directory / "api-key"
        self.key_file.write_text(SECRET)
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def settings(self, **more: Any) -> ListSettings:
        return ListSettings(self.url, SECRET, **{"retry": QUICK, **more})

    def run(self, *arguments: str, patience: str = "300ms", stdin: str | None = None) -> Result:
        result = command(self.url, self.key_file, *arguments, "--patience", patience, stdin=stdin)
        assert SECRET not in result.output
        return result

    def operations(self) -> list[str]:
        return [request.operation for request in self.seen]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with self._lock:
                    self._open.append(connection)
                    self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                    self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError), connection.makefile("rb") as reader:
            while True:
                seen = _request(reader)
                with self._lock:
                    self.seen.append(seen)
                    self._at_once += 1
                    self.most_at_once = max(self.most_at_once, self._at_once)
                raw = self.answer(seen)
                with self._lock:
                    self._at_once -= 1
                connection.sendall(raw.removeprefix(self.CUT))
                if raw.startswith(self.CUT):
                    connection.shutdown(socket.SHUT_RDWR)
                    return

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join(DEADLINE_S)
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE_S)


def _request(reader: Any) -> Seen:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline()
        if not line:
            raise EOFError
        head += line
    text = head.decode("latin-1")
    length = next(int(line.split(":")[1]) for line in text.split("\r\n") if line.lower().startswith("content-length"))
    body = reader.read(length)
    if len(body) < length:  # the client was interrupted
        raise EOFError
    return Seen(text.split(" ")[1].rpartition("/")[2], text, json.loads(body))


@contextmanager
def misbehaving(directory: Path, answer: Callable[[Seen], bytes]) -> Iterator[Misbehaving]:
    server = Misbehaving(directory, answer)
    try:
        yield server
    finally:
        server.close()


def scripted(*answers: bytes) -> Callable[[Seen], bytes]:
    """The answers in order; the last one is repeated."""
    left = list(answers)
    lock = threading.Lock()

    def answer(_: Seen) -> bytes:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return answer
