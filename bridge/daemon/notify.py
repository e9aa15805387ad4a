"""sd_notify: tell systemd how we are. By hand, because it is one datagram."""

from __future__ import annotations

import asyncio
import os
import socket


def notify(state: str) -> None:
    """Send `READY=1` and the like; does nothing outside systemd."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(state.encode(), address)
        except OSError:  # systemd will notice by itself
            pass


async def feed_watchdog() -> None:
    """Show that the event loop turns, twice per WatchdogSec."""
    period = os.environ.get("WATCHDOG_USEC")
    if not period:
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(period) / 2_000_000)
