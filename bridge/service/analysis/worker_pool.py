"""A pool of processes that examine mail, each limited in time and memory.

A thread cannot be stopped and shares our memory; a process can be killed. If a process times out or
dies, its mail gets no answer (`WorkerFailed`) and the process is replaced; other mail is not affected.
The mail is not copied: the process gets its file descriptor. The answer of a process is not trusted,
because the mail may have taken control of it. `worker` is the other side of the socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from bridge.runtime.unread import has_unread
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.worker import LENGTHS

START_S = 30.0  # to start Python and import on a busy machine; not part of any mail's time
MAX_JSON = 8 * 1024 * 1024  # of an answer; thousands of hosts and digests take a quarter of it
MAX_CONTENT = 128 * 1024 * 1024  # the parts of a mail, and a rendition of it in Base64
_PIECE = 256 * 1024
_KEPT = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")  # environment variables that cannot contain a secret

T = TypeVar("T")


TIMED_OUT = "timeout"


class WorkerFailed(Exception):
    """No answer; the text is TIMED_OUT or `crash`."""


class WorkerPool:
    """Processes that all run one module; each gets `setup` once, when it starts."""

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
        """Start one process and return its greeting. Raises WorkerFailed."""
        async with self._free:
            process = await self._new()
            self._idle.append(process)
            return process.greeting

    async def ask(
        self, mail: StoredMail, request: dict[str, Any], timeout_s: float, read: Callable[[Any, list[bytes]], T]
    ) -> T:
        """Send a mail to a process and return its answer, parsed by `read`: from JSON, and bytes in pieces.

        Raises WorkerFailed, and whatever `read` raises except ValueError and similar errors.
        `timeout_s` does not include the wait for a free process or the start of a new one.
        """
        async with self._free:
            process = await self._take()
            try:
                with _file(mail) as file:
                    async with asyncio.timeout(timeout_s):
                        answer = await process.ask(json.dumps(request).encode(), file)
                found = read(*answer)
            except TimeoutError:
                await self._end(process)
                raise WorkerFailed(TIMED_OUT) from None
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
        """An idle process that is still alive (the kernel may have killed one for its memory), else a new one.

        One that has said something since its last answer is replaced: the next mail would get that as its answer.
        """
        while self._idle:
            process = self._idle.pop()
            if process.is_alive() and not process.has_unread():
                return process
            await self._end(process)
        return await self._new()

    async def _new(self) -> _Process:
        process = _Process(self._module, self._memory, self._may_log)
        self._all.add(process)
        try:
            async with asyncio.timeout(START_S):
                process.greeting, _ = await process.ask(self._setup)
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
            # -P: never import anything from the current directory.
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(memory_bytes)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if may_log else subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # so that its own child processes are killed with it
            )

    async def ask(self, request: bytes, *files: int) -> tuple[Any, list[bytes]]:
        with _memory_file(request) as request_file:
            socket.send_fds(self._socket, [b"\0"], [request_file, *files])
        lengths = b"".join([piece async for piece in self._receive(LENGTHS.size)])
        json_length, content_length = LENGTHS.unpack(lengths)
        if json_length > MAX_JSON or content_length > MAX_CONTENT:
            raise ConnectionResetError
        value = b"".join([piece async for piece in self._receive(json_length)])
        return json.loads(value), [piece async for piece in self._receive(content_length)]

    async def _receive(self, count: int) -> AsyncIterator[bytes]:
        """Exactly this many bytes, in pieces. Other tasks run in between, even if the process is faster than we are."""
        loop = asyncio.get_running_loop()
        while count:
            piece = await loop.sock_recv(self._socket, min(count, _PIECE))
            if not piece:
                raise ConnectionResetError
            count -= len(piece)
            yield piece
            if count:
                await asyncio.sleep(0)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def has_unread(self) -> bool:
        return has_unread(self._socket.fileno())

    def kill(self) -> None:
        self._socket.close()
        if self._process.returncode is None:  # not reaped yet, so its process ID has not been reused
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        self._process.wait()


def _environment() -> dict[str, str]:
    package_root = str(Path(__file__).resolve().parents[3])  # the directory of `bridge`, installed or not
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path} | {name: os.environ[name] for name in _KEPT if name in os.environ}


@contextmanager
def _file(mail: StoredMail) -> Iterator[int]:
    """The file that contains the mail; a mail in memory is written to a memory file first."""
    with ExitStack() as stack:
        yield stack.enter_context(_memory_file(mail.content())) if mail.descriptor is None else mail.descriptor


@contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    file = os.memfd_create("scanbridge")
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        yield file
    finally:
        os.close(file)
