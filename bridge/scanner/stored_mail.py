"""Scans mail that was saved to a file: for `scanbridge scan` and for the console."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, AnalysisResult
from bridge.errors import MessageTooLarge
from bridge.mail.message import Message, Spool
from bridge.scanner.client import Scanner

_BARE_LF = re.compile(rb"(?<!\r)\n")
_TIMEOUT_S = 300.0


def as_mail(content: bytes) -> bytes:
    """Files often have LF; mail has CRLF."""
    return _BARE_LF.sub(b"\r\n", content)


async def scan_stored(scanner: Scanner, content: bytes, request: AnalysisRequest) -> AnalysisResult:
    """Raises ScanError or Saturated."""
    if len(content) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge("larger than the 50 MiB that the service accepts")
    with closing(Message(Spool(MAX_MESSAGE_BYTES))) as message:
        message.write(content)
        return await scanner.submit(request, message, asyncio.get_running_loop().time() + _TIMEOUT_S)
