"""Syslog: RFC 5424 messages over TCP (RFC 6587, octet counting) or TLS (RFC 5425).

Syslog confirms nothing. An event counts as delivered when the receiver's kernel has confirmed all of it. What a
receiver had not read when it ended is lost to it, so the last messages are kept here and sent again after a
connection was lost: twice rather than never, with the same id.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import json
import socket
import ssl
import termios
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bridge.events.event import EventType
from bridge.events.outbox import Entry
from bridge.events.sinks.sink import NotDelivered, Results, all_failed
from bridge.runtime.endpoints import Endpoint

FACILITIES = {"user": 1, "mail": 2, "daemon": 3, "auth": 4, **{f"local{n}": 16 + n for n in range(8)}}
_WARNING, _NOTICE, _INFO = 4, 5, 6
_SEVERITIES: dict[str, int] = {
    EventType.SCANNER_STATE: _WARNING,
    EventType.REFUSED: _NOTICE,
    EventType.QUARANTINED: _NOTICE,
}
_RECENT = 1000  # messages that are sent again after a lost connection ...
_RECENT_S = 10.0  # ... if they are not older
_POLL_S = 0.005
_ESTABLISHED = 1  # TCP_ESTABLISHED, the first byte of TCP_INFO
_TIOCOUTQ = termios.TIOCOUTQ  # for a socket SIOCOUTQ: bytes that the other side has not confirmed


@dataclass(frozen=True, slots=True)
class SyslogSettings:
    address: Endpoint
    facility: str
    hostname: str
    timeout_s: float
    tls: ssl.SSLContext | None = None


def message(entry: Entry, facility: str, hostname: str) -> bytes:
    """One RFC 5424 message with its length in front. The text is ASCII, so that no receiver needs a byte order mark."""
    severity = _SEVERITIES.get(entry.type, _INFO)  # an event of a newer version may have another type
    moment = datetime.fromtimestamp(entry.time, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    body = entry.body if entry.body.isascii() else json.dumps(json.loads(entry.body), separators=(",", ":")).encode()
    head = f"<{FACILITIES[facility] * 8 + severity}>1 {moment} {_word(hostname, 255)} scanbridge - {entry.type} - "
    whole = head.encode("ascii") + body
    return b"%d %b" % (len(whole), whole)


def _word(text: str, longest: int) -> str:
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in text)[:longest] or "-"


_CLOSE_S = 1.0


class SyslogSink:
    batch = 500

    def __init__(self, settings: SyslogSettings) -> None:
        self._settings = settings
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._recent: deque[tuple[float, bytes]] = deque(maxlen=_RECENT)

    async def deliver(self, entries: Sequence[Entry]) -> Results:
        settings = self._settings
        messages = [message(entry, settings.facility, settings.hostname) for entry in entries]
        try:
            async with asyncio.timeout(settings.timeout_s):
                await self._send(messages)
        except TimeoutError:
            return self._failed(entries, f"not accepted within {settings.timeout_s:g} s")
        except (OSError, ssl.SSLError, EOFError) as exc:
            return self._failed(entries, getattr(exc, "strerror", None) or str(exc) or type(exc).__name__)
        now = time.monotonic()
        self._recent.extend([(now, message) for message in messages])
        return {entry.seq: None for entry in entries}

    def _failed(self, entries: Sequence[Entry], problem: str) -> Results:
        self._abort()
        return all_failed(entries, NotDelivered(f"{self._settings.address}: {problem}"))

    async def _send(self, messages: list[bytes]) -> None:
        if self._writer is not None and self._is_closed():
            self._abort()
        if self._writer is None:
            await self._connect()
            oldest = time.monotonic() - _RECENT_S
            messages = [message for at, message in self._recent if at >= oldest] + messages
        assert self._writer is not None
        self._writer.write(b"".join(messages))
        await self._writer.drain()
        await self._confirmed(self._writer)

    async def _connect(self) -> None:
        address, tls = self._settings.address, self._settings.tls
        self._reader, self._writer = await asyncio.open_connection(
            address.host, address.port, ssl=tls, server_hostname=address.host if tls else None
        )
        self._writer.transport.set_write_buffer_limits(0)  # `drain` waits until the kernel has everything
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _is_closed(self) -> bool:
        """The kernel is asked as well, because the event loop may not have noticed yet."""
        if self._reader is None or self._writer is None or self._reader.at_eof() or self._writer.is_closing():
            return True
        sock = self._writer.get_extra_info("socket")
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED)

    async def _confirmed(self, writer: asyncio.StreamWriter) -> None:
        """Wait until the receiver's kernel has everything. Raises OSError, EOFError."""
        sock, left = writer.get_extra_info("socket"), array.array("i", [0])
        while True:
            fcntl.ioctl(sock.fileno(), _TIOCOUTQ, left)
            if self._is_closed():  # then nothing is left, but for another reason
                raise EOFError("the connection was closed")
            if not left[0]:
                return
            await asyncio.sleep(_POLL_S)

    def _abort(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.transport.abort()

    async def close(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await writer.wait_closed()
            except (OSError, ssl.SSLError):  # even if the receiver does not read: the connection is of no further use
                writer.transport.abort()
