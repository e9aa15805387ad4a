"""A scanning service whose analyses go through a queue: NATS with TLS and accounts, API nodes, workers in a thread."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import trustme
from nats.js.errors import NotFoundError

from bridge.runtime import yaml_file
from bridge.service.cluster.site import WorkerSite
from bridge.service.settings import ServiceConfig
from bridge.testing import is_cut
from tests.nats_kit import NatsServer, nats_server
from tests.service.service_kit import CONFIG, DEADLINE_S, Running

PASSWORD, OTHER_PASSWORD = "the-password-of-ours", "the-password-of-others"
SERVER = """
tls {{cert_file: "{0}/server.pem", key_file: "{0}/server.pem"}}
jetstream {{store_dir: "{0}/store"}}
accounts {{
  OURS {{jetstream: enabled, users: [{{user: ours, password: "{1}"}}]}}
  OTHERS {{jetstream: enabled, users: [{{user: others, password: "{2}"}}]}}
}}
"""


class Nats:
    """The server, and what its clients need."""

    def __init__(self, server: NatsServer, directory: Path) -> None:
        self.server = server
        self.directory = directory

    def config(self, name: str, directory: Path, more: str = "", guard: str = "", analyzers: str = "") -> str:
        """The configuration of a service and its workers."""
        core = (
            f'core: {{nats: {{servers: ["{self.url}"], user: ours, password_file: {self.directory}/password, '
            f"ca_file: {self.directory}/ca.pem, name: {name}{more or ', max_size: 16MiB'}}}}}"
        )
        text = CONFIG.replace("core: {}", core).replace("{restApi: {}}", f"{{restApi: {{}}}}{guard}")
        text = text.replace("sqlite:///service.sqlite", f"sqlite:///{directory}/service.sqlite")
        return text + (f"analyzers: {analyzers}\n" if analyzers else "")

    @property
    def url(self) -> str:
        return self.server.url.replace("nats://", "tls://")

    async def connect(self, user: str = "ours") -> Any:
        import ssl

        context = ssl.create_default_context(cafile=str(self.directory / "ca.pem"))
        password = PASSWORD if user == "ours" else OTHER_PASSWORD
        return await nats.connect(self.url, user=user, password=password, tls=context)


@contextmanager
def nats_with_accounts(directory: Path) -> Iterator[Nats]:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    (directory / "password").write_text(PASSWORD)
    (directory / "nats.conf").write_text(SERVER.format(directory, PASSWORD, OTHER_PASSWORD))
    with nats_server(directory, "-c", str(directory / "nats.conf")) as server:
        yield Nats(server, directory)


class Worker:
    """A worker in a thread, until `stop`."""

    def __init__(self, config: ServiceConfig) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.site = self.call(self._made(config))
        self.call(self.site.start())

    async def _made(self, config: ServiceConfig) -> WorkerSite:
        return WorkerSite(config)

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def stop(self, drain_s: float = 5.0) -> None:
        self.call(self.site.stop(drain_s))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.close()


@contextmanager
def worker(directory: Path, text: str) -> Iterator[Worker]:
    running = Worker(yaml_file.load(directory / "service.yml", ServiceConfig, text))
    try:
        yield running
    finally:
        if not running.loop.is_closed():
            running.stop()


class Submitting(threading.Thread):
    """A client that waits for its answer."""

    def __init__(self, front, content: bytes) -> None:
        super().__init__(daemon=True)
        self.front, self.content, self.answer = front, content, None
        self.start()

    def run(self) -> None:
        self.answer = self.front.submit(self.content)

    def result(self):
        self.join(DEADLINE_S)
        return self.answer


class SlowRspamd:
    """Takes every mail at once, and answers only what it is told to."""

    ANSWER = json.dumps({"action": "no action", "score": 0, "symbols": {}}).encode()

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.mails: list[socket.socket] = []
        self._answers_all = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def analyzers(self) -> str:
        return f'{{rspamd: {{url: "http://127.0.0.1:{self.port}", timeout: 60s}}}}'

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.mails.append(connection)
            if self._answers_all:
                self.answer(-1)

    def answer_all(self) -> None:
        """Those that wait, and all that come from now on."""
        self._answers_all = True
        for i in range(len(self.mails)):
            self.answer(i)

    def answer(self, index: int) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(self.ANSWER)}\r\n"
        with suppress(OSError):  # its worker has gone
            self._read_whole(self.mails[index])  # an answer that comes earlier does not count
            self.mails[index].sendall(head.encode() + b"Connection: close\r\n\r\n" + self.ANSWER)

    @staticmethod
    def _read_whole(connection: socket.socket) -> None:
        connection.settimeout(DEADLINE_S)
        head = b""
        while b"\r\n\r\n" not in head and (block := connection.recv(65536)):
            head += block
        head, _, body = head.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        left = int(length[1]) - len(body) if length else 0
        while left > 0 and (block := connection.recv(65536)):
            left -= len(block)

    def is_gone(self, index: int) -> bool:
        """Whether the analysis of that mail has ended without an answer."""
        self.mails[index].settimeout(0.01)
        return is_cut(self.mails[index])

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(DEADLINE_S)
        for connection in self.mails:
            connection.close()


def in_queue(front: Running) -> tuple[int, int]:
    """Jobs in the stream, and messages in the object store; -1 before they exist."""
    names = front.server._site._backend._names
    jobs, mails = (_stream(front, name) for name in (names.stream, f"OBJ_{names.bucket}"))
    return (-1, -1) if jobs is None or mails is None else (jobs.messages, mails.messages)


def ever_queued(front: Running) -> int:
    """How many jobs were ever put into the stream; 0 before it exists."""
    found = _stream(front, front.server._site._backend._names.stream)
    return 0 if found is None else int(found.last_seq)


def _stream(front: Running, name: str) -> Any:
    """The server's account of a stream; None before it exists. Asks again when the answer does not come in time."""

    async def ask() -> Any:
        session = await front.server._site._backend._link.wait(60)
        try:
            return (await session.stream.stream_info(name)).state
        except NotFoundError:
            return None

    for _ in range(10):
        with suppress(nats.errors.TimeoutError):
            return front.call(ask())
    return front.call(ask())
