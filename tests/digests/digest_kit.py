"""A real `scanbridge digest serve` beside a real daemon, and what recipients get from it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as modern
from pathlib import Path
from typing import Any

from bridge.console.tokens import form_token
from bridge.testing import FakeScanner, NextHop, free_port
from bridge.user_pages.cookies import FORM_COOKIE, SESSION_COOKIE
from tests.console.console_kit import Answer, page_process
from tests.console.console_kit import Browser as ConsoleBrowser
from tests.daemon.process_kit import Bridge, running
from tests.daemon.process_kit import scanbridge as run_command
from tests.warm_commands import WarmProcess

SENDER = "Quarantine <quarantine@a.example>"
LINK = re.compile(r"http://127\.0\.0\.1:\d+(/[lu]/[\w.-]+)")


@dataclass
class Browser(ConsoleBrowser):
    @property
    def token(self) -> str:
        secret = self.cookies.get(SESSION_COOKIE) or self.cookies.get(FORM_COOKIE, "")
        return form_token(secret) if secret else ""

    def press(self, path: str, form: dict[str, Any] | None = None) -> Answer:
        """Open the page of a link and press its button."""
        self.get(path)
        return self.post(path, form)


@dataclass
class DigestProcess:
    directory: Path
    port: int
    process: WarmProcess

    @property
    def log(self) -> str:
        return (self.directory / "digest.log").read_text()

    def browser(self) -> Browser:
        return Browser(self.port)


@dataclass
class Users:
    bridge: Bridge
    scanner: FakeScanner
    next_hop: NextHop
    served: DigestProcess
    seen: int = field(default=0)

    @property
    def directory(self) -> Path:
        return self.served.directory

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_command(*words, "-c", str(self.directory / "bridge.yml"))

    def send_digests(self, *words: str) -> dict[str, EmailMessage]:
        """Send what is due; the digests by recipient."""
        before = len(self.next_hop.mails)
        done = self.command("digest", "send", *words)
        assert done.returncode == 0, done.stderr
        return {mail.recipients[0]: parsed(mail.content) for mail in self.received()[before:]}

    def received(self) -> list[Mail]:
        return [Mail.of(each) for each in self.next_hop.mails]

    def audit(self) -> list[str]:
        from bridge.console.audit import Audit
        from bridge.console.database import FILE, ConsoleStore
        from bridge.runtime.database import Database

        store = ConsoleStore(Database.file(self.directory / "state" / FILE))
        try:
            return [f"{e.action}|{e.mail}|{e.result}|{e.name}|{e.detail}" for e in Audit(store).find(limit=100_000)]
        finally:
            store.close()


@dataclass(frozen=True)
class Mail:
    sender: str
    recipients: list[str]
    content: bytes

    @classmethod
    def of(cls, received: Any) -> Mail:
        commands = [command.decode() for command in received.commands]
        named = [re.search("<(.*)>", line) for line in commands if line.upper().startswith(("MAIL", "RCPT"))]
        addresses = [found[1].partition(">")[0] for found in named if found]
        return cls(addresses[0], addresses[1:], received.content)


def parsed(content: bytes) -> EmailMessage:
    found = message_from_bytes(content, policy=modern)
    assert isinstance(found, EmailMessage)
    return found


def text_of(digest: EmailMessage) -> str:
    part = digest.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


def links(digest: EmailMessage) -> list[str]:
    """The paths of all links, in their order."""
    return LINK.findall(text_of(digest))


@contextmanager
def digest_process(directory: Path, port: int) -> Iterator[DigestProcess]:
    with page_process(directory / "bridge.yml", ["digest", "serve"], "digest.log", "user pages at ") as process:
        yield DigestProcess(directory, port, process)


@contextmanager
def users(directory: Path, digests: dict[str, Any] | None = None, **sections: Any) -> Iterator[Users]:
    """Digests of a.example, whose schedule never comes by itself: `send_digests("--now")` sends them."""
    port = free_port()
    section = {
        "schedule": "weekly", "from": SENDER, "domains": ["a.example"], "page": {"address": f"127.0.0.1:{port}"},
        **(digests or {}),
    }  # fmt: skip
    port = int(section["page"]["address"].rpartition(":")[2])
    with (
        running(directory, digests=section, **sections) as (bridge, scanner, next_hop),
        digest_process(directory, port) as served,
    ):
        yield Users(bridge, scanner, next_hop, served)
