"""ClamAV over clamd's INSTREAM: the mail is sent in chunks, and clamd answers with one line.

clamd unpacks MIME and archives itself. If `AlertExceedsMax yes` is set (docs/operate/service.md recommends
it), clamd reports a mail beyond its own limits as a finding named `Heuristics.Limits.Exceeded`. That
is a limit, not malware.
"""

from __future__ import annotations

import asyncio
import struct

from bridge.runtime.endpoints import Endpoint
from bridge.service.analysis.engine import Findings, LimitReached, Mail, as_tag
from bridge.service.engine_settings import ClamAv

MAX_ANSWER = 4096


class ClamdError(Exception):
    """clamd answered neither OK nor FOUND."""


class ClamAvAnalyzer:
    def __init__(self, settings: ClamAv) -> None:
        self._address = settings.address
        self._max_size = settings.max_size

    async def start(self) -> None:
        return None

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._max_size:
            raise LimitReached("size")
        reader, writer = await _connect(self._address)
        try:
            await _send(writer, mail)
            answer = await reader.readuntil(b"\0")
        except (ConnectionError, asyncio.IncompleteReadError) as exc:
            answer = await _buffered_answer(reader, exc)
        finally:
            writer.close()
        return read_answer(answer)

    async def close(self) -> None:
        return None


async def _connect(address: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path, limit=MAX_ANSWER)
    return await asyncio.open_connection(address.host, address.port, limit=MAX_ANSWER)


async def _send(writer: asyncio.StreamWriter, mail: Mail) -> None:
    writer.write(b"zINSTREAM\0")
    for chunk in mail.chunks():
        writer.write(struct.pack("!I", len(chunk)))
        writer.write(chunk)
        await writer.drain()
    writer.write(struct.pack("!I", 0))
    await writer.drain()


async def _buffered_answer(reader: asyncio.StreamReader, exc: Exception) -> bytes:
    """What clamd sent before it closed the connection in the middle of a stream: the reason."""
    try:
        return await reader.read(MAX_ANSWER)
    except OSError:
        raise ClamdError("connection lost") from exc


def read_answer(answer: bytes) -> Findings:
    """`stream: OK`, `stream: Name FOUND` or `... ERROR`. Raises LimitReached and ClamdError."""
    text = answer.rstrip(b"\0\r\n").decode("utf-8", "replace")
    if text == "stream: OK":
        return Findings()
    if text.endswith(" FOUND"):
        name = text.removeprefix("stream: ").removesuffix(" FOUND")
        if "Limits.Exceeded" in name:
            raise LimitReached("exceeded")
        if name.startswith("Heuristics.Encrypted"):
            return Findings(frozenset({"clamav:encrypted"}))
        return Findings(frozenset({f"malware:{as_tag(name)}"}))
    if "size limit exceeded" in text:
        raise LimitReached("size")
    raise ClamdError(text[:200] or "empty answer")
