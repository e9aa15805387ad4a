"""A milter listener in a separate process, for tests that kill it or measure its memory.

    milter_process.py PORT SCAN_SECONDS PROGRESS_SECONDS

Prints `ready` when it listens, and `scanning` for every mail.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import replace

import uvloop

from bridge.filter.outcome import Outcome
from bridge.intake.milter.server import MilterServer
from bridge.mail.action import Action
from bridge.mail.message import Spool
from bridge.mail.transaction import Transaction
from tests.intake.milter.milter_kit import OUTCOMES, SETTINGS, ScriptedFilter


class Sleeper(ScriptedFilter):
    """Waits with every mail, and then delivers it."""

    def __init__(self, scan_s: float) -> None:
        super().__init__()
        self.deadline_s = 60.0
        self._scan_s = scan_s

    async def process(self, tx: Transaction) -> Outcome:
        print("scanning", flush=True)
        try:
            await asyncio.sleep(self._scan_s)
        finally:
            tx.message.close()
        return OUTCOMES[Action.RELAY]


async def main() -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", int(sys.argv[1])))
    settings = replace(SETTINGS, progress_interval_s=float(sys.argv[3]), max_connections=5000)
    await MilterServer(settings, Sleeper(float(sys.argv[2])), Spool(1 << 30)).serve(sock)
    print("ready", flush=True)
    await asyncio.Event().wait()


uvloop.run(main())
