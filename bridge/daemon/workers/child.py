"""The supervisor's child processes: how one is forked, and what it does until it exits.

The exit code tells how a child ended: 0 as ordered, 78 bad configuration, 1 a problem that may go away.
Orders come as signals that no terminal and no service manager sends to a whole process group, so each
is received once: SIGTERM (which others may send too) is "finish and exit", SIGUSR1 "hurry", SIGUSR2
"other workers take over: finish and exit". If the supervisor disappears, its children exit as well.
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
from bridge.daemon.addresses import SERVICE_KEY, addresses
from bridge.daemon.daemon import Daemon
from bridge.daemon.embedded import start_service
from bridge.daemon.shutdown import Shutdown
from bridge.daemon.workers.worker_context import SupervisedWorker
from bridge.errors import BridgeError, ConfigError
from bridge.observe import log_writer
from bridge.runtime.threads import use_daemon_threads

log = logging.getLogger(__name__)

FAILED, CONFIG = 1, 78
STOP, HURRY, RETIRE = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2

Work = Callable[[log_writer.LineWriter], Coroutine[None, None, None]]


def fork(conf: Config, lifeline_end: int, work: Work) -> int:
    """Run `work` in a child process and return its process id. Only the supervisor returns from here."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        os.close(lifeline_end)
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC"):  # only the supervisor reports to systemd
            os.environ.pop(name, None)
        code = _run_child(conf, work)
    finally:
        os._exit(code)


def _run_child(conf: Config, work: Work) -> int:
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all processes; the supervisor acts
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    writer = log_writer.set_up(
        conf.log.format,
        conf.log.level,
        shared=True,
        redaction=wiring.redaction(conf),
        timestamp=conf.log.timestamp,
    )
    try:
        uvloop.run(work(writer))
        return 0
    except BridgeError as exc:
        writer.close()
        os.write(2, f"{exc}\n".encode() if isinstance(exc, ConfigError) else f"scanbridge: {exc}\n".encode())
        return CONFIG if isinstance(exc, ConfigError) else FAILED
    except Exception:
        log.exception("process %d: unexpected error; exiting", os.getpid())
        return FAILED
    finally:
        writer.close()


def worker(conf: Config, context: SupervisedWorker) -> Work:
    """Accepts mail."""

    async def work(writer: log_writer.LineWriter) -> None:
        loop, shutdown = asyncio.get_running_loop(), Shutdown()
        use_daemon_threads()
        context.sockets.keep_only(addresses(conf))  # a reload may be about to close the others

        def retire() -> None:
            context.retire()
            shutdown.request()

        for number, order in ((STOP, shutdown.request), (HURRY, shutdown.hurry), (RETIRE, retire)):
            loop.add_signal_handler(number, order)
        loop.add_reader(context.lifeline, _on_supervisor_gone, context.lifeline, shutdown.request)
        daemon = await Daemon.start(conf, writer, context, shutdown)
        daemon.view.publish()  # the other workers include this one in their answers from now on
        context.report_ready()
        await daemon.wait_for_stop()
        await daemon.stop(on_closed=context.report_closed)

    return work


def service(conf: Config, context: SupervisedWorker, state: Path) -> Work:
    """Runs the embedded scanning service until the last worker has exited."""

    async def work(writer: log_writer.LineWriter) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        signal.signal(STOP, signal.SIG_IGN)  # service managers signal all processes; workers need us until the end
        loop.add_signal_handler(HURRY, stop.set)
        loop.add_reader(context.lifeline, _on_supervisor_gone, context.lifeline, stop.set)
        server = await start_service(conf, state, context.sockets.open(SERVICE_KEY, wiring.service_address(conf)))
        context.report_ready()
        heartbeat = asyncio.create_task(context.beat_regularly())
        await stop.wait()
        await server.stop(1)
        heartbeat.cancel()

    return work


def _on_supervisor_gone(lifeline: int, stop: Callable[[], None]) -> None:
    asyncio.get_running_loop().remove_reader(lifeline)
    log.error("the supervisor has exited; stopping")
    stop()
