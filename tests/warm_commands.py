"""Short commands without the second that Python needs to import all our libraries (tests/documents/warm.py).

One server per test process; each command runs in a new process, forked from it. A test of how a process starts,
of its locale or of its user must start Python itself.
"""

from __future__ import annotations

import atexit
import io
import json
import os
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


class WarmCommands:
    def __init__(self) -> None:
        self.place = str(Path(tempfile.mkdtemp(prefix="warm-")) / "socket")
        command = [sys.executable, str(_SERVER), self.place]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self._process.kill)
        until(lambda: os.path.exists(self.place) or self._process.poll() is not None, "the commands to be imported")
        assert self._process.poll() is None, f"{command} has ended"

    def run(self, words: list[str], env: dict[str, str], cwd: Path | str) -> subprocess.CompletedProcess[str]:
        with socket.socket(socket.AF_UNIX) as server, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            until(lambda: server.connect_ex(self.place) == 0, "the server of commands")
            server.settimeout(_LIMIT_S)
            text = json.dumps([words, str(cwd), env]).encode()
            with open(os.devnull, "rb") as nothing:
                streams = [nothing.fileno(), out.fileno(), err.fileno()]
                socket.send_fds(server, [len(text).to_bytes(4, "big")], streams)
            server.sendall(text)
            code = server.recv(1)
            assert code, f"{words} was killed: {_text(err)}"
            return subprocess.CompletedProcess(words, code[0], _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return io.TextIOWrapper(io.BytesIO(file.read()), "utf-8").read()


@cache
def warm_commands(pid: int) -> WarmCommands:
    """The server of this process; a forked process gets a different one."""
    return WarmCommands()


def can_be_warm(env: dict[str, str]) -> bool:
    """Whether nothing is set that Python reads only when it starts."""
    names = {name for name in env.keys() | os.environ.keys() if name.startswith(_READ_AT_START)}
    return all(env.get(name) == os.environ.get(name) for name in names)
