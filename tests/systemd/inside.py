"""Inside the machine: how the trial talks to systemd, and the mail that it sends."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.runtime import yaml_file
from bridge.testing import TOKEN, Background, FakeScanner, NextHop, SmtpClient, answer, result

BRIDGE = "scanbridge.service"
ETC = Path("/etc/scanbridge")
CONFIG = ETC / "bridge.yml"
SMTP, MILTER, ADMIN = 10025, 10027, 9082


def command(*words: str, check: bool = True, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.returncode} {done.stderr.strip()[-300:]}"
    return done


def systemctl(*words: str, check: bool = True) -> str:
    return command("systemctl", *words, check=check).stdout.strip()


def show(name: str, unit: str = BRIDGE) -> str:
    return systemctl("show", "--value", "-p", name, unit)


def journal(unit: str = BRIDGE, since: str = "") -> str:
    command("journalctl", "--sync", check=False)
    after = ["--after-cursor", since] if since else []
    return command("journalctl", "-u", unit, "-o", "cat", "--no-pager", *after).stdout


def cursor() -> str:
    """The current position in the journal."""
    out = command("journalctl", "-n", "1", "-o", "json", "--no-pager").stdout
    return str(json.loads(out)["__CURSOR"])


def until(condition: Callable[[], Any], what: str, limit_s: float = 30.0) -> Any:
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.05)
    return found


def status() -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/status", timeout=30) as found:
        return dict(json.load(found))


def user_of(pid: str) -> int:
    return os.stat(f"/proc/{pid}").st_uid


class World:
    """A scanner and a next hop in this process, and the bridge's configuration for them."""

    def __init__(self) -> None:
        self._background = Background()
        self.scanner, self.next_hop = FakeScanner(), NextHop()
        self._background.run(self.scanner.start())
        self._background.run(self.next_hop.start())
        command("systemd-sysusers")
        command("systemd-tmpfiles", "--create")
        (ETC / "api-token").write_text(TOKEN + "\n")
        command("systemd-tmpfiles", "--create")
        self.configure()

    def settings(self, **sections: Any) -> dict[str, Any]:
        return {
            "scanner": {"urls": [self.scanner.url], "token_file": "api-token", "status_interval": "200ms"},
            "listeners": [
                {"name": "mx", "address": f"127.0.0.1:{SMTP}"},
                {"name": "milter", "protocol": "milter", "profile": "postfix-milter", "address": f"127.0.0.1:{MILTER}"},
            ],
            "relay": {"next_hop": self.next_hop.url},
            "admin": {"address": f"127.0.0.1:{ADMIN}"},
            **sections,
        }

    def configure(self, place: Path = CONFIG, **sections: Any) -> None:
        place.parent.mkdir(exist_ok=True)
        new = place.with_suffix(".new")
        new.write_text(yaml_file.dump(self.settings(**sections)))
        new.rename(place)

    def slow_scanner(self, seconds: float) -> None:
        async def reply(_: Any, writer: Any) -> None:
            import asyncio

            await asyncio.sleep(seconds)
            writer.write(answer(200, result()))

        self.scanner.reply = reply

    def quick_scanner(self) -> None:
        self.scanner.reply = answer(200, result())


def send(marker: str = "hello", size: int = 0, timeout_s: float = 60.0) -> str:
    """Send one mail over a new connection; the last reply, or "" if the connection was closed."""
    with SmtpClient(SMTP, timeout_s=timeout_s) as client:
        client.open()
        if not client.begin().startswith(b"354"):
            return ""
        body = (b"x" * 76 + b"\r\n") * (size // 78)
        return client.say(b"Subject: " + marker.encode() + b"\r\n\r\n" + body + b".")[0].decode()


@contextmanager
def dropped_in(unit: str, *lines: str) -> Iterator[None]:
    """Run the unit with these settings inside the context."""
    place = Path("/run/systemd/system") / f"{unit}.d"
    place.mkdir(parents=True)
    (place / "trial.conf").write_text("\n".join(["[Service]", *lines]) + "\n")
    systemctl("daemon-reload")
    try:
        yield
    finally:
        shutil.rmtree(place)
        systemctl("daemon-reload")


class Load:
    """Clients that send one mail after another, each over a new connection, and record the replies."""

    def __init__(self, clients: int = 6) -> None:
        self.seen: Counter[str] = Counter()
        self.accepted: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(90)

    def _work(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            marker = f"load-{client}-{number}-"
            try:
                reply = send(marker)
            except ConnectionRefusedError:
                self.seen["refused"] += 1
                time.sleep(0.02)
                continue
            except (ConnectionError, TimeoutError) as exc:
                self.seen[type(exc).__name__] += 1
                continue
            self.seen[reply[:3] or "cut"] += 1
            if reply.startswith("250"):
                self.accepted.append(marker)

    def lost(self, next_hop: NextHop) -> list[str]:
        arrived = b"\n".join(mail.content for mail in next_hop.mails)
        return [marker for marker in self.accepted if marker.encode() not in arrived]


def unix_send(path: str) -> str:
    """Send a mail through a unix socket."""
    with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as lines:
        sock.settimeout(30)
        sock.connect(path)

        def read() -> bytes:
            line = lines.readline()
            while line[3:4] == b"-":
                line = lines.readline()
            return line

        read()
        for words in (b"EHLO x", b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@example.org>", b"DATA"):
            sock.sendall(words + b"\r\n")
            read()
        sock.sendall(b"Subject: unix\r\n\r\nx\r\n.\r\n")
        return read().decode()
