"""The parts of a mail's path: our programs as processes, a private Postfix, a destination that records mail."""

from __future__ import annotations

import os
import re
import smtplib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge.testing import Background, NextHop, Received, free_port, until  # noqa: F401 (for the tests)
from tests import postfix_kit
from tests.warm_commands import WarmProcess, warm_commands

DEADLINE_S = 120.0


def is_listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """`scanbridge` with these arguments, as a process that can be stopped, killed and restarted."""

    def __init__(self, directory: Path, ports: Sequence[int], *arguments: str) -> None:
        self._arguments = list(arguments)
        self._ports = ports
        self._log = directory / f"{arguments[0]}.log"
        self._environment = {**os.environ, "STATE_DIRECTORY": str(directory)}
        self._process: WarmProcess | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            out = log.fileno()
            self._process = warm_commands(os.getpid()).start(self._arguments, self._environment, Path.cwd(), out, out)
        until(lambda: self._is_over() or all(map(is_listening, self._ports)), f"{self._arguments} to listen")
        assert not self._is_over(), self.log()

    def _is_over(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        """kill -9"""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def logged(self, pattern: str) -> re.Match[str]:
        """Wait for a line in its log."""
        found: re.Match[str] = until(lambda: re.search(pattern, self.log()), f"{pattern} in {self._log}")
        return found


class Destination:
    """Where Postfix finally delivers."""

    def __init__(self) -> None:
        self._background, self._hop = Background(), NextHop()

    def __enter__(self) -> Destination:
        self._background.run(self._hop.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._background.run(self._hop.stop())
        self._background.close()

    @property
    def port(self) -> int:
        return self._hop.port

    @property
    def mails(self) -> list[Received]:
        return list(self._hop.mails)

    def find(self, marker: str) -> list[Received]:
        return [mail for mail in self._hop.mails if marker.encode() in mail.content]

    def arrived(self, marker: str) -> Received:
        """Wait for the one mail with this marker in it."""
        found: list[Received] = until(lambda: self.find(marker), f"{marker} to arrive")
        assert len(found) == 1, f"{marker} arrived {len(found)} times"
        return found[0]


class Postfix(postfix_kit.Postfix):
    """A Postfix that does not change a byte of a mail."""

    def __init__(self, services: str, destination: int, settings: str = "") -> None:
        super().__init__(services, destination, _FAITHFUL + settings)


_FAITHFUL = """\
relay_domains = example.net, xn--bcher-kva.example, b\u00fccher.example
smtp_line_length_limit = 0
local_header_rewrite_clients =
message_size_limit = 62914560
smtputf8_enable = yes
smtpd_forbid_bare_newline = no
"""


def send(port: int, content: bytes, **options: Any) -> str:
    """Send one mail as a remote client; returns the first refusal, or the reply to the final dot."""
    return dialogue(port, content, **options)[1]


def dialogue(
    port: int, content: bytes, *, sender: str = "a@example.org", recipient: str = "b@example.net",
    mail: Sequence[str] = (), rcpt: Sequence[str] = (), xclient: str = "", helo: str = "client.example",
    source: str = "127.0.0.1",
) -> tuple[str, str]:  # fmt: skip
    """The same; also returns what the reply was to: MAIL, RCPT, DATA or the final dot."""
    with smtplib.SMTP("127.0.0.1", port, local_hostname=helo, timeout=DEADLINE_S, source_address=(source, 0)) as client:
        if xclient:
            client.ehlo("first.example")
            assert client.docmd("XCLIENT", xclient)[0] == 220
        client.ehlo(helo)
        client.command_encoding = "utf-8"
        for command in (
            " ".join([f"MAIL FROM:<{sender}>", *mail]),
            " ".join([f"RCPT TO:<{recipient}>", *rcpt]),
            "DATA",
        ):
            code, text = client.docmd(command)
            if code >= 400:
                return command[:4], f"{code} {text.decode()}"
        stuffed = re.sub(rb"(?m)^\.", b"..", content)
        client.send(stuffed + (b".\r\n" if stuffed.endswith(b"\r\n") or not stuffed else b"\r\n.\r\n"))
        code, text = client.getreply()
        return ".", f"{code} {text.decode()}"


def added_fields(arrived: bytes, sent: bytes) -> list[str]:
    """The names of the header fields added in front; everything else must be the same, byte for byte."""
    assert arrived.endswith(sent), "the mail was changed in transit"
    added = arrived[: len(arrived) - len(sent)].decode("ascii")
    assert added.endswith("\r\n")
    return [name for name, _ in _fields(added)]


def _fields(head: str) -> Iterator[tuple[str, str]]:
    for field in re.sub(r"\r\n[ \t]+", " ", head).splitlines():
        name, colon, value = field.partition(":")
        assert colon, f"{field} is not a header field"
        yield name, value.strip()
