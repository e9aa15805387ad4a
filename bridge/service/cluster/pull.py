"""Jobs for slots: each waiting slot has one request at NATS, and gets one job, whichever request it came for.

The library's own `fetch` loses a job that arrives when no one is waiting for it: another worker would get it only
after `ACK_WAIT_S`. Here such a job is handed back at once, so a worker can leave within a moment.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque

from nats.aio.msg import Msg
from nats.errors import Error

from bridge.service.cluster.link import Session
from bridge.service.cluster.wire import Names

PULL_S = 3.0  # for which NATS keeps a request; it forgets all of them if a leader dies
HAND_BACK = b"-NAK"
_HEARTBEAT = "100"
_LATER = ("409", "503")  # no leader or no consumer: NATS answers at once


class Pulls:
    """The requests of one session."""

    def __init__(self, session: Session, names: Names) -> None:
        self._session = session
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{names.stream}.{names.consumer}"
        self._inbox = session.client.new_inbox()
        self._waiting: deque[asyncio.Future[Msg | None]] = deque()

    async def start(self) -> None:
        """Raises nats errors."""
        await self._session.client.subscribe(self._inbox, cb=self._on_message)

    async def next(self) -> Msg | None:
        """A job; None if there is none for a while. Raises nats errors."""
        answer: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        request = json.dumps({"batch": 1, "expires": int(PULL_S * 1e9)}).encode()
        try:
            await self._session.client.publish(self._subject, request, reply=self._inbox)
            async with asyncio.timeout(PULL_S + 1):
                return await answer
        except TimeoutError:
            return None
        finally:
            answer.cancel()  # a job that comes now is for another slot, or handed back

    async def _on_message(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status == _HEARTBEAT:
            return
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                if status in _LATER:
                    answer.set_exception(Error(f"no consumer: {status}"))
                else:
                    answer.set_result(message if status is None else None)
                return
        if status is None and message.reply:
            await self._session.publish(message.reply, HAND_BACK)
