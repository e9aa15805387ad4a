"""The NATS client's own behaviour, against a real server."""

from __future__ import annotations

import asyncio

import pytest

from bridge.runtime.nats_client import NatsClient
from tests.nats_kit import nats_server


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
