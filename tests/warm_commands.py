"""Commands and daemons without the second that Python needs to import all our libraries (tests/documents/warm.py).

One server per test process; each command runs in a new process, forked from it. A test of how a process starts,
of its locale or of its user must start Python itself.
"""

from __future__ import annotations

import atexit
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
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO

from bridge.testing import until

_SERVER = Path(__file__).parent / "documents" / "warm.py"
_ROOT = Path(__file__).parents[1]
_LIMIT_S = 90.0
_READ_AT_START = ("PYTHON", "LC_", "LANG")
_READ_BY_EACH = {"PYTHONIOENCODING"}  # documents/warm.py does what Python does with it


def python_path() -> str:
    """For a program that finds our package from any directory."""
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))


class WarmCommands:
    def __init__(self) -> None:
        self.place = str(Path(tempfile.mkdtemp(prefix="warm-")) / "socket")
        command = [sys.executable, str(_SERVER), self.place]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self._process.kill)
        until(lambda: os.path.exists(self.place) or self._process.poll() is not None, "the commands to be imported")
        assert self._process.poll() is None, f"{command} has ended"

    def run(
        self, words: list[str], env: dict[str, str], cwd: Path | str, given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """`given`: its standard input."""
        done = self.run_bytes(words, env, cwd, given.encode())
        return subprocess.CompletedProcess(words, done.returncode, _text(done.stdout), _text(done.stderr))

    def run_bytes(
        self, words: list[str], env: dict[str, str], cwd: Path | str, given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        with ExitStack() as stack:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            typed, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            typed.write(given)
            typed.seek(0)
            self._ask(server, words, env, cwd, out.fileno(), err.fileno(), False, typed.fileno() if given else -1)
            code = server.recv(1)
            assert code, f"{words} was killed: {written(err)!r}"
            return subprocess.CompletedProcess(words, code[0], written(out), written(err))

    def start(
        self, words: list[str], env: dict[str, str], cwd: Path | str, out: int, err: int, standard_input: int = -1
    ) -> WarmProcess:
        """A daemon with these standard streams."""
        server = socket.socket(socket.AF_UNIX)
        self._ask(server, words, env, cwd, out, err, is_daemon=True, standard_input=standard_input)
        return WarmProcess(words, server)

    def _ask(
        self, server: socket.socket, words: list[str], env: dict[str, str], cwd: Path | str, out: int, err: int,
        is_daemon: bool, standard_input: int = -1,
    ) -> None:  # fmt: skip
        until(lambda: server.connect_ex(self.place) == 0, "the server of commands")
        server.settimeout(_LIMIT_S)
        text = json.dumps([words, str(cwd), env, is_daemon]).encode()
        with open(os.devnull, "rb") as nothing:
            given = nothing.fileno() if standard_input < 0 else standard_input
            socket.send_fds(server, [len(text).to_bytes(4, "big")], [given, out, err])
        server.sendall(text)


class WarmProcess:
    """A daemon that was forked from the server of commands: the part of `subprocess.Popen` that tests use."""

    def __init__(self, words: list[str], server: socket.socket) -> None:
        self.args, self._server = words, server
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._lock = threading.Lock()
        pid = server.recv(4, socket.MSG_WAITALL)
        assert pid, f"{words} did not start"
        self.pid = int.from_bytes(pid, "big")

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._server], [], [], 0)[0]:
                self._read()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                if not select.select([self._server], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self._read()
            assert self.returncode is not None
            return self.returncode

    def _read(self) -> None:
        code = self._server.recv(4, socket.MSG_WAITALL)
        self.returncode = int.from_bytes(code, "big", signed=True) if code else -signal.SIGKILL
        self._server.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def written(file: IO[bytes]) -> bytes:
    """All that processes have written to this file so far. They share its position, so that is never moved.

    A line that was written between `seek` and `read` replaced the beginning of the file. `TemporaryFile("a+b")` does
    not prevent that: it opens the file without O_APPEND.
    """
    content = b""
    while more := os.pread(file.fileno(), 1 << 20, len(content)):
        content += more
    return content


def _text(output: bytes) -> str:
    return io.TextIOWrapper(io.BytesIO(output), "utf-8").read()


@cache
def warm_commands(pid: int) -> WarmCommands:
    """The server of this process; a forked process gets a different one."""
    return WarmCommands()


def can_be_warm(env: dict[str, str]) -> bool:
    """Whether nothing is set that Python reads only when it starts, other than what the server was started with."""
    names = {name for name in env.keys() | os.environ.keys() if name.startswith(_READ_AT_START)} - _READ_BY_EACH
    own = {**os.environ, "PYTHONPATH": python_path()}
    return all(env.get(name) in (os.environ.get(name), own.get(name)) for name in names)
