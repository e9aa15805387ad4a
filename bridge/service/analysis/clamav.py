"""ClamAV over clamd's INSTREAM: the mail goes out in chunks, one line comes back.

clamd unpacks MIME and archives itself. What is beyond its own limits it reports as found, named
`Heuristics.Limits.Exceeded`, if `AlertExceedsMax yes` is set (docs/service.md asks for it); that is
a limit and no malware.
"""

from __future__ import annotations

import asyncio
import struct

from bridge.runtime.endpoints import Address
from bridge.service.analysis.engine import Findings, LimitReached, Mail, as_tag
from bridge.service.settings import ClamAv

MAX_ANSWER = 4096


class ClamdError(Exception):
    """clamd did not say OK or FOUND."""


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
            answer = await _last_word(reader, exc)
        finally:
            writer.close()
        return read_answer(answer)

    async def close(self) -> None:
        return None


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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


async def _last_word(reader: asyncio.StreamReader, exc: Exception) -> bytes:
    """clamd says why before it hangs up in the middle of a stream."""
    try:
        return await reader.read(MAX_ANSWER)
    except OSError:
        raise ClamdError("the connection broke") from exc


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
    raise ClamdError(text[:200] or "an empty answer")
