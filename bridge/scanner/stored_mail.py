"""Scans mail that was saved to a file: for `scanbridge scan` and for the console."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import BinaryIO

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, AnalysisResult
from bridge.errors import MessageTooLarge
from bridge.mail.message import Message
from bridge.scanner.client import Scanner

_TIMEOUT_S = 300.0
_BLOCK = 1 << 16


def as_mail(file: BinaryIO) -> Message:
    """Files often have LF; mail has CRLF. For a thread: a file may have 50 million lines, which take a second.

    Raises OSError.
    """
    return Message.of(block.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for block in _blocks(file))


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """In blocks: other threads wait for a whole `replace`, and memory is limited. No block ends within a CRLF."""
    after = b""
    while block := after + file.read(_BLOCK):
        after = file.read(1) if block.endswith(b"\r") else b""
        if after == b"\n":
            block, after = block + after, b""
        yield block


async def scan_stored(scanner: Scanner, mail: Message, request: AnalysisRequest) -> AnalysisResult:
    """Raises ScanError or Saturated."""
    if mail.size > MAX_MESSAGE_BYTES:
        raise MessageTooLarge("larger than the 50 MiB that the service accepts")
    return await scanner.submit(request, mail, asyncio.get_running_loop().time() + _TIMEOUT_S)
