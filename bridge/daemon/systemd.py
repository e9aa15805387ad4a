"""What systemd tells us in the environment, and what we tell it (sd_notify, by hand: it is one datagram)."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import os
import socket

_FOR_US_ALONE = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_SEND_S = 0.2


def notify(state: str) -> None:
    """Send `READY=1` and the like; does nothing outside systemd."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        _socket().sendto(state.encode(), address)
    except OSError:  # nothing to be done here: systemd notices a missing notification by its own timeout
        pass


@functools.cache
def _socket() -> socket.socket:
    """Kept open: without it, a lack of descriptors would silence the watchdog, and systemd would kill the daemon."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    sock.settimeout(_SEND_S)  # a socket that nobody reads fills up eventually, and mail must not wait for its reader
    return sock


def environment_for_child() -> dict[str, str]:
    """Ours without what systemd gave to this process alone: a child must not speak for us, nor take our sockets."""
    return {name: value for name, value in os.environ.items() if name not in _FOR_US_ALONE}


def watchdog_s() -> float:
    """WatchdogSec of the unit: how long systemd waits for a sign of life; 0 if it does not watch this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    return int(os.environ.get("WATCHDOG_USEC") or 0) / 1_000_000


async def feed_watchdog() -> None:
    """Show that the event loop runs, twice per WatchdogSec, until cancelled."""
    period_s = watchdog_s()
    while period_s:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_s / 2)


def notify_stopping(longest_s: float) -> None:
    """Announce the stop and the time it may take, which `drain_timeout` sets, not the unit's TimeoutStopSec."""
    notify("STOPPING=1")
    notify(f"EXTEND_TIMEOUT_USEC={int(longest_s * 1_000_000)}\nSTATUS=processing the remaining mail")


def show_stack_on_abort() -> None:
    """systemd's watchdog ends a hung process with SIGABRT: log where the event loop was blocked."""
    faulthandler.enable(file=2)  # a number, not sys.stderr: the parent process may have closed standard error
