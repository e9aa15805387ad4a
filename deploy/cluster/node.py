"""One node of the cluster: a process with its own address, directory and log; it can be stopped, killed and frozen."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_TERM_S = 20.0


@dataclass
class Node:
    kind: str
    name: str
    host: int  # the last number of its address
    directory: Path
    command: list[str]
    trouble: Callable[[], str]  # "" if it is ready, otherwise what it says instead
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.directory, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def await_ready(
        self, limit_s: float, cancelled: threading.Event | None = None,
        on_trouble: Callable[[str], None] = lambda said: None,
    ) -> float:  # fmt: skip
        """The seconds until it was ready. A node that exits is started again, as systemd does.

        `on_trouble` gets what the node says while it runs and is not ready.
        Raises TimeoutError, or InterruptedError when cancelled.
        """
        began, said = time.monotonic(), ""
        while not self.is_alive() or (said := self.trouble()):
            if cancelled is not None and cancelled.is_set():
                raise InterruptedError
            if time.monotonic() - began > limit_s:
                raise TimeoutError(self._not_ready(limit_s, said if self.is_alive() else "it is not running"))
            if self.is_alive():
                on_trouble(said)
            else:
                time.sleep(0.2)
                self.start()
            time.sleep(0.1)
        return time.monotonic() - began

    def _not_ready(self, limit_s: float, said: str) -> str:
        last = self.log.read_text(errors="replace")[-1500:]
        return f"{self.name} is not ready after {limit_s:.0f} s: {said}; the end of {self.log}:\n{last}"

    def stop(self) -> None:
        """SIGTERM, as a service manager does."""
        if self.process is None:
            return
        self.signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9 of all its processes at the same time."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(_TERM_S)

    def signal(self, number: int) -> None:
        """Signal all its processes, the first one first, so that it starts no others."""
        if not self.is_alive():
            return
        assert self.process is not None
        for pid in _tree(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _tree(pid: int) -> list[int]:
    """A process and all its descendants. PostgreSQL's have their own sessions: a process group is not enough."""
    found = [pid]
    for known in found:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{known}/task/{known}/children").read_text().split())
    return found
