"""A recording next hop: an SMTP or LMTP server that gives scripted replies."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field

from bridge.testing.loopback_server import LoopbackServer


@dataclass
class Received:
    """One mail as the next hop received it: the envelope commands verbatim, the content unstuffed."""

    commands: list[bytes]
    content: bytes
    recipients: list[bytes]  # those the next hop accepted

    def fields(self, name: str) -> list[str]:
        """The values of all header fields with this name, in order."""
        head = self.content.partition(b"\r\n\r\n")[0].decode("latin-1")
        return re.findall(rf"(?im)^{re.escape(name)}:[ \t]*(.*?)\r?$", head)


@dataclass
class NextHop(LoopbackServer):
    """An SMTP or LMTP server on loopback that records mail and gives scripted replies.

    `replies` maps a verb (b"MAIL", b"RCPT", b"DATA", b".", b"EHLO", b"CONNECT") to the reply; b""
    closes the connection instead. The keys b"RCPT <b@example.org>" and, with LMTP,
    b". <b@example.org>" apply to that recipient only. `extensions` are announced after EHLO.
    """

    limit = 2**26
    replies: dict[bytes, bytes] = field(default_factory=dict)
    extensions: tuple[str, ...] = ("PIPELINING", "8BITMIME", "SIZE 60000000", "DSN", "SMTPUTF8")
    mails: list[Received] = field(default_factory=list)
    lmtp: bool = False
    port: int = 0

    @property
    def url(self) -> str:
        return f"{'lmtp' if self.lmtp else 'smtp'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands: list[bytes] = []
        accepted: list[bytes] = []
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            if self._say(writer, b"CONNECT", b"220 next.example ESMTP"):
                while line := (await reader.readuntil(b"\r\n"))[:-2]:
                    verb = line.split(b" ", 1)[0].upper()
                    commands.append(line)
                    if not await self._command(verb, reader, writer, commands, accepted):
                        break

    async def _command(
        self,
        verb: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        commands: list[bytes],
        accepted: list[bytes],
    ) -> bool:
        if verb == (b"LHLO" if self.lmtp else b"EHLO"):
            lines = ["next.example", *self.extensions]
            text = "\r\n".join(f"250-{line}" for line in lines[:-1]) + f"\r\n250 {lines[-1]}"
            return self._say(writer, verb, text.encode())
        if verb == b"QUIT":
            self._say(writer, verb, b"221 2.0.0 Bye")
            return False
        if verb == b"RCPT":
            address = commands[-1].partition(b"<")[2].partition(b">")[0]
            reply = self._reply(verb, address, b"250 2.0.0 Ok")
            accepted += [address] if reply.startswith(b"2") else []
            return self._write(writer, reply)
        if verb in (b"RSET", b"MAIL"):
            accepted.clear()
        if verb != b"DATA":
            return self._say(writer, verb, b"250 2.0.0 Ok")
        if not self._say(writer, verb, b"354 Go on"):
            return False
        if verb in self.replies:
            return True
        mail = Received(list(commands), await _read_content(reader), [])
        commands.clear()
        answers = accepted if self.lmtp else [b""]
        replies = [self._reply(b".", address, b"250 2.0.0 Ok: queued as NEXT1") for address in answers]
        for number, address in enumerate(accepted):
            if replies[number if self.lmtp else 0].startswith(b"2"):
                mail.recipients.append(address)
        if mail.recipients:
            self.mails.append(mail)
        accepted.clear()
        if not self.lmtp:
            return self._say(writer, b".", replies[0])
        return all(self._write(writer, reply) for reply in replies)

    def _say(self, writer: asyncio.StreamWriter, verb: bytes, text: bytes) -> bool:
        return self._write(writer, self.replies.get(verb, text))

    def _reply(self, verb: bytes, address: bytes, text: bytes) -> bytes:
        return self.replies.get(b"%b <%b>" % (verb, address), self.replies.get(verb, text))

    def _write(self, writer: asyncio.StreamWriter, text: bytes) -> bool:
        if not text:
            return False
        writer.write(text + b"\r\n")
        return True


@dataclass
class WaitingHop(NextHop):
    """Receives the whole mail, and holds back its answer."""

    heard: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def _say(self, writer: asyncio.StreamWriter, verb: bytes, text: bytes) -> bool:
        if verb != b"." or self.go_on.is_set():
            return super()._say(writer, verb, text)
        self.heard.release()
        self._later = asyncio.get_running_loop().create_task(self._answer(writer, text))
        return True

    async def _answer(self, writer: asyncio.StreamWriter, text: bytes) -> None:
        await self.go_on.wait()
        if not writer.is_closing():  # a killed client does not read it
            writer.write(text + b"\r\n")


async def _read_content(reader: asyncio.StreamReader) -> bytes:
    """Read up to the final dot and unstuff."""
    content = b"\r\n"
    while not content.endswith(b"\r\n.\r\n"):
        content += await reader.readuntil(b".\r\n")
    return content[:-3].replace(b"\r\n.", b"\r\n")[2:]
