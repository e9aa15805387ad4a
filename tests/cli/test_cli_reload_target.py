"""`scanbridge reload` signals the daemon that listens at the admin address, whatever an answer names."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.cli.hang_up import NotOurs, hang_up
from bridge.runtime import port_owner
from bridge.runtime.endpoints import Endpoint
from bridge.testing import until
from tests.requirements import need, need_python_for_all

CONFIG = """\
scanner: {{urls: ["http://127.0.0.1:1"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:2"}}]
relay: {{next_hop: "smtp://127.0.0.1:3"}}
admin: {{address: "127.0.0.1:{port}"}}
"""
# Ends with 7 when it gets SIGHUP; listens on the port that it prints.
VICTIM = """
import signal, socket, sys
signal.signal(signal.SIGHUP, lambda *_: sys.exit(7))
sock = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
signal.pause()
"""


@pytest.fixture
def victim() -> Iterator[tuple[subprocess.Popen[str], int]]:
    with subprocess.Popen([sys.executable, "-c", VICTIM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


@pytest.fixture
def liar(victim: tuple[subprocess.Popen[str], int]) -> Iterator[int]:
    """A program that answers as a daemon does, and names a process that is not its own."""
    state = {"pid": victim[0].pid, "in_processing": 0, "reload": {"count": 0, "ok": True}, "scanner": []}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(state).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_program_on_the_port_had_root_signal_any_process(
    tmp_path: Path, victim: tuple[subprocess.Popen[str], int], liar: int
) -> None:
    need(root=True)  # others may signal only their own processes
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "bridge.yml").write_text(CONFIG.format(port=liar))
    done = CliRunner().invoke(main, ["reload", "-c", str(tmp_path / "bridge.yml"), "--timeout", "1"])
    assert done.exit_code == 1
    assert f"process {victim[0].pid} (python" in done.stderr and "was not signalled" in done.stderr
    assert victim[0].poll() is None


def test_the_process_that_listens_is_signalled(victim: tuple[subprocess.Popen[str], int]) -> None:
    process, port = victim
    hang_up(process.pid, Endpoint("127.0.0.1", port))
    assert process.wait(10) == 7


def test_a_program_of_another_name_is_not_signalled_even_if_it_listens() -> None:
    need(root=True)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        with subprocess.Popen(["/bin/sleep", "60"], pass_fds=[sock.fileno()]) as process:
            until(lambda: port_owner.name(process.pid) == "sleep", "the program")
            with pytest.raises(NotOurs):
                hang_up(process.pid, Endpoint(*sock.getsockname()))
            assert process.poll() is None
            process.terminate()
        assert process.returncode == -signal.SIGTERM


def test_a_process_that_has_ended_is_said_to_be_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        hang_up(process.pid, Endpoint("127.0.0.1", 1))
    assert os.getpid() != process.pid


# The sandbox of the packaged units: ProcSubset=pid and ProtectProc=invisible, then PrivateUsers=yes, then User=.
SANDBOX = """
mount -t proc -o subset=pid,hidepid=invisible proc /proc || exit 99
exec setpriv --reuid "$1" --regid "$1" --clear-groups unshare --user --map-current-user "$2" -c "$3"
"""
SIGNAL = "from bridge.cli.hang_up import hang_up; from bridge.runtime.endpoints import Endpoint; hang_up({}, {!r})"


def in_sandbox(user: int, program: str, **environment: str) -> subprocess.Popen[str]:
    command = ["unshare", "--mount", "sh", "-c", SANDBOX, "sh", str(user), sys.executable, program]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )


@pytest.mark.parametrize(
    ("user", "knows_main", "is_signalled"),
    [
        (2, False, True),  # the packages' units, and their console: the kernel compares the users
        (0, True, True),  # a unit whose daemon runs as root: systemd says which process is the unit's
        (0, False, False),
    ],
)
def test_systemctl_reload_found_no_process_in_the_sandbox_of_the_unit(
    user: int, knows_main: bool, is_signalled: bool
) -> None:
    """/proc/net is not there, and /proc does not show the daemon, which has a user namespace of its own."""
    need("unshare", "setpriv", root=True)
    if user != 0:
        need_python_for_all()
    with in_sandbox(user, VICTIM) as daemon:
        assert daemon.stdout is not None
        port = int(daemon.stdout.readline())
        program = SIGNAL.format(daemon.pid, Endpoint("127.0.0.1", port))
        try:
            with in_sandbox(user, program, MAINPID=str(daemon.pid) if knows_main else "") as command:
                _, errors = command.communicate(timeout=60)
            if is_signalled:
                assert (command.returncode, errors) == (0, "")
                assert daemon.wait(10) == 7
            else:
                assert "NotOurs" in errors
                assert daemon.poll() is None
        finally:
            daemon.kill()


def test_root_finds_the_listener_without_proc_net(victim: tuple[subprocess.Popen[str], int]) -> None:
    need("unshare", root=True)
    process, port = victim
    script = 'mount -t proc -o subset=pid proc /proc && exec "$1" -c "$2"'
    program = SIGNAL.format(process.pid, Endpoint("127.0.0.1", port))
    subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, program], check=True, timeout=60)
    assert process.wait(10) == 7


@pytest.mark.parametrize(("user", "is_signalled"), [(None, False), (65534, False), (0, True)])
def test_where_sockets_cannot_be_seen_root_signals_only_the_owner_of_the_state_directory(
    victim: tuple[subprocess.Popen[str], int], user: int | None, is_signalled: bool
) -> None:
    need("unshare", root=True)
    process, port = victim
    script = 'mount -t tmpfs tmpfs /proc/$$/net && exec "$1" -c "$2"'
    program = SIGNAL.format(process.pid, Endpoint("127.0.0.1", port)).removesuffix(")") + f", {user})"
    command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, program]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    if is_signalled:
        assert (done.returncode, process.wait(10)) == (0, 7)
    else:
        assert "NotOurs" in done.stderr and process.poll() is None
