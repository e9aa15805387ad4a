"""A few processes that look at mail for us, each bounded in time and memory.

A thread cannot be stopped and shares our memory; a process can be killed. One that is late or
dies costs its own mail the answer (`WorkerFailed`) and is replaced; others never notice. The mail
itself is not copied: the process gets its file. What a process answers is read with mistrust, for
it may have been talked into anything by the mail it read. Its side of the socket is `worker`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from bridge.service.scanning.upload import StoredMail

START_S = 30.0  # to start Python and import, on a busy machine; no part of any mail's time
MAX_ANSWER = 64 * 1024 * 1024
_KEPT = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")  # nothing that could hold a secret

T = TypeVar("T")


class WorkerFailed(Exception):
    """No answer: `timeout`, or `crash`."""


class Workers:
    """Processes that run one module: `setup` tells each what to be, once, when it starts."""

    def __init__(
        self, module: str, processes: int, memory_bytes: int, setup: dict[str, Any], *, may_log: bool = False
    ) -> None:
        self._module = module
        self._memory = memory_bytes
        self._setup = json.dumps(setup).encode()
        self._may_log = may_log
        self._free = asyncio.Semaphore(processes)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> Any:
        """Start one; the answer is what it says of itself. Raises WorkerFailed."""
        async with self._free:
            process = await self._new()
            self._idle.append(process)
            return process.greeting

    async def ask(self, mail: StoredMail, request: dict[str, Any], timeout_s: float, read: Callable[[Any], T]) -> T:
        """Show a mail to one. Raises WorkerFailed, and what `read` raises beside ValueError and the like.

        The time to wait for a free process, and to start one, does not count.
        """
        async with self._free:
            process = await self._take()
            try:
                with _file(mail) as file:
                    async with asyncio.timeout(timeout_s):
                        answer = await process.ask(json.dumps(request).encode(), file)
                found = read(answer)
            except TimeoutError:
                await self._end(process)
                raise WorkerFailed("timeout") from None
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                await self._end(process)
                raise WorkerFailed("crash") from None
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
        return await self._new()

    async def _new(self) -> _Process:
        process = _Process(self._module, self._memory, self._may_log)
        self._all.add(process)
        try:
            async with asyncio.timeout(START_S):
                process.greeting = await process.ask(self._setup)
        except (OSError, ValueError, RecursionError):  # a TimeoutError is an OSError
            await self._end(process)
            raise WorkerFailed("crash") from None
        except BaseException:
            await self._end(process)
            raise
        return process

    async def _end(self, process: _Process) -> None:
        self._all.discard(process)
        process.kill()
        ending = asyncio.create_task(asyncio.to_thread(process.wait))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)


class _Process:
    greeting: Any = None

    def __init__(self, module: str, memory_bytes: int, may_log: bool) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        with theirs:
            # -P: nothing in the directory we happen to run in is ever imported.
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(memory_bytes)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if may_log else subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # so that what it starts ends with it
            )

    async def ask(self, request: bytes, *files: int) -> Any:
        with _written(request) as asked:
            socket.send_fds(self._socket, [b"\0"], [asked, *files])
        loop = asyncio.get_running_loop()
        answer = bytearray()
        while not answer.endswith(b"\n"):
            piece = await loop.sock_recv(self._socket, 256 * 1024)
            if not piece or len(answer) > MAX_ANSWER:
                raise ConnectionResetError
            answer += piece
        return json.loads(answer)

    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._socket.close()
        if self._process.returncode is None:  # not waited for yet, so the number is still its own
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        self._process.wait()


def _environment() -> dict[str, str]:
    ours = str(Path(__file__).resolve().parents[3])  # where `bridge` lies, installed or not
    path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path} | {name: os.environ[name] for name in _KEPT if name in os.environ}


@contextmanager
def _file(mail: StoredMail) -> Iterator[int]:
    """The file a mail lies in; a small one that lies in memory gets one."""
    with ExitStack() as stack:
        yield stack.enter_context(_written(mail.content())) if mail.descriptor is None else mail.descriptor


@contextmanager
def _written(content: bytes) -> Iterator[int]:
    file = os.memfd_create("scanbridge")
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        yield file
    finally:
        os.close(file)
