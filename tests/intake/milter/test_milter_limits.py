"""What the milter intake refuses, and how it treats peers that break the protocol."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path

import pytest

from bridge.intake.reports import IntakeReports
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.mail.spool import DiskLimits
from bridge.observe.log_format import KeyValueFormatter
from bridge.observe.redaction import Redaction
from bridge.testing import eventually
from tests.intake.milter.milter_kit import (
    ScriptedFilter,
    forever,
    frame,
    letters,
    listening,
    offer,
)
from tests.mail.test_spool_file import HangingDisk

pytestmark = pytest.mark.usefixtures("strict_loop")

# --- limits ---


async def test_saturation_is_answered_at_mail():
    """While no mail can be accepted, MAIL gets 451 4.3.2; the next MAIL may pass."""
    filter_ = ScriptedFilter()
    filter_.early.saturated = Reply(451, "4.3.2", "Busy, try again later")
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        assert await mta.ask(frame("M", b"<a@b>\0")) == ("y", b"451 4.3.2 Busy, try again later\0")
        assert await mta.ask(frame("R", b"<b@c>\0")) == ("y", b"451 4.3.2 Busy, try again later\0")
        filter_.early.saturated = None
        await mta.mail()  # without an ABORT before it, as Sendmail does
        mta.content()
        assert letters(await mta.until_final()) == "hhc"
    assert len(filter_.seen) == 1


async def test_mail_that_continues_after_a_refused_mail_command_is_refused_again():
    """A mail server that ignores the refusal of MAIL gets it again at the end, and nothing is scanned."""
    filter_ = ScriptedFilter()
    filter_.early.saturated = Reply(451, "4.3.2", "Busy")
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.ask(frame("M", b"<a@b>\0"))
        mta.content()
        assert (await mta.until_final())[0][1].startswith(b"451 4.3.2 Busy (id=")
    assert not filter_.seen


async def test_mail_over_the_size_limit_is_552_at_its_end():
    """The content of a mail that is too large is not kept, and the next mail passes."""
    filter_ = ScriptedFilter()
    async with listening(filter_, max_message_size=100_000) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        mta.content(body=b"x" * 200_000)
        assert (await mta.until_final())[0][1].startswith(b"552 5.3.4 ")
        assert listener.spool.in_use == 0
        (report,) = filter_.reports
        assert report.outcome.reply.code == 552
        assert report.size > 100_000
        assert (await mta.ask(frame("M", b"<a@b>\0SIZE=200000\0")))[1].startswith(b"552 5.3.4 ")
        await mta.mail()
        mta.content()
        assert letters(await mta.until_final()) == "hhc"


async def test_rest_of_a_refused_body_is_skipped_if_the_mail_server_allows_it():
    """With SKIP and without NR_BODY, the mail server need not send what would be discarded."""
    filter_ = ScriptedFilter()
    async with listening(filter_, max_message_size=1000) as listener:
        mta = await listener.mta()
        await mta.greet(steps=0x1FFFFF & ~(1 << 19))
        await mta.mail()
        assert await mta.ask(frame("N"), frame("B", b"x" * 900)) == ("c", b"")
        assert await mta.ask(frame("B", b"x" * 900)) == ("s", b"")
        mta.send(frame("E"))
        assert (await mta.until_final())[0][1].startswith(b"552 5.3.4 ")


async def test_full_spool_is_451_at_the_end_of_the_mail():
    """When the spool has no room, this mail is deferred and the others are not affected."""
    filter_ = ScriptedFilter(forever)
    async with listening(filter_, room=100_000) as listener:
        first, second = await listener.mta(), await listener.mta()
        for mta in (first, second):
            await mta.greet()
            await mta.mail()
        first.content(body=b"x" * 60_000)
        await filter_.until(lambda f: f.running == 1)
        second.content(body=b"x" * 60_000)
        assert (await second.until_final())[0][1].startswith(b"451 4.3.2 ")


async def test_one_recipient_too_many_is_452_and_the_mail_goes_on(caplog):
    """The recipients before it are kept. The log hides the others, also one without a domain."""
    caplog.set_level("INFO")
    filter_ = ScriptedFilter()
    async with listening(filter_, max_recipients=2) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        assert await mta.ask(frame("R", b"<c@example.net>\0")) == ("c", b"")
        assert (await mta.ask(frame("R", b"<d@example.net>\0")))[1].startswith(b"452 4.5.3 ")
        assert (await mta.ask(frame("R", b"<dora>\0")))[1].startswith(b"452 4.5.3 ")
        mta.content()
        await mta.until_final()
    assert filter_.seen[0].tx.envelope.addresses == ("b@example.net", "c@example.net")
    lines = [KeyValueFormatter(Redaction("domain")).format(each) for each in caplog.records]
    assert sum("recipient <*" in each for each in lines) == 2 and "dora" not in "".join(lines)


@pytest.mark.parametrize("address", [b"<a\r\nb@c>", b"<\xff@c>"])
async def test_address_with_control_characters_or_broken_utf8_is_553(address):
    """An address that the request to the service cannot contain unchanged is refused."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        assert (await mta.ask(frame("M", address + b"\0")))[1].startswith(b"553 5.1.3 ")
        await mta.mail()
        assert (await mta.ask(frame("R", address + b"\0")))[1].startswith(b"553 5.1.3 ")


# --- misbehaviour ---

VIOLATIONS = {
    "length 0": b"\0\0\0\0",
    "length FFFFFFFF": b"\xff\xff\xff\xff",
    "over the limit": struct.pack(">IB", 2 * 1024 * 1024, ord("B")),
    "unknown command": frame("z", b"x"),
    "body before MAIL": frame("B", b"x"),
    "rcpt before MAIL": frame("R", b"<a@b>\0"),
    "end before MAIL": frame("E"),
    "headers after the body": b"".join([frame("M", b"<a@b>\0"), frame("B", b"x"), frame("L", b"A\0b\0")]),
    "next mail before our answer": b"".join(
        [frame("M", b"<a@b>\0"), frame("R", b"<a@b>\0"), frame("E"), frame("M", b"<a@b>\0")]
    ),
    "unterminated address": frame("M", b"<a@b>"),
    "unterminated header": frame("M", b"<a@b>\0") + frame("L", b"A\0b"),
    "unterminated helo": frame("H", b"x"),
    "malformed connect": frame("C", b"x\0Z"),
    "second negotiation of version 1": offer(version=1),
}


@pytest.mark.parametrize("violation", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_violation_closes_its_own_connection_only(violation):
    """A connection that breaks the protocol is closed; mail on other connections is not affected."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        bad, good = await listener.mta(), await listener.mta()
        for mta in (bad, good):
            await mta.negotiate()
        await good.mail()
        bad.send(violation)
        await bad.ended()
        good.content()
        assert letters(await good.until_final()) == "hhc"


@pytest.mark.parametrize(
    "opening", [frame("M", b"<a@b>\0"), offer(version=1), frame("O", b"short"), b"GET / HTTP/1.1\r\n"]
)
async def test_connection_that_does_not_open_with_a_negotiation_is_closed(opening):
    """A peer that does not speak milter gets no answer."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        mta.send(opening)
        assert await mta.closed()


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\0\0\0",
        struct.pack(">IB", 100, ord("H")) + b"x",
        frame("M", b"<a@b>\0") + struct.pack(">IB", 9, ord("B")),
    ],
    ids=["silence", "half a length", "withheld data", "withheld body"],
)
async def test_frame_that_does_not_arrive_closes_the_connection(start):
    """A connection that stops in the middle of a frame, or never starts one, is closed."""
    filter_ = ScriptedFilter()
    async with listening(filter_, read_timeout_s=0.1) as listener:
        mta = await listener.mta()
        if start:
            await mta.negotiate()
        mta.send(start)
        assert await mta.ended() == (frame("c") if b"<a@b>" in start else b"")
    assert filter_.seen == []


async def test_frame_dribbled_byte_by_byte_is_cut():
    """Bytes that do not complete a frame do not keep a connection open."""
    filter_ = ScriptedFilter()
    async with listening(filter_, read_timeout_s=0.3) as listener:
        mta = await listener.mta()
        await mta.negotiate()
        mta.send(struct.pack(">IB", 60_000, ord("H")))
        ended = asyncio.ensure_future(mta.closed())
        while not ended.done():
            mta.send(b"x")
            await asyncio.wait([ended], timeout=0.02)
        assert ended.result()


async def test_silence_between_two_mails_is_allowed_for_longer_than_within_one():
    """An SMTP client may pause between two commands; content comes from the mail server's own disk."""
    filter_ = ScriptedFilter()
    async with listening(filter_, read_timeout_s=0.1, idle_timeout_s=20) as listener:
        patient, stuck = await listener.mta(), await listener.mta()
        for mta in (patient, stuck):
            await mta.greet()
            await mta.mail()
        stuck.send(frame("L", b"A\0 b\0"))
        assert await stuck.closed()
        patient.content()
        assert letters(await patient.until_final()) == "hhc"


async def test_peer_that_never_reads_its_answers_is_dropped():
    """Unread answers do not pile up, and the connection is closed long before an idle one would be."""
    async with listening(ScriptedFilter(), read_timeout_s=0.3, idle_timeout_s=1000) as listener:
        mta = await listener.mta()
        await mta.greet(version=2, steps=0)
        mta.writer.transport.pause_reading()
        burst = frame("U", b"x\0") * 5000
        try:
            async with asyncio.timeout(60):
                while listener.server.connections:
                    mta.send(burst)
                    await mta.writer.drain()
        except ConnectionError:
            pass
        assert listener.server.connections == 0


async def test_content_that_trickles_forever_is_cut():
    """Complete frames that arrive slowly still have a total time limit."""
    filter_ = ScriptedFilter()
    async with listening(filter_, read_timeout_s=5, content_timeout_s=0.3, progress_interval_s=0.2) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail()
        ended = asyncio.ensure_future(mta.closed())
        while not ended.done():
            mta.send(frame("L", b"A\0 b\0"))
            await asyncio.wait([ended], timeout=0.02)
        assert ended.result()
    assert not filter_.seen


@pytest.mark.parametrize(
    ("start", "limit"),
    [
        (b"\0\0\0", "command_timeout"),
        (frame("M", b"<a@b>\0") + frame("L", b"A\0 b\0"), "data_timeout"),
    ],
)
async def test_an_exceeded_time_limit_is_counted(start, limit):
    """Time limits have the same metric labels as over SMTP."""
    hit = []
    async with listening(ScriptedFilter(), read_timeout_s=0.1, reports=IntakeReports(limit=hit.append)) as listener:
        mta = await listener.mta()
        await mta.negotiate()
        mta.send(start)
        await mta.ended()
    assert hit == [limit]


async def test_content_that_takes_too_long_is_counted():
    """The time limit for the whole content has its own label."""
    hit = []
    reports = IntakeReports(limit=hit.append)
    async with listening(ScriptedFilter(), read_timeout_s=5, content_timeout_s=0.2, reports=reports) as listener:
        mta = await listener.mta()
        await mta.negotiate()
        mta.send(frame("M", b"<a@b>\0") + frame("L", b"A\0 b\0"))
        await mta.ended()
    assert hit == ["mail_timeout"]


@pytest.mark.parametrize("event", "CHMRE")
@pytest.mark.parametrize("rest", [b"", frame("T") + frame("L", b"Subject\0 x\0")], ids=["envelope", "content"])
async def test_an_unfinished_macro_closes_its_own_connection_only(event, rest):
    """A macro without its final NUL was noticed only when the connection was closed, which then stayed in the count

    of open connections; and the timer failed at it before it came to the deadlines of the others.
    """
    given_up = []
    reports = IntakeReports(cancelled=given_up.append)
    async with listening(ScriptedFilter(), read_timeout_s=0.5, reports=reports) as listener:
        silent = [await listener.mta() for _ in range(5)]
        broken = [await listener.mta() for _ in range(5)]
        silent += [await listener.mta() for _ in range(5)]
        for mta in broken:
            await mta.greet()
            await mta.mail()
            mta.send(rest, frame("D", event.encode() + b"i\x004cXyZ"))
        for mta in (*broken, *silent):
            await mta.ended()
        await eventually(lambda: listener.server.connections == 0, "all connections to be forgotten")
    assert len(given_up) == (len(broken) if rest else 0)


async def test_macros_of_an_odd_number_of_strings_are_harmless():
    """A macro without a value is ignored, and a silent connection with one is closed like any other."""
    filter_ = ScriptedFilter()
    async with listening(filter_, read_timeout_s=1.0) as listener:
        mta = await listener.mta()
        await mta.greet()
        mta.send(frame("D", b"Mi\x004cXyZ\0{auth_authen}\0"))
        await mta.mail()
        mta.content()
        assert letters(await mta.until_final()) == "hhc"
        await mta.mail()
        mta.send(frame("D", b"E{auth_authen}\0"), frame("L", b"Subject\0 x\0"))
        assert await mta.closed()
        await eventually(lambda: listener.server.connections == 0, "the connection to be forgotten")
    client = filter_.seen[0].tx.session.client
    assert (client.ident, client.login) == ("4cXyZ", None)


async def test_a_connection_is_forgotten_even_if_its_end_cannot_be_reported():
    """An error in the report of a mail that was given up left the connection in the count, and its bytes reserved."""

    def fail(refusal):
        raise RuntimeError("no report today")

    async with listening(ScriptedFilter(), read_timeout_s=0.5, reports=IntakeReports(cancelled=fail)) as listener:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for end in ("silence", "violation", "reset"):
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            mta.send(frame("L", b"Subject\0 x\0"), frame("N"), frame("B", b"x" * 1000))
            if end == "violation":
                mta.send(frame("O"))
            elif end == "reset":
                mta.writer.transport.abort()
            if end != "reset":
                await mta.ended()
            await eventually(lambda: listener.server.connections == 0, f"the connection to be forgotten after {end}")
            assert listener.spool.in_use == 0


async def test_mail_server_that_we_had_stopped_was_cut_off_as_silent(tmp_path: Path) -> None:
    """The disk of the spool was behind for longer than a mail server may be silent within a mail."""
    disk, filter_ = HangingDisk(DiskLimits(max_unwritten=1024 * 1024, hangs_after_s=60.0)), ScriptedFilter()
    spool = Spool(1 << 30, 1024, str(tmp_path), disk=disk)
    async with listening(filter_, read_timeout_s=0.2, spool=spool) as listener:
        try:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            body = b"x" * 998 + b"\r\n"
            mta.content(body=body * 3000)
            answers = asyncio.ensure_future(mta.until_final())
            await eventually(lambda: disk.unwritten > 512 * 1024, "the listener to stop reading")
            patience = time.monotonic() + 2.0  # ten times as long as silence is allowed
            await eventually(lambda: time.monotonic() > patience or answers.done(), "the time to pass")
        finally:
            disk.goes_on.set()
        assert (await answers)[-1][0] in "ac"
    assert len(filter_.seen[0].content) > len(body) * 3000
