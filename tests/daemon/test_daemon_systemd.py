"""As systemd starts us: its sockets, its notifications, its watchdog, its credentials."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from process_kit import ROOT, Bridge, environment, parts, scanbridge, until, write_config

from bridge.testing import TOKEN


def test_systemd_gives_sockets_and_credentials_and_hears_from_us(tmp_path: Path) -> None:
    """The listener is a socket we were handed; READY, WATCHDOG and STOPPING are told."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(15)
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
        # The shell's process becomes ours, so that LISTEN_PID is right.
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


def test_a_socket_that_systemd_did_not_give_is_said(tmp_path: Path) -> None:
    """With the line that belongs into the unit."""
    config, _, _ = write_config(
        tmp_path, "http://127.0.0.1:9", "127.0.0.1:9", listeners=[{"name": "mx", "address": "systemd:smtp"}]
    )
    done = scanbridge("run", "-c", config)
    assert done.returncode == 78 and "set FileDescriptorName=smtp" in done.stderr
