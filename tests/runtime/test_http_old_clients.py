"""Clients that speak HTTP/1.0, and requests that follow each other without waiting for answers."""

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
from bridge.runtime.tls import server_context

STREAM = b"GET /stream HTTP/1.0\r\n\r\n"
PLAIN = b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n"
SOON_S = 60.0


class Application:
    """/plain has a length; /stream has none; /cut ends early; /slow waits to be released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.is_asked_for_slow = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        if path == "/slow":
            self.is_asked_for_slow.set()
            await self.released.wait()
        if path == "/body":
            while (await receive()).get("more_body"):
                pass
        length = [] if path in ("/stream", "/cut") else [(b"content-length", b"6")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        if path != "/cut":
            await send({"type": "http.response.body", "body": b"two"})


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None, **limits: Any) -> AsyncIterator[tuple[HttpServer, Application]]:
    application = Application()
    server = HttpServer(application, [bind(Endpoint("127.0.0.1", 0))], tls, HttpLimits(**limits))
    await server.start()
    try:
        yield server, application
    finally:
        application.released.set()
        await server.stop(1)


async def talk(server: HttpServer, data: bytes, **options: Any) -> bytes:
    """Everything the server answers until it closes. Raises ConnectionError when it resets the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0].port, **options)
    try:
        writer.write(data)
        async with asyncio.timeout(SOON_S):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("version", [b"1.0", b"0.9"])
@pytest.mark.parametrize("fields", [b"", b"Connection: keep-alive\r\n", b"Connection: close\r\n", b"TE: chunked\r\n"])
async def test_a_client_of_http_1_0_gets_no_chunks(version: bytes, fields: bytes) -> None:
    """A body of unknown length ends with the connection, whatever the client says about keeping it open."""
    async with serving() as (server, _):
        answer = await talk(server, b"GET /stream HTTP/%b\r\n%b\r\n" % (version, fields))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head.lower()
        assert body == b"onetwo"


async def test_a_client_of_http_1_1_gets_chunks() -> None:
    """So that it can tell a complete body from one that was cut off."""
    async with serving() as (server, _):
        answer = await talk(server, STREAM.replace(b"1.0\r\n", b"1.1\r\nConnection: close\r\n"))
        assert b"transfer-encoding: chunked" in answer
        assert answer.endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_a_known_length_is_told_to_clients_of_http_1_0() -> None:
    """And the answer to HEAD has no body."""
    async with serving() as (server, _):
        answer = await talk(server, b"GET /plain HTTP/1.0\r\n\r\n")
        assert b"content-length: 6" in answer and answer.endswith(b"\r\n\r\nonetwo")
        assert (await talk(server, b"HEAD /stream HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\n")


async def test_a_body_that_ends_early_does_not_look_complete_to_http_1_0() -> None:
    """The end of the connection is the end of the body, so the connection is reset."""
    async with serving() as (server, _):
        with pytest.raises(ConnectionResetError):
            await talk(server, STREAM.replace(b"/stream", b"/cut"))


async def test_a_body_that_ends_early_does_not_look_complete_over_tls() -> None:
    authority = trustme.CA()
    context = server_context()
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    options = {"ssl": trusting, "server_hostname": "localhost"}
    async with serving(context) as (server, _):
        assert (await talk(server, STREAM, **options)).endswith(b"onetwo")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await talk(server, STREAM.replace(b"/stream", b"/cut"), **options)


async def test_a_client_of_http_1_0_is_not_told_to_continue() -> None:
    """RFC 9110 10.1.1: it would take `100 Continue` for the answer."""
    async with serving() as (server, _):
        head = b"POST /body HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        assert (await talk(server, head + b"12345")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("begun", [b"G", PLAIN[:10], PLAIN[:-2]])
async def test_a_slow_head_is_408(begun: bytes) -> None:
    """A client whose request does not get complete is told why its connection ends."""
    async with serving(head_timeout_s=0.2) as (server, _):
        head, _, body = (await talk(server, begun)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"Connection: close" in head
        assert b'"error": "head_timeout"' in body


async def test_a_slow_second_head_is_408_too() -> None:
    async with serving(head_timeout_s=0.6) as (server, _):
        answers = await talk(server, PLAIN + PLAIN[:10])
        assert answers.count(b"HTTP/1.1 ") == 2
        assert answers.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in answers


async def test_a_head_that_comes_byte_by_byte_is_408() -> None:
    """The time is that of the whole head, not of one byte."""
    async with serving(head_timeout_s=0.3) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0].port)

        async def drip() -> None:
            writer.write(PLAIN[:-2] + b"X: ")
            while not writer.is_closing():
                writer.write(b"X")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(SOON_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        dripping.cancel()
        writer.close()


async def test_a_connection_is_not_kept_by_bytes_that_are_no_request() -> None:
    """Empty lines between requests, or the rest of a body that was not waited for, end with the head's deadline."""
    post = b"POST /plain HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    async with serving(head_timeout_s=0.3) as (server, _):
        for first, then in ((PLAIN, b"\r\n"), (post, b"x")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0].port)
            writer.write(first)
            async with asyncio.timeout(SOON_S):
                assert (await reader.readuntil(b"onetwo")).startswith(b"HTTP/1.1 200 ")
                writer.write(then)
                assert (await reader.read())[:13] in (b"", b"HTTP/1.1 408 ")
            writer.close()


async def test_the_rest_of_a_body_that_comes_in_time_leaves_the_connection_open() -> None:
    head = b"POST /plain HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
    async with serving(head_timeout_s=1.0) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.addresses[0].port)
        async with asyncio.timeout(SOON_S):
            writer.write(head)
            await reader.readuntil(b"onetwo")
            writer.write(b"0123456789")
            assert b" 408 " in await talk(server, PLAIN[:10])  # a head's deadline, begun later, is over
            writer.write(PLAIN)
            assert (await reader.readuntil(b"onetwo")).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize("fault", [b"NO HTTP AT ALL\r\n\r\n", PLAIN[:10]], ids=["malformed", "slow"])
async def test_what_follows_a_request_is_refused_after_its_answer(fault: bytes) -> None:
    """The refusal of a second request must not be read as the answer to the first, which still runs."""
    async with serving(head_timeout_s=0.2) as (server, application):
        running = asyncio.create_task(talk(server, PLAIN.replace(b"/plain", b"/slow") + fault))
        await application.is_asked_for_slow.wait()
        assert b" 408 " in await talk(server, PLAIN[:10])  # a head's deadline, begun later, is over
        assert not running.done()
        application.released.set()
        answers = await running
        assert answers.startswith(b"HTTP/1.1 200 ")
        assert answers.count(b"HTTP/1.1 ") == 2
        assert (b"HTTP/1.1 408 " if fault == PLAIN[:10] else b"HTTP/1.1 400 ") in answers


async def test_a_malformed_body_behind_a_running_request_is_refused_in_its_turn() -> None:
    async with serving() as (server, application):
        chunked = b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n"
        running = asyncio.create_task(talk(server, PLAIN.replace(b"/plain", b"/slow") + chunked))
        await application.is_asked_for_slow.wait()
        application.released.set()
        answers = await running
        assert answers.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 400 " in answers
        assert answers.count(b"HTTP/1.1 ") == 2


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as (server, application):
        last = PLAIN.replace(b"Host: x", b"Host: x\r\nConnection: close")
        three = PLAIN.replace(b"/plain", b"/slow") + PLAIN.replace(b"/plain", b"/stream") + last
        running = asyncio.create_task(talk(server, three))
        await application.is_asked_for_slow.wait()
        application.released.set()
        answers = await running
        assert answers.count(b"HTTP/1.1 200 ") == 3
        assert (
            answers.index(b"content-length") < answers.index(b"transfer-encoding") < answers.rindex(b"content-length")
        )
