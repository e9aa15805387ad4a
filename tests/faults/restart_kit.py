"""A socket that another process holds, as systemd does, a bridge on it, and clients that never stop sending mail."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.testing import FakeScanner, SmtpClient
from tests.chain import free_port
from tests.daemon.process_kit import ROOT, Bridge, environment, parts, until, write_config
from tests.daemon.workers.workers_kit import state

CLIENTS = 4
PATIENCE_S = 60.0
_NUMBER = re.compile(rb"Subject: (\S+)\r\n")


class Manager:
    """Holds the listening socket, and starts the bridge on it: ours, or the one that `python` has installed."""

    def __init__(
        self, config: Path, admin: int, listening: socket.socket, scanner: FakeScanner, python: Path | None = None
    ) -> None:
        self.config, self._admin, self._listening = config, admin, listening
        self.port, self.scanner = listening.getsockname()[1], scanner
        self.start(python)

    def start(self, python: Path | None = None) -> None:
        source = {} if python else {"PYTHONPATH": str(ROOT)}
        env = environment(LISTEN_FDS="1", LISTEN_FDNAMES="smtp", **source)
        # The shell's process becomes the bridge, so that LISTEN_PID is right.
        program = [str(python or sys.executable), str(self.config)]
        command = ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" -m bridge run -c "$1"', *program]
        fd = self._listening.fileno()
        self.bridge = Bridge(
            self.config.parent, self.port, self._admin, command, env,
            close_fds=False, preexec_fn=lambda: os.dup2(fd, 3, inheritable=True),
        )  # fmt: skip
        self.bridge.wait_ready()

    def restart(self, python: Path | None = None) -> None:
        self.bridge.signal(signal.SIGTERM)
        assert self.bridge.wait(PATIENCE_S) == 0, self.bridge.log
        self.start(python)

    def reload(self) -> None:
        before = state(self.bridge)["reload"]["count"]
        self.bridge.signal(signal.SIGHUP)
        until(lambda: state(self.bridge)["reload"]["count"] > before, "the reload", PATIENCE_S)
        assert state(self.bridge)["reload"]["ok"]


class Load:
    """Clients that send mail continuously; a mail without a final reply is sent again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.accepted: Counter[str] = Counter()
        self.errors: list[str] = []
        self.cut = 0  # sessions that the bridge ended
        self._go_on = True
        self._threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _client(self, number: int) -> None:
        try:
            mail = 0
            while self._go_on:
                with SmtpClient(self._port, timeout_s=PATIENCE_S) as client:
                    is_open = client.open().startswith(b"250")
                    while is_open and self._go_on:
                        is_open = self._send(client, f"{number}-{mail}")
                        mail += is_open
                    self.cut += not is_open
        except Exception as exc:  # for example a refused connection
            self.errors.append(repr(exc))

    def _send(self, client: SmtpClient, name: str) -> bool:
        """Whether the mail was accepted; if not, the session is over and the client still has the mail."""
        try:
            if not client.begin().startswith(b"354"):
                return False
            reply = client.say(b"Subject: %b\r\n\r\nhello\r\n." % name.encode())[0]
        except (BrokenPipeError, ConnectionResetError):  # the bridge had already closed the connection
            return False
        if reply.startswith(b"250"):
            self.accepted[name] += 1
            return True
        assert reply[:3] in (b"", b"421"), reply
        return False

    def more(self) -> None:
        """Wait until every client has had some more mail accepted."""
        before = Counter(name.partition("-")[0] for name in list(self.accepted))

        def moved() -> bool:
            now = Counter(name.partition("-")[0] for name in list(self.accepted))
            return bool(self.errors) or all(now[str(n)] >= before[str(n)] + 5 for n in range(CLIENTS))

        until(moved, "mail to be accepted again", PATIENCE_S)

    def end(self) -> None:
        self._go_on = False
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)


@contextmanager
def managed(
    directory: Path, workers: int, python: Path | None = None, **more: Any
) -> Iterator[tuple[Manager, Counter[str]]]:
    """The manager, and at the end how often each mail reached the next hop. `more`: sections of the configuration."""
    arrived: Counter[str] = Counter()
    with parts() as (_, scanner, next_hop), socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        listeners = [{"name": "mx", "address": "systemd:smtp"}]
        admin = free_port()  # must be free again at the next start
        sections = {"listeners": listeners, "workers": workers, "admin": {"address": f"127.0.0.1:{admin}"}, **more}
        config, _, _ = write_config(directory, scanner.url, next_hop.url, **sections)
        manager = Manager(config, admin, listening, scanner, python)
        try:
            yield manager, arrived
            arrived.update(found[1].decode() for mail in next_hop.mails if (found := _NUMBER.search(mail.content)))
        finally:
            manager.bridge.end()
