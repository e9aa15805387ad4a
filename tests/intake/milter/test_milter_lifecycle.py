"""Connections from their first to their last byte: many mails, aborts, progress, trust, shutdown."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket

import pytest

from bridge.intake.reports import IntakeReports
from bridge.mail.action import Action
from bridge.mail.reply import Reply
from bridge.mail.session import Client
from bridge.testing import eventually
from tests.intake.milter.milter_kit import (
    OUTCOMES,
    SETTINGS,
    ScriptedFilter,
    connect_frame,
    forever,
    frame,
    letters,
    listening,
    offer,
)

pytestmark = pytest.mark.usefixtures("strict_loop")

# --- many mails on one connection; how connections end ---


async def test_several_mails_on_one_connection_share_nothing_but_the_client():
    """Each mail has its own envelope, content and queue id."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        for number in (b"1", b"2", b"3"):
            mta.send(frame("D", b"M" + b"i\0Q" + number + b"\0"))
            await mta.mail(sender=b"<s%b@example.org>" % number, rcpt=b"<r%b@example.net>" % number)
            mta.content((b"Subject", b" " + number))
            assert letters(await mta.until_final()) == "hhc"
    assert [s.tx.envelope.addresses for s in filter_.seen] == [(f"r{i}@example.net",) for i in (1, 2, 3)]
    assert [s.tx.session.client.ident for s in filter_.seen] == ["Q1", "Q2", "Q3"]
    assert len({s.tx.id for s in filter_.seen}) == 3
    assert len({s.tx.session.id for s in filter_.seen}) == 1
    assert {s.tx.session.client.address for s in filter_.seen} == {"203.0.113.9"}


@pytest.mark.parametrize("end", ["A", "Q", "K", ""], ids=["abort", "quit", "next client", "connection lost"])
async def test_a_mail_that_is_given_up_during_its_content_is_reported(end):
    """As Postfix does when its client disconnects; once, with the client and the sender, and only after DATA."""
    gone = []
    async with listening(ScriptedFilter(), reports=IntakeReports(cancelled=gone.append)) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail(sender=b"<early@example.org>")
        mta.send(frame("A"))  # before DATA: nothing to look for
        await mta.mail(sender=b"<whole@example.org>")
        mta.send(frame("T"))
        mta.content()
        await mta.until_final()
        await mta.mail(sender=b"<gone@example.org>")
        mta.send(frame("T"), *([frame(end)] if end else []))
        if not end:
            mta.close()
        await eventually(lambda: gone, "the report")
    (refusal,) = gone
    assert (refusal.stage, refusal.client, refusal.sender, refusal.rule) == (
        "data", "203.0.113.9", "gone@example.org", "client_gone",
    )  # fmt: skip


@pytest.mark.parametrize("content", [b"", frame("L", b"A\0 b\0"), frame("N") + frame("B", b"x" * 5000)])
async def test_abort_forgets_the_mail(content):
    """Recipients and content of an aborted mail never reach the next one."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail(rcpt=b"<aborted@example.net>")
        mta.send(content, frame("A"))
        await mta.mail()
        mta.content()
        await mta.until_final()
    assert filter_.seen[0].tx.envelope.addresses == ("b@example.net",)
    assert filter_.seen[0].content == b"Subject: test\r\n\r\nHello\r\n"


async def test_quit_nc_makes_room_for_another_client():
    """A connection that is reused keeps nothing of the previous client."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        mta.send(frame("D", b"M{auth_authen}\0ann\0"))
        await mta.mail()
        mta.content()
        await mta.until_final()
        mta.send(frame("K"), frame("C", b"x\0U"))
        await mta.mail()
        mta.content()
        await mta.until_final()
    first, second = (seen.tx.session for seen in filter_.seen)
    assert first.client.login == "ann"
    assert (second.client.address, second.client.helo, second.client.login) == (None, None, None)
    assert first.id != second.id


async def test_a_client_was_judged_by_the_helo_and_tls_of_the_one_before():
    """A mail server may name the next client without saying that the last one is gone."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.negotiate()
        mta.send(connect_frame(), frame("D", b"H{tls_version}\0TLSv1.3\0"), frame("H", b"first.example\0"))
        mta.send(frame("D", b"M{auth_authen}\0ann\0"))
        await mta.mail()
        mta.content()
        await mta.until_final()
        mta.send(frame("D", b"C{client_resolve}\0FORGED\0"), connect_frame(address=b"203.0.113.10"))
        await mta.mail()
        mta.content()
        await mta.until_final()
    first, second = (seen.tx.session for seen in filter_.seen)
    assert (first.client.helo, first.client.login, first.tls) == ("first.example", "ann", "TLSv1.3/")
    assert second.client == Client(address="203.0.113.10", port=2525)
    assert second.tls is None


@pytest.mark.parametrize("ending", [frame("A"), frame("Q"), frame("K"), None], ids=["ABORT", "QUIT", "QUIT_NC", "lost"])
async def test_mail_that_the_mail_server_gives_up_is_no_longer_scanned(ending):
    """ABORT, QUIT and a lost connection cancel the running scan and free its memory."""
    filter_ = ScriptedFilter(forever)
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content()
        await filter_.until(lambda f: f.running == 1)
        if ending is None:
            mta.close()
        else:
            mta.send(ending)
        await filter_.until(lambda f: f.cancelled == 1)
        assert listener.spool.in_use == 0


async def test_connection_is_usable_after_an_abort_during_the_scan():
    """The answer of a cancelled scan never reaches the next mail."""
    late = asyncio.Event()

    async def stubborn(seen):
        if b"first" in seen.content:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                late.set()
                return OUTCOMES[Action.REJECT]  # too late to be cancelled
        return OUTCOMES[Action.RELAY]

    filter_ = ScriptedFilter(stubborn)
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content((b"Subject", b" first"))
        await filter_.until(lambda f: f.running == 1)
        mta.send(frame("A"))
        await late.wait()
        await mta.mail()
        mta.content((b"Subject", b" second"))
        assert letters(await mta.until_final()) == "hhc"


async def test_progress_is_sent_while_the_scan_runs():
    """The mail server gets PROGRESS again and again until there is a decision."""
    release = asyncio.Event()

    async def slow(seen):
        await release.wait()
        return OUTCOMES[Action.RELAY]

    async with listening(ScriptedFilter(slow), progress_interval_s=0.05) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content()
        assert [await mta.read() for _ in range(3)] == [("p", b"")] * 3
        release.set()
        assert letters(await mta.until_final()) == "hhc"


async def test_filter_that_exceeds_its_deadline_is_a_451():
    """A filter that hangs forever does not hang the mail server: 451 4.4.7."""
    filter_ = ScriptedFilter(forever)
    filter_.deadline_s = 0.1
    async with listening(filter_, read_timeout_s=0.2, overrun_s=0.0) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content()
        assert (await mta.until_final())[0][1].startswith(b"451 4.4.7 ")
        await filter_.until(lambda f: f.cancelled == 1)


# --- trusted clients, and shutdown ---


async def test_untrusted_peer_is_closed_immediately(caplog):
    """Only clients in the configured networks may connect; repeated refusals are logged rarely."""
    trusted = (ipaddress.ip_network("192.0.2.0/24"),)
    async with listening(ScriptedFilter(), trusted=trusted) as listener:
        for _ in range(50):
            mta = await listener.mta()
            mta.send(offer())
            assert await mta.closed()
    assert 1 <= len([r for r in caplog.records if "trusted_clients" in r.message]) <= 3


async def test_unix_socket_peer_is_trusted(tmp_path):
    """On a unix socket the file's permissions decide."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "milter"))
    filter_ = ScriptedFilter()
    async with listening(filter_, sock=sock, trusted=()) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content()
        assert letters(await mta.until_final()) == "hhc"
    assert filter_.seen[0].tx.session.peer == "unix"


async def test_connections_over_the_limit_are_closed():
    """The first connection over the limit is closed, the others stay, and a freed place can be used again."""
    filter_ = ScriptedFilter()
    async with listening(filter_, max_connections=2) as listener:
        first, second, third = [await listener.mta() for _ in range(3)]
        assert await third.closed()
        for mta in (first, second):
            await mta.greet()
        first.send(frame("Q"))
        assert await first.closed()
        fourth = await listener.mta()
        await fourth.greet()
        await fourth.mail()


async def test_drain_finishes_running_mail_and_closes_idle_connections():
    """At shutdown no new connection is accepted, idle ones are closed, and a running scan gets its answer."""
    release = asyncio.Event()

    async def slow(seen):
        await release.wait()
        return OUTCOMES[Action.RELAY]

    filter_ = ScriptedFilter(slow)
    async with listening(filter_) as listener:
        idle, busy, half = [await listener.mta() for _ in range(3)]
        for mta in (idle, busy, half):
            await mta.greet()
        await busy.mail()
        await half.mail()
        busy.content()
        await filter_.until(lambda f: f.running == 1)
        draining = asyncio.ensure_future(listener.server.drain(60))
        assert await idle.closed()
        with pytest.raises(OSError):
            await listener.mta()
        half.content()
        await filter_.until(lambda f: f.running == 2)
        release.set()
        for mta in (busy, half):
            assert letters(await mta.until_final()) == "hhc"
            assert await mta.closed()
        await draining


async def test_drain_cuts_off_mail_that_does_not_finish(caplog):
    """After the drain timeout the rest is cancelled; the mail is still queued at the mail server."""
    filter_ = ScriptedFilter(forever)
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content()
        await filter_.until(lambda f: f.running == 1)
        await listener.server.drain(0.05)
        assert await mta.closed()
        await filter_.until(lambda f: f.cancelled == 1)
    assert "connections cut off by the drain timeout" in caplog.text


async def test_second_drain_shortens_the_first():
    """A second signal cuts running mail off early, and the first drain does not wait any longer."""
    filter_ = ScriptedFilter(forever)
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content()
        await filter_.until(lambda f: f.running == 1)
        first = asyncio.ensure_future(listener.server.drain(1000))
        await eventually(lambda: listener.server.listener.draining, "the first drain")
        await listener.server.drain(0.05)
        await first
        assert await mta.closed()


async def test_mail_aborted_while_draining_ends_the_connection():
    """A connection that becomes idle during shutdown is closed."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        draining = asyncio.ensure_future(listener.server.drain(60))
        await eventually(lambda: listener.server.listener.draining, "the drain")
        mta.send(frame("A"))
        assert await mta.closed()
        await draining


async def test_answers_to_one_burst_go_out_in_one_write():
    """Pipelined events cost one write: all their answers arrive in one read."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        burst = [frame("M", b"<a@b>\0")] + [frame("R", b"<b@c>\0")] * 20
        mta.send(b"".join(burst))
        assert await mta.reader.read(65536) == frame("c") * 21


async def test_log_lines_of_a_noisy_peer_are_bounded(caplog):
    """A peer that breaks the protocol a hundred times a second causes one log line a second."""
    with caplog.at_level(logging.WARNING):
        async with listening(ScriptedFilter()) as listener:
            for _ in range(100):
                mta = await listener.mta()
                mta.send(b"\0\0\0\0")
                assert await mta.closed()
    assert 1 <= len(caplog.records) <= 5


async def test_connections_and_refusals_are_counted():
    """The daemon can count open connections, refused connections, and mail refused by a saturated bridge."""
    counted = []
    reports = IntakeReports(
        refused=lambda refusal: counted.append(("refused", refusal.reason)),
        saturated=lambda refusal: counted.append(("saturated", refusal.stage)),
    )
    filter_ = ScriptedFilter()
    filter_.early.saturated = Reply(451, "4.3.2", "Busy")
    async with listening(filter_, max_connections=1, reports=reports) as listener:
        mta = await listener.mta()
        await mta.greet()
        assert listener.server.connections == 1
        assert await (await listener.mta()).closed()
        assert (counted, listener.server.connections) == ([("refused", "limit")], 1)
        await mta.ask(frame("M", b"<a@b>\0"))
    assert (counted[1:], listener.server.connections) == ([("saturated", "mail")], 0)


def test_default_settings_trust_this_machine_only():
    """Clients on other machines may not connect unless the operator allows them."""
    assert {str(network) for network in SETTINGS.trusted} == {"127.0.0.0/8", "::1/128"}
