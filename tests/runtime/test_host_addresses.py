"""Lookups of host names: a name server that does not answer affects only its own names."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from bridge.runtime.host_addresses import NameLookup
from bridge.testing import DEADLINES_S, eventually

SLOW = "slow.example"


class NameServer:
    """Knows every name, and does not answer for SLOW until it is told to."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answers = threading.Event()

    def __call__(self, host: str, port: int | None, **_: Any) -> list[tuple[Any, ...]]:
        self.asked[host] += 1
        if host == SLOW:
            assert self.answers.wait(60)
        if host == "unknown.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = ("192.0.2.1", "2001:db8::1", "192.0.2.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    yield server
    server.answers.set()


async def test_the_lookups_of_one_broken_name_kept_all_other_names_waiting(names: NameServer) -> None:
    """Each mail for it took one of the four threads of the event loop, for as long as the name server is waited for."""
    broken, sound = NameLookup(), NameLookup()
    waiting = [asyncio.create_task(broken.addresses(SLOW)) for _ in range(50)]
    await eventually(lambda: bool(names.asked[SLOW]), "the broken name to be looked up")
    for number in range(10):
        assert await sound.addresses(f"name{number}.example") == ["192.0.2.1", "2001:db8::1"]
    assert names.asked[SLOW] == 1
    for task in waiting[1:]:  # their time to connect is over
        task.cancel()
    names.answers.set()
    assert await waiting[0] == ["192.0.2.1", "2001:db8::1"]
    await broken.addresses(SLOW)
    assert names.asked[SLOW] == 2  # it may have another address by now


async def test_an_unknown_name_is_an_error_for_all_who_wait(names: NameServer) -> None:
    lookup = NameLookup()
    for _ in range(2):
        both = await asyncio.gather(*[lookup.addresses("unknown.example") for _ in range(2)], return_exceptions=True)
        assert [type(exc) for exc in both] == [socket.gaierror] * 2
    assert names.asked["unknown.example"] == 2


@pytest.mark.parametrize("address", ["192.0.2.1", "::1", "fe80::1%eth0"])
async def test_an_address_is_not_looked_up(names: NameServer, address: str) -> None:
    assert await NameLookup().addresses(address) == [address]
    assert not names.asked


def nothing(made: object) -> None:
    """There is nothing to close."""


async def silent_first(tried: list[str], address: str) -> str:
    tried.append(address)
    if address == "192.0.2.1":
        await asyncio.Event().wait()
    return address


async def test_an_address_that_did_not_accept_is_tried_last_for_a_while(names: NameServer) -> None:
    """Otherwise each new connection would first wait for a dead machine."""
    lookup, tried = NameLookup(), list[str]()
    connect = partial(silent_first, tried)
    for _ in range(2):
        assert await lookup.connect("name.example", connect, 0.2, nothing) == "2001:db8::1"
    assert tried == ["192.0.2.1", "2001:db8::1", "2001:db8::1"]


async def test_the_last_address_has_the_rest_of_the_time_and_its_error_is_reported(names: NameServer) -> None:
    async def connect(address: str) -> str:
        await asyncio.sleep(0.3 if address == "2001:db8::1" else 0.0)
        raise ConnectionRefusedError(address)

    with pytest.raises(ConnectionRefusedError, match="2001:db8::1"):
        await NameLookup().connect("name.example", connect, 0.2, nothing)


async def test_a_silent_address_is_avoided_even_if_the_callers_time_ended_first(names: NameServer) -> None:
    """A slow lookup left less time than the address had, so each mail began with the same dead machine."""
    for patience_s in DEADLINES_S:
        lookup, tried = NameLookup(), list[str]()
        connect = partial(silent_first, tried)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(patience_s):
                await lookup.connect("name.example", connect, 60.0, nothing)
        if tried:
            break
    assert await lookup.connect("name.example", connect, 60.0, nothing) == "2001:db8::1"
    assert tried == ["192.0.2.1", "2001:db8::1"]


async def test_many_addresses_left_each_too_little_time_for_a_slow_line(names: NameServer) -> None:
    """A handshake over a slow line takes longer than a small part of the time."""

    async def connect(address: str) -> str:
        await asyncio.sleep(0.2)
        return address

    assert await NameLookup().connect("name.example", connect, 0.01, nothing) == "192.0.2.1"


async def test_an_address_that_is_slower_than_its_part_still_wins(names: NameServer) -> None:
    """It was given up when its part was over; the next one, which had as little time, then failed in the same way."""
    tried, closed = list[str](), list[str]()

    async def connect(address: str) -> str:
        tried.append(address)
        if address == "2001:db8::1":
            await asyncio.Event().wait()
        await eventually(lambda: len(tried) == 2, "the second address to be tried")
        return address

    assert await NameLookup().connect("name.example", connect, 0.02, closed.append) == "192.0.2.1"
    assert tried == ["192.0.2.1", "2001:db8::1"] and closed == []


async def test_of_two_connections_the_second_is_closed(names: NameServer) -> None:
    """Both addresses accept in the same turn of the event loop."""
    tried, closed = list[str](), list[str]()
    both = asyncio.Event()

    async def connect(address: str) -> str:
        tried.append(address)
        if len(tried) == 2:
            both.set()
        await both.wait()
        return address

    made = await NameLookup().connect("name.example", connect, 0.02, closed.append)
    await eventually(lambda: bool(closed), "the other connection to be closed")
    assert sorted([made, *closed]) == ["192.0.2.1", "2001:db8::1"]


async def test_the_next_address_is_tried_within_a_short_time_limit(names: NameServer) -> None:
    """Each address had at least a second: with less than that in total, only the first was ever tried."""
    made = ""
    for _ in range(3):  # a busy machine may take that long once
        with suppress(TimeoutError):
            async with asyncio.timeout(0.95):
                made = await NameLookup().connect("name.example", partial(silent_first, []), 0.1, nothing)
        if made:
            break
    assert made == "2001:db8::1"


class Refused(ConnectionRefusedError):
    """One that can be watched."""


async def test_a_failed_connection_leaves_nothing_for_the_garbage_collection(names: NameServer) -> None:
    """Its error held the tasks, and one of them the error."""
    errors: list[weakref.ref[Refused]] = []

    async def connect(address: str) -> str:
        error = Refused(address)
        errors.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.disable()
    try:
        try:
            await NameLookup().connect("name.example", connect, 60, nothing)
        except Refused as exc:
            assert exc.args == ("2001:db8::1",)
        await eventually(lambda: all(error() is None for error in errors), "the errors to be gone", 30)
    finally:
        gc.enable()
    assert len(errors) == 2
