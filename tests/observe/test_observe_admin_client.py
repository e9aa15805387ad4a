"""What commands and the console ask other processes: no answer keeps them for long."""

from __future__ import annotations

import threading

import pytest

from bridge.observe import admin_client
from tests.dripping_server import dripping


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
    ids=["head", "body", "without length"],
)
def test_an_answer_of_a_byte_at_a_time_was_read_for_as_long_as_it_came(start: bytes) -> None:
    """The timeout began again with each byte, so one such node stopped `status --cluster` and the console's view."""
    found: list[object] = []
    with dripping(start) as address:
        asking = threading.Thread(target=lambda: found.append(admin_client.exchange(address, "/status", 0.2)))
        asking.start()
        asking.join(20)
        assert found == [None]
    asking.join()
