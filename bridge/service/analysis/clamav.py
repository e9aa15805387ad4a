"""ClamAV over clamd's INSTREAM: the mail is sent in chunks, and clamd answers with one line.

clamd unpacks MIME and archives itself. If `AlertExceedsMax yes` is set (docs/operate/service.md recommends
it), clamd reports a mail beyond its own limits as a finding named `Heuristics.Limits.Exceeded`. That
is a limit, not malware.
"""

from __future__ import annotations

import struct

from bridge.runtime.host_addresses import NameLookup
from bridge.service.analysis.connections import Connection, connect, counted
from bridge.service.analysis.engine import Findings, LimitReached, Mail, as_tag
from bridge.service.engine_settings import ClamAv

MAX_ANSWER = 4096
ENCRYPTED = Findings(frozenset({"clamav:encrypted"}))


class ClamdError(Exception):
    """clamd answered neither OK nor FOUND."""


class ClamAvAnalyzer:
    def __init__(self, settings: ClamAv) -> None:
        self._address = settings.address
        self._max_size = settings.max_size
        self._names = NameLookup()
        self._timeout_s = settings.timeout

    async def start(self) -> None:
        return None

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._max_size:
            raise LimitReached("size")
        connection = await connect(self._address, self._names, self._timeout_s)
        try:
            connection.allow(MAX_ANSWER)
            found = read_answer(await connection.answer(_send(connection, mail), connection.until(b"\0")))
            if not found.tags and connection.has_more:
                raise ClamdError("several answers")
            return counted(found, connection.has_sent_all, is_bad=bool(found.tags) and found != ENCRYPTED)
        finally:
            connection.close()

    async def close(self) -> None:
        return None


async def _send(connection: Connection, mail: Mail) -> None:
    await connection.send(b"zINSTREAM\0")
    for chunk in filter(None, mail.chunks()):  # an empty one would mean the end
        await connection.send(struct.pack("!I", len(chunk)) + chunk)
    await connection.send(struct.pack("!I", 0))


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
            return ENCRYPTED
        return Findings(frozenset({f"malware:{as_tag(name)}"}))
    if "size limit exceeded" in text:
        raise LimitReached("size")
    raise ClamdError(text[:200] or "empty answer")
