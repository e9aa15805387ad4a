"""Stops reading from a client while the disk of the spool is behind.

Otherwise a client that is faster than the disk would fill the room for what is not written yet, and its mail would be
deferred. A disk that hangs is not waited for: the mail is then refused as soon as there is no room for it. Knows
transports, but no protocol.
"""

from __future__ import annotations

import asyncio
from functools import partial

from bridge.mail.message import Message

_LOOK_S = 0.02


def brake(message: Message, transport: asyncio.Transport) -> None:
    """Call it after each block of a large mail."""
    if message.is_behind and transport.is_reading():
        transport.pause_reading()
        asyncio.get_running_loop().call_later(_LOOK_S, partial(_look, message, transport))


def _look(message: Message, transport: asyncio.Transport) -> None:
    if transport.is_closing():
        return
    if message.is_behind:
        asyncio.get_running_loop().call_later(_LOOK_S, partial(_look, message, transport))
    else:
        transport.resume_reading()
