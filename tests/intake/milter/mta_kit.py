"""Real mail servers for the milter tests, with a bridge next to them, private to one test run."""

from __future__ import annotations

import asyncio
import os
import re
import smtplib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from bridge.intake.milter.server import MilterServer
from bridge.mail.message import Spool
from bridge.testing import free_port
from tests import postfix_kit
from tests.chain import Destination
from tests.intake.milter.milter_kit import DEADLINE_S, SETTINGS, ScriptedFilter, Seen, as_wanted


class Bridge:
    """A MilterServer with a scripted filter, in a thread with its own event loop."""

    def __init__(self, answer: Any = as_wanted, *, path: str | None = None, port: int = 0, **changes: Any) -> None:
        self.filter: ScriptedFilter
        self._answer = answer
        self._settings = replace(SETTINGS, **changes)
        if path is None:
            self._sock = socket.socket()
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(("127.0.0.1", port))
            self.port = self._sock.getsockname()[1]
        else:
            self._sock = socket.socket(socket.AF_UNIX)
            self._sock.bind(path)
            os.chmod(path, 0o777)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), daemon=True)

    def __enter__(self) -> Bridge:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        return self

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self.filter = ScriptedFilter(self._answer)
        self.server = MilterServer(self._settings, self.filter, Spool(1 << 30))
        await self.server.serve(self._sock)
        self._ready.set()
        await self._over.wait()
        await self.server.drain(2.0)

    def call(self, function: Callable[[], Any]) -> None:
        """Run something in the bridge's own thread."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(DEADLINE_S)

    def seen(self, marker: str) -> Seen:
        """The mail with this marker in it, as the filter got it."""
        found = [seen for seen in self.filter.seen if marker.encode() in seen.content[:4096]]
        assert len(found) == 1, f"{len(found)} mails with {marker}"
        return found[0]

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert self.server.context.spool.in_use == 0


def send(port: int, marker: str, *fields: str, want: str = "relay", body: str = "Hello", **options: Any) -> str:
    """Send one mail as an SMTP client does; returns the first refusal, or the reply to the final dot."""
    with smtplib.SMTP("127.0.0.1", port, local_hostname="client.example", timeout=60) as client:
        return send_on(client, marker, *fields, want=want, body=body, **options)


def send_on(
    client: smtplib.SMTP, marker: str, *fields: str, want: str = "relay", body: str = "Hello",
    sender: str = "a@example.org", rcpt: str = "b@example.net",
) -> str:  # fmt: skip
    client.ehlo_or_helo_if_needed()
    head = "\r\n".join([f"Subject: {marker}", f"X-Want: {want}", "From: a@example.org", *fields])
    mail = f"{head}\r\n\r\n{body}\r\n".encode("latin-1")
    for step in (
        lambda: client.mail(sender),
        lambda: client.rcpt(rcpt),
        lambda: client.data(mail),
    ):
        try:
            code, text = step()
        except smtplib.SMTPDataError as error:
            code, text = error.smtp_code, error.smtp_error
        reply = f"{code} {text.decode()}"
        if code >= 400:
            client.rset()
            return reply
    return reply


def big_mail(port: int, marker: str, size: int) -> str:
    """A mail whose content is `size` bytes as the bridge counts them."""
    head = f"Subject: {marker}\r\nFrom: a@example.org\r\nDate: x\r\nMessage-Id: <x@y>\r\n\r\n".encode()
    lines = (size - len(head)) // 1000
    body = (b"x" * 998 + b"\r\n") * lines
    last = size - len(head) - len(body)
    with smtplib.SMTP("127.0.0.1", port, timeout=120) as client:
        client.ehlo("client.example")
        client.mail("a@example.org")
        client.rcpt("b@example.net")
        assert client.docmd("DATA")[0] == 354
        client.send(head + body + b"y" * (last - 2) + b"\r\n.\r\n")
        code, text = client.getreply()
    return f"{code} {text.decode()}"


class Postfix(postfix_kit.Postfix):
    """A Postfix with a listener per filter."""

    def __init__(self, services: dict[str, str], destination: Destination, settings: str = "") -> None:
        """`services`: the options of each SMTP listener, by name; its port is `port(name)`."""
        self._ports = {name: free_port() for name in services}
        listeners = "".join(f"127.0.0.1:{self._ports[n]} inet n - n - 250 smtpd\n{o}" for n, o in services.items())
        super().__init__(listeners, destination.port, _MILTERS + settings)

    def port(self, service: str) -> int:
        return self._ports[service]


_MILTERS = """\
relay_domains = example.net
message_size_limit = 104857600
milter_default_action = tempfail
milter_protocol = 6
"""


class BridgeProcess:
    """The listener in a process that can be killed."""

    def __init__(self, port: int, scan_s: float = 0.0, progress_s: float = 5.0) -> None:
        program = Path(__file__).with_name("milter_process.py")
        self._command = [sys.executable, str(program), str(port), str(scan_s), str(progress_s)]

    def __enter__(self) -> BridgeProcess:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self.says("ready")
        return self

    def says(self, word: str) -> None:
        """Wait until it prints this word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the bridge exited before it printed {word}")

    def memory(self) -> int:
        """Its resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found.group(1)) * 1024

    def kill(self) -> None:
        """kill -9"""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
