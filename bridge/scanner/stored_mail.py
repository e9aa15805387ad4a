"""Scans mail that was saved to a file: for `scanbridge scan` and for the console."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, AnalysisResult
from bridge.errors import MessageTooLarge
from bridge.mail.message import Message, Spool
from bridge.scanner.client import Scanner

_TIMEOUT_S = 300.0
_BLOCK = 1 << 16


def as_mail(content: bytes) -> bytes:
    """Files often have LF; mail has CRLF. For a thread: a file may have 50 million lines, which take a second."""
    return b"".join(block.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for block in _blocks(content))


def _blocks(content: bytes) -> Iterator[bytes]:
    """In turn: other threads wait for a whole `replace`. No block ends within a CRLF."""
    start = 0
    while start < len(content):
        end = start + _BLOCK
        end += content[end - 1 : end + 1] == b"\r\n"
        yield content[start:end]
        start = end


async def scan_stored(scanner: Scanner, content: bytes, request: AnalysisRequest) -> AnalysisResult:
    """Raises ScanError or Saturated."""
    if len(content) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge("larger than the 50 MiB that the service accepts")
    with closing(Message(Spool(MAX_MESSAGE_BYTES))) as message:
        message.write(content)
        return await scanner.submit(request, message, asyncio.get_running_loop().time() + _TIMEOUT_S)
