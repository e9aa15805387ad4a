"""Commands without the second that Python needs to import all our libraries (tests/documents/warm.py).

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
from functools import cache
from pathlib import Path
from typing import IO

from bridge.testing import until

_SERVER = Path(__file__).parent / "documents" / "warm.py"
_ROOT = Path(__file__).parents[1]
_LIMIT_S = 90.0
_READ_AT_START = ("PYTHON", "LC_", "LANG")


def python_path() -> str:
    """For a program that finds our package from any directory."""
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))


class WarmProcess:
    """A command that runs until it is told to stop. What our tests use of `subprocess.Popen`, for a process of a fork
    server: the process is not our child."""

    def __init__(self, server: socket.socket) -> None:
        pid = server.recv(4, socket.MSG_WAITALL)
        assert len(pid) == 4, "the server of commands has ended"
        self.pid = int.from_bytes(pid, "big")
        self.returncode: int | None = None
        self._server = server
        self._process = os.pidfd_open(self.pid)
        self._signal = signal.SIGKILL

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("scanbridge", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, limit_s: float | None) -> int | None:
        if self.returncode is None:
            watched = select.poll()
            watched.register(self._process, select.POLLIN)
            if watched.poll(None if limit_s is None else limit_s * 1000):
                with self._server:
                    code = self._server.recv(1, socket.MSG_DONTWAIT)
                os.close(self._process)
                self.returncode = code[0] if code else -self._signal
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._signal = signal.Signals(number)
            signal.pidfd_send_signal(self._process, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


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
        self, words: list[str], env: dict[str, str], cwd: Path | str, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """`text`: what it reads, from a pipe; no more than fits into one."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with _pipe(text) as given, self._asked(words, env, cwd, given, out, err) as server:
                server.settimeout(_LIMIT_S)
                code = server.recv(1) if server.recv(4) else b""
            assert code, f"{words} was killed: {_text(err)}"
            return subprocess.CompletedProcess(words, code[0], _text(out), _text(err))

    def start(
        self, words: list[str], env: dict[str, str], cwd: Path | str, stdout: IO[bytes], stderr: IO[bytes]
    ) -> WarmProcess:
        with open(os.devnull, "rb") as nothing:
            return WarmProcess(self._asked(words, env, cwd, nothing, stdout, stderr))

    def _asked(self, words: list[str], env: dict[str, str], cwd: Path | str, *streams: IO[bytes]) -> socket.socket:
        """Where the id of the new process is read from, and its exit code."""
        server = socket.socket(socket.AF_UNIX)
        try:
            until(lambda: server.connect_ex(self.place) == 0, "the server of commands")
            text = json.dumps([words, str(cwd), env]).encode()
            socket.send_fds(server, [len(text).to_bytes(4, "big")], [stream.fileno() for stream in streams])
            server.sendall(text)
        except BaseException:
            server.close()
            raise
        return server


def _pipe(text: str) -> IO[bytes]:
    """Its end that is read; /dev/null for no text."""
    if not text:
        return open(os.devnull, "rb")
    reading, writing = os.pipe()
    with open(writing, "wb") as end:
        end.write(text.encode())
    return open(reading, "rb")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return io.TextIOWrapper(io.BytesIO(file.read()), "utf-8").read()


@cache
def warm_commands(pid: int) -> WarmCommands:
    """The server of this process; a forked process gets a different one."""
    return WarmCommands()


def can_be_warm(env: dict[str, str]) -> bool:
    """Whether nothing is set that Python reads only when it starts, other than what the server was started with."""
    names = {name for name in env.keys() | os.environ.keys() if name.startswith(_READ_AT_START)}
    own = {**os.environ, "PYTHONPATH": python_path()}
    return all(env.get(name) in (os.environ.get(name), own.get(name)) for name in names)
