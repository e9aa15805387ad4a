"""Whether a socket has bytes that have not been read yet.

The event loop reports bytes one turn after they have arrived. Code that is about to send a request must know at
once: what arrived before the request is not an answer to it.
"""

from __future__ import annotations

import asyncio
import select
from typing import Any


def transport_has_unread(transport: asyncio.BaseTransport) -> bool:
    """The same for a transport; false if it has no open socket."""
    return socket_has_unread(transport.get_extra_info("socket"))


def socket_has_unread(sock: Any) -> bool:
    """The same for a transport's socket; false if it is closed or None."""
    descriptor = -1 if sock is None else sock.fileno()
    return descriptor >= 0 and has_unread(descriptor)


def has_unread(descriptor: int) -> bool:
    """Also true if the peer has closed its side."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
