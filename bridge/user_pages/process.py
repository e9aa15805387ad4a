"""The process of `scanbridge digest serve`: the pages for users and, beside them, the schedule of the digests."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from bridge.console.process import explain_hangup, give_way_to_mail
from bridge.digests.sending import Progress
from bridge.errors import BridgeError
from bridge.runtime.early_signals import EarlySignals
from bridge.runtime.http_server import HttpLimits, HttpServer
from bridge.runtime.lasting import lasting
from bridge.user_pages import notices
from bridge.user_pages.app import create_app
from bridge.user_pages.call import Pages
from bridge.user_pages.sources import UserSources

log = logging.getLogger(__name__)

_LIMITS = HttpLimits(max_head_bytes=16 * 1024, head_timeout_s=15.0, max_connections=500, unread_timeout_s=30.0)
_ROUND_S = 30.0
_UPKEEP_S = 3600.0
_DRAIN_S = 5.0
_RELEASES_S = 15.0  # for releases that are being carried out, after that

SendDue = Callable[[], Awaitable[Progress]]


async def run(
    sources: UserSources,
    sockets: Sequence[socket.socket],
    send_due: SendDue,
    on_ready: Callable[[HttpServer], None],
    forget: Callable[[], None],
    early: EarlySignals,
) -> None:
    """Answer and send until SIGTERM or SIGINT. `forget`: deletes what concerns mail that is gone."""
    give_way_to_mail()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    explain_hangup(early, "digests")
    pages = Pages(sources.page.root_path)
    server = HttpServer(create_app(sources, pages), sockets, limits=_LIMITS)
    await server.start()
    tasks = [
        asyncio.create_task(lasting(partial(_rounds, send_due), "digests", _ROUND_S)),
        asyncio.create_task(lasting(partial(_notices, sources), "requests", _ROUND_S)),
        asyncio.create_task(lasting(partial(_upkeep, forget), "upkeep", _UPKEEP_S)),
    ]
    on_ready(server)
    await stop.wait()
    early.ignore()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop(_DRAIN_S)
    await pages.finish(_RELEASES_S)
    await asyncio.to_thread(sources.store.close)
    await asyncio.to_thread(sources.console_store.close)


async def _rounds(send_due: SendDue) -> None:
    """Send what is due, twice a minute. A failure is logged, and tried again in the next round."""
    while True:
        began = time.monotonic()
        try:
            done = await send_due()
            if done.sent or done.failed or done.refused:
                log.info(
                    "digests: sent=%d mails=%d failed=%d refused=%d duration=%.1f",
                    done.sent, done.mails, done.failed, done.refused, time.monotonic() - began,
                )  # fmt: skip
        except BridgeError as exc:
            log.warning("digests: %s", exc)
        await asyncio.sleep(_ROUND_S)


async def _notices(sources: UserSources) -> None:
    """Tell releasers of requests of which they have not been told."""
    while True:
        try:
            await notices.tell_again(sources, time.time())
        except BridgeError as exc:
            log.warning("requests: %s", exc)
        await asyncio.sleep(_ROUND_S)


async def _upkeep(forget: Callable[[], None]) -> None:
    """Forget what is too old, once an hour."""
    while True:
        try:
            await asyncio.to_thread(forget)
        except BridgeError as exc:
            log.warning("digests: %s", exc)
        await asyncio.sleep(_UPKEEP_S)
