"""The HTTP server that the scanning service and the admin endpoint share."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.http_server import HttpLimits, HttpServer
from bridge.runtime.listening_socket import bind
from bridge.testing import eventually

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def no_content(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def much_content(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1000):
        await send({"type": "http.response.body", "body": bytes(64 * 1024), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(app: Any = no_content, tls: ssl.SSLContext | None = None, **limits: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, [bind(Endpoint("127.0.0.1", 0))], tls, HttpLimits(**limits))
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1)


async def connect(
    server: HttpServer, data: bytes = b"", source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = server.addresses[0].port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(data)
    return reader, writer


async def answer_to(server: HttpServer, data: bytes, source: str = "127.0.0.1") -> bytes:
    """The status line of the answer; b"" if the server just closes."""
    reader, writer = await connect(server, data, source)
    line = await reader.readline()
    writer.close()
    return line


async def test_any_application_can_be_served() -> None:
    """The server is generic: it knows only ASGI."""
    async with serving() as server:
        assert (await answer_to(server, REQUEST)).startswith(b"HTTP/1.1 204 ")


async def test_connections_are_bounded() -> None:
    """Beyond the cap a connection reads 503 and is closed; when the others close, there is room again."""
    async with serving(max_connections=3) as server:
        held = [await connect(server, REQUEST[:10]) for _ in range(3)]
        await eventually(lambda: server.connections == 3, "three connections")
        reader, writer = await connect(server)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        for _, open_writer in [*held, (reader, writer)]:
            open_writer.close()
        await eventually(lambda: server.connections == 0, "the connections to end")
        assert (await answer_to(server, REQUEST)).startswith(b"HTTP/1.1 204 ")


async def test_a_head_that_does_not_end_is_not_waited_for() -> None:
    """A client that sends half a request's head, or nothing, is disconnected; complete requests are not.

    Half a head gets 408. A connection opened in advance gets no answer to a request that it has not sent.
    """
    async with serving(head_timeout_s=0.5) as server:
        patient_reader, patient = await connect(server, REQUEST)
        assert (await patient_reader.readline()).startswith(b"HTTP/1.1 204 ")
        for start, answer in ((b"", b""), (REQUEST[:10], b"HTTP/1.1 408 ")):
            reader, writer = await connect(server, start)
            assert (await reader.read()).startswith(answer)
            assert reader.at_eof() and bool(answer) == bool(start)
            writer.close()
        assert not patient_reader.at_eof()
        patient.close()


async def test_a_head_that_is_too_large_is_431() -> None:
    """The limit holds for the head alone: a body may follow it in the same packet."""
    async with serving(max_head_bytes=1000) as server:
        assert (await answer_to(server, REQUEST[:-2] + b"X: " + b"y" * 2000)).startswith(b"HTTP/1.1 431 ")
        posted = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" + b"y" * 2000
        assert (await answer_to(server, posted)).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize("target", [b"http://[::1/livez", b"http://x:y/", b"http://"])
@pytest.mark.parametrize("earlier", [0, 1, 2])
async def test_a_target_that_is_no_url_got_no_answer(
    target: bytes, earlier: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As the first request of a connection or a later one; it left a traceback in the log."""
    async with serving() as server:
        reader, writer = await connect(server, REQUEST * earlier + REQUEST.replace(b" / ", b" " + target + b" "))
        async with asyncio.timeout(60):
            answers = await reader.read()
        writer.close()
    assert [line.split()[1] for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == [
        *[b"204"] * earlier,
        b"400",
    ]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("requests", [1, 5])
async def test_a_client_that_does_not_read_is_not_waited_for(requests: int, caplog: pytest.LogCaptureFixture) -> None:
    """It held its connection for ever; one that reads slowly gets everything."""
    async with serving(much_content, unread_timeout_s=0.5, head_timeout_s=1.0) as server:
        _, silent = await connect(server, REQUEST * requests)
        silent.transport.pause_reading()
        reader, slow = await connect(server, REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = 0
        while chunk := await reader.read(1 << 20):
            received += len(chunk)
            await asyncio.sleep(0.005)
        assert received > 1000 * 64 * 1024
        await eventually(lambda: server.connections == 0, "the silent one to be cut")
        slow.close()
        silent.close()
    assert "Traceback" not in caplog.text


async def test_a_client_that_reads_slowly_was_cut_off() -> None:
    """Linux takes more bytes only when a third of its buffer is free, and its buffer grew to megabytes."""
    async with serving(much_content, unread_timeout_s=2.0, head_timeout_s=1.0) as server:
        reader, slow = await connect(server, REQUEST)
        end = asyncio.get_running_loop().time() + 6
        while asyncio.get_running_loop().time() < end:
            assert await reader.readexactly(6_000)
            await asyncio.sleep(0.02)  # 300 KB/s
        slow.close()


FRAMING = {
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 0\r\n\r\nhello",
    "a list of lengths": b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": b"Content-Length: +5\r\n\r\nhello",
    "a space before the colon": b"Content-Length : 5\r\n\r\nhello",
    "a folded field": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding after the chunks": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks of chunks": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "LF in the head": b"X: y\nContent-Length: 0\r\n\r\n",
    "CR in the head": b"X: y\rZ: y\r\n\r\n",
    "NUL in the head": b"X: y\0z\r\n\r\n",
    "LF after a chunk's size": b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "LF after a chunk's extension": b"Transfer-Encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n",
    "LF after a chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    "a size with a prefix": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a size that is too long": b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "an upgrade with both": b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


async def read_and_answer(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await no_content(scope, receive, send)


@pytest.mark.parametrize("rest", FRAMING.values(), ids=FRAMING)
async def test_a_body_that_two_servers_could_read_differently_is_refused(rest: bytes) -> None:
    """Behind a proxy that reads it in the other way, its end would be somebody else's request."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await read_and_answer(scope, receive, send)

    async with serving(app) as server:
        smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        reader, writer = await connect(server, b"POST / HTTP/1.1\r\nHost: x\r\n" + rest + smuggled)
        answers = await reader.read()  # to the end: the connection is closed
        writer.close()
    assert answers.startswith(b"HTTP/1.1 400 ") and answers.count(b"HTTP/1.1 ") == 1
    assert "/smuggled" not in asked


async def test_one_client_cannot_take_all_connections() -> None:
    """One address opened all of them and sent nothing: all others received 503 until the time for a head was over."""
    async with serving(max_connections=8) as server:
        held = [await connect(server) for _ in range(8)]
        refused = [reader for reader, _ in held[6:]]
        assert [(await reader.read()).split(b" ")[1] for reader in refused] == [b"503"] * 2
        assert (await answer_to(server, REQUEST, "127.0.0.2")).startswith(b"HTTP/1.1 204 ")
        assert (await answer_to(server, REQUEST)).startswith(b"HTTP/1.1 503 ")
        held[0][1].close()
        await eventually(lambda: server.connections == 5, "the first connection to end")
        assert (await answer_to(server, REQUEST)).startswith(b"HTTP/1.1 204 ")
        for _, writer in held[1:]:
            writer.close()


async def test_one_client_cannot_take_all_handshakes() -> None:
    """The same with TLS, where a connection is counted before its handshake."""
    tls, trusting = certified()
    async with serving(tls=tls, max_connections=8) as server:
        held = [await connect(server) for _ in range(8)]
        for reader, _ in held[6:]:
            assert await reader.read() == b""
        options = {"ssl": trusting, "local_addr": ("127.0.0.2", 0)}
        reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0].port, **options)
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 204 ")
        for _, other in [*held, (reader, writer)]:
            other.close()


def certified() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context, and a client's that trusts it."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return tls, trusting


async def test_connections_are_counted_before_their_handshake() -> None:
    """With TLS, a client that sent nothing was not counted: strangers could take all descriptors."""
    tls, context = certified()
    server = HttpServer(no_content, [bind(Endpoint("127.0.0.1", 0))], tls, HttpLimits(max_connections=3))
    await server.start()
    port = server.addresses[0].port
    try:
        silent = [await connect(server) for _ in range(3)]
        reader, writer = await connect(server)
        assert await reader.read() == b""
        for _, other in [*silent, (reader, writer)]:
            other.close()

        async def status() -> bytes:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.write(REQUEST)
                line = await reader.readline()
                writer.close()
            except OSError:
                return b""
            return line

        async with asyncio.timeout(60):
            while not (line := await status()):  # the others are not forgotten yet
                await asyncio.sleep(0.01)
        assert line.startswith(b"HTTP/1.1 204 ")
    finally:
        await server.stop(1)


async def test_requests_that_do_not_wait_for_answers_filled_the_memory() -> None:
    """Requests of 18 bytes took 2 KiB each, and all that had arrived were read: 10 MB took 1.2 GB of memory and half a
    minute, while nobody else was served. The first ones are answered, then comes one refusal."""
    async with serving(max_waiting_requests=3) as server:
        reader, writer = await connect(server, b"GET / HTTP/1.1\r\n\r\n" * 10_000)
        async with asyncio.timeout(60):
            answers = await reader.read()
        writer.close()
        assert [line[9:12] for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == [
            *[b"204"] * 4,
            b"503",
        ]
        assert answers.count(b"Connection: close") == 1


async def test_a_client_with_a_few_requests_at_once_is_served() -> None:
    async with serving() as server:
        reader, writer = await connect(server, REQUEST * 20 + REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
        async with asyncio.timeout(60):
            answers = await reader.read()
        writer.close()
        assert answers.count(b"HTTP/1.1 204 ") == 21


@pytest.mark.parametrize("earlier", [0, 2])
async def test_a_head_of_thousands_of_fields_filled_the_memory(earlier: int) -> None:
    """Each field takes five bytes on the wire, and 200 in memory."""
    async with serving() as server:
        reader, writer = await connect(server, REQUEST * earlier + REQUEST[:-2] + b"a:b\r\n" * 10_000)
        async with asyncio.timeout(60):
            answers = await reader.read()
        writer.close()
        assert [line[9:12] for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == [
            *[b"204"] * earlier,
            b"431",
        ]
        assert (await answer_to(server, REQUEST[:-2] + b"a:b\r\n" * 199 + b"\r\n")).startswith(b"HTTP/1.1 204 ")
