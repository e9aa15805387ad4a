"""The relay for a client that reads one reply per recipient: each recipient gets its own answer."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.release import ReleaseRequest, ReleaseUncertain, release
from bridge.relay import client_replies
from bridge.relay.connection import End, NextHopConnection
from bridge.relay.relay import Mixed, Relay, SmtpRelay
from bridge.relay.routes import Routes
from bridge.testing import eventually
from tests.relay.scripted_hop import DROP, EXTENSIONS, HEAD, SOON, Script, ScriptedHop, make_tx, soon

ONE_BY_ONE = tuple(e for e in EXTENSIONS if e != "PIPELINING")
BOTH_WAYS = pytest.mark.parametrize("extensions", [EXTENSIONS, ONE_BY_ONE], ids=["pipelined", "one-by-one"])
OK, LOST = "250 2.1.5 Ok", "451 4.4.2 The next mail server did not answer, try again later"
PEOPLE = ("b@example.org", "c@example.org", "d@example.org")


def each(*people: str) -> Transaction:
    return replace(make_tx(recipients=people or PEOPLE), is_per_recipient=True)


async def answers(relay: Relay, tx: Transaction | None = None) -> list[str]:
    """The reply for each recipient."""
    tx = tx or each()
    try:
        return [str(reply) for reply in (await relay.deliver(tx, HEAD, soon())).replies]
    except Mixed as exc:
        return [str(reply) for reply in exc.replies]
    except NextHopError as exc:
        return [str(exc.reply)] * len(tx.envelope.recipients)


@pytest.mark.parametrize("lmtp", [False, True], ids=["smtp", "lmtp"])
@pytest.mark.parametrize(
    "rcpt",
    [
        [OK, "550 5.1.1 No", OK],
        ["450 4.2.0 Later", OK, "554 5.1.1 No"],
        ["550 5.1.1 No", "550 5.1.1 No", OK],
    ],
)
@BOTH_WAYS
async def test_a_refused_recipient_does_not_keep_the_mail_from_the_others(
    rcpt: list[str], extensions: tuple[str, ...], lmtp: bool
) -> None:
    """The accepted recipients have the mail, and the connection is reused."""
    async with ScriptedHop({"RCPT": [*rcpt, OK], "DOT": "250 2.0.0 Kept"}, extensions, lmtp=lmtp) as hop:
        relay = SmtpRelay(hop.settings())
        assert await answers(relay) == ["250 2.0.0 Kept" if reply == OK else reply for reply in rcpt]
        assert len(hop.contents) == 1
        assert await answers(relay) == ["250 2.0.0 Kept"] * 3
        assert len(hop.connections) == 1
        await relay.close()


@BOTH_WAYS
async def test_when_all_are_refused_each_gets_its_own_refusal(extensions: tuple[str, ...]) -> None:
    refusals = ["550 5.1.1 No", "450 4.2.0 Later", "554 5.1.1 Never"]
    async with ScriptedHop({"RCPT": [*refusals, OK], "DATA": ["554 5.5.1 No recipients", "354 Go"]}) as hop:
        hop.extensions = extensions
        relay = SmtpRelay(hop.settings())
        if extensions is ONE_BY_ONE:
            hop.script["DATA"] = "354 Go"
        assert await answers(relay) == refusals
        assert hop.contents == []
        assert (await answers(relay))[0].startswith("250 ")
        assert len(hop.connections) == 1
        await relay.close()


@BOTH_WAYS
async def test_a_server_that_wants_content_for_nobody_does_not_get_it(extensions: tuple[str, ...]) -> None:
    async with ScriptedHop({"RCPT": "550 5.1.1 No"}, extensions) as hop:
        relay = SmtpRelay(hop.settings())
        assert await answers(relay) == ["550 5.1.1 No"] * 3
        await relay.close()
        await asyncio.wait_for(hop.connections[0].ended.wait(), 30)
        assert (hop.contents, hop.connections[0].unfinished) == ([], b"")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ({"DATA": "451 4.3.0 Not now"}, ["451 4.3.0 Not now", "550 5.1.1 No", "451 4.3.0 Not now"]),
        ({"DATA": "250 2.0.0 What?"}, ["451 4.5.0 The next"] * 3),  # perhaps the answer to the last RCPT
        ({"DATA": DROP}, [LOST, "550 5.1.1 No", LOST]),
        ({"DOT": "554 5.7.1 Bad"}, ["554 5.7.1 Bad", "550 5.1.1 No", "554 5.7.1 Bad"]),
        ({"DOT": "421 4.3.2 Bye"}, ["451 4.3.2 Bye", "550 5.1.1 No", "451 4.3.2 Bye"]),
        ({"DOT": DROP}, [LOST, "550 5.1.1 No", LOST]),
        ({"MAIL": "550 5.7.1 Not you"}, ["550 5.7.1 Not you"] * 3),
    ],
)
@BOTH_WAYS
async def test_a_failure_of_the_mail_affects_accepted_recipients_only(
    script: dict[str, str], expected: list[str], extensions: tuple[str, ...]
) -> None:
    """Never a 5xx for a recipient because of another's refusal or a lost connection."""
    async with ScriptedHop({"RCPT": [OK, "550 5.1.1 No", OK], **script}, extensions) as hop:
        relay = SmtpRelay(hop.settings())
        told = await answers(relay)
        assert all(reply.startswith(start) for reply, start in zip(told, expected, strict=True)), told
        await relay.close()


@pytest.mark.parametrize("rcpt", [[OK, "354 What?", OK], [OK, "421 4.3.2 Bye"], [OK, "550 5.1.1 No", DROP]])
@BOTH_WAYS
async def test_doubt_about_the_recipients_is_a_451_for_all(rcpt: list[str], extensions: tuple[str, ...]) -> None:
    async with ScriptedHop({"RCPT": list(rcpt)}, extensions) as hop:
        relay = SmtpRelay(hop.settings())
        assert [reply[:3] for reply in await answers(relay)] == ["451"] * 3
        assert hop.contents == []
        await relay.close()


@pytest.mark.parametrize(
    ("dots", "expected"),
    [
        (["250 2.0.0 One", "552 5.2.2 Full", "452 4.2.2 Busy"], ["250 2.0.0 One", "552 5.2.2 Full", "452 4.2.2 Busy"]),
        (["250 2.0.0 One", "552 5.2.2 Full", DROP], ["250 2.0.0 One", "552 5.2.2 Full", LOST]),
        (["250 2.0.0 One", "421 4.3.2 Down"], ["250 2.0.0 One", "451 4.3.2 Down", LOST]),
        ([DROP], [LOST] * 3),
        (["552 5.2.2 Full"], ["552 5.2.2 Full"] * 3),
    ],
)
async def test_lmtp_answers_after_the_dot_are_per_recipient(
    tmp_path: Path, dots: list[str], expected: list[str]
) -> None:
    """Answered recipients keep their answer, even if the connection ends before the last one."""
    async with ScriptedHop({"DOT": list(dots)}, lmtp=True, path=tmp_path / "lmtp") as hop:
        relay = SmtpRelay(hop.settings())
        assert await answers(relay) == expected
        await relay.close()


async def test_lmtp_refusals_at_rcpt_and_after_the_dot_find_their_recipients() -> None:
    script = {"RCPT": [OK, "550 5.1.1 No", OK], "DOT": ["452 4.2.2 Busy", "250 2.0.0 Ok: queued as L3"]}
    async with ScriptedHop(dict(script), lmtp=True) as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(Mixed) as caught:
            await relay.deliver(each(), HEAD, soon())
        assert [reply.code for reply in caught.value.replies] == [452, 550, 250]
        assert (str(caught.value.reply), caught.value.accepted) == ("452 4.2.2 Busy", 1)
        assert caught.value.queue_id == "L3"
        await relay.close()


async def test_when_the_client_is_gone_after_the_dot_the_log_says_who_has_the_mail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    answer = asyncio.Event()

    async def late() -> str:
        await answer.wait()
        return "250 2.0.0 Ok"

    async with ScriptedHop({"RCPT": [OK, "550 5.1.1 No", OK], "DOT": late}) as hop:
        relay = SmtpRelay(hop.settings())
        task = asyncio.create_task(relay.deliver(each(), HEAD, soon()))
        await asyncio.wait_for(hop.heard["DOT"].wait(), 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        answer.set()
        await relay.close()
        assert "2 of 3 recipients have it" in caplog.text


ROUTED = ("a@one.example", "b@other.example", "c@one.example")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ({}, ["250 2.0.0 ONE", "250 2.0.0 Ok: queued as 4ABC123", "250 2.0.0 ONE"]),
        ({"DOT": "550 5.7.1 No"}, ["250 2.0.0 ONE", "550 5.7.1 No", "250 2.0.0 ONE"]),
        ({"GREETING": DROP}, ["250 2.0.0 ONE", "451 4.4.1", "250 2.0.0 ONE"]),
        ({"RCPT": "450 4.2.0 Later"}, ["250 2.0.0 ONE", "450 4.2.0 Later", "250 2.0.0 ONE"]),
    ],
)
async def test_each_next_hop_answers_for_its_own_recipients(script: dict[str, str], expected: list[str]) -> None:
    """If one next hop fails, recipients of the others still get the mail."""
    async with ScriptedHop(dict(script)) as default, ScriptedHop({"DOT": "250 2.0.0 ONE"}) as routed:
        relay = Routes({"one.example": SmtpRelay(routed.settings())}, SmtpRelay(default.settings()))
        told = await answers(relay, each(*ROUTED))
        assert all(said.startswith(start) for said, start in zip(told, expected, strict=True)), told
        assert len(routed.contents) == 1
        await relay.close()


@pytest.mark.parametrize(
    ("script", "unsure"),
    [
        ({"DOT": DROP}, ["b@other.example"]),
        ({"DOT": "451 4.3.0 Later"}, []),  # its own answer
        ({"GREETING": DROP}, []),  # our words, but it never had the mail
        ({"MAIL": DROP}, []),
    ],
)
async def test_a_lost_answer_of_one_route_counted_as_a_refusal_and_the_next_release_delivered_twice(
    tmp_path: Path, script: dict[str, str], unsure: list[str]
) -> None:
    """The recipients of that route may have the mail; the others have it."""
    quarantine = Quarantine(tmp_path)
    kept = each(*ROUTED)
    await quarantine.keep(kept, b"", {})
    async with ScriptedHop(dict(script)) as default, ScriptedHop() as routed:
        relay = Routes({"one.example": SmtpRelay(routed.settings())}, SmtpRelay(default.settings()))
        request = ReleaseRequest("anna")
        with pytest.raises(Mixed) as failed:
            await release(quarantine, kept.id, relay, request)
        assert failed.value.may_be_delivered is bool(unsure)
        (attempt,) = quarantine.read(kept.id).releases
        assert list(attempt.unsure) == unsure and attempt.delivered == ("a@one.example", "c@one.example")
        with pytest.raises(ReleaseUncertain if unsure else NextHopError):
            await release(quarantine, kept.id, relay, request)
        assert len(routed.contents) == 1 and len(default.contents) <= (1 if unsure else 2)
        await relay.close()
    await quarantine.close()


async def test_a_lost_answer_was_about_another_recipient_if_routes_follow_one_another() -> None:
    """Positions count within the whole mail, not within the part of one next hop."""
    async with ScriptedHop({"DOT": DROP}) as default, ScriptedHop() as routed:
        relay = Routes({"one.example": SmtpRelay(routed.settings())}, SmtpRelay(default.settings()))
        with pytest.raises(NextHopError) as failed:
            await relay.deliver(replace(each(*ROUTED), is_per_recipient=False), HEAD, soon())
        assert failed.value.unsure == {1}
        await relay.close()


async def test_an_lmtp_route_that_answers_for_one_recipient_only_leaves_the_other_unsure() -> None:
    async with ScriptedHop() as default, ScriptedHop({"DOT": ["250 2.0.0 Ok", DROP]}, lmtp=True) as routed:
        relay = Routes({"one.example": SmtpRelay(routed.settings())}, SmtpRelay(default.settings()))
        with pytest.raises(Mixed) as failed:
            await relay.deliver(each(*ROUTED), HEAD, soon())
        assert failed.value.unsure == {2} and failed.value.accepted == 2
        await relay.close()


async def test_a_slow_next_hop_does_not_make_the_others_wait() -> None:
    """They are contacted at the same time, so that each has the full deadline."""
    go_on = asyncio.Event()

    async def slow() -> str:
        await go_on.wait()
        return "250 2.0.0 Ok"

    async with ScriptedHop({"DOT": slow}) as first, ScriptedHop() as second:
        relay = Routes({"one.example": SmtpRelay(first.settings())}, SmtpRelay(second.settings()))
        task = asyncio.create_task(answers(relay, each(*ROUTED)))
        await asyncio.wait_for(second.heard["DOT"].wait(), 30)
        assert not task.done()
        go_on.set()
        assert [told[:3] for told in await task] == ["250"] * 3
        await relay.close()


async def test_a_client_that_goes_away_stops_every_next_hop_before_its_dot() -> None:
    never = asyncio.Event()

    async def silent() -> str:
        await never.wait()
        return OK

    async with ScriptedHop({"MAIL": silent}) as first, ScriptedHop({"MAIL": silent}) as second:
        relay = Routes({"one.example": SmtpRelay(first.settings())}, SmtpRelay(second.settings()))
        task = asyncio.create_task(relay.deliver(each(*ROUTED), HEAD, soon()))
        await eventually(lambda: first.connections and second.connections, "both connections")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        never.set()
        for hop in (first, second):
            await asyncio.wait_for(hop.connections[0].ended.wait(), 30)
            assert hop.contents == []
        await relay.close()


@pytest.mark.parametrize("lmtp", [False, True], ids=["smtp", "lmtp"])
async def test_an_answer_too_many_at_rcpt_was_taken_for_the_next_recipients(lmtp: bool) -> None:
    """The last answer, which would have shown it, came late: a recipient that the next hop accepts was refused."""
    late = asyncio.Event()

    async def data() -> str:
        await late.wait()
        return "354 Go"

    script: Script = {"RCPT": [f"{OK}\r\n550 5.1.1 No", OK], "DATA": data}
    async with ScriptedHop(script, lmtp=lmtp) as hop:
        relay = SmtpRelay(hop.settings())
        assert await answers(relay) == [str(client_replies.OUT_OF_PLACE)] * 3
        late.set()
        assert hop.contents == [] and relay.pool.connections == (0, 0)
        await relay.close()


async def test_an_answer_too_many_after_a_mail_was_taken_for_the_next_mails() -> None:
    """The second answer to a dot came just after the next mail was sent, whose sender it seemed to refuse."""
    late = asyncio.Event()
    asked: list[str] = []

    async def data() -> str:
        asked.append("DATA")
        if len(asked) > 1:
            await late.wait()
        return "354 Go"

    async with ScriptedHop({"MAIL": [OK, f"550 5.7.1 No\r\n{OK}"], "DATA": data}) as hop:
        relay = SmtpRelay(hop.settings())
        assert await answers(relay) == ["250 2.0.0 Ok: queued as 4ABC123"] * 3
        assert await answers(relay) == [str(client_replies.OUT_OF_PLACE)] * 3
        late.set()
        assert len(hop.contents) == 1
        await relay.close()


async def test_an_answer_too_many_at_the_dot_is_noticed_if_it_has_arrived() -> None:
    """It was in the kernel's buffer when the others were read, and one recipient's answer was another's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = asyncio.get_running_loop()
        conn = (await loop.create_connection(NextHopConnection, *server.getsockname()))[1]
        with server.accept()[0] as peer:
            conn.data_received(b"220 hi\r\n")
            await conn.replies(1, SOON)
            conn.send(b"x\r\n.\r\n", 2)
            await asyncio.sleep(0)  # it is written at the end of the event loop's turn
            peer.sendall(b"550 5.1.1 No\r\n")
            conn.data_received(b"250 2.0.0 Ok\r\n250 2.0.0 Ok\r\n")
            assert len(await conn.replies(2, SOON, settles=True)) == 2
            assert conn.ended is End.BROKEN and conn.unasked == Reply(550, "5.1.1", "No")


async def test_slow_lmtp_answers_together_end_at_the_deadline() -> None:
    """Each of a hundred recipients had the whole `relay.timeout`, so one mail could take an hour and a half."""

    async def slowly() -> str:
        await asyncio.sleep(0.25)  # the part of a slow server
        return OK

    people = tuple(f"r{number}@example.org" for number in range(40))
    async with ScriptedHop({"DOT": slowly}, lmtp=True) as hop:
        relay = SmtpRelay(hop.settings(timeout_s=2.0))
        with pytest.raises(Mixed) as caught:
            await relay.deliver(each(*people), HEAD, asyncio.get_running_loop().time() + 1.0)
        given = [reply.code for reply in caught.value.replies]
        assert given == sorted(given) and given[0] == 250
        assert caught.value.replies[-1] == client_replies.LATE
        assert caught.value.unsure == frozenset(range(given.count(250), 40))
        await relay.close()


@pytest.mark.parametrize("is_per_recipient", [True, False])
async def test_a_refusal_was_passed_on_before_the_answers_were_known_to_be_complete(is_per_recipient: bool) -> None:
    """The answer too many was a 5xx, and those after it made sense one place off: greylisted mail was bounced."""
    late = asyncio.Event()

    async def data() -> str:
        await late.wait()
        return "354 Go"

    script: Script = {"RCPT": [f"{OK}\r\n550 5.1.1 No", "450 4.2.0 Later"], "DATA": data}
    async with ScriptedHop(script) as hop:
        relay = SmtpRelay(hop.settings())
        asyncio.get_running_loop().call_later(0.2, late.set)  # the last answer, some time after the others
        mail = replace(each(*PEOPLE[:2]), is_per_recipient=is_per_recipient)
        assert await answers(relay, mail) == [str(client_replies.OUT_OF_PLACE)] * 2
        assert hop.contents == [] and relay.pool.connections == (0, 0)
        await relay.close()


@pytest.mark.parametrize("goodbye", [DROP, "421 4.7.0 Too many errors", "250 2.0.0 Ok", "502 5.5.1 No RSET"])
async def test_a_refusal_is_passed_on_if_the_next_hop_hangs_up_after_it(goodbye: str) -> None:
    """Many servers do; they have no more to say about the mail."""
    async with ScriptedHop({"RCPT": "550 5.1.1 No", "DATA": "503 5.5.1 No", "RSET": goodbye}) as hop:
        relay = SmtpRelay(hop.settings())
        assert await answers(relay) == ["550 5.1.1 No"] * 3
        await relay.close()
