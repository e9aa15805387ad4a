"""Several next hops: when one is down, and when recipients go different ways."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from bridge.mail.envelope import Recipient
from bridge.mail.next_hop import NextHopError
from bridge.relay import client_replies
from bridge.relay.failover import Failover
from bridge.relay.maildir import Maildir
from bridge.relay.monitored import MonitoredRelay
from bridge.relay.relay import Mixed, Relay, RelaySettings, SmtpRelay
from bridge.relay.routes import Routes
from bridge.runtime.endpoints import Endpoint, NextHop
from bridge.testing import free_port
from tests.relay.scripted_hop import DROP, HANG, HEAD, ScriptedHop, make_tx, soon


def nobody() -> SmtpRelay:
    """A next hop that refuses connections."""
    return SmtpRelay(RelaySettings(NextHop("smtp", Endpoint("127.0.0.1", free_port())), "bridge.example"))


def failover(*relays: Relay, shun_s: float = 60.0) -> Failover:
    return Failover([(f"hop{number}", relay) for number, relay in enumerate(relays)], shun_s)


async def test_the_first_next_hop_gets_all_mail_while_it_is_up() -> None:
    """The others are used only when it is down."""
    async with ScriptedHop() as first, ScriptedHop() as second:
        relay = failover(SmtpRelay(first.settings()), SmtpRelay(second.settings()))
        for _ in range(3):
            await relay.deliver(make_tx(), HEAD, soon())
        assert (len(first.contents), len(second.connections)) == (3, 0)
        assert await relay.probe() == first.extensions
        await relay.close()


@pytest.mark.parametrize("greeting", ["", "421 4.3.2 Not now", "554 5.3.2 No", DROP])
async def test_a_next_hop_that_is_down_is_passed_over(caplog: pytest.LogCaptureFixture, greeting: str) -> None:
    """The first mail notices, later ones skip it, and it is logged once."""
    async with ScriptedHop({"GREETING": greeting}) as first, ScriptedHop() as second:
        down = SmtpRelay(first.settings()) if greeting else nobody()
        relay = failover(down, SmtpRelay(second.settings()))
        for _ in range(3):
            await relay.deliver(make_tx(), HEAD, soon())
        assert len(second.contents) == 3
        assert len(first.connections) == (1 if greeting else 0)
        assert sum("skipping it" in record.message for record in caplog.records) == 1
        await relay.close()


async def test_a_silent_next_hop_kept_all_mail_whose_deadline_came_before_its_time_to_connect() -> None:
    """`connect_timeout` was longer than what a slow scan leaves of the deadline, so the second one was never used."""
    async with ScriptedHop({"GREETING": HANG}) as first, ScriptedHop() as second:
        results: list[str] = []
        monitored = MonitoredRelay(
            "hop0", SmtpRelay(first.settings(connect_timeout_s=1.0)), lambda name, result: results.append(result)
        )
        relay = failover(monitored, SmtpRelay(second.settings()))
        with pytest.raises(NextHopError, match="timed out") as exc:
            await relay.deliver(make_tx(), HEAD, asyncio.get_running_loop().time() + 0.4)
        assert exc.value.reply == client_replies.LATE
        for _ in range(2):
            await relay.deliver(make_tx(), HEAD, soon())
        assert (len(second.contents), len(first.connections)) == (2, 1)
        assert results == ["lost"] and monitored.is_up is None  # one slow mail does not raise the alarm
        await relay.close()


async def test_a_mail_without_time_says_nothing_about_the_next_hop() -> None:
    async with ScriptedHop({"GREETING": HANG}) as first, ScriptedHop() as second:
        relay = failover(SmtpRelay(first.settings()), SmtpRelay(second.settings()))
        for _ in range(2):
            with pytest.raises(NextHopError) as exc:
                await relay.deliver(make_tx(), HEAD, asyncio.get_running_loop().time() + 0.1)
            assert exc.value.reply == client_replies.LATE
        assert not second.connections and not any(hop.down for hop in relay._hops)
        await relay.close()


async def test_a_next_hop_comes_back_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with ScriptedHop({"GREETING": ["421 4.3.2 Not now", "220 Hello"]}) as first, ScriptedHop() as second:
        relay = failover(SmtpRelay(first.settings()), SmtpRelay(second.settings()), shun_s=0.0)
        for _ in range(3):
            await relay.deliver(make_tx(), HEAD, soon())
        assert (len(first.contents), len(second.contents)) == (2, 1)
        assert sum("is up again" in record.message for record in caplog.records) == 1
        await relay.close()


async def test_one_mail_alone_tries_a_next_hop_that_was_down() -> None:
    """While one mail waits for a server that may not answer, other mails go to a working one."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        asked.set()
        await go_on.wait()
        return "220 Hello"

    async with ScriptedHop({"GREETING": "421 4.3.2 Not now"}) as first, ScriptedHop() as second:
        relay = failover(SmtpRelay(first.settings()), SmtpRelay(second.settings()))
        await relay.deliver(make_tx(), HEAD, soon())
        first.script["GREETING"] = slow
        relay._hops[0].retry_at = 0.0  # a minute later
        trial = asyncio.create_task(relay.deliver(make_tx(), HEAD, soon()))
        await asked.wait()
        await relay.deliver(make_tx(), HEAD, soon())
        assert len(second.contents) == 2
        go_on.set()
        await trial
        assert len(first.contents) == 1
        await relay.close()


async def test_when_all_are_down_all_are_tried_and_the_client_reads_451() -> None:
    async with ScriptedHop({"GREETING": ["421 4.3.2 Not now", "421 4.3.2 Not now", "220 Hello"]}) as last:
        relay = failover(nobody(), SmtpRelay(last.settings()))
        for _ in range(2):
            with pytest.raises(NextHopError) as caught:
                await relay.deliver(make_tx(), HEAD, soon())
            assert str(caught.value.reply).startswith("451 4.4.1")
        await relay.deliver(make_tx(), HEAD, soon())
        with pytest.raises(NextHopError):
            await relay.probe()
        await relay.close()


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("MAIL", "450 4.1.0 No"),
        ("RCPT", "550 5.1.1 No"),
        ("DATA", "451 4.3.0 No"),
        ("DOT", "554 5.7.1 No"),
        ("DOT", DROP),
    ],
)
async def test_the_answer_of_a_server_that_was_sent_the_envelope_is_final(verb: str, answer: str) -> None:
    """A refusal is not a reason to ask another server, and a lost answer may have been a 250."""
    async with ScriptedHop({verb: answer}) as first, ScriptedHop() as second:
        relay = failover(SmtpRelay(first.settings()), SmtpRelay(second.settings()))
        with pytest.raises(NextHopError):
            await relay.deliver(make_tx(), HEAD, soon())
        assert not second.connections
        await relay.close()


async def test_a_dead_idle_connection_to_a_server_that_went_down_moves_the_mail_on() -> None:
    first = ScriptedHop({"MAIL": ["250 2.1.0 Ok", DROP], "GREETING": ["220 Hello", "421 4.3.2 Going down"]})
    async with first, ScriptedHop() as second:
        relay = failover(SmtpRelay(first.settings()), SmtpRelay(second.settings()))
        await relay.deliver(make_tx(), HEAD, soon())
        await relay.deliver(make_tx(), HEAD, soon())
        assert (len(first.contents), len(second.contents)) == (1, 1)
        await relay.close()


PEOPLE = ("a@One.example", "b@other.example", "c@one.example", "postmaster")


def rcpts(hop: ScriptedHop) -> list[str]:
    return [command for command in hop.commands if command.startswith("RCPT")]


async def test_each_recipient_is_routed_by_its_domain() -> None:
    """One transaction for each next hop, with the same content, and a reply for each recipient."""
    async with ScriptedHop() as default, ScriptedHop({"DOT": "250 2.0.0 Ok: queued as ONE1"}) as routed:
        relay = Routes({"one.example": SmtpRelay(routed.settings())}, SmtpRelay(default.settings()))
        delivered = await relay.deliver(make_tx(recipients=PEOPLE), HEAD, soon())
        assert [c for c in routed.commands if c[:4] == "RCPT"] == [
            "RCPT TO:<a@One.example>",
            "RCPT TO:<c@one.example>",
        ]
        assert [c for c in default.commands if c[:4] == "RCPT"] == [
            "RCPT TO:<b@other.example>",
            "RCPT TO:<postmaster>",
        ]
        assert routed.contents == default.contents != []
        assert [reply.text[-4:] for reply in delivered.replies] == ["ONE1", "C123", "ONE1", "C123"]
        assert delivered.queue_id == "ONE1,4ABC123"
        await relay.close()


async def test_a_mail_for_one_route_is_one_transaction() -> None:
    async with ScriptedHop() as default, ScriptedHop() as routed:
        relay = Routes({"one.example": SmtpRelay(routed.settings())}, SmtpRelay(default.settings()))
        await relay.deliver(make_tx(recipients=("a@one.example", "c@one.example")), HEAD, soon())
        await relay.deliver(make_tx(recipients=("a@two.example",)), HEAD, soon())
        assert (len(routed.contents), len(default.contents)) == (1, 1)
        assert len(await relay.probe()) > 0
        await relay.close()


@pytest.mark.parametrize("answer", ["451 4.3.0 Later", "550 5.7.1 Never"])
async def test_a_refusal_on_one_of_two_ways_is_the_answer_for_the_mail(
    caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    """The client sends the mail again or bounces it: no recipient is dropped silently."""
    async with ScriptedHop({"DOT": answer}) as default, ScriptedHop() as routed:
        relay = Routes({"one.example": SmtpRelay(routed.settings())}, SmtpRelay(default.settings()))
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(recipients=PEOPLE), HEAD, soon())
        assert str(caught.value.reply) == answer
        assert "delivered to 2 recipients" in caplog.text
        with pytest.raises(NextHopError):
            await relay.deliver(make_tx(recipients=PEOPLE[1::-1]), HEAD, soon())
        assert len(routed.contents) == 1
        await relay.close()


async def test_lmtp_replies_are_kept_for_each_recipient() -> None:
    async with ScriptedHop({"DOT": ["250 2.0.0 first", "250 2.0.0 second"]}, lmtp=True) as hop:
        relay = SmtpRelay(hop.settings())
        delivered = await relay.deliver(make_tx(recipients=("a@x.example", "b@x.example")), HEAD, soon())
        assert [reply.text for reply in delivered.replies] == ["first", "second"]
        await relay.close()


async def test_mixed_lmtp_replies_are_kept_alongside_the_overall_reply() -> None:
    """An LMTP client learns who has the mail; an SMTP client receives the weightiest reply."""
    script = ["250 2.0.0 Ok", "552 5.2.2 Full", "421 4.3.2 Not now"]
    async with ScriptedHop({"DOT": script}, lmtp=True) as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(Mixed) as caught:
            await relay.deliver(make_tx(recipients=("a@x.example", "b@x.example", "c@x.example")), HEAD, soon())
        assert str(caught.value.reply) == "451 4.3.2 Not now"
        assert [reply.code for reply in caught.value.replies] == [250, 552, 451]
        await relay.close()


@pytest.mark.parametrize("kind", ["smtp", "maildir"])
async def test_without_lmtp_one_reply_holds_for_all_recipients(tmp_path: Path, kind: str) -> None:
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings()) if kind == "smtp" else Maildir(tmp_path, "bridge.example")
        delivered = await relay.deliver(make_tx(recipients=PEOPLE), HEAD, soon())
        assert delivered.replies == (delivered.reply,) * 4
        await relay.close()


EIGHT_BIT = "grüße\r\n".encode()
NEEDY = [
    ({"params": ("BODY=8BITMIME",), "content": EIGHT_BIT}, "8BITMIME", (554, "5.6.3")),
    ({"params": ("SMTPUTF8",), "sender": "ä@example.org"}, "SMTPUTF8", (550, "5.6.7")),
    ({"recipients": (Recipient("b@example.org", ("NOTIFY=SUCCESS",)),)}, "DSN", (550, "5.3.3")),
    ({"params": ("REQUIRETLS",)}, "REQUIRETLS", (555, "5.5.4")),
]


async def outcome(relay: Relay, needs: dict[str, Any]) -> tuple[int, str]:
    try:
        return (await relay.deliver(make_tx(**needs), HEAD, soon())).reply.code, ""
    except NextHopError as exc:
        return exc.reply.code, exc.reply.status


@pytest.mark.parametrize(("needs", "extension", "final"), NEEDY, ids=[row[1] for row in NEEDY])
async def test_wanted_mail_bounced_for_what_a_substitute_lacks(
    needs: dict[str, Any], extension: str, final: tuple[int, str]
) -> None:
    """The first next hop takes it, and is back in minutes. If it is up, and lacks it too, the answer is final."""
    full = ("PIPELINING", extension)
    async with ScriptedHop(extensions=("PIPELINING",)) as poor, ScriptedHop(extensions=full) as rich:
        relay = failover(nobody(), SmtpRelay(poor.settings()))
        for _ in range(2):  # the second one skips the first next hop
            assert await outcome(relay, needs) == (451, "4.3.3")
        assert not poor.commands
        assert await outcome(relay, {}) == (250, "")
        await relay.close()
        both = failover(SmtpRelay(poor.settings()), SmtpRelay(rich.settings()))
        assert await outcome(both, needs) == (250, "") and len(rich.contents) == 1
        await both.close()
        neither = failover(SmtpRelay(poor.settings()), SmtpRelay(poor.settings()))
        assert await outcome(neither, needs) == final
        await neither.close()


@pytest.mark.parametrize(
    "answer", ["554 5.3.2 Too busy", "502 5.5.1 Not implemented", "500 5.5.2 What?", "550 5.7.1 No"]
)
@pytest.mark.parametrize("needs", [row[0] for row in NEEDY], ids=[row[1] for row in NEEDY])
async def test_wanted_mail_bounced_because_ehlo_failed_for_a_moment(answer: str, needs: dict[str, Any]) -> None:
    """After HELO, nobody knows what the next hop offers at other times. Mail that needs nothing passes."""
    async with ScriptedHop({"EHLO": answer}) as hop:
        relay = SmtpRelay(hop.settings())
        assert await outcome(relay, needs) == (451, "4.3.3")
        assert await outcome(relay, {}) == (250, "")
        await relay.close()


@pytest.mark.parametrize(("needs", "extension", "final"), NEEDY, ids=[row[1] for row in NEEDY])
async def test_wanted_mail_bounced_because_another_machine_answered_under_the_name(
    needs: dict[str, Any], extension: str, final: tuple[int, str]
) -> None:
    """What the next hop announced within the last hour may come back."""
    async with ScriptedHop(extensions=("PIPELINING", extension)) as hop:
        relay = SmtpRelay(hop.settings())
        assert await relay.probe() == ("PIPELINING", extension)
        hop.extensions = ("PIPELINING",)
        assert await outcome(relay, needs) == (451, "4.3.3")
        await relay.close()
        fresh = SmtpRelay(hop.settings())
        assert await outcome(fresh, needs) == final
        await fresh.close()
