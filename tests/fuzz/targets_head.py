"""Fuzz targets for the PROXY header before a session, and for the header of a mail."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from aiosmtpd.proxy_protocol import get_proxy

from bridge.filter.header_checks import count_received
from bridge.filter.headers import HeaderEditor, message_id
from bridge.intake.smtp.client_header import BadClient, ClientHeader, FoldedClient, HiddenClient, TwoClients
from bridge.intake.smtp.line_buffer import LineBuffer
from bridge.mail.message import Message, Spool

_EDITOR, _CLIENT = HeaderEditor("X-Scan-", "bridge.example", authserv_id="mx.example"), ClientHeader("X-Client")


def proxy(whole: Iterable[bytes], pieces: Iterable[bytes]) -> None:
    """However it is split, a PROXY header names one client (address and port) or is invalid."""
    loop = asyncio.new_event_loop()
    try:
        first, second = (loop.run_until_complete(_read_proxy(loop, data)) for data in (whole, pieces))
    finally:
        loop.close()
    assert first == second
    if first is not None and first[1]:
        assert ipaddress.ip_address(first[1])


async def _read_proxy(loop: asyncio.AbstractEventLoop, pieces: Iterable[bytes]) -> tuple[bool, str, object] | None:
    """Whether it is valid, and the client it names; None: incomplete."""
    box = LineBuffer(loop, lambda: None)
    reading = asyncio.ensure_future(get_proxy(box))
    for piece in pieces:
        box.feed(piece)
        await asyncio.sleep(0)
    box.close()
    try:
        found: Any = await reading
    except asyncio.IncompleteReadError:
        return None
    if not found.valid:
        return False, "", None
    source = "" if isinstance(found.src_addr, bytes) else str(found.src_addr or "")  # the path of a unix socket
    return True, source, found.src_port


def mail_head(data: bytes) -> None:
    """No header field with our prefix and no client name is left in a header section; nothing else changes."""
    data = re.sub(rb"\r?\n|\r", b"\r\n", data) + b"\r\n"  # bare CR and LF have been refused earlier
    spool = Spool(1 << 30, memory_per_mail=256)
    message = Message(spool)
    try:
        message.write(data)
        head = message.head()
        assert data.startswith(head)
        assert count_received(head.lower()) >= 0 and "\n" not in message_id(head, head.lower())
        stripped = _EDITOR.strip(head)
        left = head if stripped is None else stripped
        assert not any(line.lower().startswith(b"x-scan-") for line in left.split(b"\r\n"))
        assert _EDITOR.strip(left) is None
        _take_client(message, data[len(head) :])
    finally:
        message.close()
        assert spool.in_use == 0


def _take_client(message: Message, body: bytes) -> None:
    try:
        client = _CLIENT.take_from(message)
    except BadClient:
        client = None
    except (FoldedClient, HiddenClient, TwoClients):  # the mail is refused
        return
    if client is not None and client.address:
        assert ipaddress.ip_address(client.address)
    assert b"".join(message.chunks()).endswith(body)
    assert _CLIENT.take_from(message) is None
