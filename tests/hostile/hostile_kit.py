"""Helpers for the hostile tests: a bridge in a separate process, its memory use, waiting for a condition."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.runtime import yaml_file
from bridge.testing import Background, FakeScanner, NextHop, SmtpClient, answer, configuration, result, until
from tests.warm_commands import WarmProcess, warm_commands

MiB = 1024 * 1024


def receives(client: SmtpClient, within_s: float) -> bytes:
    """What arrives within the time; b"" for nothing."""
    client.sock.settimeout(within_s)
    try:
        return client.sock.recv(65536)
    except TimeoutError:
        return b""
    finally:
        client.sock.settimeout(60.0)


class Hanging:
    """A scanner reply that is sent when `release` is set; `ended` is set if the bridge disconnects first."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.ended = threading.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        released = asyncio.create_task(self.release.wait())
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait((released, gone), return_when=asyncio.FIRST_COMPLETED)
        if self.release.is_set():
            gone.cancel()
            await asyncio.wait((gone,))
            writer.write(answer(200, result()))
        else:
            released.cancel()
            self.ended.set()


@dataclass
class Process:
    """A daemon started the way an operator starts it, with a scripted scanner and next hop."""

    process: subprocess.Popen[bytes] | WarmProcess
    port: int
    log: Path
    scanner: FakeScanner
    next_hop: NextHop
    background: Background

    @property
    def pid(self) -> int:
        return self.process.pid

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)

    def client(self, source: str = "127.0.0.1") -> SmtpClient:
        return SmtpClient(self.port, source)

    def memory(self, field: str = "VmRSS") -> int:
        """Bytes in memory now, or at the peak (VmHWM)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition(f"{field}:")[2].split()[0]) * 1024

    @contextmanager
    def growing_at_most(self, limit: int) -> Iterator[None]:
        """The daemon's memory must not grow by more than `limit` inside the block, not even briefly."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # resets the peak (VmHWM) to the current value
        before = self.memory()
        yield
        grown = self.memory("VmHWM") - before
        assert grown <= limit, f"grew by {grown / MiB:.1f} MiB"


@contextmanager
def bridge_process(
    directory: Path,
    config: dict[str, Any] | None = None,
    *,
    open_files: int | None = None,
    is_program: bool = True,
    **listener: Any,
) -> Iterator[Process]:
    """`scanbridge run`, limited to `open_files` descriptors.

    Without `is_program` it is forked from a process that has imported everything, which is faster. Its memory must not
    be measured: there is free space in its heap already, in which much could grow unnoticed.

    Large mail is kept in `directory`, which is in memory where that is possible (`tests/conftest.py`). For a slow disk,
    the bridge keeps up to 32 MiB that are not written yet; `tests/intake/test_wait_for_disk.py` has this limit.
    """
    background, scanner, next_hop = Background(), FakeScanner(), NextHop()
    background.run(scanner.start())
    background.run(next_hop.start())
    data = configuration(directory, scanner, next_hop, config, **listener)
    data["spool"] = {"directory": str(directory), **data.get("spool", {})}
    (directory / "bridge.yml").write_text(yaml_file.dump(data))
    log = directory / "log"

    def limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    words = ["run", "-c", str(directory / "bridge.yml")]
    process: subprocess.Popen[bytes] | WarmProcess
    with open(log, "wb") as file:
        if not is_program:
            assert open_files is None
            process = warm_commands(os.getpid()).start(words, dict(os.environ), directory, file.fileno(), file.fileno())
        else:
            process = subprocess.Popen(
                [sys.executable, "-m", "bridge", *words],
                stdout=file,
                stderr=file,
                preexec_fn=limit,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
    try:
        port = int(data["listeners"][0]["address"].rpartition(":")[2])
        until(lambda: process.poll() is not None or can_connect(port), "the bridge to start", 90)
        assert process.poll() is None, log.read_text()
        yield Process(process, port, log, scanner, next_hop, background)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        background.run(scanner.stop())
        background.run(next_hop.stop())
        background.close()


def can_connect(port: int) -> bool:
    try:
        SmtpClient(port).close()
    except OSError:
        return False
    return True
