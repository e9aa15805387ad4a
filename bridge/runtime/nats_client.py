"""A NATS client that never falls back from TLS, and that fails at once if it cannot connect.

A NATS server says in its first line, which is not encrypted, whether it wants TLS. The library trusts that line, even
for a `tls://` URL: an attacker in between could remove that word, and would get the password and everything after it
(nats-py 2.16). If the URL says so, this client continues only over TLS.

Without `allow_reconnect`, the library still tries a server that refuses connections again and again. This client
tries each server once.

The library waits with `asyncio.wait_for`. Python 3.11: if the answer arrives at the moment the task is cancelled,
`wait_for` returns the answer, and the task continues as if nothing had happened. A job whose answer came together with
NATS' confirmation of the job held its client up for eight seconds. Here such a task is cancelled.

If the library's `close` fails or is cancelled, or has begun because the connection was lost, the tasks of the
subscriptions and the socket remain. This `close` always ends them.

If a server no longer answers (it is frozen, or the network is cut), the library notices, but then sends the rest and
waits until the server has closed its side: 30 s with TLS, and much longer if anything could not be sent. Only then
does it report that the connection has ended. This client drops a lost connection at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import Error, NoServersError

T = TypeVar("T")

CLOSE_S = 2.0  # for the server to take what has not been sent, and to close its side


async def cancellable(waiting: Awaitable[T]) -> T:
    """Python 3.11: wraps calls that may use `asyncio.wait_for`. Remove when 3.11 is no longer supported."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    found = await waiting
    if task.cancelling() > before:
        raise asyncio.CancelledError
    return found


class NatsClient(Client):
    async def connect(self, *arguments: Any, **options: Any) -> None:
        await cancellable(super().connect(*arguments, **options))

    async def request(self, *arguments: Any, **options: Any) -> Msg:
        """JetStream's requests go through here, too."""
        return await cancellable(super().request(*arguments, **options))

    async def flush(self, *arguments: Any, **options: Any) -> None:
        await cancellable(super().flush(*arguments, **options))

    async def close(self) -> None:
        tasks = [sub._wait_for_msgs_task for sub in self._subs.values()]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await super().close()
        finally:
            for task in tasks:
                if task is not None and task is not asyncio.current_task():
                    task.cancel()
            self._drop()

    async def _process_op_err(self, e: Exception) -> None:
        """The connection is lost."""
        self._drop()
        await super()._process_op_err(e)

    def _drop(self) -> None:
        """Close the socket at once, with what has not been sent."""
        self._pending, self._pending_data_size = [], 0
        if isinstance(self._transport, TcpTransport) and self._transport._bare_io_writer is not None:
            self._transport._bare_io_writer.transport.abort()  # TLS is above this one, and ends with it

    async def _select_next_server(self) -> None:
        if self.options["allow_reconnect"]:
            await super()._select_next_server()
            return
        problem: Exception = NoServersError()
        for server in self._server_pool:
            try:
                await self._connect_to_server(server)
            except (OSError, Error) as exc:  # OSError includes TimeoutError and ssl.SSLError
                problem = exc
                continue
            self._current_server = server
            return
        raise problem

    def _connect_command(self) -> bytes:
        """The line with the credentials, which is the first that we send."""
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise Error(
                "the server does not require TLS, so it may not be the intended server; set tls in its configuration"
            )
        return super()._connect_command()
