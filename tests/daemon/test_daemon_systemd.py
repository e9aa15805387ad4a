"""Started by systemd: its sockets, notifications, watchdog and credentials."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from bridge.daemon import systemd
from bridge.testing import TOKEN
from tests.daemon.process_kit import ROOT, Bridge, environment, get, parts, scanbridge, start, until, write_config


def test_systemd_passes_sockets_and_credentials_and_gets_notifications(tmp_path: Path) -> None:
    """The listener uses a passed socket; READY, WATCHDOG and STOPPING are sent."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(60)
    listening = socket.create_server(("127.0.0.1", 0))
    with notices, listening, parts() as (_, scanner, next_hop):
        config, _, admin = write_config(
            tmp_path, scanner.url, next_hop.url, listeners=[{"name": "mx", "address": "systemd:smtp"}]
        )
        (tmp_path / "token").rename(credentials / "token")
        env = environment(
            PYTHONPATH=str(ROOT),
            NOTIFY_SOCKET=str(tmp_path / "notify"),
            WATCHDOG_USEC="200000",
            CREDENTIALS_DIRECTORY=str(credentials),
            LISTEN_FDS="1",
            LISTEN_FDNAMES="smtp",
        )
        # The shell's process becomes the daemon, so LISTEN_PID is correct.
        command = ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" -m bridge run -c "$1"', sys.executable, str(config)]
        port = listening.getsockname()[1]
        fd = listening.fileno()
        bridge = Bridge(
            tmp_path, port, admin, command, env, close_fds=False, preexec_fn=lambda: os.dup2(fd, 3, inheritable=True)
        )
        try:
            bridge.wait_ready()
            assert bridge.send().startswith("250 ")
            assert scanner.submissions[0].authorization == f"Bearer {TOKEN}"
            heard: list[str] = []

            def hear(word: str) -> bool:
                heard.append(notices.recv(1000).decode())
                return word in heard

            until(lambda: hear("READY=1"), "READY=1")
            until(lambda: hear("WATCHDOG=1"), "WATCHDOG=1")
            bridge.signal()
            until(lambda: hear("STOPPING=1"), "STOPPING=1")
            assert bridge.wait() == 0
        finally:
            bridge.end()


def test_a_socket_that_systemd_did_not_pass_is_reported(tmp_path: Path) -> None:
    """The error has the line that belongs in the unit."""
    config, _, _ = write_config(
        tmp_path, "http://127.0.0.1:9", "127.0.0.1:9", listeners=[{"name": "mx", "address": "systemd:smtp"}]
    )
    done = scanbridge("run", "-c", config)
    assert done.returncode == 78 and "set FileDescriptorName=smtp" in done.stderr


def test_a_listener_uses_the_socket_that_systemd_opened_at_its_address(tmp_path: Path) -> None:
    """Ports and unix sockets, listeners and admin; unused ones are logged; a reload can drop and reuse one."""
    with parts() as (_, scanner, next_hop), ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        smtp, admin, idle = (sock.getsockname()[1] for sock in sockets)
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(tmp_path / "milter"))
        unix.listen()
        milter = {"protocol": "milter", "profile": "postfix-milter", "address": f"unix:{tmp_path}/milter"}
        mx = {"name": "mx", "address": f"127.0.0.1:{smtp}"}
        sections = {"admin": {"address": f"127.0.0.1:{admin}"}, "listeners": [mx, {"name": "m", **milter}]}
        config, _, _ = write_config(tmp_path, scanner.url, next_hop.url, **sections)
        bridge = activated(config, smtp, admin, [*sockets, unix])
        try:
            bridge.wait_ready()
            assert bridge.send().startswith("250 ")
            warning = f"systemd listens on 127.0.0.1:{idle}, but no listener in the configuration does"
            until(lambda: warning in bridge.log, "the warning")
            for listeners in ([mx], [mx, {"name": "m", **milter}]):  # removed, and used again
                count = json.loads(get(admin, "/status")[1])["reload"]["count"]
                write_config(tmp_path, scanner.url, next_hop.url, **{**sections, "listeners": listeners})
                bridge.signal(signal.SIGHUP)
                until(lambda c=count: json.loads(get(admin, "/status")[1])["reload"]["count"] > c, "the reload")
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)
                client.connect(str(tmp_path / "milter"))
                client.sendall(b"\x00\x00\x00\x0dO" + bytes([0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]))
                assert client.recv(100)[4:5] == b"O"
            bridge.signal()
            assert bridge.wait() == 0
            assert (tmp_path / "milter").exists(), "only systemd may remove it"
        finally:
            bridge.end()


def activated(config: Path, port: int, admin: int, sockets: list[socket.socket], **env: str) -> Bridge:
    """A daemon started with these sockets, as systemd does it."""

    def hand_over() -> None:
        high = [fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD, 100) for sock in sockets]
        for number, fd in enumerate(high):
            os.dup2(fd, 3 + number, inheritable=True)

    env = environment(PYTHONPATH=str(ROOT), LISTEN_FDS=str(len(sockets)), **env)
    command = ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" -m bridge run -c "$1"', sys.executable, str(config)]
    return Bridge(config.parent, port, admin, command, env, close_fds=False, preexec_fn=hand_over)


def test_a_blocked_event_loop_stops_the_watchdog_and_logs_its_stack(tmp_path: Path) -> None:
    """A reload blocks on a pipe: no more WATCHDOG=1 is sent, and systemd's SIGABRT logs the stack."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices, parts() as (_, scanner, next_hop):
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(60)
        config, port, admin = write_config(tmp_path, scanner.url, next_hop.url, drain_timeout="40s")
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        bridge = start(config, port, admin, environment(PYTHONPATH=str(ROOT), **env))
        try:
            until(lambda: notices.recv(1000) == b"WATCHDOG=1", "WATCHDOG=1")
            config.unlink()
            os.mkfifo(config)
            bridge.signal(signal.SIGHUP)
            until(lambda: notices.recv(1000).startswith(b"RELOADING=1"), "RELOADING=1")
            notices.settimeout(0.5)
            with pytest.raises(TimeoutError):
                while notices.recv(1000) == b"WATCHDOG=1":
                    pass  # sent before the reload blocked
            bridge.signal(signal.SIGABRT)
            assert bridge.wait() == -signal.SIGABRT
            assert "Fatal Python error: Aborted" in bridge.log and "reload.py" in bridge.log
        finally:
            bridge.end()


def test_a_lack_of_descriptors_silenced_the_watchdog(tmp_path: Path) -> None:
    """A connection too many, and systemd killed the daemon with all mail in processing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices, parts() as (_, scanner, next_hop):
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(60)
        config, port, admin = write_config(tmp_path, scanner.url, next_hop.url)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        bridge = start(config, port, admin, environment(PYTHONPATH=str(ROOT), **env))
        try:
            limits = resource.prlimit(bridge.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(bridge.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # all of them are in use
            notices.setblocking(False)
            with pytest.raises(BlockingIOError):
                while notices.recv(1000):
                    pass  # sent before
            notices.settimeout(60)
            for _ in range(3):
                until(lambda: notices.recv(1000) == b"WATCHDOG=1", "WATCHDOG=1")
            resource.prlimit(bridge.process.pid, resource.RLIMIT_NOFILE, limits)
            assert bridge.send().startswith("250 ")
        finally:
            bridge.end()


def test_a_notification_socket_that_nobody_reads_stopped_all_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was full, the event loop waited for its reader."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with ExitStack() as stack:
        stack.callback(_close_our_socket)
        unread = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        unread.bind(str(tmp_path / "notify"))
        while _fill(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)), tmp_path / "notify"):
            pass  # a sender may be refused because of what it sent itself, so only a new one shows that it is full
        notifying = threading.Thread(target=systemd.notify, args=("WATCHDOG=1",), daemon=True)
        notifying.start()
        notifying.join(60)
        assert not notifying.is_alive()


def _close_our_socket() -> None:
    """A daemon keeps it until it ends; here, that would be the whole test run."""
    systemd._socket().close()
    systemd._socket.cache_clear()


def _fill(sender: socket.socket, path: Path) -> int:
    """How many datagrams it could send until it was refused."""
    sender.setblocking(False)
    for sent in count():
        try:
            sender.sendto(b"WATCHDOG=1", str(path))
        except BlockingIOError:
            return sent
    raise AssertionError("never")


def test_a_stop_asks_systemd_for_the_configured_drain_time(tmp_path: Path) -> None:
    """The drain time and a little more; the unit's TimeoutStopSec need not match."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices, parts() as (_, scanner, next_hop):
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(60)
        config, port, admin = write_config(tmp_path, scanner.url, next_hop.url, drain_timeout="400s")
        env = environment(PYTHONPATH=str(ROOT), NOTIFY_SOCKET=str(tmp_path / "notify"))
        bridge = start(config, port, admin, env)
        try:
            until(lambda: f"STATUS=accepting mail: mx on 127.0.0.1:{port}" == notices.recv(1000).decode(), "the status")
            bridge.signal()
            until(lambda: notices.recv(1000).startswith(b"EXTEND_TIMEOUT_USEC=420000000\n"), "the extended timeout")
            assert bridge.wait() == 0
        finally:
            bridge.end()


@pytest.mark.parametrize("unit", sorted((ROOT / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_temporary_files_counted_towards_the_memory_of_a_unit(unit: Path) -> None:
    """Where `/tmp` is in memory. `PrivateTmp` makes `/var/tmp` private, too."""
    lines = unit.read_text().splitlines()
    assert "Environment=TMPDIR=/var/tmp" in lines and "PrivateTmp=yes" in lines
