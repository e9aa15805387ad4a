"""Connections: pooled, found dead, waited for; and what a cancelled caller leaves behind."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.relay import client_replies
from bridge.relay.connection import End, NextHopConnection
from bridge.relay.relay import SmtpRelay
from bridge.runtime.host_addresses import MAX_CONNECTION_AGE_S
from tests.relay.scripted_hop import DROP, HEAD, SOON, ScriptedHop, make_tx, soon

LARGE = b"x" * 998 + b"\r\n"


class Gate:
    """A reply that is held back until the test opens the gate."""

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.asked = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self) -> str:
        self.asked.set()
        await self.open.wait()
        return self.reply


async def within(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), SOON)


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_mails_follow_each_other_on_one_connection() -> None:
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings())
        for _ in range(5):
            await relay.deliver(make_tx(), HEAD, soon())
        assert len(hop.connections) == 1
        await relay.close()
        await within(hop.connections[0].ended)
        assert hop.connections[0].commands[-1] == "QUIT"


async def test_a_connection_with_many_refusals_is_given_up() -> None:
    """Postfix would delay its answers more and more, and with them the next mail."""
    async with ScriptedHop({"RCPT": "550 5.1.1 No", "DATA": "554 5.5.1 No recipients"}) as hop:
        relay = SmtpRelay(hop.settings())
        for _ in range(7):
            with pytest.raises(NextHopError):
                await relay.deliver(make_tx(), HEAD, soon())
        mails = [sum(c.startswith("MAIL") for c in conn.commands) for conn in hop.connections]
        assert mails == [3, 3, 1]
        await relay.close()


async def test_an_accepted_mail_resets_the_count_of_refusals() -> None:
    async with ScriptedHop({"DOT": ["554 5.7.1 Spam", "250 2.0.0 Ok"] * 6 + ["250 2.0.0 Ok"]}) as hop:
        relay = SmtpRelay(hop.settings())
        for _ in range(6):
            with pytest.raises(NextHopError):
                await relay.deliver(make_tx(), HEAD, soon())
            await relay.deliver(make_tx(), HEAD, soon())
        assert len(hop.connections) == 1
        await relay.close()


async def test_a_busy_connection_kept_mail_at_the_old_address_of_a_name_for_ever() -> None:
    """With a mail now and then it was never idle for long, so the name was not looked up again."""
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings())
        await relay.deliver(make_tx(), HEAD, soon())
        relay.pool._idle[0].opened_at -= MAX_CONNECTION_AGE_S
        for _ in range(2):
            await relay.deliver(make_tx(), HEAD, soon())
        assert [len(each.contents) for each in hop.connections] == [2, 1]
        assert hop.connections[0].commands[-1] == "QUIT"
        await relay.close()


async def test_an_idle_connection_is_closed_in_time() -> None:
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings(max_idle_s=0.1))
        await relay.deliver(make_tx(), HEAD, soon())
        await within(hop.connections[0].ended)
        assert hop.connections[0].commands[-1] == "QUIT"
        await relay.deliver(make_tx(), HEAD, soon())
        assert len(hop.connections) == 2
        await relay.close()


@pytest.mark.parametrize("goodbye", [b"", b"421 4.4.2 Timeout\r\n"])
async def test_a_connection_the_peer_closed_is_not_used_again(goodbye: bytes) -> None:
    """The next hop's idle timeout may be shorter than ours."""
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        await relay.deliver(make_tx(), HEAD, soon())
        hop.connections[0].writer.write(goodbye)
        hop.connections[0].writer.close()
        await within(hop.connections[0].ended)
        await relay.deliver(make_tx(), HEAD, soon())
        assert [len(c.contents) for c in hop.connections] == [1, 1]
        await relay.close()


@pytest.mark.parametrize("answer", [DROP, "421 4.4.2 Timeout"])
@pytest.mark.parametrize("verb", ["MAIL", "XFORWARD"])
async def test_a_reused_connection_that_fails_before_mail_is_replaced(verb: str, answer: str) -> None:
    good = "250 2.0.0 Ok"
    async with ScriptedHop({verb: [good, answer, good]}, ("PIPELINING", "XFORWARD ADDR")) as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        await relay.deliver(make_tx(), HEAD, soon())
        await relay.deliver(make_tx(), HEAD, soon())
        assert [len(c.contents) for c in hop.connections] == [1, 1]
        await relay.close()


@pytest.mark.parametrize("connections", [1, 2])
async def test_a_dead_next_hop_is_tried_only_once_more(connections: int) -> None:
    async with ScriptedHop({"MAIL": ["250 2.1.0 Ok", DROP]}) as hop:
        relay = SmtpRelay(hop.settings(max_connections=connections))
        await relay.deliver(make_tx(), HEAD, soon())
        for _ in range(2):  # a slot lost on the way would show the second time
            with pytest.raises(NextHopError) as caught:
                await relay.deliver(make_tx(), HEAD, soon())
            assert caught.value.reply == client_replies.LOST
        assert len(hop.connections) == 3
        await relay.close()


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DATA", "DOT"])
async def test_a_next_hop_that_said_goodbye_was_taken_to_have_the_mail(verb: str) -> None:
    """221 begins like 250, but accepts nothing."""
    async with ScriptedHop({verb: "221 2.0.0 next.example closing"}) as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, soon())
        assert caught.value.reply == Reply(451, "", "next.example closing")
        await relay.close()


async def test_a_reused_connection_lost_after_the_dot_is_not_tried_again() -> None:
    """The mail may have arrived, so only the client may send it again."""
    async with ScriptedHop({"DOT": ["250 2.0.0 Ok", DROP]}) as hop:
        relay = SmtpRelay(hop.settings())
        await relay.deliver(make_tx(), HEAD, soon())
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, soon())
        assert caught.value.reply == client_replies.LOST
        assert len(hop.connections) == 1
        await relay.close()


async def test_an_unsolicited_reply_is_never_taken_for_the_dots() -> None:
    """Otherwise an early 250 would be passed on for a mail that the next hop does not have."""
    async with ScriptedHop({"DATA": "354 Go\r\n250 2.0.0 Ok"}) as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, soon())
        assert caught.value.reply == client_replies.LOST
        assert hop.contents == []
        await relay.close()


async def test_a_refusal_in_the_middle_of_the_content_is_passed_on() -> None:
    async with ScriptedHop({"DATA": "354 Go\r\n552 5.3.4 Too large"}) as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx([LARGE * 100] * 400), HEAD, soon())
        assert caught.value.reply == Reply(552, "5.3.4", "Too large")
        await relay.close()


async def test_no_more_connections_than_allowed_and_first_come_first_served() -> None:
    gate = Gate("250 2.0.0 Ok")
    async with ScriptedHop({"DOT": gate}) as hop:
        relay = SmtpRelay(hop.settings(max_connections=2))
        people = [f"r{n}@example.org" for n in range(8)]
        tasks = [asyncio.create_task(relay.deliver(make_tx(recipients=(p,)), HEAD, soon())) for p in people]
        await within(gate.asked)
        gate.open.set()
        await asyncio.gather(*tasks)
        assert len(hop.connections) == 2
        served = [c for c in hop.commands if c.startswith("RCPT")]
        assert sorted(served) == [f"RCPT TO:<{p}>" for p in people]
        for conn in hop.connections:
            mine = [c for c in conn.commands if c.startswith("RCPT")]
            assert mine == sorted(mine)
        await relay.close()


async def test_waiting_for_a_connection_ends_at_the_deadline() -> None:
    gate = Gate("250 2.0.0 Ok")
    async with ScriptedHop({"DOT": gate}) as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        first = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await within(gate.asked)
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, asyncio.get_running_loop().time() + 0.1)
        assert caught.value.reply == client_replies.LATE
        gone = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        last = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await asyncio.sleep(0)
        await cancelled(gone)
        gate.open.set()
        await asyncio.gather(first, last)
        assert len(hop.contents) == 2
        await relay.close()


async def test_a_caller_cancelled_as_it_is_served_passes_the_connection_on() -> None:
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        await relay.deliver(make_tx(), HEAD, soon())
        conn = await relay.pool.take(soon())
        gone = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        last = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await asyncio.sleep(0)
        relay.pool.give_back(conn)
        await cancelled(gone)
        await last
        assert len(hop.connections) == 1
        assert len(hop.contents) == 2
        await relay.close()


async def test_a_caller_cancelled_as_it_gets_a_slot_passes_it_on() -> None:
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        conn = await relay.pool.take(soon())
        gone = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        last = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await asyncio.sleep(0)
        conn.abort()
        relay.pool.give_back(conn)
        await cancelled(gone)
        await last
        assert [len(c.contents) for c in hop.connections] == [0, 1]
        await relay.close()


async def test_only_what_has_been_idle_too_long_is_closed() -> None:
    """The connection used last is reused first, so it stays open."""
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings(max_idle_s=0.3))
        await asyncio.gather(*(relay.deliver(make_tx(), HEAD, soon()) for _ in range(2)))
        first, second = hop.connections
        while not (first.ended.is_set() or second.ended.is_set()):
            await relay.deliver(make_tx(), HEAD, soon())
        old, new = (first, second) if first.ended.is_set() else (second, first)
        assert not new.ended.is_set()
        assert (len(old.contents), len(hop.connections)) == (1, 2)
        await within(new.ended)
        await relay.close()


async def test_a_failed_connect_lets_the_next_in_line_try() -> None:
    gate = Gate("554 5.3.2 No")
    async with ScriptedHop({"GREETING": gate}) as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        tasks = [asyncio.create_task(relay.deliver(make_tx(), HEAD, soon())) for _ in range(3)]
        await within(gate.asked)
        gate.open.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [o.reply for o in outcomes if isinstance(o, NextHopError)] == [client_replies.UNREACHABLE] * 3
        await relay.close()


@pytest.mark.parametrize("stage", ["GREETING", "MAIL", "DATA"])
async def test_cancelled_before_the_dot_nothing_is_delivered(stage: str) -> None:
    """The client disconnected in time and will send the mail again."""
    gate = Gate("554 5.0.0 never said")
    async with ScriptedHop({stage: gate}) as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        task = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await within(gate.asked)
        await cancelled(task)
        gate.open.set()
        await within(hop.connections[0].ended)
        assert hop.contents == []
        hop.script[stage] = {"GREETING": "220 hi", "MAIL": "250 Ok", "DATA": "354 Go"}[stage]
        await relay.deliver(make_tx(), HEAD, soon())  # the one slot is free again
        await relay.close()


async def test_cancelled_in_the_content_nothing_is_delivered() -> None:
    gate = Gate("354 Go")
    async with ScriptedHop({"DATA": gate}) as hop:
        relay = SmtpRelay(hop.settings())
        task = asyncio.create_task(relay.deliver(make_tx([LARGE * 100] * 400), HEAD, soon()))
        gate.open.set()
        await within(hop.heard["CONTENT"])
        await cancelled(task)
        await within(hop.connections[0].ended)
        assert hop.contents == []
        assert not hop.connections[0].unfinished.endswith(b"\r\n.\r\n")
        await relay.close()


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        ("250 2.0.0 Ok: queued as 77", logging.INFO, "accepted the mail: 250 2.0.0 Ok: queued as 77"),
        ("554 5.7.1 No", logging.WARNING, "did not accept the mail: 554 5.7.1 No"),
    ],
)
async def test_cancelled_after_the_dot_the_mail_is_finished(
    caplog: pytest.LogCaptureFixture, answer: str, level: int, words: str
) -> None:
    """The client disconnected too late: the answer is awaited and logged, and `close` waits for it."""
    caplog.set_level(logging.INFO, "bridge.relay")
    gate = Gate(answer)
    async with ScriptedHop({"DOT": gate}) as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        tx = make_tx([LARGE * 300] * 5)
        task = asyncio.create_task(relay.deliver(tx, HEAD, soon()))
        await within(gate.asked)
        await cancelled(task)
        tx.message.close()
        closing = asyncio.create_task(relay.close())
        await asyncio.sleep(0)
        assert not closing.done()
        gate.open.set()
        await asyncio.wait_for(closing, SOON)
        assert [len(c) for c in hop.contents] == [len(HEAD) + 5 * 300 * len(LARGE)]
        (record,) = caplog.records
        assert record.levelno == level
        assert tx.id in record.getMessage()
        assert words in record.getMessage()


async def test_a_finished_late_mail_gives_its_connection_back() -> None:
    gate = Gate("250 2.0.0 Ok")
    async with ScriptedHop({"DOT": gate}) as hop:
        relay = SmtpRelay(hop.settings(max_connections=1))
        task = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await within(gate.asked)
        await cancelled(task)
        waiting = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        gate.open.set()
        await waiting
        assert [len(c.contents) for c in hop.connections] == [2]
        await relay.close()


async def test_closing_waits_for_the_answer_but_not_forever(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate("250 2.0.0 Ok")
    async with ScriptedHop({"DOT": gate}) as hop:
        relay = SmtpRelay(hop.settings(timeout_s=0.2))
        task = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await within(gate.asked)
        await cancelled(task)
        await asyncio.wait_for(relay.close(), SOON)
        assert "did not accept the mail: next hop: no answer in time" in caplog.text


async def test_a_running_mail_is_finished_while_closing() -> None:
    gate = Gate("250 2.0.0 Ok")
    async with ScriptedHop({"DOT": gate}) as hop:
        relay = SmtpRelay(hop.settings())
        task = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await within(gate.asked)
        closing = asyncio.create_task(relay.close())
        await asyncio.sleep(0)
        gate.open.set()
        assert (await task).reply.is_success
        await closing
        await within(hop.connections[0].ended)
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, soon())
        assert caught.value.reply == client_replies.CLOSING


async def test_a_next_hop_that_does_not_read_is_given_up() -> None:
    """Waiting for a full send buffer has a time limit."""
    stuck = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hi\r\n")
        await reader.readline()
        writer.write(b"250-hop\r\n250 PIPELINING\r\n")
        await reader.readuntil(b"DATA\r\n")
        writer.write(b"250 Ok\r\n250 Ok\r\n354 Go\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await stuck.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    hop = ScriptedHop()
    hop._server = server
    relay = SmtpRelay(hop.settings(timeout_s=0.3))
    with pytest.raises(NextHopError) as caught:
        await relay.deliver(make_tx([LARGE * 250] * 100, memory=1 << 30), HEAD, soon())
    assert caught.value.reply == client_replies.LOST
    stuck.set()
    await relay.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(("first_s", "second_s"), [(1.0, 2.0), (60.0, 0.2)], ids=["longer", "shorter"])
@pytest.mark.parametrize("limit", ["each reply", "all of it"])
async def test_each_wait_has_its_own_time(first_s: float, second_s: float, limit: str) -> None:
    """The timer of an earlier wait neither ends a later one early nor lets it exceed its limit."""
    loop = asyncio.get_running_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hi\r\n")
        await reader.read()
        writer.close()

    async def wait(seconds: float) -> list[Reply]:
        if limit == "each reply":
            return await conn.replies(1, seconds)
        return await conn.replies(1, 60.0, loop.time() + seconds)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    _, conn = await loop.create_connection(NextHopConnection, *server.sockets[0].getsockname())
    assert [reply.code for reply in await wait(first_s)] == [220]
    began = loop.time()
    conn.send(b"NOOP\r\n", 1)
    assert await wait(second_s) == []
    assert second_s - 0.01 <= loop.time() - began < second_s + SOON
    assert conn.ended is (End.SILENT if limit == "each reply" else End.LATE)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("extra", ["250 2.0.0 Ok", "250-2.0.0 O", "2", "421 4.3.2 Bye"])
async def test_a_reply_that_arrived_before_the_command_is_not_the_answer_to_it(extra: str) -> None:
    """It waits in the kernel when the next mail is sent: that mail goes over a new connection, or is deferred."""
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings())
        await relay.deliver(make_tx(), HEAD, soon())
        hop.connections[0].writer.write(extra.encode() + (b"\r\n" if len(extra) > 11 else b""))
        try:
            await relay.deliver(make_tx(), HEAD, soon())
        except NextHopError as exc:
            assert exc.reply == client_replies.LOST
        assert not any(command.startswith("MAIL") for command in hop.connections[0].commands[-1:])
        assert len(hop.connections[0].contents) == 1
        await relay.deliver(make_tx(), HEAD, soon())
        await relay.close()


async def test_a_reply_between_two_writes_is_not_the_answer_to_the_second() -> None:
    """A command counts from the moment it is written, not from the moment it is queued."""
    async with ScriptedHop() as hop:
        conn = (
            await asyncio.get_running_loop().create_connection(
                NextHopConnection, "127.0.0.1", hop.settings().next_hop.address.port
            )
        )[1]
        assert [reply.code for reply in await conn.replies(1, SOON)] == [220]
        conn.send(b"NOOP\r\n", 1)
        conn.data_received(b"250 2.0.0 Ok\r\n")  # in the same turn of the event loop
        assert conn.ended is End.BROKEN and await conn.replies(1, SOON) == []


async def test_a_connection_that_is_out_of_step_carries_no_other_mail() -> None:
    """An untaken reply would be the answer to the next mail's first command."""
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings())
        conn = await relay.pool.take(soon())
        conn.send(b"NOOP\r\n", 1)
        relay.pool.give_back(conn)
        assert conn.ended is End.CLOSED and relay.pool.connections == (0, 0)
        await relay.close()


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DOT"])
async def test_a_second_greeting_was_taken_to_accept_the_mail(verb: str) -> None:
    """220 begins like 250. It may come late: behind a proxy that speaks before the server does, for example."""
    async with ScriptedHop({verb: "220 hop.example ESMTP"}) as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, soon())
        assert caught.value.reply == client_replies.LOST
        assert relay.pool.connections == (0, 0)
        await relay.close()
