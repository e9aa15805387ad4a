"""Jobs for slots: each waiting slot has one request at NATS, and gets one job, whichever request the job answers.

The library's own `fetch` loses a job that arrives when no one is waiting for it: another worker would get it only
after `ACK_WAIT_S`. Here such a job is handed back at once.

NATS gives jobs to the oldest request first, and counts each time. If a worker that is leaving handed them back, it
would get the same job again for each of its slots, until no one got it at all. So it withdraws its requests first;
jobs that were already on their way are still done.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error

from bridge.service.cluster.link import NATS_ERRORS, Session
from bridge.service.cluster.wire import Names

PULL_S = 3.0  # for which NATS keeps a request; it forgets all of them if a leader dies
HAND_BACK = b"-NAK"
WITHDRAW_S = 1.0  # for NATS to confirm that no more jobs will come
_HEARTBEAT = "100"
_LATER = ("409", "503")  # no leader or no consumer: NATS answers at once


class Pulls:
    """The requests of one session."""

    def __init__(self, session: Session, names: Names) -> None:
        self._session = session
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{names.stream}.{names.consumer}"
        self._inbox = session.client.new_inbox()
        self._waiting: deque[asyncio.Future[Msg | None]] = deque()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Raises nats errors."""
        self._subscription = await self._session.client.subscribe(self._inbox, cb=self._on_message)

    async def withdraw(self) -> None:
        """Withdraw our requests from NATS. Slots get the jobs that were already on their way, or None."""
        if self._subscription is not None and not self._session.ended.is_set():
            with suppress(*NATS_ERRORS):
                async with asyncio.timeout(WITHDRAW_S):
                    await self._subscription.drain()  # type: ignore[no-untyped-call]
        self.end()

    def end(self) -> None:
        """Wake all waiting slots."""
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(None)

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
