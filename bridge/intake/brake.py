"""Stops reading from a client while the disk of the spool is behind.

Otherwise a client that is faster than the disk would fill the room for what is not written yet, and its mail would be
deferred. A disk that hangs is not waited for: the mail is then refused as soon as there is no room for it. Knows
transports, but no protocol.
"""

from __future__ import annotations

import asyncio
from functools import partial

from bridge.mail.message import Message

LOOK_S = 0.02  # how often a client that was stopped is looked at


def brake(message: Message, transport: asyncio.Transport) -> None:
    """Call it after each block of a large mail."""
    if message.is_behind and transport.is_reading():
        transport.pause_reading()
        asyncio.get_running_loop().call_later(LOOK_S, partial(_look, message, transport))


def _look(message: Message, transport: asyncio.Transport) -> None:
    if transport.is_closing():
        return
    if message.may_go_on():  # not all of them at once: their blocks would have no room
        transport.resume_reading()
    else:
        asyncio.get_running_loop().call_later(LOOK_S, partial(_look, message, transport))
