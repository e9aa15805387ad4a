"""A scanning service for one command: the included service with a given configuration.

It runs in a separate process, on a loopback port that its parent has bound, with a token that only the parent has.
Its database is a temporary copy of the lists and of what was learned: records of scans go there, and are gone when it
ends. It ends when its standard input is closed, so it cannot outlive its parent, however that ends. What the
configuration says about address, TLS, tokens, database, core nodes and workers is not used. If this is wrong, a trial
changes the service that people rely on, or shows the decisions of another configuration.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.daemon.systemd import environment_for_child
from bridge.errors import BridgeError
from bridge.runtime.early_signals import ignore_hangup
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.listening_socket import address_of, bind
from bridge.service import settings
from bridge.service.config_files import load
from bridge.service.server import ServiceServer
from bridge.service.store import Store, copy_knowledge

_START_S = 120.0  # a list of a million entries is copied in a few seconds
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class PrivateService:
    url: str
    token: str
    note: str = ""  # what the operator should know


@asynccontextmanager
async def private_service(path: Path, profile: str = "") -> AsyncIterator[PrivateService]:
    """Runs for the duration of the block, with this profile of the phishing model, else the one in the file.

    Raises ConfigError, or BridgeError if it cannot start.
    """
    load(path)  # its errors are reported here, before a process is started
    token = secrets.token_hex(32)
    with bind(Endpoint("127.0.0.1", 0)) as sock:
        url = f"http://{address_of(sock)}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "bridge.daemon.private_service"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment_for_child(),
            pass_fds=(sock.fileno(),),
            start_new_session=True,  # Ctrl-C in a terminal must reach only us; we end the process
        )
        job = {"path": str(path), "token": token, "socket": sock.fileno(), "profile": profile}
    try:
        yield PrivateService(url, token, await _started(process, job))
    finally:
        await _end(process)


async def _started(process: asyncio.subprocess.Process, job: dict[str, object]) -> str:
    """What the process says when it is ready."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(job).encode() + b"\n")
    try:
        async with asyncio.timeout(_START_S):
            said = json.loads(await process.stdout.readline() or b'{"error": "its process ended"}')
    except TimeoutError:
        said = {"error": f"it was not ready within {_START_S:.0f} s"}
    if "error" in said:
        raise BridgeError(f"the service for {job['path']} could not be started: {said['error']}")
    return str(said["note"])


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


# In the process


def main() -> None:
    ignore_hangup()
    logging.disable(logging.CRITICAL)
    job = json.loads(sys.stdin.buffer.readline())
    try:
        with tempfile.TemporaryDirectory(prefix="scanbridge-service-") as directory:
            asyncio.Runner().run(_serve(job, socket.socket(fileno=job["socket"]), Path(directory)))
    finally:
        os._exit(0)  # whatever still runs, in a task or a thread, is no longer needed


async def _serve(job: dict[str, str], sock: socket.socket, directory: Path) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(sys.stdin.fileno())  # it would stay readable
        ended.set()

    loop.add_reader(sys.stdin.fileno(), end)  # readable: the parent has closed it
    server = ServiceServer()
    try:
        loaded = load(Path(job["path"])).config
        config = settings.private(loaded, address_of(sock), job["token"], directory, job["profile"])
        note = await asyncio.to_thread(_copy_knowledge, loaded.database_url, config.database_url)
        await server.start(config, [sock])
    except BridgeError as exc:
        _say({"error": str(exc)})
        return
    _say({"note": note})
    await ended.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_S / 2):
            await server.stop(drain_s=0.0)


def _copy_knowledge(source: str, target: str) -> str:
    """Returns a note if there is nothing to copy. Raises StoreUnavailable."""
    store = Store(target)
    store.open()
    try:
        if copy_knowledge(source, store):
            return ""
        return "its database does not exist yet, so it has no list entries and no reports"
    finally:
        store.close()


def _say(data: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
