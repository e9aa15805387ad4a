"""A real server program on loopback, for as long as tests need it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge.testing import until
from tests.processes import group, is_stopped
from tests.requirements import unavailable


class ServerProgram:
    """A server program that runs until the tests end; `kill` ends it earlier."""

    def __init__(self, command: list[str], log: Path, port: int, deadline_s: float = 180.0) -> None:
        self.port = port
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            until(lambda: self._answers() or self._process.poll() is not None, f"{command[0]} to start", deadline_s)
            assert self._process.poll() is None
        except AssertionError:
            self.kill()
            unavailable(f"{command[0]} does not start: {log.read_text()[-500:]}")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """With all its processes, also one that it is just starting."""
        until(self._have_all_stopped, "all its processes to stop")
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def _have_all_stopped(self) -> bool:
        os.killpg(self._process.pid, signal.SIGSTOP)
        return all(is_stopped(pid) for pid in group(self._process.pid))

    def kill(self, patience_s: float = 10) -> None:
        self._process.terminate()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            pass
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its children, too
        self._process.wait()
        self._log.close()
