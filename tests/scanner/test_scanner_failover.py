"""Hosts that fail, recover, are slow or full: which host gets the mail."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from bridge.api.scanning import Decision, QueueStatus
from bridge.errors import Saturated, ScanError, ScanMalformed, ScanRefused, ScanTimeout, ScanUnavailable
from bridge.scanner.circuit import State
from bridge.scanner.client import LateScan, ScanGoesOn, Scanner
from bridge.testing import eventually
from tests.scanner.fault_server import (
    Call,
    FaultServer,
    answer,
    closed_port,
    ends_late_by_s,
    faults,
    green,
    result,
    scanner_of,
    submit,
)

pytestmark = pytest.mark.usefixtures("each_dialect")


async def reset(call: Call) -> None:
    call.reset()


def prefer(scanner: Scanner, number: int) -> None:
    """Make the other hosts look busy."""
    for index, host in enumerate(scanner.hosts):
        host.in_flight = 0 if index == number else 5


@pytest.mark.parametrize("script", [answer(500, b""), answer(200, b"<html>"), reset], ids=["500", "nonsense", "reset"])
async def test_a_host_that_fails_three_times_gets_no_mail(script: bytes) -> None:
    """The other hosts serve, and no mail waits for it."""
    async with faults(script) as bad, faults() as good, scanner_of(bad, good) as scanner:
        for _ in range(3):
            prefer(scanner, 0)
            with pytest.raises((ScanUnavailable, ScanMalformed)):
                await submit(scanner)
        assert scanner.hosts[0].circuit.state is State.OPEN
        for _ in range(5):
            assert (await submit(scanner)).decision is Decision.DELIVER
        assert len(bad.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 413, 429])
async def test_refusals_do_not_open_the_circuit(status: int) -> None:
    """The host is alive: the cause is the mail, the token, or the load."""
    async with faults(answer(status, b"")) as server, scanner_of(server) as scanner:
        for _ in range(5):
            with pytest.raises((ScanError, Saturated)):
                await submit(scanner)
        assert scanner.hosts[0].circuit.state is State.CLOSED and len(server.requests) == 5


async def test_when_all_have_failed_mail_fails_fast() -> None:
    """One mail is the probe; the others do not wait for it."""
    async with faults(answer(500, b"")) as server, scanner_of(server) as scanner:
        for _ in range(3):
            with pytest.raises(ScanUnavailable):
                await submit(scanner)
        for _ in range(5):
            with pytest.raises(ScanUnavailable, match="every scanner host"):
                await submit(scanner)
        assert len(server.requests) == 3
        server.script = Call.until_gone
        scanner.hosts[0].circuit._until = 0.0
        probe = asyncio.create_task(submit(scanner))
        await eventually(lambda: len(server.requests) >= 4, "the probe")
        with pytest.raises(ScanUnavailable, match="every scanner host"):
            await submit(scanner)
        probe.cancel()
        with suppress(asyncio.CancelledError):
            await probe
        server.script = answer()
        assert (await submit(scanner)).decision is Decision.DELIVER  # the cancelled probe told nothing
        assert scanner.hosts[0].circuit.state is State.CLOSED


async def test_a_host_that_is_back_gets_mail_within_two_status_intervals() -> None:
    """It answers status requests again: the next mail tries it, and it is used as before."""
    port = closed_port()
    async with (
        faults(by_path) as other,
        scanner_of(f"http://127.0.0.1:{port}", other, status_interval_s=0.5) as scanner,
    ):
        watch = asyncio.create_task(scanner.watch())
        await eventually(lambda: scanner.hosts[0].circuit.state is State.OPEN, "the status request to open the circuit")
        back = FaultServer(by_path)
        listening = await asyncio.start_server(back.accept, "127.0.0.1", port)
        while not any(request.is_mail for request in back.requests):
            assert (await submit(scanner)).decision is Decision.DELIVER  # no mail is lost on the way
            assert sum(request.is_status for request in back.requests) <= 2
            await asyncio.sleep(0.005)
        assert scanner.hosts[0].circuit.state is State.CLOSED
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        listening.close()
        await back.stop()


async def by_path(call: Call) -> None:
    """Status and decisions from one server."""
    assert call.request is not None
    call.say(green() if call.request.is_status else answer())


async def test_a_mail_sent_whole_may_be_given_to_another_host_where_allowed() -> None:
    """`resubmit: true`: a failing host costs no mail."""
    for script in (answer(500, b""), answer(200, b"[]"), reset, answer(429, b"", "Retry-After: 1")):
        async with faults(script) as bad, faults() as good, scanner_of(bad, good, resubmit=True) as scanner:
            prefer(scanner, 0)
            assert (await submit(scanner)).decision is Decision.DELIVER
            assert len(bad.requests) == len(good.requests) == 1


async def test_a_refusal_is_not_tried_elsewhere() -> None:
    """A wrong token is wrong everywhere."""
    async with faults(answer(401, b"")) as a, faults() as b, scanner_of(a, b, resubmit=True) as scanner:
        prefer(scanner, 0)
        with pytest.raises(ScanRefused):
            await submit(scanner)
        assert not b.requests


async def test_all_tries_share_one_deadline() -> None:
    """The first host reads everything and fails late: the second has only the remaining time."""

    async def slow_failure(call: Call) -> None:
        await call.pause(0.5)
        call.say(answer(500, b""))

    async with faults(slow_failure) as a, faults(Call.until_gone) as b, scanner_of(a, b, resubmit=True) as scanner:
        prefer(scanner, 0)
        assert -0.05 < await ends_late_by_s(scanner, 1.5) < 0.3
        assert len(b.requests) == 1


async def test_nothing_is_sent_after_the_deadline() -> None:
    """The throttle has used up the time: the mail is not sent."""
    async with faults() as server, scanner_of(server) as scanner:
        with pytest.raises(ScanTimeout):
            await submit(scanner, deadline_s=-1.0)
        assert not server.requests and scanner.in_flight == 0


@pytest.mark.parametrize("at_once", [1, 12])
async def test_a_host_of_a_hundredfold_latency_gets_little_mail(at_once: int) -> None:
    """One of three answers in 100 ms instead of 1 ms: it gets far less than a third, at any load.

    On a busy machine the quick ones are not quick. So with several clients, the slow one also waits for 100 mails
    that the quick ones answer.
    """
    left = 240

    async def quick(call: Call) -> None:
        await asyncio.sleep(0.001)
        call.say(answer())

    async def slow(call: Call) -> None:
        goal = len(b.requests) + len(c.requests) + (100 if at_once > 1 else 0)
        await asyncio.sleep(0.1)
        await eventually(lambda: left <= 0 or len(b.requests) + len(c.requests) >= goal, "mail at the quick hosts")
        call.say(answer())

    async with faults(slow) as a, faults(quick) as b, faults(quick) as c, scanner_of(a, b, c) as scanner:

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await submit(scanner)

        await asyncio.gather(*(client() for _ in range(at_once)))
        total = len(a.requests) + len(b.requests) + len(c.requests)
        assert total == 240 and len(a.requests) < total / 10
        assert at_once == 1 or min(len(b.requests), len(c.requests)) > total / 5  # the two quick ones share


async def test_a_host_whose_status_is_silent_is_asked_last_but_not_shut_out() -> None:
    """It may be frozen; if there is no other host, it is tried."""
    async with faults(Call.until_gone, introduces=False) as a, faults() as b, scanner_of(a, b) as scanner:
        with pytest.raises(ScanTimeout):
            await scanner.status(scanner.hosts[0], 0.05)
        prefer(scanner, 0)
        assert [host.url for host in scanner._by_preference()] == [b.url, a.url]
        assert scanner.hosts[0].circuit.state is State.CLOSED


async def test_saturated_and_failed_hosts_together_are_saturation() -> None:
    """One is full, one has failed: no host can serve, and the full one will recover."""
    async with faults() as a, scanner_of(a, f"http://127.0.0.1:{closed_port()}") as scanner:
        with suppress(ScanUnavailable):
            await scanner.status(scanner.hosts[1], 1.0)
        assert not scanner.is_saturated()
        scanner.hosts[0].status = QueueStatus.RED
        assert scanner.is_saturated()


async def slow_until_told(call: Call) -> None:
    await call.server.gone.wait()
    call.say(answer(200, result("bounce")))


async def test_a_late_answer_can_be_collected() -> None:
    """The scan continues after the deadline; its connection is reused after the answer."""
    async with faults(slow_until_told) as server, scanner_of(server) as scanner:
        message_scan = await late(scanner)
        assert scanner.in_flight == 1
        server.gone.set()
        assert (await message_scan.result()).decision is Decision.BOUNCE
        assert scanner.in_flight == 0
        server.script = answer()
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert server.connections == 1 + len(server.probes)


async def test_an_abandoned_scan_ends_its_connection() -> None:
    """Its answer never reaches another mail."""
    async with faults(slow_until_told) as server, scanner_of(server) as scanner:
        scan = await late(scanner)
        scan.abandon()
        scan.abandon()
        assert scanner.in_flight == 0
        server.gone.set()
        server.script = answer()
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert server.connections == 2 + len(server.probes)


async def test_a_cancelled_wait_for_a_late_answer_ends_its_connection() -> None:
    """The time limit of the scan has passed."""
    async with faults(Call.until_gone) as server, scanner_of(server) as scanner:
        scan = await late(scanner)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scan.result(), 0.05)
        await asyncio.wait_for(server.gone.wait(), 30)
        assert scanner.in_flight == 0


@pytest.mark.parametrize(
    ("ending", "error"),
    [(answer(500, b""), ScanUnavailable), (answer(200, b"[]"), ScanMalformed), (b"", ScanUnavailable)],
)
async def test_a_late_failure_is_a_named_error(ending: bytes, error: type[Exception]) -> None:
    """The same error as for an answer in time."""

    async def script(call: Call) -> None:
        await call.server.gone.wait()
        if ending:
            call.say(ending)
        else:
            call.reset()

    async with faults(script) as server, scanner_of(server) as scanner:
        scan = await late(scanner)
        server.gone.set()
        with pytest.raises(error):
            await scan.result()
        assert scanner.in_flight == 0


class Freezing:
    """A host that can be frozen: it accepts connections and requests, and never answers."""

    def __init__(self) -> None:
        self.is_frozen = False

    async def __call__(self, call: Call) -> None:
        if call.request.is_mail or self.is_frozen:
            await call.until_gone()
        else:
            call.say(green())


@pytest.mark.parametrize("others", [0, 1])
async def test_late_scans_of_a_frozen_host_are_given_up_if_there_is_another_host(others: int) -> None:
    """Not if it is the only host: the next mail would wait for it in vain."""
    frozen = Freezing()
    async with (
        faults(frozen) as a,
        faults(green()) as b,
        scanner_of(*[a, b][: 1 + others], status_interval_s=0.1) as scanner,
    ):
        host = scanner.hosts[0]
        watch = asyncio.create_task(scanner.watch())
        try:
            async with asyncio.timeout(60):
                await eventually(lambda: all(host.status for host in scanner.hosts), "the status of all hosts")
                if others:
                    prefer(scanner, 0)
                scan = await late(scanner)
                ended = asyncio.create_task(scan.result())
                frozen.is_frozen = True
                await eventually(lambda: host.unanswered >= 5 or ended.done(), "the host to be noticed as frozen")
                assert ended.done() == bool(others)
                if others:
                    with pytest.raises(ScanUnavailable):
                        await ended
                    assert not host.awaited
                else:
                    scan.abandon()
                    await asyncio.gather(ended, return_exceptions=True)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


async def test_a_host_that_never_answered_a_status_request_is_not_frozen() -> None:
    """Its scans may take as long as they need."""
    async with faults(Call.until_gone, introduces=False) as a, faults(green()) as b, scanner_of(a, b) as scanner:
        await scanner.status(scanner.hosts[1], 1.0)
        for _ in range(4):
            with pytest.raises(ScanTimeout):
                await scanner.status(scanner.hosts[0], 0.01)
        assert scanner.hosts[0].silent and not scanner.hosts[0].is_lost


async def test_half_a_request_leaves_nothing_to_wait_for() -> None:
    """The deadline passed during the upload: the connection is closed."""

    async def never_read(call: Call) -> bool:
        await call.server.gone.wait()
        return True

    async with faults(before=never_read) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanTimeout) as caught:
            await submit(scanner, b"x" * 40_000_000, deadline_s=0.2, keep_late=True)
        assert not isinstance(caught.value, ScanGoesOn) and scanner.in_flight == 0
        server.gone.set()


async def late(scanner: Scanner) -> LateScan:
    """A scan whose deadline has passed. Some dialects introduce themselves before it."""
    with pytest.raises(ScanGoesOn) as caught:
        await submit(scanner, deadline_s=0.3, keep_late=True)
    return caught.value.scan
