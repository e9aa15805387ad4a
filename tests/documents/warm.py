"""`scanbridge` for shells that call it a hundred times: a process that has imported everything forks for each call.

Starting Python with all our libraries takes a second of CPU time. The call itself is real: it has its own process,
arguments, directory, environment, standard streams and exit code, in the namespaces of its caller. `warm.py SOCKET`
serves, `warm.py SOCKET ARGUMENT...` calls.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

_NAMESPACES = ("net", "pid", "mnt")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def call(path: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        text = json.dumps([arguments, os.getcwd(), dict(os.environ), False]).encode()
        socket.send_fds(server, [len(text).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(text)
        return (server.recv(1) or b"\xff")[0]


def serve(path: str) -> None:
    import importlib
    import pkgutil

    import bridge

    for module in pkgutil.walk_packages(bridge.__path__, "bridge."):
        if module.name != "bridge.__main__" and not module.name.startswith("bridge.testing"):
            importlib.import_module(module.name)
    gc.freeze()  # so that garbage collection in a child does not copy the imported modules
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children need not be waited for, nor those they leave behind:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # some init processes do that once a second
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(100)
        while True:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(client)
                return
            client.close()


def _join(client: socket.socket) -> None:
    """Enter the namespaces of the calling process, which waits for us, and take over its limit of open files."""
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    resource.setrlimit(resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE))
    own, theirs = "/proc/self/ns/", f"/proc/{pid}/ns/"
    names = [name for name in _NAMESPACES if os.readlink(own + name) != os.readlink(theirs + name)]
    for namespace in [os.open(theirs + name, os.O_RDONLY) for name in names]:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)
    if "pid" in names and os.fork():  # only a child is in the new one
        os._exit(0)


def _answer(client: socket.socket) -> None:
    """In the child: runs the command and reports its exit code."""
    _join(client)
    length, streams, _, _ = socket.recv_fds(client, 4, 3)
    request = json.loads(client.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
    arguments, directory, environment, is_daemon = request
    if is_daemon and (pid := os.fork()):
        _watch(client, pid, streams)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    encoding, _, errors = environment.get("PYTHONIOENCODING", "").partition(":")
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # the server's own do not know what they are now
        old, mode = getattr(sys, name), "r" if number == 0 else "w"
        buffering = 1 if name == "stderr" or os.isatty(number) else -1  # as Python's
        handler = (errors or "strict") if encoding and name != "stderr" else old.errors
        new = open(number, mode, buffering, encoding or old.encoding, handler, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["scanbridge", *arguments]
    if is_daemon:
        from bridge.cli import main

        client.close()
        main(prog_name="scanbridge")  # ends as every Python program does
    else:
        _run(client)


def _run(client: socket.socket) -> NoReturn:
    from bridge.cli import main

    code = 1
    try:
        main(prog_name="scanbridge")
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        client.sendall(bytes([code]))
        os._exit(code)


def _watch(client: socket.socket, pid: int, streams: list[int]) -> NoReturn:
    """The parent of a daemon: reports its process id and, when it has ended, its exit code."""
    for stream in (0, 1, 2, *streams):
        os.close(stream)
    client.sendall(pid.to_bytes(4, "big"))
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        client.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    sys.exit(call(sys.argv[1], sys.argv[2:]))
