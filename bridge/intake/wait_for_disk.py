"""Stops reading from a client while the spool's disk cannot keep up.

Otherwise a client that is faster than the disk would fill the room for what is not written yet, and its mail would be
deferred. A disk that hangs is not waited for: the mail is then refused as soon as there is no room for it. Knows
transports, but no protocol.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from bridge.mail.message import Message
from bridge.mail.spool import LOOK_S


class Sender(Protocol):
    """The connection of a client that sends a mail."""

    def end_stop(self) -> bool:
        """Read from the client again; the pause does not count against it. False if there is another reason to wait."""


def wait_for_disk(message: Message, transport: asyncio.Transport, sender: Sender) -> None:
    """Call it after each block of a large mail."""
    if message.is_behind and transport.is_reading():
        transport.pause_reading()
        message.stop()
        _look_later(message, transport, sender)


def _look_later(message: Message, transport: asyncio.Transport, sender: Sender) -> None:
    asyncio.get_running_loop().call_later(LOOK_S, partial(_look, message, transport, sender))


def _look(message: Message, transport: asyncio.Transport, sender: Sender) -> None:
    if transport.is_closing():
        return
    if not message.may_go_on():  # not all of them at once: their blocks would have no room
        _look_later(message, transport, sender)
    elif sender.end_stop():
        transport.resume_reading()
