"""The NATS client's own behaviour, against a real server."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import suppress
from typing import Any

import pytest

from bridge.runtime.nats_client import CLOSE_S, NatsClient
from tests.nats_kit import NatsServer, nats_server
from tests.service.cluster_kit import PASSWORD, nats_with_accounts

IMPATIENT = {"allow_reconnect": False, "ping_interval": 0.1, "max_outstanding_pings": 1}


class _CancelledFirst(dict):
    """Cancels the task when an answer arrives, before the task itself notices it."""

    def __init__(self, asking: asyncio.Task) -> None:
        self._asking = asking

    def __setitem__(self, token: str, awaited: asyncio.Future) -> None:
        awaited.add_done_callback(lambda _: self._asking.cancel())
        super().__setitem__(token, awaited)


def test_a_request_cancelled_in_the_moment_of_its_answer_is_cancelled(tmp_path):
    """Python 3.11's `wait_for` returned the answer instead; a client then waited eight seconds for its mail."""

    async def answer(message) -> None:
        await message.respond(b"here")

    async def run(url: str) -> None:
        client = NatsClient()
        await client.connect(url, allow_reconnect=False)
        await client.subscribe("question", cb=answer)
        assert (await client.request("question", timeout=60)).data == b"here"
        asking = asyncio.create_task(client.request("question", timeout=60))
        client._resp_map = _CancelledFirst(asking)
        with pytest.raises(asyncio.CancelledError):
            await asking
        await client.close()

    with nats_server(tmp_path) as server:
        asyncio.run(run(server.url))


def test_subscriptions_outlived_a_close_that_was_cancelled(tmp_path):
    """Their tasks stayed until the process ended, four for each connection that was lost."""

    async def ignore(message) -> None:
        raise AssertionError("nobody sends")

    async def run(url: str) -> None:
        client = NatsClient()
        await client.connect(url, allow_reconnect=False)
        subscription = await client.subscribe("nothing", cb=ignore)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)  # it has begun, and waits for the last bytes to be sent
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await asyncio.wait([subscription._wait_for_msgs_task], timeout=60)
        assert subscription._wait_for_msgs_task.done() and client._transport._io_writer.is_closing()

    with nats_server(tmp_path) as server:
        asyncio.run(run(server.url))


async def _seconds_until_the_end(server: NatsServer, url: str, options: dict[str, Any], unsent: int) -> float:
    """How long it takes to notice that a server no longer answers."""
    client, ended = NatsClient(), asyncio.Event()

    async def end() -> None:
        ended.set()

    await client.connect(url, closed_cb=end, pending_size=2 * unsent or 1024, **IMPATIENT, **options)
    server.freeze()
    try:
        started = time.monotonic()
        for _ in range(unsent // 1_000_000):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await client.publish("x", bytes(1_000_000))
        async with asyncio.timeout(20):
            await ended.wait()
        return time.monotonic() - started
    finally:
        server.thaw()
        await client.close()


def test_a_frozen_server_with_tls_kept_its_connection_for_half_a_minute(tmp_path):
    """The library waited for the server's goodbye, and all mail waited with it, beside servers that answered."""
    with nats_with_accounts(tmp_path) as nats:
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        options = {"tls": trust, "user": "ours", "password": PASSWORD}
        assert asyncio.run(_seconds_until_the_end(nats.server, nats.url, options, 0)) < 10


def test_a_frozen_server_kept_its_connection_as_long_as_anything_was_unsent(tmp_path):
    """Until the kernel gave up, a quarter of an hour later."""
    with nats_server(tmp_path) as server:
        assert asyncio.run(_seconds_until_the_end(server, server.url, {}, 40_000_000)) < 10


def test_closing_waited_for_a_frozen_server(tmp_path):
    """A service that had to stop did not, while a server accepted nothing."""

    async def run(server: NatsServer) -> float:
        client = NatsClient()
        await client.connect(server.url, allow_reconnect=False, pending_size=80_000_000)
        server.freeze()
        for _ in range(40):
            await client.publish("x", bytes(1_000_000))
        started = time.monotonic()
        await client.close()
        return time.monotonic() - started

    with nats_server(tmp_path) as server:
        try:
            assert asyncio.run(run(server)) < CLOSE_S + 8
        finally:
            server.thaw()
