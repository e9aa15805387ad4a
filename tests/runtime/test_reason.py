"""Why a connection failed, in words."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from bridge.runtime.reason import reason

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (REFUSED, "Connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (OSError("Multiple exceptions: [Errno 111] refused, [Errno 113] no route"),
         "Multiple exceptions: refused, no route"),
        (ExceptionGroup("", [REFUSED, OSError(errno.ENETUNREACH, "x"), REFUSED]),
         "Connection refused; Network is unreachable"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
         "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        (TimeoutError(), ""),
    ],
)  # fmt: skip
def test_the_reason_is_in_words(exc: BaseException, text: str) -> None:
    """Without numbers and addresses."""
    assert reason(exc) == text


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_both_event_loops_give_the_same_reason(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """A real connection to a port where nobody listens."""

    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    with pytest.raises(OSError) as caught:
        run(connect())
    assert reason(caught.value) == "Connection refused"


def test_the_reason_is_found_in_the_cause() -> None:
    """Libraries wrap it, even with `from None`."""
    try:
        try:
            raise REFUSED
        except OSError as exc:
            raise OSError("All connection attempts failed") from exc
    except OSError:
        try:
            raise RuntimeError("cannot connect") from None
        except RuntimeError as exc:
            assert reason(exc) == "Connection refused"
