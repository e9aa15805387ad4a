"""A mail on which the scanner fails: it harms no other mail, and is not delivered because of that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bridge.api.scanning import Decision
from bridge.errors import NoRoom, Saturated, ScanFailed, ScanRefused, ScanTimeout, ScanUnavailable
from bridge.scanner.circuit import Event, State
from bridge.testing import eventually
from tests.scanner.fault_server import MAIL, Call, answer, closed_port, faults, scanner_of, submit
from tests.scanner.spoken import current

pytestmark = pytest.mark.usefixtures("each_dialect")

BAD = b"Subject: bad\r\n\r\nbad\r\n"
LARGE = BAD + b"x" * 40 * 1024 * 1024
# Before the deadline of a slow mail, the host is sent a test mail. On a busy machine it may not be answered in time;
# then the test is made again with the longer one.
SLOW_MAIL_DEADLINES_S = (0.5, 20.0)


def fails_on_bad(ending: bytes | Callable[[Call], Awaitable[None]]) -> Callable[[Call], Awaitable[None]]:
    """A scanner that decides on every mail but one."""

    async def script(call: Call) -> None:
        assert call.request is not None
        if b"Subject: bad" not in call.request.content:
            call.say(answer())
        elif isinstance(ending, bytes):
            call.say(ending)
        else:
            await ending(call)

    return script


async def reset(call: Call) -> None:
    call.reset()


ENDINGS = {
    "500": answer(500, b""),
    "502": answer(502, b""),
    "503": answer(503, b""),
    "504": answer(504, b""),
    "507": answer(507, b""),
    "400": answer(400, b""),
    "401": answer(401, b""),  # by a proxy that does not like the content
    "403": answer(403, b""),
    "422": answer(422, b""),
    "nonsense": answer(200, b"<html>"),
    "redirect": answer(307, b""),
    "not HTTP": b"220 smtp.example ESMTP\r\n",
    "too large": answer(200, b" " * 1_100_000),
    "reset": reset,
    "cut": answer()[:70],
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_three_mails_of_one_sender_opened_the_circuit_for_everybody(name: str) -> None:
    """They fail as often as they are sent, and the host still gets all other mail."""
    ending = ENDINGS[name]
    if name == "cut":

        async def cut(call: Call) -> None:
            call.say(answer()[:70])
            call.writer.close()

        ending = cut
    async with faults(fails_on_bad(ending)) as server, scanner_of(server) as scanner:
        for number in range(6):
            with pytest.raises(ScanFailed):
                await submit(scanner, BAD + b"%d" % number)
            assert scanner.hosts[0].circuit.state is State.CLOSED
        assert (await submit(scanner)).decision is Decision.DELIVER


@pytest.mark.parametrize("name", ["500", "nonsense", "400", "401", "403"])
async def test_a_host_that_fails_on_every_mail_is_at_fault_itself(name: str) -> None:
    """A real outage keeps its own case."""
    async with faults(ENDINGS[name]) as server, scanner_of(server) as scanner:
        with pytest.raises((ScanUnavailable, ScanRefused, Exception)) as caught:
            await submit(scanner)
        assert not isinstance(caught.value, ScanFailed)


async def test_a_mail_that_ends_the_scanner_is_a_case_of_its_own() -> None:
    """The host is down afterwards, and was not before: the mail may be the reason."""
    dead = False

    async def die(call: Call) -> None:
        nonlocal dead
        dead = dead or b"Subject: bad" in call.request.content
        if dead:
            call.reset()
        else:
            call.say(answer())

    async with faults(die) as server, scanner_of(server, status_interval_s=0.05) as scanner:
        await submit(scanner)
        with pytest.raises(ScanFailed):
            await submit(scanner, BAD)
        with pytest.raises(ScanUnavailable) as caught:  # now it is known to be down
            await submit(scanner)
        assert not isinstance(caught.value, ScanFailed)
        watch = asyncio.create_task(scanner.watch())
        dead = False
        await eventually(lambda: not scanner.hosts[0].is_broken, "the host to be known as working again")
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        with pytest.raises(ScanFailed):  # the same mail again
            await submit(scanner, BAD)


async def test_two_mails_that_end_the_scanner_together_are_both_suspects() -> None:
    """The second one fails when the host is known to be down, but it was sent before that."""
    first_down = asyncio.Event()

    async def die(call: Call) -> None:
        if b"Subject: bad 2" in call.request.content:
            await first_down.wait()
        call.reset()

    async with faults(die) as server, scanner_of(server) as scanner:
        second = asyncio.create_task(submit(scanner, b"Subject: bad 2\r\n\r\nx\r\n"))
        await eventually(lambda: len(server.requests) == 1, "the second mail")
        with pytest.raises(ScanFailed):
            await submit(scanner, BAD)
        assert scanner.hosts[0].is_broken
        first_down.set()
        with pytest.raises(ScanFailed):
            await second


async def test_a_mail_that_ends_the_scanner_over_an_idle_connection_is_a_case_of_its_own() -> None:
    """The second attempt finds nobody listening: that is not an unreachable scanner."""
    server_ends = asyncio.Event()

    async def end(call: Call) -> None:
        if b"Subject: bad" in call.request.content:
            listening.close()
            server_ends.set()
            call.reset()
        else:
            call.say(answer())

    from tests.scanner.fault_server import FaultServer

    server = FaultServer(end)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with scanner_of(server) as scanner:
        await submit(scanner)
        with pytest.raises(ScanFailed):
            await submit(scanner, BAD)
    await server.stop()


@pytest.mark.parametrize("resubmit", [False, True])
@pytest.mark.parametrize("name", ["500", "502", "nonsense", "reset"])
async def test_a_mail_that_fails_is_not_sent_to_every_host_in_turn(resubmit: bool, name: str) -> None:
    """One host, or two where the operator allows a second attempt; then it stops."""
    script = fails_on_bad(ENDINGS[name])
    async with (
        faults(script) as a,
        faults(script) as b,
        faults(script) as c,
        faults(script) as d,
        scanner_of(a, b, c, d, resubmit=resubmit) as scanner,
    ):
        with pytest.raises(ScanFailed):
            await submit(scanner, BAD)
        assert sum(len(server.requests) for server in (a, b, c, d)) == 1 + resubmit
        assert all(host.circuit.state is State.CLOSED for host in scanner.hosts)


async def test_a_mail_that_resets_its_upload_is_not_sent_to_every_host_in_turn() -> None:
    """Before, each reset counted as an unreachable host and closed it for everybody."""
    seen = 0

    async def lose(call: Call) -> bool:
        nonlocal seen
        if int(call.request.fields.get("content-length", "0")) < 1_000_000:
            return False
        seen += 1
        await call.reader.read(1_000_000)
        call.reset()
        return True

    async with (
        faults(before=lose) as a,
        faults(before=lose) as b,
        faults(before=lose) as c,
        scanner_of(a, b, c) as scanner,
    ):
        with pytest.raises(ScanFailed):
            await submit(scanner, LARGE, memory_per_mail=0)
        assert seen == 2
        assert all(host.circuit.state is State.CLOSED for host in scanner.hosts)
        assert (await submit(scanner)).decision is Decision.DELIVER


async def test_a_mail_that_failed_is_not_unreachable_because_the_next_host_is() -> None:
    """One host fails on it, the other is down: it is still the mail's own failure."""
    dead = f"http://127.0.0.1:{closed_port()}"
    async with faults(fails_on_bad(ENDINGS["500"])) as a, scanner_of(a, dead, resubmit=True) as scanner:
        scanner.hosts[1].in_flight = 5
        with pytest.raises(ScanFailed):
            await submit(scanner, BAD)


async def test_a_mail_that_is_slow_by_itself_is_known_as_such() -> None:
    """Mail that was sent after it was answered: other mail, or one of our own."""
    for deadline_s in SLOW_MAIL_DEADLINES_S:
        async with faults(fails_on_bad(Call.until_gone)) as server, scanner_of(server) as scanner:
            slow = asyncio.create_task(submit(scanner, BAD, deadline_s=deadline_s))
            await eventually(lambda slow=slow: slow.done() or len(server.requests) == 1, "the slow mail")
            await submit(scanner)
            with pytest.raises(ScanTimeout) as beside_others:
                await slow
            probes_beside_others = len(server.probes)
            with pytest.raises(ScanTimeout) as alone:
                await submit(scanner, BAD, deadline_s=deadline_s)
            if not probes_beside_others and beside_others.value.others_pass and alone.value.others_pass:
                break
    assert (probes_beside_others, len(server.probes)) == (0, 1)
    for caught in (beside_others, alone):
        assert (caught.value.is_slow, caught.value.others_pass) == (True, True)


async def test_a_slow_mail_on_a_quiet_host_was_taken_for_an_outage() -> None:
    """Nothing is known: no other mail, and ours waits behind the slow one. The mail may be the reason."""
    async with faults(Call.until_gone) as server, scanner_of(server) as scanner:
        for deadline_s in (0.1, 0.4):
            with pytest.raises(ScanTimeout) as caught:
                await submit(scanner, BAD, deadline_s=deadline_s)
            assert (caught.value.is_slow, caught.value.others_pass) == (True, False)


async def test_many_slow_mails_at_once_cost_one_question() -> None:
    """A sender takes all slots with them, so no other mail is decided on."""
    for deadline_s in SLOW_MAIL_DEADLINES_S:
        async with faults(fails_on_bad(Call.until_gone)) as server, scanner_of(server) as scanner:
            mails = (submit(scanner, BAD + b"%d" % number, deadline_s=deadline_s) for number in range(20))
            outcomes = await asyncio.gather(*mails, return_exceptions=True)
        if all(isinstance(outcome, ScanTimeout) and outcome.others_pass for outcome in outcomes):
            break
    assert all(isinstance(outcome, ScanTimeout) and outcome.others_pass for outcome in outcomes)
    assert len(server.probes) == 1


async def test_a_slow_upload_was_taken_for_an_outage() -> None:
    """The scanner reads a large mail slowly, and decides on others."""

    async def read_slowly(call: Call) -> bool:
        if int(call.request.fields.get("content-length", "0")) < 1_000_000:
            return False
        await call.reader.read(1000)
        await asyncio.sleep(60)
        call.reset()
        return True

    for deadline_s in SLOW_MAIL_DEADLINES_S:
        async with faults(before=read_slowly) as server, scanner_of(server) as scanner:
            with pytest.raises(ScanTimeout) as caught:
                await submit(scanner, LARGE, memory_per_mail=0, deadline_s=deadline_s)
        if caught.value.others_pass:
            break
    assert caught.value.is_slow and caught.value.others_pass


async def test_a_host_that_hangs_on_a_mail_and_fails_on_ours_is_at_fault_itself() -> None:
    """A real outage keeps its own case."""

    async def script(call: Call) -> None:
        await call.until_gone() if b"Subject: bad" in call.request.content else call.say(answer(500, b""))

    for deadline_s in SLOW_MAIL_DEADLINES_S:
        async with faults(script) as server, scanner_of(server) as scanner:
            with pytest.raises(ScanTimeout) as caught:
                await submit(scanner, BAD, deadline_s=deadline_s)
        if not caught.value.is_slow:
            break
    assert not caught.value.is_slow


async def test_a_mail_was_blamed_while_a_test_mail_for_another_one_hung() -> None:
    """The host refuses all mail, but the test mail that was asked about is one that it never answered."""
    is_hanging = True

    async def script(call: Call) -> None:
        await call.until_gone() if is_hanging else call.say(answer(401, b""))

    async with faults(script) as server, scanner_of(server) as scanner:
        slow = asyncio.create_task(submit(scanner, BAD, deadline_s=2))
        await eventually(lambda: len(server.probes) == 1, "the test mail for the slow one")
        is_hanging = False
        with pytest.raises(ScanRefused):
            await submit(scanner, deadline_s=20)
        with pytest.raises(ScanTimeout):
            await slow


async def test_a_host_that_was_silent_before_it_got_the_mail_is_at_fault_itself() -> None:
    """It is frozen: it answers neither status requests nor our own mail."""
    async with faults(Call.until_gone, introduces=False) as server, scanner_of(server) as scanner:
        scanner.hosts[0].unanswered = 1
        with pytest.raises(ScanTimeout) as caught:
            await submit(scanner, BAD, deadline_s=0.3)
        assert not caught.value.is_slow


async def test_a_bad_mail_as_the_probe_of_an_open_circuit_does_not_keep_it_open() -> None:
    """The host works again: the first mail it gets is a bad one, and the others still get through."""
    async with faults(fails_on_bad(ENDINGS["500"])) as server, scanner_of(server) as scanner:
        now = asyncio.get_running_loop().time()
        scanner.hosts[0].learn(Event.UNREACHABLE, now)
        scanner.hosts[0].learn(Event.STATUS, now)
        with pytest.raises(ScanFailed):
            await submit(scanner, BAD)
        assert scanner.hosts[0].circuit.state is State.CLOSED
        assert (await submit(scanner)).decision is Decision.DELIVER


async def test_a_slow_mail_as_the_probe_of_an_open_circuit_kept_all_others_away() -> None:
    """With `unavailable: relay`, they were delivered unscanned until its deadline, although the host was back."""
    async with faults(fails_on_bad(Call.until_gone)) as server, scanner_of(server, status_interval_s=0.1) as scanner:
        host, now = scanner.hosts[0], asyncio.get_running_loop().time()
        host.learn(Event.UNREACHABLE, now)
        host.learn(Event.STATUS, now)
        slow = asyncio.create_task(submit(scanner, BAD, deadline_s=120))
        await eventually(lambda: host.circuit.is_probing, "the slow mail")
        with pytest.raises(ScanUnavailable):
            await submit(scanner)
        watch = asyncio.create_task(scanner.watch())
        await eventually(lambda: host.circuit.state is State.CLOSED, "the answer to the test mail")
        assert (await submit(scanner)).decision is Decision.DELIVER
        for task in (slow, watch):
            task.cancel()
        await asyncio.gather(slow, watch, return_exceptions=True)


async def test_a_host_that_is_busy_when_it_is_asked_is_not_blamed() -> None:
    """The mail fails, and our own mail is not answered in time: nothing is known about the host."""

    async def script(call: Call) -> None:
        call.say(answer(500, b"")) if b"Subject: bad" in call.request.content else await call.until_gone()

    async with faults(script) as server, scanner_of(server, connect_timeout_s=1.0) as scanner:
        for _ in range(4):
            with pytest.raises(ScanFailed):
                await submit(scanner, BAD)
        assert scanner.hosts[0].circuit.state is State.CLOSED


async def test_many_failing_mails_cost_one_question() -> None:
    """A hundred bad mails at once do not become two hundred scans."""
    async with faults(fails_on_bad(ENDINGS["500"])) as server, scanner_of(server) as scanner:
        outcomes = await asyncio.gather(*(submit(scanner, BAD) for _ in range(100)), return_exceptions=True)
        assert all(isinstance(outcome, ScanFailed) for outcome in outcomes)
        assert 1 <= len(server.probes) < 20


async def test_other_mail_answers_the_question_without_a_mail_of_our_own() -> None:
    """Where mail flows, a failing mail costs nothing more."""
    gate = asyncio.Event()

    async def late_500(call: Call) -> None:
        await gate.wait()
        call.say(answer(500, b""))

    async with faults(fails_on_bad(late_500)) as server, scanner_of(server) as scanner:
        bad = asyncio.create_task(submit(scanner, BAD))
        await eventually(lambda: len(server.requests) == 1, "the bad mail")
        await submit(scanner, MAIL)
        gate.set()
        with pytest.raises(ScanFailed):
            await bad
        assert not server.probes


async def test_our_own_mail_is_harmless_and_of_the_same_tenant() -> None:
    """It names nobody who could receive it."""
    from bridge.api.scanning import AnalysisRequest, BorderMtaData

    tenant = "123e4567-e89b-12d3-a456-426614174000"
    request = AnalysisRequest(BorderMtaData("a@example.org", ("b@example.org",)), tenant)
    async with faults(fails_on_bad(ENDINGS["500"])) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanFailed):
            await submit(scanner, BAD, request=request)
        (probe,) = server.probes
        assert b"example.org" not in probe.head + probe.content
        assert (tenant.encode() in probe.body) is (current().name == "email-scanning")  # the others have no tenants


async def test_one_mail_that_is_answered_with_retry_after_closed_the_scanner_for_everybody() -> None:
    """The host decides on our own mail, so it has room; a host that is full says so to that as well."""
    full = answer(503, b"", "Retry-After: 60")
    async with faults(fails_on_bad(full)) as server, scanner_of(server) as scanner:
        with pytest.raises(Saturated):
            await submit(scanner, BAD)
        await eventually(lambda: not scanner.is_saturated(), "the host to be known as free")
        assert (await submit(scanner)).decision is Decision.DELIVER
        server.script = full
        with pytest.raises(Saturated):
            await submit(scanner, BAD)
        await eventually(lambda: len(server.probes) == 2, "our own mail")
        await asyncio.sleep(0.1)
        assert scanner.is_saturated()


async def test_no_room_for_one_large_mail_says_nothing_about_other_mail() -> None:
    """The host was taken for full, and for a second all mail was refused; nor does it need our own mail to know."""
    full = answer(503, b'{"error": "no_room"}', "Retry-After: 60")
    async with faults(fails_on_bad(full)) as server, scanner_of(server) as scanner:
        with pytest.raises(NoRoom):
            await submit(scanner, BAD)
        assert not scanner.is_saturated() and not server.probes
        assert (await submit(scanner)).decision is Decision.DELIVER
