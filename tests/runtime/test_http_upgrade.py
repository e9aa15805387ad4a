"""Requests that ask for another protocol, and other shapes in which one request could hide a second one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.http_server import HttpLimits, HttpServer
from bridge.runtime.listening_socket import bind

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n"
SECOND = b"GET /second HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Echo:
    """Answers with what it has received, as JSON, and records it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.fields: list[list[tuple[bytes, bytes]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        self.seen.append((scope["method"], scope["path"], body))
        self.fields.append(list(scope["headers"]))
        told = json.dumps([scope["method"], scope["path"], body.decode("latin-1")]).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
        await send({"type": "http.response.body", "body": told})


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[tuple[HttpServer, Echo]]:
    echo = Echo()
    server = HttpServer(echo, [bind(Endpoint("127.0.0.1", 0))], limits=HttpLimits(**limits))
    await server.start()
    try:
        yield server, echo
    finally:
        await server.stop(1)


async def talk(server: HttpServer, data: bytes, step: int = 0) -> bytes:
    """Everything the server answers, until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0].port)
    with suppress(ConnectionError):  # the server may refuse before it has read everything
        for start in range(0, len(data), step or len(data)):
            writer.write(data[start : start + (step or len(data))])
            await writer.drain()
            if step:
                await asyncio.sleep(0)
    async with asyncio.timeout(60):
        try:
            found = await reader.read()
        except ConnectionError:
            found = b""
    writer.close()
    return found


def post(fields: bytes, body: bytes) -> bytes:
    return b"POST /first HTTP/1.1\r\nHost: x\r\n" + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(fields: bytes, body: bytes) -> bytes:
    head = b"POST /first HTTP/1.1\r\nHost: x\r\n" + fields + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


BODIES = {"json": b'{"a": 1}', "a request": b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n", "large": b"x" * 300_000}


@pytest.mark.parametrize("step", [0, 1, 7, 1000])
@pytest.mark.parametrize("fields", [H2C, WEBSOCKET, H2C.lower(), H2C + b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize("framing", [post, chunked])
@pytest.mark.parametrize("name", ["json", "a request"])
async def test_the_body_of_a_request_to_upgrade_was_read_as_the_next_request(framing, fields, name, step) -> None:
    """The upgrade is ignored, the body is read, and the connection carries the next request."""
    async with serving() as (server, echo):
        found = await talk(server, framing(fields, BODIES[name]) + SECOND, step)
    assert echo.seen == [("POST", "/first", BODIES[name]), ("GET", "/second", b"")]
    assert found.count(b"HTTP/1.1 200 ") == 2 and b"101" not in found.split(b"\r\n")[0]


async def test_a_large_body_behind_a_request_to_upgrade_is_read() -> None:
    """More than one segment."""
    async with serving() as (server, echo):
        for framing in (post, chunked):
            await talk(server, framing(H2C, BODIES["large"]) + SECOND)
    assert [body for _, path, body in echo.seen if path == "/first"] == [BODIES["large"]] * 2


async def test_an_upgrade_without_a_body_is_ignored() -> None:
    """`GET` with `Upgrade: h2c`, and then another request on the connection."""
    get = b"GET /first HTTP/1.1\r\nHost: x\r\n" + H2C + b"\r\n"
    async with serving() as (server, echo):
        assert (await talk(server, get * 3 + SECOND)).count(b"HTTP/1.1 200 ") == 4
    assert [path for _, path, _ in echo.seen] == ["/first"] * 3 + ["/second"]
    assert not {name for name, _ in echo.fields[0]} & {b"upgrade", b"http2-settings", b"connection"}


async def test_the_other_wishes_of_the_connection_field_are_respected() -> None:
    """`Connection: close, Upgrade` closes."""
    data = b"GET /first HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n" + SECOND
    async with serving() as (server, echo):
        assert (await talk(server, data)).count(b"HTTP/1.1 200 ") == 1
    assert len(echo.seen) == 1


async def test_many_requests_to_upgrade_in_one_segment_do_no_harm() -> None:
    """No recursion, and no time that grows with the square of their number."""
    get = b"GET /first HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    async with serving(max_waiting_requests=5000) as (server, echo):
        await talk(server, get * 3000 + SECOND)
    assert len(echo.seen) == 3001


async def test_connect_is_refused() -> None:
    """There is no tunnel, and what follows is no request."""
    async with serving() as (server, echo):
        found = await talk(server, b"CONNECT a.example:1 HTTP/1.1\r\nHost: a\r\n\r\n" + SECOND)
    assert found.startswith(b"HTTP/1.1 405 ") and not echo.seen


SMUGGLING = {
    "both lengths": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, other order": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 50\r\n\r\n",
    "two equal lengths": b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": b"Content-Length: 0, 0\r\n\r\n",
    "a signed length": b"Content-Length: +0\r\n\r\n",
    "a hexadecimal length": b"Content-Length: 0x1\r\n\r\nx",
    "a huge length": b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a folded field": b"X: a\r\n b\r\n\r\n",
    "a folded encoding": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "another encoding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "bare LF in the head": b"X: a\nContent-Length: 0\r\n\r\n",
    "bare CR in the head": b"X: a\rContent-Length: 0\r\n\r\n",
    "NUL in the head": b"X: a\0b\r\n\r\n",
    "bare LF after a chunk size": b"Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
    "a huge chunk size": b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nx",
    "a negative chunk size": b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx",
    "a chunk longer than its size": b"Transfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("upgrade", [b"", H2C], ids=["plain", "h2c"])
@pytest.mark.parametrize("name", SMUGGLING)
async def test_a_request_whose_end_is_in_doubt_ends_the_connection(name: str, upgrade: bytes) -> None:
    """One 400, and whatever follows is not read as a request."""
    data = b"POST /first HTTP/1.1\r\nHost: x\r\n" + upgrade + SMUGGLING[name] + SECOND
    async with serving() as (server, echo):
        await talk(server, data)
    assert "/second" not in [path for _, path, _ in echo.seen]


async def test_chunk_extensions_are_ignored() -> None:
    """They are allowed, and no part of the body."""
    data = chunked(b"", b"abc").replace(b"3\r\n", b'3;name="v";x\r\n')
    async with serving() as (server, echo):
        await talk(server, data + SECOND)
    assert [body for _, _, body in echo.seen] == [b"abc", b""]


async def test_a_trailer_is_no_header_field() -> None:
    """A proxy in front has not seen it: it must not authorize the request."""
    data = chunked(b"", b"abc").replace(b"0\r\n\r\n", b"0\r\nAuthorization: Bearer x\r\nX-Y: z\r\n\r\n")
    async with serving() as (server, echo):
        await talk(server, data + SECOND)
    assert [body for _, _, body in echo.seen] == [b"abc", b""]
    assert {name for name, _ in echo.fields[0]} == {b"host", b"transfer-encoding"}


@pytest.mark.parametrize("endless", [b"0\r\n" + b"X: y\r\n" * 1_000_000, b"0\r\nX: " + b"y" * 5_000_000])
async def test_a_trailer_without_end_is_cut_off(endless: bytes) -> None:
    """It would fill the memory: it is no part of the head, whose size is limited, nor of the body."""
    data = b"POST /first HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + endless
    async with serving() as (server, echo):
        await talk(server, data)
        assert not echo.seen or echo.seen[0][2] == b""
        assert server.connections == 0


async def test_http_1_0_gets_one_answer_for_each_connection() -> None:
    """Also if it asks for more."""
    get = b"GET /first HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    async with serving() as (server, echo):
        found = await talk(server, get + get)
    assert found.count(b"HTTP/1.1 200 ") == 1 and len(echo.seen) == 1


@pytest.mark.parametrize("more", [[], ["-H", "Expect: 100-continue"], ["-H", "Transfer-Encoding: chunked"]])
async def test_curl_http2_is_answered(more: list[str]) -> None:
    """`curl --http2` asks to upgrade with every request over plain HTTP."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    async with serving() as (server, echo):
        url = f"http://127.0.0.1:{server.addresses[0].port}"
        body = "x" * 100_000
        process = await asyncio.create_subprocess_exec(
            *(curl, "-sS", "--noproxy", "*", "--http2", "--max-time", "20", *more, "--data-binary", "@-"),
            *(f"{url}/first", f"{url}/again"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await process.communicate(body.encode())
    assert process.returncode == 0, errors
    assert echo.seen[0] == ("POST", "/first", body.encode()), out[:200]
    assert echo.seen[1][1] == "/again"
