"""Unix sockets: one that is left behind is replaced, one that is served never."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.runtime import listening_socket
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.listening_socket import CannotListen, bind


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
        gone.listen()
    with bind(Endpoint(path=str(path))) as sock, socket.socket(socket.AF_UNIX) as client:
        client.connect(sock.getsockname())
        assert client.getpeername() == str(path)


def test_a_busy_daemon_lost_its_socket_to_a_second_one(tmp_path: Path) -> None:
    """With a full queue it answers EAGAIN, which was taken for nobody at all; no client could reach it any more."""
    path = str(tmp_path / "socket")
    with ExitStack() as stack:
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(path)
        busy.listen(0)
        while True:
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            if client.connect_ex(path):
                break
        with pytest.raises(CannotListen, match="in use"):
            bind(Endpoint(path=path))
        busy.accept()[0].close()
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(path)


def test_a_socket_that_we_may_not_connect_to_is_not_removed(tmp_path: Path) -> None:
    """A socket of another kind, here: who it belongs to is not known."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(CannotListen, match="in use"):
            bind(Endpoint(path=str(path)))
        assert path.is_socket()


class SlowSocket(socket.socket):
    """Is bound, and listens only when the test says so."""

    bound, may_listen = threading.Event(), threading.Event()

    def listen(self, backlog: int = 0) -> None:
        self.bound.set()
        assert self.may_listen.wait(30)
        super().listen(backlog)


_SECOND = """
import sys
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.listening_socket import CannotListen, bind
print("begin", flush=True)
try:
    bind(Endpoint(path=sys.argv[1]))
except CannotListen as exc:
    print(exc)
"""


def test_two_daemons_that_start_at_the_same_time_removed_each_others_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between bind and listen, a new socket refuses connections like one that was left behind."""
    path = str(tmp_path / "socket")
    monkeypatch.setattr(listening_socket.socket, "socket", SlowSocket)
    made: list[socket.socket] = []
    first = threading.Thread(target=lambda: made.append(bind(Endpoint(path=path))))
    first.start()
    assert SlowSocket.bound.wait(30)
    command = [sys.executable, "-c", _SECOND, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "begin\n"
        with pytest.raises(subprocess.TimeoutExpired):  # it waits, instead of removing what it finds
            second.wait(0.5)
        SlowSocket.may_listen.set()
        said = second.stdout.read()
    first.join()
    monkeypatch.undo()
    assert "in use" in said
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    made[0].close()


def test_a_unix_socket_listened_before_it_had_the_mode_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group could connect for a moment, whatever `unix_mode` said: every client of a unix socket is trusted."""
    path, modes, listen = tmp_path / "bridge.sock", [], socket.socket.listen

    def with_mode(sock: socket.socket, backlog: int) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        listen(sock, backlog)

    monkeypatch.setattr(socket.socket, "listen", with_mode)
    with bind(Endpoint(path=str(path)), unix_mode=0o600):
        assert modes == [0o600]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
