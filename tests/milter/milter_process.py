"""A milter listener as a process of its own, for tests that kill it: milter_process.py PORT SCAN_SECONDS.

Says `ready` when it listens and `scanning` for every mail it got.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from milter_kit import OUTCOMES, SETTINGS, ScriptedFilter

from bridge.intake.milter.transport import MilterServer
from bridge.mail.action import Action
from bridge.mail.message import Spool


async def main() -> None:
    async def scan(seen):
        print("scanning", flush=True)
        await asyncio.sleep(float(sys.argv[2]))
        return OUTCOMES[Action.RELAY]

    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", int(sys.argv[1])))
    await MilterServer(SETTINGS, ScriptedFilter(scan), Spool(1 << 30)).serve(sock)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
