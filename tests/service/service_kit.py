"""Shared by the service's tests: a service on a loopback port, in a thread, and a plain HTTP client."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.mail.spool import SpoolDisk
from bridge.runtime import yaml_file
from bridge.service.analysis.inspection_state import EICAR, GTUBE  # noqa: F401 (for the tests)
from bridge.service.keys import KeyRing
from bridge.service.server import ServiceServer
from bridge.service.settings import ServiceConfig, Timings
from bridge.service.store import Store
from bridge.testing import free_port, until  # noqa: F401 (for the tests)
from tests.daemon.process_kit import scanbridge
from tests.postgresql import fresh_database  # noqa: F401 (for the tests)
from tests.warm_commands import WarmProcess, warm_commands, written

TOKEN = "0123456789abcdef" * 4
BOUNDARY = "part-of-a-test"
DEADLINE_S = 120.0  # ends a test that would hang
SOON_S = 60.0  # "within a second", with some reserve for a busy machine

CONFIG = f"""
listen: 127.0.0.1:0
guard: {{scanSources: {{restApi: {{}}}}}}
abby:
  serviceProviders: {{core: {{}}}}
  staticApiTokens:
    - {{name: test, token: {TOKEN}}}
database: sqlite:///service.sqlite
"""


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    """A client of a service that listens on a port or on the path of a Unix socket."""

    config: ServiceConfig
    port = 0
    path = ""
    key = ""  # for the List API, if one was created before the start

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        if self.path:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(DEADLINE_S)
            connection.sock.connect(self.path)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def submit(self, mail: bytes, token: str = TOKEN, **parameters: Any) -> Answer:
        return self.upload(multipart(parameters_json(**parameters), mail), token)

    def upload(self, body: bytes, token: str = TOKEN, content_type: str = "") -> Answer:
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": content_type or f"multipart/form-data; boundary={BOUNDARY}",
        }
        return self.request("POST", "/v1/messageQueue/submitEmail", body, headers)

    def status(self, token: str = TOKEN) -> Answer:
        return self.request("POST", "/v1/admin/status", headers={"Authorization": f"Bearer {token}"})


class Running(Service):
    """A service in a thread that runs until `stop`."""

    def __init__(self, config: ServiceConfig, timings: Timings | None = None, disk: SpoolDisk | None = None) -> None:
        self.config = config
        self.loop = asyncio.new_event_loop()
        self.server = ServiceServer(timings, disk)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        try:
            self.call(self.server.start(config))
        except BaseException:
            self._end()
            raise
        self.port = self.server.addresses[0].port

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def stop(self) -> None:
        self.call(self.server.stop(5))
        self.call(_end_handshakes())
        self._end()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.close()


async def _end_handshakes() -> None:
    """asyncio does not cancel the task of a TLS handshake whose client gave up a moment ago."""
    left = [task for task in asyncio.all_tasks() if "_accept_connection2" in repr(task.get_coro())]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class ServiceProcess(Service):
    """A service started as an operator starts it, with `service.yml` in `directory`; `wait` until it listens."""

    def __init__(self, directory: Path, is_program: bool = False) -> None:
        """`is_program`: not forked from a process that has imported everything, so that its memory is its own."""
        self.directory = directory
        self.config = yaml_file.load(directory / "service.yml", ServiceConfig)
        self._start(directory, "service", "-c", "service.yml", is_program=is_program)

    def _start(self, directory: Path, *words: str, is_program: bool = False) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        self.process: subprocess.Popen[str] | WarmProcess
        if is_program:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bridge", *words],
                cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, text=True,
            )  # fmt: skip
            return
        out, end = os.pipe()
        given = list(words), dict(os.environ), directory, end, self._log.fileno()
        self.process = warm_commands(os.getpid()).start(*given)
        os.close(end)
        self.process.stdout = os.fdopen(out)

    def wait(self) -> None:
        assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], "the service did not print its address"
        line = self.process.stdout.readline()
        assert "listening on" in line, self.log()
        if self.config.listen.path:
            self.path = self.config.listen.path
        else:
            self.port = int(line.rpartition(":")[2])

    def log(self) -> str:
        return written(self._log).decode()

    def end(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self._log.close()


@contextmanager
def service_processes(directory: Path, count: int):
    """Several processes with one configuration and one database."""
    started: list[ServiceProcess] = []
    try:
        for _ in range(count):
            started.append(ServiceProcess(directory))
        for process in started:
            process.wait()
        yield started
    finally:
        codes = [process.end() for process in started]
    assert codes == [0] * count


def command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `scanbridge service ...` as an operator would."""
    return scanbridge("service", *arguments, cwd=directory)


@contextmanager
def service(
    tmp_path: Path,
    text: str = CONFIG,
    with_key: bool = False,
    timings: Timings | None = None,
    disk: SpoolDisk | None = None,
):
    config = yaml_file.load(tmp_path / "service.yml", ServiceConfig, text)
    key = make_key(config) if with_key else ""
    running = Running(config, timings, disk)
    running.key = key
    try:
        yield running
    finally:
        running.stop()


def parameters_json(sender: str = "a@example.org", to: tuple[str, ...] = ("b@example.net",), **more: Any) -> bytes:
    tenant = {"tenantUid": more.pop("tenantUid")} if "tenantUid" in more else {}
    return json.dumps({"borderMtaData": {"envelopeFrom": sender, "envelopeRecipients": to, **more}, **tenant}).encode()


def part(name: str, content: bytes, content_type: str = "", filename: str = "") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    lines = [disposition] + ([f"Content-Type: {content_type}"] if content_type else [])
    return f"--{BOUNDARY}\r\n".encode() + "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n"


def closing() -> bytes:
    return f"--{BOUNDARY}--\r\n".encode()


def multipart(parameters: bytes, mail: bytes) -> bytes:
    return (
        part("parameters", parameters, "application/json")
        + part("email", mail, "message/rfc822", "mail.eml")
        + closing()
    )


def mail(body: bytes = b"Hello\r\n", **fields: str) -> bytes:
    head = {
        "From": "a@example.org",
        "To": "b@example.net",
        "Subject": "test",
        "Date": "Sun, 15 Nov 2026 03:00:00 +0000",
    }
    head |= {"Message-ID": "<1@example.org>"} | {k.replace("_", "-"): v for k, v in fields.items()}
    return "".join(f"{k}: {v}\r\n" for k, v in head.items()).encode() + b"\r\n" + body


def attached(content: bytes, name: str = "a.bin", kind: str = "application/octet-stream") -> bytes:
    """A mail with one base64 attachment."""
    body = (
        b"--x\r\nContent-Type: text/plain\r\n\r\nsee attachment\r\n--x\r\n"
        + f'Content-Type: {kind}; name="{name}"\r\nContent-Transfer-Encoding: base64\r\n\r\n'.encode()
        + base64.encodebytes(content).replace(b"\n", b"\r\n")
        + b"--x--\r\n"
    )
    return mail(body, MIME_Version="1.0", Content_Type='multipart/mixed; boundary="x"')


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


class Lists:
    """A client of the List API, as simple as curl."""

    def __init__(self, running: Service, key: str | None = None, tenant: str | None = None) -> None:
        self.running = running
        self.key = key or running.key or make_key(running.config)
        self.scope = {"tenantUid": tenant} if tenant else {}

    def call(self, operation: str, body: Any, **headers: str) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        standard = {"Authorization": f"apikey {self.key}", "Content-Type": "application/json"}
        return self.running.request("POST", f"/api/public/lists/v1/{operation}", content, standard | headers)

    def add(self, name: str, *entries: str, comment: str = "c") -> Answer:
        items = [{"entry": entry, "comment": comment} for entry in entries]
        return self.call("addEntries", {"listName": name, "entries": items, **self.scope})

    def delete(self, name: str, *entries: str) -> Answer:
        return self.call("deleteEntries", {"listName": name, "entries": entries, **self.scope})

    def fill(self, name: str) -> None:
        """5000 entries with long comments: more than the buffers of a connection hold."""
        for start in range(0, 5000, 500):
            self.add(name, *(f"u{i:05}@example.org" for i in range(start, start + 500)), comment="x" * 2000)

    @contextmanager
    def slow_reader(self, name: str) -> Iterator[socket.socket]:
        """Has asked for all entries, and reads only what the test reads."""
        body = json.dumps({"listName": name, **self.scope}).encode()
        with socket.create_connection(("127.0.0.1", self.running.port), timeout=DEADLINE_S) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * 1024)
            slow.sendall(
                b"POST /api/public/lists/v1/listEntries HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nAuthorization: apikey %s\r\nContent-Length: %d\r\n\r\n%s"
                % (self.key.encode(), len(body), body)
            )
            yield slow

    def entries(self, name: str) -> list[dict[str, str]]:
        answer = self.call("listEntries", {"listName": name, **self.scope})
        assert answer.status == 200, answer.body
        return [json.loads(line) for line in answer.body.splitlines()]


_keys = iter(range(1_000_000))


def make_key(config: ServiceConfig, name: str = "") -> str:
    """Create a key the way the command line does; a running service accepts it within a second."""
    store = Store(config.database_url)
    store.open()
    try:
        return KeyRing(store).create(name or f"key-{next(_keys)}")
    finally:
        store.close()


def wait_for(condition: Any, deadline_s: float = DEADLINE_S) -> None:
    """`until`, for tests whose condition is clear from the traceback."""
    until(condition, "the condition of this test", deadline_s)


def submit_head(length: int | None) -> bytes:
    """The head of a submitEmail request; without a length, its body is sent in chunks."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST /v1/messageQueue/submitEmail HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n{framing}\r\n\r\n"
    ).encode()
