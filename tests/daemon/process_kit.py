"""The daemon as a real process; its scripted scanner and next hop run in the process of the tests."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from bridge.runtime import yaml_file
from bridge.testing import (
    TOKEN,
    Background,
    FakeScanner,
    NextHop,
    SmtpClient,
    answer,
    eventually,
    free_port,
    result,
    until,
    whole_lines,
)
from tests.warm_commands import WarmProcess, can_be_warm, warm_commands

ROOT = Path(__file__).parents[2]
MAIL = b"Subject: hello\r\n\r\nhello\r\n"
INDIA = "IST-5:30"  # a time zone in the form of POSIX, for machines on which none are installed
WARM = "warm"  # instead of a program: a daemon of tests/warm_commands.py


def environment(**more: str) -> dict[str, str]:
    """Our environment, without variables that would change what the daemon does."""
    drop = ("STATE_DIRECTORY", "CREDENTIALS_DIRECTORY", "SCANBRIDGE_CONFIG", "NOTIFY_SOCKET", "LISTEN_FDS", "CI")
    return {**{name: value for name, value in os.environ.items() if name not in drop}, **more}


def scanbridge(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one command and wait until it exits."""
    words = list(map(str, arguments))
    if options.keys() <= {"env", "cwd", "input"} and can_be_warm(env := options.get("env", environment())):
        return warm_commands(os.getpid()).run(words, env, options.get("cwd", ROOT), options.get("input", ""))
    command = [sys.executable, "-m", "bridge", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if "input" not in options:
        streams["stdin"] = subprocess.DEVNULL
    defaults: dict[str, Any] = {"env": environment(), "cwd": ROOT, "timeout": 90, **streams}
    return subprocess.run(command, text=True, check=False, **{**defaults, **options})


def get(port: int, path: str) -> tuple[int, str]:
    """Status and text of an admin page; 0 if there is no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()
    except OSError:
        return 0, ""


def accepts_mail(port: int) -> bool:
    """Whether the daemon has started; it may report that its scanner or its next hop is down."""
    return get(port, "/readyz")[1] not in ("", "starting\n", "stopping\n")


class Bridge:
    """A running `scanbridge run`."""

    def __init__(
        self, directory: Path, port: int, admin: int, command: list[str], env: dict[str, str], **streams: Any
    ) -> None:
        self.directory, self.port, self.admin = directory, port, admin
        self._out, self._err = directory / "stdout", directory / "stderr"
        self.process: subprocess.Popen[bytes] | WarmProcess
        with self._out.open("wb") as out, self._err.open("wb") as err:
            if command[:1] == [WARM]:
                server = warm_commands(os.getpid())
                self.process = server.start(command[1:], env, directory, out.fileno(), err.fileno())
            else:
                self.process = subprocess.Popen(
                    command,
                    cwd=directory,
                    env=env,
                    **{"stdout": out, "stderr": err, "stdin": subprocess.DEVNULL, **streams},
                )

    def wait_ready(self) -> None:
        until(lambda: self.process.poll() is not None or accepts_mail(self.admin), "the daemon to accept mail")
        assert self.process.poll() is None, self.log

    @property
    def log(self) -> str:
        return self._err.read_text()

    @property
    def output(self) -> str:
        return self._out.read_text()

    def has_logged(self, text: str) -> bool:
        """Waits for it: a thread writes the log, so a running daemon may be ahead of it."""
        until(lambda: text in self.log, f"{text!r} in the log")
        return True

    def mail_lines(self, count: int = 0) -> list[str]:
        """The log lines of mails, once there are at least `count`."""

        def lines() -> list[str]:
            return [line for line in whole_lines(self._err) if line.startswith("id=")]

        until(lambda: len(lines()) >= count, f"{count} log lines of mails")
        return lines()

    def client(self) -> SmtpClient:
        client = SmtpClient(self.port)
        client.open()
        return client

    def send(self, content: bytes = MAIL) -> str:
        with self.client() as client:
            return client.mail(content).decode()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, limit_s: float = 60.0) -> int:
        return self.process.wait(limit_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)


class Gate:
    """Holds every mail at the scanner until `let_go` is set."""

    def __init__(self, scanner: FakeScanner) -> None:
        self.let_go = False
        self._scanner = scanner
        scanner.reply = self._reply

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await eventually(lambda: self.let_go, "the gate to open", limit_s=math.inf)
        writer.write(answer(200, result()))

    def arrived(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._scanner.arrived.acquire(timeout=60)


@contextmanager
def parts() -> Iterator[tuple[Background, FakeScanner, NextHop]]:
    """A scanner and a next hop in a thread of this process."""
    background, scanner, next_hop = Background(), FakeScanner(), NextHop()
    background.run(scanner.start())
    background.run(next_hop.start())
    try:
        yield background, scanner, next_hop
    finally:
        background.run(scanner.stop())
        background.run(next_hop.stop())
        background.close()


def write_config(directory: Path, scanner: str, next_hop: str, /, **sections: Any) -> tuple[Path, int, int]:
    """The file, the SMTP port and the admin port."""
    (directory / "token").write_text(TOKEN + "\n")
    port, admin = free_port(), free_port()
    data: dict[str, Any] = {
        "scanner": {"urls": [scanner], "token_file": "token", "status_interval": "100ms"},
        "listeners": [{"name": "mx", "address": f"127.0.0.1:{port}"}],
        "relay": {"next_hop": next_hop},
        "admin": {"address": f"127.0.0.1:{admin}"},
        "state_directory": str(directory / "state"),
        "hostname": "bridge.example",
        "drain_timeout": "10s",
    }
    for name, value in sections.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    path = directory / "bridge.yml"
    path.write_text(yaml_file.dump(data))
    return path, port, admin


def start(
    config: Path, port: int, admin: int, env: dict[str, str] | None = None, is_program: bool = False, **streams: Any
) -> Bridge:
    """Unless `env` or streams are given, the daemon is forked from a process that has imported everything.

    `is_program`: start the program, for a test of its start.
    """
    is_warm = env is None and not streams and not is_program and can_be_warm(environment())
    program = [WARM] if is_warm else [sys.executable, "-m", "bridge"]
    command = [*program, "run", "-c", str(config)]
    bridge = Bridge(config.parent, port, admin, command, env or environment(PYTHONPATH=str(ROOT)), **streams)
    try:
        bridge.wait_ready()
    except BaseException:
        bridge.end()
        raise
    return bridge


@contextmanager
def running(
    directory: Path, streams: dict[str, Any] | None = None, **sections: Any
) -> Iterator[tuple[Bridge, FakeScanner, NextHop]]:
    with parts() as (_, scanner, next_hop):
        config, port, admin = write_config(directory, scanner.url, next_hop.url, **sections)
        bridge = start(config, port, admin, **(streams or {}))
        try:
            yield bridge, scanner, next_hop
        finally:
            bridge.end()


def busy(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
