"""The supervisor's children: how one is forked, and what it does until it ends.

A child tells how it ended by its exit code: 0 as told, 78 the configuration, 1 what may pass. It
takes its orders by signals that no terminal and no service manager sends to a whole group, so that
each order is heard once: SIGTERM (also from others) is "finish and end", SIGUSR1 "hurry", SIGUSR2
"others take over: finish and end". When the supervisor is gone without a word, it ends too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import uvloop

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.daemon.daemon import Daemon
from bridge.daemon.embedded import start_service
from bridge.daemon.workers.worker_context import Share
from bridge.errors import BridgeError, ConfigError
from bridge.observe import log_writer

log = logging.getLogger(__name__)

FAILED, CONFIG = 1, 78
STOP, HURRY, RETIRE = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2

Work = Callable[[log_writer.LineWriter], Coroutine[None, None, None]]


def fork(conf: Config, lifeline_end: int, work: Work) -> int:
    """The child's process id. Only the supervisor returns from here."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        os.close(lifeline_end)
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC"):  # the supervisor speaks for us
            os.environ.pop(name, None)
        code = _live(conf, work)
    finally:
        os._exit(code)


def _live(conf: Config, work: Work) -> int:
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to us too, but they are the supervisor's
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    writer = log_writer.set_up(conf.log.format, conf.log.level, shared=True, redaction=wiring.veil(conf))
    try:
        uvloop.run(work(writer))
        return 0
    except BridgeError as exc:
        writer.close()
        os.write(2, f"{exc}\n".encode() if isinstance(exc, ConfigError) else f"scanbridge: {exc}\n".encode())
        return CONFIG if isinstance(exc, ConfigError) else FAILED
    except Exception:
        log.exception("a child of the supervisor ends by an unexpected error")
        return FAILED
    finally:
        writer.close()


def worker(conf: Config, share: Share) -> Work:
    """Takes mail."""

    async def work(writer: log_writer.LineWriter) -> None:
        loop = asyncio.get_running_loop()
        share.sockets.keep_only(wiring.addresses(conf))  # also what a reload is about to close
        daemon = Daemon(conf, writer, share)

        def retire() -> None:
            daemon.retired = True
            daemon.tell_stop()

        for number, order in ((STOP, daemon.tell_stop), (HURRY, daemon.hurry), (RETIRE, retire)):
            loop.add_signal_handler(number, order)
        loop.add_reader(share.lifeline, _on_gone, share.lifeline, daemon.tell_stop)
        await daemon.start()
        if daemon.view.siblings is not None:
            daemon.view.siblings.write()  # who asks a sibling now hears of us
        share.tell_ready()
        await daemon.wait_told()
        await daemon.stop(on_closed=share.tell_closed)

    return work


def service(conf: Config, share: Share, state: Path) -> Work:
    """Runs the embedded scanning service, until the workers are through."""

    async def work(writer: log_writer.LineWriter) -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        signal.signal(STOP, signal.SIG_IGN)  # a service manager tells everybody, but workers need us to the end
        loop.add_signal_handler(HURRY, told.set)
        loop.add_reader(share.lifeline, _on_gone, share.lifeline, told.set)
        server = await start_service(conf, state, share.sockets.open("service", wiring.service_address(conf)))
        share.tell_ready()
        beating = asyncio.create_task(share.beat_always())
        await told.wait()
        await server.stop(1)
        beating.cancel()

    return work


def _on_gone(lifeline: int, stop: Callable[[], None]) -> None:
    asyncio.get_running_loop().remove_reader(lifeline)
    log.error("the supervisor is gone")
    stop()
