"""One request to an engine over HTTP, and its answer, within limits.

Each mail has its own connection: an engine does not say which request an answer belongs to, and the HTTP library would
take a second answer to one mail for the answer to the next. Answers are not decompressed, because a few kilobytes could
become gigabytes, and redirects are not followed. The library speaks HTTP over our own connections: its own ones lose an
answer if the engine sends it and closes the connection before it has read the whole mail.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.host_addresses import NameLookup
from bridge.runtime.no_cookies import no_cookies
from bridge.service.analysis.connections import BadAnswer, Connection, connect
from bridge.service.analysis.tls_connection import TlsConnection

Headers = Sequence[tuple[bytes, bytes]]


class _Stream:
    """A connection as the HTTP library wants it, which reads only after it has sent everything.

    We read all the time. Once an answer has begun, nothing more is sent: the engine may have stopped reading.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reading: asyncio.Task[bytes] | None = None
        self.has_sent_all = True

    async def read(self, _max_bytes: int, timeout: float | None = None) -> bytes:
        await asyncio.sleep(0)  # other tasks run in between, even if the engine is faster than we are
        async with asyncio.timeout(timeout):
            reading, self._reading = self._reading, None
            return await (reading or self._connection.receive())

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """If the engine has answered or closed the connection, the library continues as if everything had been sent."""
        if not buffer:
            return
        self._reading = self._reading or asyncio.create_task(self._connection.receive())
        if self._reading.done():
            self.has_sent_all = False
            return
        sending = asyncio.create_task(self._connection.send(buffer))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait({sending, self._reading}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    await sending
                else:
                    self.has_sent_all = False
        except ConnectionError:
            self.has_sent_all = False
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str, timeout: float | None) -> _Stream:
        try:
            async with asyncio.timeout(timeout):
                return _Stream(await TlsConnection.over(self._connection, ssl_context, server_hostname))
        except BaseException:
            self._connection.close()
            raise

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._connection.close()

    def get_extra_info(self, _name: str) -> None:
        return None


class _Network:
    def __init__(self) -> None:
        self._names = NameLookup()

    async def connect_tcp(self, host: str, port: int, timeout: float, **_options: Any) -> _Stream:
        async with asyncio.timeout(timeout):
            return _Stream(await connect(Endpoint(host, port), self._names, timeout))


def http_client(timeout_s: float, connections: int) -> httpx2.AsyncClient:
    """`timeout_s` applies to each step of a request; the pipeline limits the total."""
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=0)
    transport = httpx2.AsyncHTTPTransport(trust_env=False, limits=limits)
    pool: Any = transport._pool  # httpx2 has no parameter for this; httpcore2, below it, has one
    if not hasattr(pool, "_network_backend"):
        raise RuntimeError("this version of httpx2 is not supported: early answers from engines would be lost")
    pool._network_backend = _Network()
    return httpx2.AsyncClient(cookies=no_cookies(), trust_env=False, timeout=timeout_s, transport=transport)


async def answer_to(
    client: httpx2.AsyncClient, url: str, headers: Headers, content: AsyncIterator[bytes], max_bytes: int
) -> tuple[bytes, bool]:
    """POST `content`. Returns the answer, and whether everything was sent: see `connections.counted`.

    Raises BadAnswer, and the library's errors.
    """
    headers = [*headers, (b"Accept-Encoding", b"identity")]
    request = client.build_request("POST", url, headers=headers, content=content)
    response = await client.send(request, stream=True)
    try:
        if response.status_code != 200:
            raise BadAnswer(f"HTTP status {response.status_code}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise BadAnswer("the answer is compressed")
        answer = bytearray()
        async for piece in response.aiter_raw():
            answer += piece
            if len(answer) > max_bytes:
                raise BadAnswer(f"answer larger than {max_bytes} bytes")
        return bytes(answer), response.extensions["network_stream"].has_sent_all
    finally:
        await response.aclose()
