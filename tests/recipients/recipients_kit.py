"""A mail for several recipients, over each protocol, and next hops that treat them differently."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.testing import Background, NextHop, RunningBridge, SmtpClient, answer, result, running_bridge

ONE, TWO = "123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174001"
CONTENT = b"Subject: x\r\n\r\nhello\r\n"


@contextmanager
def next_hop(lmtp: bool = False, port: int = 0, **replies: bytes) -> Iterator[NextHop]:
    """Replies: `RCPT_b=b"550 No"` to b@example.org at RCPT, `DOT_b` to it after the dot, `DOT` to the whole mail."""
    background, hop = Background(), NextHop(lmtp=lmtp)
    refuse(hop, **replies)
    background.run(hop.start(port=port))
    try:
        yield hop
    finally:
        background.run(hop.stop())
        background.close()


def refuse(hop: NextHop, **replies: bytes) -> None:
    for name, reply in replies.items():
        verb, _, local_part = name.replace("DOT", ".").partition("_")
        hop.replies[f"{verb} <{local_part}@example.org>".encode() if local_part else verb.encode()] = reply


@contextmanager
def bridge_before(hop: NextHop, directory: Path, protocol: str, **config: Any) -> Iterator[RunningBridge]:
    """A bridge with this next hop; `prdr` is SMTP with a client that requests it."""
    config = {**config, "relay": {**config.get("relay", {}), "next_hop": hop.url}}
    with running_bridge(directory, config, protocol="lmtp" if protocol == "lmtp" else "smtp") as bridge:
        yield bridge


def send(bridge: RunningBridge, protocol: str, *people: str, content: bytes = CONTENT) -> list[bytes]:
    """All replies to the dot of a mail whose recipients were all accepted."""
    with bridge.client() as client:
        at_rcpt, replies = converse(client, protocol, *people, content=content)
        assert all(reply.startswith(b"250 ") for reply in at_rcpt), at_rcpt
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]  # no further replies
        return replies


def converse(
    client: SmtpClient, protocol: str, *people: str, content: bytes = CONTENT
) -> tuple[list[bytes], list[bytes]]:
    """The replies to RCPT, and those to the dot."""
    client.open(b"LHLO client.example" if protocol == "lmtp" else b"EHLO client.example")
    mail = b"MAIL FROM:<a@client.example>" + (b" PRDR" if protocol == "prdr" else b"")
    rcpts = [b"RCPT TO:<%b>" % person.encode() for person in people]
    _, *at_rcpt, data = client.say(mail, *rcpts, b"DATA")
    assert data.startswith(b"354"), data
    client.send(content + b".\r\n")
    taken = sum(reply.startswith(b"250") for reply in at_rcpt)
    return at_rcpt, [client.reply() for _ in range({"smtp": 1, "lmtp": taken, "prdr": taken + 2}[protocol])]


def decide(bridge: RunningBridge, **by_recipient: str) -> None:
    """The scanner's decision, by the first recipient's local part; `deliver` for all others."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = bridge.scanner.submissions[-1].parameters["borderMtaData"]["envelopeRecipients"][0]
        writer.write(answer(200, result(by_recipient.get(first.partition("@")[0], "deliver"))))

    bridge.scanner.reply = reply


def arrived(hop: NextHop) -> list[list[str]]:
    """The accepted recipients of each mail."""
    return [[recipient.decode().partition("@")[0] for recipient in mail.recipients] for mail in hop.mails]
