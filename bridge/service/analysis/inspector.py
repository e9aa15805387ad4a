"""A few processes that inspect mail for us, each bounded in time and memory.

A thread cannot be stopped and shares our memory; a process can be killed. One that is late or
dies costs its own mail the answer (`InspectionFailed`) and is replaced; others never notice. The
mail itself is not copied: the process gets its file.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.service.analysis.inspect import Inspection, Limits
from bridge.service.upload import StoredMail

MAX_ANSWER = 64 * 1024 * 1024
_KEPT = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")  # nothing that could hold a secret


class InspectionFailed(Exception):
    """No answer: late, or dead."""


class Inspector:
    def __init__(self, processes: int, memory_bytes: int) -> None:
        self._memory = memory_bytes
        self._free = asyncio.Semaphore(processes)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def inspect(self, mail: StoredMail, limits: Limits, timeout_s: float) -> Inspection:
        """Raises InspectionFailed. The time to wait for a free process does not count."""
        async with self._free:
            process = await self._take()
            try:
                with _file(mail) as file:
                    async with asyncio.timeout(timeout_s):
                        found = await process.ask(file, limits)
            except TimeoutError:
                await self._end(process)
                raise InspectionFailed("timeout") from None
            except (OSError, ValueError, KeyError, TypeError):
                await self._end(process)
                raise InspectionFailed("crash") from None
            except BaseException:
                await self._end(process)
                raise
            self._idle.append(process)
            return found

    async def stop(self) -> None:
        for process in list(self._all):
            await self._end(process)
        self._idle = []
        await asyncio.gather(*self._ending)

    async def _take(self) -> _Process:
        """An idle process that still lives (the kernel may have killed one for its memory), else a new one."""
        while self._idle:
            process = self._idle.pop()
            if process.lives():
                return process
            await self._end(process)
        process = _Process(self._memory)
        self._all.add(process)
        return process

    async def _end(self, process: _Process) -> None:
        self._all.discard(process)
        process.kill()
        ending = asyncio.create_task(asyncio.to_thread(process.wait))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)


class _Process:
    def __init__(self, memory_bytes: int) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        with theirs:
            # -P: nothing in the directory we happen to run in is ever imported.
            command = [sys.executable, "-P", "-m", "bridge.service.analysis.inspector_process"]
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [*command, str(theirs.fileno()), str(memory_bytes)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )

    async def ask(self, file: int, limits: Limits) -> Inspection:
        socket.send_fds(self._socket, [json.dumps(limits.to_dict()).encode()], [file])
        loop = asyncio.get_running_loop()
        answer = bytearray()
        while not answer.endswith(b"\n"):
            piece = await loop.sock_recv(self._socket, 256 * 1024)
            if not piece or len(answer) > MAX_ANSWER:
                raise ConnectionResetError
            answer += piece
        return Inspection.from_dict(json.loads(answer))

    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._socket.close()
        self._process.kill()

    def wait(self) -> None:
        self._process.wait()


def _environment() -> dict[str, str]:
    ours = str(Path(__file__).resolve().parents[3])  # where `bridge` lies, installed or not
    path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path} | {name: os.environ[name] for name in _KEPT if name in os.environ}


@contextmanager
def _file(mail: StoredMail) -> Iterator[int]:
    """The file a mail lies in; a small one that lies in memory gets one."""
    if mail.descriptor is not None:
        yield mail.descriptor
        return
    file = os.memfd_create("mail")
    try:
        os.write(file, mail.content())
        yield file
    finally:
        os.close(file)
