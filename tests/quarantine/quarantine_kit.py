"""Shared by the quarantine's tests: a daemon that quarantines everything, the command, a next hop that waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from click.testing import CliRunner, Result

from bridge.cli.quarantine.command import quarantine
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction, new_id
from bridge.quarantine.quarantine import Quarantine
from bridge.relay.who_gets_the_mail import Delivered
from bridge.runtime import yaml_file
from bridge.testing import RunningBridge, WaitingHop, answer, result, running_bridge
from tests.terminal_kit import on_terminal
from tests.warm_commands import warm_commands


def thread_is_in(function: Callable[..., object]) -> bool:
    """Whether a thread is running this function now."""
    for frame in sys._current_frames().values():
        above: FrameType | None = frame
        while above is not None:
            if above.f_code is function.__code__:
                return True
            above = above.f_back
    return False


HEAD = b"X-Scan-Id: 1\r\n"
CONTENT = b"Subject: x\r\n\r\n.dot\r\n\xe9\r\n"
SOON_S = 60.0


@dataclass
class Desk:
    """A daemon, and an operator who uses the command line."""

    bridge: RunningBridge
    config: Path
    more: dict[str, Any] = field(default_factory=dict)  # what the command must know, too

    @property
    def directory(self) -> Path:
        return self.bridge.directory / "state" / "quarantine"

    @property
    def index(self) -> Path:
        return self.bridge.directory / "state" / "state.sqlite"

    @property
    def ids(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.eml"))

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "bridge", "quarantine", args[0], "-c", str(self.config), *args[1:]]

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        return warm_commands(os.getpid()).run_bytes(self.command(*args)[3:], dict(os.environ), Path.cwd())

    def on_terminal(self, *args: str, answer: str = "", columns: int = 100) -> tuple[int, str]:
        """Run the command on a real terminal, and answer its question. Returns the exit code and all it wrote."""
        return on_terminal(self.command(*args)[3:], {**os.environ, "TERM": "xterm"}, columns, answer)

    def call(self, *args: str) -> Result:
        """Run the command in this process, which is ten times as fast."""
        return CliRunner().invoke(quarantine, self.command(*args)[4:])

    def listed(self, *args: str) -> list[dict[str, Any]]:
        done = self.call("list", "--json", *args)
        assert done.exit_code == 0 and done.stderr == ""
        return [json.loads(line) for line in done.stdout.splitlines()]

    def send(self, content: bytes = CONTENT, *recipients: bytes, sender: bytes = b"a@client.example") -> str:
        """Quarantine one mail and return its id."""
        with self.bridge.client() as client:
            client.open()
            to = recipients or (b"b@example.org",)
            client.say(b"MAIL FROM:<%b>" % sender, *(b"RCPT TO:<%b>" % address for address in to), b"DATA")
            reply = client.say(content.replace(b"\r\n.", b"\r\n..") + b".")[0]
        assert reply.startswith(b"250 2.0.0 Ok: queued as "), reply
        return reply.split()[-1].decode()

    def use(self, next_hop: str) -> None:
        """Change the next hop of releases; the daemon keeps its own."""
        self.config.write_text(yaml_file.dump({**_config(self.bridge, next_hop), **self.more}))

    def elsewhere(self, config: Path) -> Desk:
        """An operator on another machine, which shares the storage and the database, if this one has them."""
        state = str(self.bridge.directory / "state")
        config.write_text(self.config.read_text().replace(state, state + "-second"))
        return replace(self, config=config)


@contextmanager
def desk(directory: Path, config: dict[str, Any] | None = None, **listener: Any) -> Iterator[Desk]:
    with running_bridge(directory, config, **listener) as bridge:
        bridge.scanner.reply = answer(200, result("quarantine", tags=["malware:eicar", "spam"]))
        shared = ("quarantine", "state_database")
        made = Desk(bridge, directory / "bridge.yml", {key: config[key] for key in shared if config and key in config})
        made.use(bridge.next_hop.url)
        yield made


def _config(bridge: RunningBridge, next_hop: str) -> dict[str, Any]:
    return {
        "scanner": {"urls": [bridge.scanner.url], "token_file": "token"},
        "listeners": [{"name": "test", "address": f"127.0.0.1:{bridge.port}"}],
        "relay": {"next_hop": next_hop, "connect_timeout": "5s"},
        "state_directory": str(bridge.directory / "state"),
    }


@contextmanager
def waiting_hop(bridge: RunningBridge) -> Iterator[WaitingHop]:
    hop = WaitingHop()
    bridge.background.run(hop.start())
    try:
        yield hop
    finally:
        bridge.background.run(hop.stop())


def let_go(bridge: RunningBridge, hop: WaitingHop) -> None:
    bridge.background.loop.call_soon_threadsafe(hop.go_on.set)


class Taker:
    """A next hop that accepts everything, and may run a callback first."""

    def __init__(self) -> None:
        self.taken: list[Transaction] = []
        self.before: list[object] = []

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        for step in self.before:
            step()  # type: ignore[operator]
        self.taken.append(tx)
        return Delivered(Reply(250, "2.0.0", "Ok"))

    async def probe(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        pass


class Overtaken(Quarantine):
    """Something happens once, when a mail has been read to be released."""

    meanwhile: Callable[[], object] | None = None

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        yield from super().chunks(mail_id)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            meanwhile()


made: list[Message] = []  # closed after each test


def make_tx(
    content: bytes = CONTENT, recipients: tuple[str, ...] = ("b@example.org",), sender: str = "a@client.example"
) -> Transaction:
    message = Message(Spool(1 << 30))
    made.append(message)
    message.write(content)
    envelope = Envelope(sender, tuple(map(Recipient, recipients)))
    now = time.monotonic()
    return Transaction(new_id(), Session("s1", "mx", "127.0.0.1", Client()), envelope, message, now, now + SOON_S)
