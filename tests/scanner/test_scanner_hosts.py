"""Several hosts, their status, and which one is tried first."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bridge.api.scanning import Decision, QueueStatus
from bridge.errors import Saturated, ScanMalformed, ScanRefused, ScanTimeout, ScanUnavailable
from bridge.scanner.circuit import State
from bridge.scanner.client import Scanner
from bridge.testing import eventually
from tests.scanner.fault_server import MAIL, Call, answer, closed_port, faults, result, scanner_of, submit

each_dialect = pytest.mark.usefixtures("each_dialect")

LARGE = MAIL + b"x" * 40 * 1024 * 1024


def colour(word: str) -> bytes:
    return answer(200, b'{"messageQueueStatus": "%b"}' % word.encode())


@each_dialect
async def test_the_least_busy_host_is_asked_first() -> None:
    """While one is busy with a mail, the next mail goes to the other."""
    async with faults(Call.until_gone) as a, faults(Call.until_gone) as b, scanner_of(a, b) as scanner:
        tasks = []
        for count in (1, 2, 3, 4):
            tasks.append(asyncio.create_task(submit(scanner)))
            await eventually(lambda: len(a.requests) + len(b.requests) >= count, f"{count} requests")  # noqa: B023
        assert len(a.requests) == len(b.requests) == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@each_dialect
async def test_an_unreachable_host_is_passed_over_and_then_shunned() -> None:
    """The mail goes to the other host; for a while the next mails do not try the first."""
    async with faults() as up, scanner_of(f"http://127.0.0.1:{closed_port()}", up) as scanner:
        scanner.hosts[1].in_flight = 1  # the dead one would be first
        for _ in range(3):
            assert (await submit(scanner)).decision is Decision.DELIVER
        assert scanner.hosts[0].circuit.state is State.OPEN
        assert scanner._by_preference() == [scanner.hosts[1]]


@each_dialect
async def test_all_hosts_unreachable_is_unavailable() -> None:
    """Each was tried once."""
    urls = [f"http://127.0.0.1:{closed_port()}" for _ in range(3)]
    async with scanner_of(*urls) as scanner:
        with pytest.raises(ScanUnavailable):
            await submit(scanner)
        assert all(host.circuit.state is State.OPEN for host in scanner.hosts)


@each_dialect
async def test_a_mail_sent_whole_is_not_given_to_another_host() -> None:
    """The first host read it completely and closed: it may have been scanned, so no other host gets it."""

    async def lose(call: Call) -> None:
        call.reset()

    async with faults(lose) as a, faults() as b, scanner_of(a, b) as scanner:
        scanner.hosts[1].in_flight = 1
        with pytest.raises(ScanUnavailable):
            await submit(scanner)
        assert b.connections == 0


@each_dialect
async def test_a_mail_cut_in_the_middle_is_given_to_another_host() -> None:
    """Half a mail cannot have been scanned."""

    async def lose(call: Call) -> bool:
        await call.reader.read(1_000_000)
        call.reset()
        return True

    async with faults(before=lose) as a, faults() as b, scanner_of(a, b) as scanner:
        scanner.hosts[1].in_flight = 1
        assert (await submit(scanner, LARGE, memory_per_mail=0)).decision is Decision.DELIVER
        assert len(b.requests) == 1 and len(b.requests[0].body) >= len(LARGE)


@each_dialect
async def test_a_saturated_host_is_asked_last() -> None:
    """One of two has no room: the other gets the mail, and the scanner as a whole is not saturated."""
    full = answer(429, b"", "Retry-After: 30")
    async with faults(full) as a, faults() as b, scanner_of(a, b) as scanner:
        scanner.hosts[1].in_flight = 1
        with pytest.raises(Saturated):
            await submit(scanner)
        assert not scanner.is_saturated()
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert len(a.requests) == len(b.requests) == 1


@pytest.mark.parametrize("status", list(QueueStatus))
async def test_status_is_read(status: QueueStatus) -> None:
    """GREEN, YELLOW and RED, by POST with the token."""
    async with faults(colour(status)) as server, scanner_of(server) as scanner:
        assert await scanner.status(scanner.hosts[0], 5) is status
        assert server.requests[0].line == "POST /v1/admin/status HTTP/1.1"
        assert server.requests[0].fields["authorization"].startswith("Bearer ")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (colour("BLUE"), ScanMalformed),
        (colour("green"), ScanMalformed),
        (answer(200, b"[]"), ScanMalformed),
        (answer(200, b"[" * 200_000), ScanMalformed),
        (answer(200, b"<html>"), ScanMalformed),
        (answer(401, b""), ScanRefused),
        (answer(403, b""), ScanRefused),
        (answer(500, b""), ScanUnavailable),
        (answer(307, b""), ScanUnavailable),
        (Call.until_gone, ScanTimeout),
    ],
)
async def test_a_status_that_is_none_is_a_named_error(script: bytes, error: type[Exception]) -> None:
    """Whatever the answer, polling can continue."""
    async with faults(script) as server, scanner_of(server) as scanner:
        with pytest.raises(error):
            await scanner.status(scanner.hosts[0], 0.2)


async def test_status_of_an_unreachable_host_is_unavailable() -> None:
    """Nothing listens."""
    async with scanner_of(f"http://127.0.0.1:{closed_port()}") as scanner:
        with pytest.raises(ScanUnavailable):
            await scanner.status(scanner.hosts[0], 5)


async def until(scanner: Scanner, *statuses: QueueStatus | None) -> None:
    """Wait until `Scanner.watch` has seen these."""
    await eventually(lambda: tuple(host.status for host in scanner.hosts) == statuses, f"statuses {statuses}")


async def test_the_watch_follows_the_status_through_good_and_bad(caplog: pytest.LogCaptureFixture) -> None:
    """RED stops mail; an unreadable answer means unknown, and mail is accepted again."""
    caplog.set_level(logging.INFO, "bridge.scanner")
    async with faults(colour("GREEN")) as server, scanner_of(server, status_interval_s=0.02) as scanner:
        watch = asyncio.create_task(scanner.watch())
        await until(scanner, QueueStatus.GREEN)
        assert not scanner.is_saturated() and not scanner.is_yellow()
        server.script = colour("YELLOW")
        await until(scanner, QueueStatus.YELLOW)
        assert not scanner.is_saturated() and scanner.is_yellow()
        server.script = colour("RED")
        await until(scanner, QueueStatus.RED)
        assert scanner.is_saturated()
        server.script = answer(200, b"[" * 200_000)
        await until(scanner, None)
        assert not scanner.is_saturated()
        server.script = answer(401, b"")
        await until(scanner, None)
        server.script = colour("GREEN")
        await until(scanner, QueueStatus.GREEN)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert "is RED" in caplog.text and "cannot be read" in caplog.text


async def test_one_red_host_of_two_is_not_saturation() -> None:
    """The other host has room."""
    async with (
        faults(colour("RED")) as a,
        faults(colour("GREEN")) as b,
        scanner_of(a, b, status_interval_s=0.02) as scanner,
    ):
        watch = asyncio.create_task(scanner.watch())
        await until(scanner, QueueStatus.RED, QueueStatus.GREEN)
        assert not scanner.is_saturated()
        a.script = b.script = answer(200, result())
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert any("submitEmail" in request.line for request in b.requests)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_a_lasting_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A scanner that stays down costs one log line, not one every five seconds."""
    caplog.set_level(logging.INFO, "bridge.scanner")
    async with faults(answer(401, b"")) as server, scanner_of(server, status_interval_s=0.01) as scanner:
        watch = asyncio.create_task(scanner.watch())
        await eventually(lambda: len(server.requests) >= 5, "five status requests")
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert len([record for record in caplog.records if "token was refused" in record.getMessage()]) == 1
