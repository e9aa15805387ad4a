"""Clients that send mail continuously, each with a unique id, and record the replies.

Three ways in: `queue` (Postfix has the mail, and filters after its queue), `proxy` (Postfix passes our reply on to the
client) and `raw` (no Postfix in front: it would hide a loss by trying again). A client keeps a mail until it
has a final reply, and retries a little later, as a mail server does.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.testing import SmtpClient

WAYS = ("queue", "proxy", "raw")
DECISIONS = {"deliver": 60, "late": 2, "large": 5, "quarantine": 15, "bounce": 9, "drop": 9}
_LINES = {"large": 4000, "huge": 16500}  # 172 and 710 KB
RETRY_S = 0.7
REPLY_S = 25.0


class Try(NamedTuple):
    """One attempt to send a mail."""

    began: float
    reply: str  # "" for none
    seconds: float  # until the reply


@dataclass
class Mail:
    """One mail: what it asks for, and what its client knows."""

    id: str
    way: str
    kind: str
    late_s: float
    tries: list[Try] = field(default_factory=list)
    not_before: float = 0.0

    @property
    def decision(self) -> str:
        return "deliver" if self.kind in ("late", "large", "huge") else self.kind

    @property
    def last(self) -> str:
        return self.tries[-1].reply if self.tries else ""

    @property
    def accepted(self) -> bool:
        return self.last.startswith("250")

    @property
    def refused(self) -> bool:
        return self.last.startswith("5")

    def body(self) -> bytes:
        line = f"{self.id} {self.id * 4}\r\n".encode()
        return line * _LINES.get(self.kind, 12) + f"end of {self.id}\r\n".encode()

    def content(self) -> bytes:
        seconds = self.late_s if self.kind == "late" else 0.01
        head = f"Subject: fault {self.id}\r\nX-Fault: {self.decision} {seconds} {self.id}\r\n"
        return head.encode() + b"\r\n" + self.body()


class Senders:
    """All clients; `stop` sends no new mail, and waits until each mail has a final reply."""

    def __init__(
        self, doors: dict[str, list[tuple[str, int]]], seed: int, rate: float, late_s: float, each: int = 2,
        huge_every: int = 0,
    ) -> None:  # fmt: skip
        """`doors` are the addresses of each way; the `each` clients of a way use them in turn.

        Of `huge_every` mails, one is huge.
        """
        self.mails: list[Mail] = []
        self._late_s, self._huge_every, self._chance = late_s, huge_every, random.Random(seed)
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        self._making, self._given_up = threading.Event(), threading.Event()
        self._making.set()
        self._pause_s = len(WAYS) * each / rate
        self._threads = [
            threading.Thread(target=self._work, args=(way, doors[way][number % len(doors[way])]), daemon=True)
            for way in WAYS
            for number in range(each)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, limit_s: float) -> None:
        self._making.clear()
        end = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        self._given_up.set()

    def _new(self, way: str) -> Mail:
        with self._lock:
            number = next(self._numbers)
            (kind,) = self._chance.choices(list(DECISIONS), DECISIONS.values())
            if self._huge_every and number % self._huge_every == self._huge_every // 2:
                kind = "huge"
            mail = Mail(f"m{number:06d}x", way, kind, self._late_s)
            self.mails.append(mail)
        return mail

    def _work(self, way: str, address: tuple[str, int]) -> None:
        waiting: list[Mail] = []
        door = _Door(*address)
        due = time.monotonic()
        while self._making.is_set() or (waiting and not self._given_up.is_set()):
            now = time.monotonic()
            if waiting and waiting[0].not_before <= now:
                mail = waiting.pop(0)
            elif self._making.is_set() and now >= due:
                mail, due = self._new(way), max(due + self._pause_s, now - 2.0)
            else:
                time.sleep(0.01)
                continue
            began = time.time()
            reply = door.send(mail)
            mail.tries.append(Try(began, reply, time.time() - began))
            if not (mail.accepted or mail.refused):
                mail.not_before = time.monotonic() + RETRY_S
                waiting.append(mail)
        door.close()


class _Door:
    """Consecutive connections to one address."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._client: SmtpClient | None = None

    def send(self, mail: Mail) -> str:
        """The last reply; "" if the connection ended before the dot was answered."""
        try:
            reply = self._send(mail)
        except OSError:
            reply = ""
        if not reply.startswith("250"):  # reconnect after a refusal too: the connection's state is unknown
            self.close()
        return reply

    def _send(self, mail: Mail) -> str:
        if self._client is None:
            self._client = SmtpClient(self._port, source="", timeout_s=REPLY_S, host=self._host)
            hello = self._client.open()
            if not hello.startswith(b"250"):
                return _word(hello)
        client = self._client
        sender, recipient = f"s-{mail.id}@example.org", f"r-{mail.id}@example.net"
        for command in (f"MAIL FROM:<{sender}>", f"RCPT TO:<{recipient}>", "DATA"):
            (reply,) = client.say(command.encode())
            if reply[:1] not in b"23":
                return _word(reply)
        client.send(mail.content() + b".\r\n")
        return client.reply().decode()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _word(reply: bytes) -> str:
    """Before the dot only a refusal is final: a 250 must not count here."""
    return reply.decode() if reply.startswith((b"4", b"5")) else ""
