"""Connections to the service: lost, refused, reused, cancelled; and each mail gets its own answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress

import pytest

from bridge.api.scanning import AnalysisRequest, BorderMtaData, Decision
from bridge.errors import MessageTooLarge, ScanFailed, ScanTimeout, ScanUnavailable
from bridge.runtime.host_addresses import MAX_CONNECTION_AGE_S
from bridge.scanner import host
from bridge.scanner.exchange import Exchange
from bridge.testing import eventually
from tests.scanner.fault_server import (
    MAIL,
    REQUEST,
    Call,
    FaultServer,
    Request,
    answer,
    closed_port,
    ends_late_by_s,
    faults,
    result,
    scanner_of,
    submit,
    submit_to,
)
from tests.scanner.spoken import current

pytestmark = pytest.mark.usefixtures("each_dialect")

LARGE = MAIL + b"0123456789abcdef" * 64 * 1024 * 40  # 40 MiB


def number_of(request: Request) -> int:
    """The number of the mail, from its sender."""
    return int(request.sender.partition("@")[0])


def numbered(number: int) -> AnalysisRequest:
    return AnalysisRequest(BorderMtaData(f"{number}@example.org", ("b@example.org",)))


async def test_a_refused_connection_is_no_decision() -> None:
    """Nothing listens: reported immediately, with the address for the log."""
    async with scanner_of(f"http://127.0.0.1:{closed_port()}") as scanner:
        with pytest.raises(ScanUnavailable, match=r"127\.0\.0\.1"):
            await submit(scanner)


@pytest.mark.parametrize("when", ["before the answer", "within it"])
async def test_a_reset_connection_is_no_decision(when: str) -> None:
    """RST is like any other loss."""

    async def reset(call: Call) -> None:
        if when == "within it":
            call.say(answer()[:50])
            await call.writer.drain()
        call.reset()

    with pytest.raises(ScanUnavailable):
        await submit_to(reset)


async def test_a_black_hole_ends_at_the_deadline() -> None:
    """It accepts, reads, and never answers."""
    async with faults(Call.until_gone) as server, scanner_of(server) as scanner:
        assert -0.05 < await ends_late_by_s(scanner, 0.2) < 0.5
        await asyncio.wait_for(server.gone.wait(), 30)  # and the connection is not kept


async def test_a_host_that_drops_packets_ends_at_the_connect_timeout() -> None:
    """A full backlog on loopback is as silent as a firewall."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        place = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(place)
        async with scanner_of(f"http://127.0.0.1:{place[1]}", connect_timeout_s=0.2) as scanner:
            with pytest.raises(ScanUnavailable, match="in time"):
                await submit(scanner)
        for sock in waiting:
            sock.close()


async def test_every_mail_ends_at_its_own_deadline() -> None:
    """Connections are checked once a second, yet each mail ends at its own deadline."""
    async with faults(Call.until_gone) as server, scanner_of(server) as scanner:
        late = await asyncio.gather(*(ends_late_by_s(scanner, deadline_s) for deadline_s in (0.1, 0.9, 1.05, 1.4, 2.1)))
        assert all(-0.05 < by < 0.5 for by in late), late


async def test_a_server_that_never_reads_ends_at_the_deadline() -> None:
    """The upload stalls; the deadline still applies."""

    async def never_read(call: Call) -> bool:
        await call.server.gone.wait()
        return True

    async with faults(before=never_read) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanTimeout):
            await submit(scanner, LARGE, deadline_s=0.3, memory_per_mail=0)
        assert scanner.in_flight == 0
        server.gone.set()


@pytest.mark.parametrize("ending", ["drains", "closes", "resets later"])
async def test_an_early_413_is_seen_while_still_uploading(ending: str) -> None:
    """The service answers "too large" during 40 MiB: the sender must learn that, not retry for days."""

    async def refuse(call: Call) -> bool:
        call.say(answer(413, b'{"error": "payload_too_large"}', "Connection: close"))
        await call.writer.drain()
        if ending == "drains":
            await call.until_gone()
        elif ending == "closes":
            call.writer.close()  # with our bytes unread: the kernel sends RST behind the answer
        else:
            await call.reader.read(100_000)
            call.writer.close()
        return True

    for _ in range(5):
        async with faults(before=refuse) as server, scanner_of(server) as scanner:
            with pytest.raises(MessageTooLarge):
                await submit(scanner, LARGE, memory_per_mail=0)


async def test_a_decision_on_half_a_mail_is_none() -> None:
    """Status 200 while we are still sending: the rest cannot have been scanned."""

    async def rash(call: Call) -> bool:
        await call.reader.read(100_000)
        call.say(answer(200, result("deliver")))
        await call.until_gone()
        return True

    async with faults(before=rash) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanFailed, match="before the whole mail had been sent"):
            await submit(scanner, LARGE, memory_per_mail=0)


async def test_a_connection_is_used_again() -> None:
    """Mail after mail goes over one connection, and each gets its own answer."""

    async def tell(call: Call) -> None:
        assert call.request is not None
        call.say(answer(200, result(verdict=str(number_of(call.request)))))

    async with faults(tell) as server, scanner_of(server) as scanner:
        for number in range(5):
            found = await submit(scanner, request=numbered(number))
            assert current().word(found) == str(number)
        assert server.connections == 1


@pytest.mark.parametrize("line", ["Connection: close", "connection: Close"])
async def test_a_connection_is_not_used_again_when_the_server_says_so(line: str) -> None:
    """`Connection: close` is respected."""
    async with faults(answer(200, None, line)) as server, scanner_of(server) as scanner:
        await submit(scanner)
        await submit(scanner)
        assert server.connections == 2


async def test_a_connection_closed_while_idle_is_not_used() -> None:
    """A server that closes idle connections costs no mail and no second submission."""

    async def once(call: Call) -> None:
        call.say(answer())
        call.writer.close()

    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with faults(once) as server, scanner_of(server) as scanner:
        await submit(scanner)
        await eventually(lambda: not scanner.hosts[0]._idle[0].reusable, "the FIN")
        await submit(scanner)
        assert [request.connection for request in server.requests] == [1, 2]
    assert raised == []


def closing_on(*numbers: int) -> FaultServer:
    """A server that closes without an answer at the n-th request."""

    async def script(call: Call) -> None:
        if len(call.server.requests) in numbers:
            call.writer.close()
        else:
            call.say(answer())

    return FaultServer(script)


async def test_the_idle_close_race_costs_one_resubmission() -> None:
    """The server closes just when the next mail is sent: it is sent again, on a new connection."""
    async with faults(closing_on(2).script) as server, scanner_of(server) as scanner:
        await submit(scanner)
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert [request.connection for request in server.requests] == [1, 1, 2]


async def test_a_mail_is_resubmitted_only_once() -> None:
    """If the new connection is lost as well, the cause is the mail or the scanner; there is no third attempt."""
    async with faults(closing_on(4, 5).script) as server, scanner_of(server) as scanner:
        await asyncio.gather(*(submit(scanner) for _ in range(3)))  # three idle connections
        with pytest.raises(ScanUnavailable):
            await submit(scanner)
        assert len(server.requests) == 5


async def test_a_mail_on_a_new_connection_is_not_resubmitted() -> None:
    """It was sent completely, so it may have been scanned."""
    async with faults(closing_on(1).script) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanUnavailable):
            await submit(scanner)
        assert len(server.requests) == 1


async def test_an_old_idle_connection_is_not_trusted() -> None:
    """After four seconds the server may be about to close it."""
    async with faults() as server, scanner_of(server) as scanner:
        await submit(scanner)
        scanner.hosts[0]._idle[0].idle_since -= host._MAX_IDLE_S
        await submit(scanner)
        assert server.connections == 2


async def test_a_busy_connection_kept_mail_at_the_old_address_of_a_name_for_ever() -> None:
    """With a mail now and then it was never idle for long, so the name was not looked up again."""
    async with faults() as server, scanner_of(server) as scanner:
        await submit(scanner)
        scanner.hosts[0]._idle[0].opened_at -= MAX_CONNECTION_AGE_S
        await submit(scanner)
        assert server.connections == 1
        await submit(scanner)
        assert server.connections == 2


async def test_a_late_answer_never_reaches_another_mail() -> None:
    """The answer to an abandoned mail is dropped."""
    late = asyncio.Event()

    async def slow_then_fast(call: Call) -> None:
        if len(call.server.requests) == 1:
            await late.wait()
            call.say(answer(200, result("drop")))
        else:
            call.say(answer(200, result("deliver")))

    async with faults(slow_then_fast) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanTimeout):
            await submit(scanner, deadline_s=0.1)
        late.set()
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert server.connections == 2 + len(server.probes)


@pytest.mark.parametrize("extra", [answer(200, result("drop")), answer(200, result("drop"))[:30], b"junk"])
async def test_words_nobody_asked_for_end_the_connection(extra: bytes) -> None:
    """Two answers to one request: the next mail must not get the second one."""

    async def twice(call: Call) -> None:
        call.say(answer(200, result("deliver")) + (extra if len(call.server.requests) == 1 else b""))

    async with faults(twice) as server, scanner_of(server) as scanner:
        with suppress(ScanUnavailable):  # "junk" may be read as a broken answer: 451, and all is well
            assert (await submit(scanner)).decision is Decision.DELIVER
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert server.connections == 2


async def test_an_unasked_answer_on_an_idle_connection_closes_it() -> None:
    """It arrives between two mails: the connection is closed."""
    more = asyncio.Event()

    async def later(call: Call) -> None:
        call.say(answer(200, result("deliver")))
        if len(call.server.requests) == 1:
            await more.wait()
            call.say(answer(200, result("drop")))
            await call.until_gone()

    async with faults(later) as server, scanner_of(server) as scanner:
        await submit(scanner)
        more.set()
        await asyncio.wait_for(server.gone.wait(), 30)
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert server.connections == 2


async def test_many_mails_at_once_each_get_their_own_answer() -> None:
    """Fifty at the same time, answered in any order, with three cancelled."""

    async def tell(call: Call) -> None:
        assert call.request is not None
        number = number_of(call.request)
        await asyncio.sleep((number * 7 % 10) / 1000)
        call.say(answer(200, result(verdict=str(number))))

    async with faults(tell) as server, scanner_of(server) as scanner:
        for turn in range(3):
            tasks = [asyncio.create_task(submit(scanner, request=numbered(turn * 50 + number))) for number in range(50)]
            await asyncio.sleep(0.003)
            for task in tasks[::20]:
                task.cancel()
            for number, found in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                if not isinstance(found, BaseException):
                    assert current().word(found) == str(turn * 50 + number)
                else:
                    assert isinstance(found, asyncio.CancelledError)
        assert scanner.in_flight == 0
        assert server.connections < 100


async def test_cancellation_frees_the_connection() -> None:
    """The client went away: the scan is given up, and nothing remains of it."""
    async with faults(Call.until_gone) as server, scanner_of(server) as scanner:
        task = asyncio.create_task(submit(scanner))
        await asyncio.wait_for(server.arrived.wait(), 30)
        assert scanner.in_flight == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 30)
        assert scanner.in_flight == 0 and not scanner.hosts[0]._idle


async def test_a_cancelled_upload_is_not_finished() -> None:
    """The client leaves after half of 40 MiB: the other half is not sent."""
    seen = 0

    async def read_some(call: Call) -> bool:
        nonlocal seen
        seen += len(await call.reader.read(1_000_000))
        call.server.arrived.set()
        await call.server.gone.wait()
        with suppress(ConnectionError):
            while data := await call.reader.read(1_000_000):
                seen += len(data)
        return True

    async with faults(before=read_some) as server, scanner_of(server) as scanner:
        task = asyncio.create_task(submit(scanner, LARGE, request=REQUEST, memory_per_mail=0))
        await asyncio.wait_for(server.arrived.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.gone.set()
    assert 0 < seen < len(LARGE) // 2


async def test_a_mail_that_a_host_does_not_take_costs_no_connection() -> None:
    """The dialect knows the host's limit, and refuses the mail; the idle connection stays for the next one."""

    class TooLarge:
        tenant_uid = None

        def to(self, host: host.Host, request_id: bytes) -> Iterable[bytes]:
            raise MessageTooLarge("more than the host accepts")

    async with faults() as server, scanner_of(server) as scanner:
        await submit(scanner)
        exchange = Exchange(connect_timeout_s=5.0)
        for _ in range(3):
            with pytest.raises(MessageTooLarge):
                await exchange.ask(scanner.hosts[0], TooLarge(), asyncio.get_running_loop().time() + 10)
        await submit(scanner)
        assert server.connections == 1
