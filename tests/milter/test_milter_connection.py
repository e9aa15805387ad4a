"""The milter intake over real sockets, with a scripted filter behind it and a scripted mail server before it."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
import struct

import pytest
import uvloop
from milter_kit import (
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

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.filter.decide import Outcome
from bridge.mail.action import Action
from bridge.mail.reply import Reply


@pytest.fixture(autouse=True, params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def event_loop_of_choice(request, monkeypatch):
    """Everything holds on Python's own event loop and on the faster one we run on."""
    monkeypatch.setattr(run, "loop_factory", request.param, raising=False)


def run(scenario):
    """Run one scenario to its end; an exception anywhere in the loop is a failure."""
    problems = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        await asyncio.wait_for(scenario(), 30)

    with asyncio.Runner(loop_factory=run.loop_factory) as runner:
        runner.run(watched())
    assert not problems


def one_mail(answer, *fields, body=b"Hello\r\n", **flags):
    """Send one mail through a listener; what the mail server read, and what the filter saw."""
    filter_ = ScriptedFilter(answer)
    result = []

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet(**flags)
            await mta.mail()
            mta.content(*fields, body=body)
            result.extend(await mta.until_final())

    run(scenario)
    return result, filter_


# --- decisions ---


def test_deliver_strips_forged_fields_and_stamps_ours():
    """Fields that only we may write are removed, last first; then ours are added and the mail goes on."""
    responses, _ = one_mail(
        Action.RELAY, (b"X-Scan-Id", b" forged"), (b"Subject", b" x"), (b"x-scan-ID", b" too"), (b"X-SCAN-Ok", b" y")
    )
    assert responses == [
        ("m", b"\0\0\0\2x-scan-id\0\0"),
        ("m", b"\0\0\0\1x-scan-id\0\0"),
        ("m", b"\0\0\0\1x-scan-ok\0\0"),
        ("h", b"X-Scan-Id\0 ID1\0"),
        ("h", b"X-Scan-Decision\0 deliver\0"),
        ("c", b""),
    ]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Action.REJECT, [("y", b"550 5.7.1 Refused: 100%% certain (ID1)\0")]),
        (Action.TEMPFAIL, [("y", b"451 4.7.1 Try again later (ID1)\0")]),
        (Action.DISCARD, [("d", b"")]),
        (Action.QUARANTINE, [("d", b"")]),
    ],
)
def test_decision_in_the_mail_servers_words(action, expected):
    """Refusals carry our own code and text; what is dropped or in our store is discarded."""
    assert one_mail(action)[0] == expected


def test_hold_is_quarantine_and_then_continue():
    """The mail server keeps the mail in its own hold queue, stamped, and says 250."""
    responses, filter_ = one_mail(Action.HOLD)
    assert letters(responses) == "hqc"
    assert filter_.seen[0].tx.id.encode() in responses[1][1]


def test_hold_without_the_ability_is_put_off():
    """A mail server that cannot hold mail must not deliver it: 451."""
    responses, _ = one_mail(Action.HOLD, actions=0x11)
    assert letters(responses) == "y"
    assert responses[0][1].startswith(b"451 4.3.0 ")


@pytest.mark.parametrize(("actions", "expected"), [(0, "c"), (0x01, "hhc"), (0x10, "mc"), (0x11, "mhhc")])
def test_header_edits_are_limited_to_what_was_granted(actions, expected):
    """Without the right to edit, the mail is delivered as it is."""
    responses, _ = one_mail(Action.RELAY, (b"X-Scan-Id", b" forged"), actions=actions)
    assert letters(responses) == expected


def test_broken_filter_is_451_and_tells_nothing(caplog):
    """An exception of our own is a temporary failure; its text stays in the log."""

    async def broken(seen):
        raise RuntimeError("secret path")

    responses, _ = one_mail(broken)
    assert responses[0][1].startswith(b"451 4.3.0 Internal problem, try again later (id=")
    assert b"secret" not in responses[0][1]
    assert "secret path" in caplog.text


def test_refusal_that_is_none_is_451(caplog):
    """A reject with a success code cannot be told to a mail server; doubt is a 4xx."""

    async def confused(seen):
        return Outcome(Action.REJECT, Reply(250, "2.0.0", "Ok"))

    assert one_mail(confused)[0][0][1].startswith(b"451 4.3.0")


# --- the mail ---


def test_mail_is_rebuilt_and_attributed():
    """The filter gets the whole mail, the envelope, and the client of the mail server."""
    responses, filter_ = one_mail(
        Action.RELAY, (b"Subject", b"tight"), (b"X-Fold", b" a\n\tb"), body=b"line\r\n.\r\n\xff\r\n"
    )
    seen = filter_.seen[0]
    assert seen.content == b"Subject:tight\r\nX-Fold: a\r\n\tb\r\n\r\nline\r\n.\r\n\xff\r\n"
    assert seen.tx.envelope.sender == "a@example.org"
    assert seen.tx.envelope.addresses == ("b@example.net",)
    assert seen.tx.session.client.address == "203.0.113.9"
    assert seen.tx.session.client.helo == "client.example"
    assert seen.tx.session.peer == "127.0.0.1"
    assert seen.tx.deadline == pytest.approx(seen.tx.received_at + 30)
    assert letters(responses) == "hhc"


def test_end_of_body_may_carry_the_last_chunk():
    """Some mail servers put the end of the body into the command that ends it."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail(sender=b"<>")
            mta.send(frame("L", b"A\0 b\0"), frame("N"), frame("B", b"one "), frame("E", b"two"))
            await mta.until_final()

    run(scenario)
    assert filter_.seen[0].content == b"A: b\r\n\r\none two"
    assert filter_.seen[0].tx.envelope.sender == ""


@pytest.mark.parametrize("flag", [28, 29])
def test_larger_body_chunks_arrive_whole(flag):
    """Chunks of 256 KiB and 1 MiB are taken when they were agreed on."""
    filter_ = ScriptedFilter()
    size = {28: 256 * 1024 - 1, 29: 1024 * 1024 - 1}[flag]

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            _, _, steps, _ = await mta.negotiate(steps=0x1FFFFF | 1 << flag)
            assert steps & 1 << flag
            mta.send(connect_frame())
            await mta.mail()
            mta.send(frame("N"), frame("B", b"x" * size), frame("B", b"y" * size), frame("E"))
            await mta.until_final()

    run(scenario)
    assert filter_.seen[0].content == b"\r\n" + b"x" * size + b"y" * size


def test_whole_dialogue_byte_by_byte_gives_the_same_mail():
    """A network that delivers single bytes changes nothing."""
    filter_ = ScriptedFilter()
    dialogue = b"".join(
        [
            offer(),
            connect_frame(),
            frame("D", b"M" + b"i\0Q1\0"),
            frame("M", b"<a@example.org>\0"),
            frame("R", b"<b@example.net>\0"),
            frame("L", b"Subject\0 x\0"),
            frame("N"),
            frame("B", b"body\r\n"),
            frame("E"),
        ]
    )

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            mta.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(len(dialogue)):
                mta.send(dialogue[i : i + 1])
                await mta.writer.drain()
            assert letters([await mta.read() for _ in range(3)]) == "Occ"
            assert letters(await mta.until_final()) == "hhc"

    run(scenario)
    assert filter_.seen[0].content == b"Subject: x\r\n\r\nbody\r\n"
    assert filter_.seen[0].tx.session.client.ident == "Q1"


@pytest.mark.parametrize("helo", [b"xn--zzzz--", b"<script>", b"x" * 500, b"\xff\xfe\r\n\x1b[31m", "ü\u2028".encode()])
def test_helo_of_any_bytes_is_valid_json(helo):
    """Whatever a stranger says in HELO, the request to the service can be written."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet(helo=helo)
            await mta.mail()
            mta.content()
            assert letters(await mta.until_final()) == "hhc"

    run(scenario)
    said = filter_.seen[0].tx.session.client.helo
    request = AnalysisRequest(BorderMtaData("", ("b@c",), None, said)).to_json()
    assert json.loads(request)["borderMtaData"]["senderHelo"] == said


def test_macros_of_any_event_and_any_bytes_are_harmless():
    """Macros nobody asked for are not kept, and undecodable ones become valid text."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            for event in range(256):
                mta.send(frame("D", bytes([event]) + b"i\0\xff\xfe\0{auth_authen}\0\xc3\0"), frame("D"))
            await mta.mail()
            mta.content()
            assert letters(await mta.until_final()) == "hhc"

    run(scenario)
    client = filter_.seen[0].tx.session.client
    assert (client.ident, client.login) == ("\ufffd\ufffd", "\ufffd")


def test_version_two_peer_is_answered_at_every_step():
    """An old mail server waits after each event, and header values come without their space."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            assert (await mta.negotiate(version=2, actions=0x3F, steps=0x7F))[:3] == (2, 0x31, 0)
            for step in (
                connect_frame(),
                frame("H", b"x\0"),
                frame("M", b"<a@example.org>\0"),
                frame("R", b"<b@example.net>\0"),
                frame("L", b"Subject\0hello\0"),
                frame("N"),
                frame("B", b"body"),
            ):
                assert await mta.ask(step) == ("c", b"")
            mta.send(frame("E"))
            responses = await mta.until_final()
            assert responses[0] == ("h", b"X-Scan-Id\0ID1\0")

    run(scenario)
    assert filter_.seen[0].content == b"Subject: hello\r\n\r\nbody"


# --- limits ---


def test_saturation_is_said_at_mail():
    """When no mail can be taken, MAIL is answered 451 4.3.2, and the next MAIL may pass."""
    filter_ = ScriptedFilter()
    filter_.saturated = Reply(451, "4.3.2", "Busy, try again later")

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            assert await mta.ask(frame("M", b"<a@b>\0")) == ("y", b"451 4.3.2 Busy, try again later\0")
            assert await mta.ask(frame("R", b"<b@c>\0")) == ("y", b"451 4.3.2 Busy, try again later\0")
            filter_.saturated = None
            await mta.mail()  # no ABORT between, as Sendmail does it
            mta.content()
            assert letters(await mta.until_final()) == "hhc"

    run(scenario)
    assert len(filter_.seen) == 1


def test_mail_sent_on_after_a_refused_mail_is_refused_again():
    """A mail server that ignores the refusal at MAIL reads it again at the end, and nothing is scanned."""
    filter_ = ScriptedFilter()
    filter_.saturated = Reply(451, "4.3.2", "Busy")

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.ask(frame("M", b"<a@b>\0"))
            mta.content()
            assert (await mta.until_final())[0][1].startswith(b"451 4.3.2 Busy (id=")

    run(scenario)
    assert not filter_.seen


def test_mail_over_the_size_limit_is_552_at_its_end():
    """The content of a mail that is too large is not kept, and the next one passes."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, max_message_size=100_000) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            mta.content(body=b"x" * 200_000)
            assert (await mta.until_final())[0][1].startswith(b"552 5.3.4 ")
            assert listener.spool.in_use == 0
            assert (await mta.ask(frame("M", b"<a@b>\0SIZE=200000\0")))[1].startswith(b"552 5.3.4 ")
            await mta.mail()
            mta.content()
            assert letters(await mta.until_final()) == "hhc"

    run(scenario)


def test_rest_of_a_hopeless_body_is_skipped_where_that_can_be_said():
    """With SKIP and without NR_BODY the mail server is spared sending what is thrown away."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, max_message_size=1000) as listener:
            mta = await listener.mta()
            await mta.greet(steps=0x1FFFFF & ~(1 << 19))
            await mta.mail()
            assert await mta.ask(frame("N"), frame("B", b"x" * 900)) == ("c", b"")
            assert await mta.ask(frame("B", b"x" * 900)) == ("s", b"")
            mta.send(frame("E"))
            assert (await mta.until_final())[0][1].startswith(b"552 5.3.4 ")

    run(scenario)


def test_full_spool_is_451_at_the_end_of_the_mail():
    """When the room for all mail is used up, this one is put off and the others live."""
    filter_ = ScriptedFilter(forever)

    async def scenario():
        async with listening(filter_, room=100_000) as listener:
            first, second = await listener.mta(), await listener.mta()
            for mta in (first, second):
                await mta.greet()
                await mta.mail()
            first.content(body=b"x" * 60_000)
            await filter_.until(lambda f: f.running == 1)
            second.content(body=b"x" * 60_000)
            assert (await second.until_final())[0][1].startswith(b"451 4.3.2 ")

    run(scenario)


def test_one_recipient_too_many_is_452_and_the_mail_goes_on():
    """The first recipients are kept."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, max_recipients=2) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            assert await mta.ask(frame("R", b"<c@example.net>\0")) == ("c", b"")
            assert (await mta.ask(frame("R", b"<d@example.net>\0")))[1].startswith(b"452 4.5.3 ")
            mta.content()
            await mta.until_final()

    run(scenario)
    assert filter_.seen[0].tx.envelope.addresses == ("b@example.net", "c@example.net")


@pytest.mark.parametrize("address", [b"<a\r\nb@c>", b"<\xff@c>"])
def test_address_with_control_characters_or_broken_utf8_is_553(address):
    """What cannot go into the request exactly as it came is refused."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            assert (await mta.ask(frame("M", address + b"\0")))[1].startswith(b"553 5.1.3 ")
            await mta.mail()
            assert (await mta.ask(frame("R", address + b"\0")))[1].startswith(b"553 5.1.3 ")

    run(scenario)


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
def test_violation_closes_its_own_connection_only(violation):
    """What breaks the protocol is closed; the neighbour's mail is not touched."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            bad, good = await listener.mta(), await listener.mta()
            for mta in (bad, good):
                await mta.negotiate()
            await good.mail()
            bad.send(violation)
            await bad.ended()
            good.content()
            assert letters(await good.until_final()) == "hhc"

    run(scenario)


@pytest.mark.parametrize(
    "opening", [frame("M", b"<a@b>\0"), offer(version=1), frame("O", b"short"), b"GET / HTTP/1.1\r\n"]
)
def test_connection_that_does_not_open_with_a_negotiation_is_closed(opening):
    """Nothing is said to a peer that does not speak milter."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            mta.send(opening)
            assert await mta.closed()

    run(scenario)


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
def test_frame_that_does_not_come_is_not_waited_for(start):
    """A connection that stops in the middle of a frame, or never begins, is closed."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, read_timeout_s=0.1) as listener:
            mta = await listener.mta()
            if start:
                await mta.negotiate()
            mta.send(start)
            await mta.ended()

    run(scenario)


def test_frame_dribbled_byte_by_byte_is_cut():
    """Bytes that complete nothing do not keep a connection open."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, read_timeout_s=0.3) as listener:
            mta = await listener.mta()
            await mta.negotiate()
            mta.send(struct.pack(">IB", 60_000, ord("H")))
            ended = asyncio.ensure_future(mta.closed())
            while not ended.done():
                mta.send(b"x")
                await asyncio.wait([ended], timeout=0.02)
            assert ended.result()

    run(scenario)


def test_silence_between_two_mails_is_allowed_for_longer_than_within_one():
    """A client may think; the mail server's own file may not."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, read_timeout_s=0.1, idle_timeout_s=20) as listener:
            patient, stuck = await listener.mta(), await listener.mta()
            for mta in (patient, stuck):
                await mta.greet()
                await mta.mail()
            stuck.send(frame("L", b"A\0 b\0"))
            assert await stuck.closed()
            patient.content()
            assert letters(await patient.until_final()) == "hhc"

    run(scenario)


def test_peer_that_never_reads_its_answers_is_dropped():
    """Answers nobody reads are not piled up, and the connection ends long before an idle one would."""

    async def scenario():
        async with listening(ScriptedFilter(), read_timeout_s=0.3, idle_timeout_s=1000) as listener:
            mta = await listener.mta()
            await mta.greet(version=2, steps=0)
            mta.writer.transport.pause_reading()
            burst = frame("U", b"x\0") * 5000
            try:
                async with asyncio.timeout(20):
                    while listener.server.connections:
                        mta.send(burst)
                        await mta.writer.drain()
            except ConnectionError:
                pass
            assert listener.server.connections == 0

    run(scenario)


def test_content_that_trickles_for_ever_is_cut():
    """Complete frames at a snail's pace still have to end."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, read_timeout_s=5, content_timeout_s=0.3, progress_interval_s=0.2) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            ended = asyncio.ensure_future(mta.closed())
            while not ended.done():
                mta.send(frame("L", b"A\0 b\0"))
                await asyncio.wait([ended], timeout=0.02)
            assert ended.result()

    run(scenario)
    assert not filter_.seen


# --- one connection, many mails; endings ---


def test_several_mails_on_one_connection_share_nothing_but_the_client():
    """Each mail has its own envelope, content and queue id."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            for number in (b"1", b"2", b"3"):
                mta.send(frame("D", b"M" + b"i\0Q" + number + b"\0"))
                await mta.mail(sender=b"<s%b@example.org>" % number, rcpt=b"<r%b@example.net>" % number)
                mta.content((b"Subject", b" " + number))
                assert letters(await mta.until_final()) == "hhc"

    run(scenario)
    assert [s.tx.envelope.addresses for s in filter_.seen] == [(f"r{i}@example.net",) for i in (1, 2, 3)]
    assert [s.tx.session.client.ident for s in filter_.seen] == ["Q1", "Q2", "Q3"]
    assert len({s.tx.id for s in filter_.seen}) == 3
    assert len({s.tx.session.id for s in filter_.seen}) == 1
    assert {s.tx.session.client.address for s in filter_.seen} == {"203.0.113.9"}


@pytest.mark.parametrize("content", [b"", frame("L", b"A\0 b\0"), frame("N") + frame("B", b"x" * 5000)])
def test_abort_forgets_the_mail(content):
    """Recipients and content of an aborted mail never reach the next one."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail(rcpt=b"<aborted@example.net>")
            mta.send(content, frame("A"))
            await mta.mail()
            mta.content()
            await mta.until_final()

    run(scenario)
    assert filter_.seen[0].tx.envelope.addresses == ("b@example.net",)
    assert filter_.seen[0].content == b"Subject: test\r\n\r\nHello\r\n"


def test_quit_nc_makes_room_for_another_client():
    """A connection that is used again knows nothing of the client before."""
    filter_ = ScriptedFilter()

    async def scenario():
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

    run(scenario)
    first, second = (seen.tx.session for seen in filter_.seen)
    assert first.client.login == "ann"
    assert (second.client.address, second.client.helo, second.client.login) == (None, None, None)
    assert first.id != second.id


@pytest.mark.parametrize("ending", [frame("A"), frame("Q"), frame("K"), None], ids=["ABORT", "QUIT", "QUIT_NC", "lost"])
def test_mail_that_nobody_waits_for_is_not_scanned_on(ending):
    """ABORT, QUIT and a lost connection cancel the running scan and free its room."""
    filter_ = ScriptedFilter(forever)

    async def scenario():
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

    run(scenario)


def test_connection_is_usable_after_an_abort_during_the_scan():
    """The answer of a cancelled scan never reaches the next mail."""
    late = asyncio.Event()

    async def stubborn(seen):
        if b"first" in seen.content:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                late.set()
                return OUTCOMES[Action.REJECT]  # too late to be stopped
        return OUTCOMES[Action.RELAY]

    filter_ = ScriptedFilter(stubborn)

    async def scenario():
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

    run(scenario)


def test_progress_is_sent_while_the_scan_runs():
    """The mail server hears from us again and again until there is a decision."""
    release = asyncio.Event()

    async def slow(seen):
        await release.wait()
        return OUTCOMES[Action.RELAY]

    async def scenario():
        async with listening(ScriptedFilter(slow), progress_interval_s=0.05) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            mta.content()
            assert [await mta.read() for _ in range(3)] == [("p", b"")] * 3
            release.set()
            assert letters(await mta.until_final()) == "hhc"

    run(scenario)


def test_filter_that_overruns_its_deadline_is_answered_for(monkeypatch):
    """A filter that hangs for ever does not hang the mail server: 451 4.4.7."""
    monkeypatch.setattr("bridge.intake.milter.connection.GRACE_S", 0.0)
    filter_ = ScriptedFilter(forever)
    filter_.deadline_s = 0.1

    async def scenario():
        async with listening(filter_, read_timeout_s=0.2) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            mta.content()
            assert (await mta.until_final())[0][1].startswith(b"451 4.4.7 ")
            await filter_.until(lambda f: f.cancelled == 1)

    run(scenario)


# --- who may connect, and the end ---


def test_untrusted_peer_is_closed_at_once(caplog):
    """Only the networks of the configuration may speak to us, and the log says so once."""
    trusted = (ipaddress.ip_network("192.0.2.0/24"),)

    async def scenario():
        async with listening(ScriptedFilter(), trusted=trusted) as listener:
            for _ in range(50):
                mta = await listener.mta()
                mta.send(offer())
                assert await mta.closed()

    run(scenario)
    assert 1 <= len([r for r in caplog.records if "trusted_clients" in r.message]) <= 3


def test_unix_socket_peer_is_trusted(tmp_path):
    """On a unix socket the file's permissions decide."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "milter"))
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_, sock=sock, trusted=()) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            mta.content()
            assert letters(await mta.until_final()) == "hhc"

    run(scenario)
    assert filter_.seen[0].tx.session.peer == "unix"


def test_connections_beyond_the_cap_are_closed():
    """One connection too many is turned away, the others live, and room that is given back is used."""
    filter_ = ScriptedFilter()

    async def scenario():
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

    run(scenario)


def test_drain_finishes_running_mail_and_closes_the_idle():
    """At shutdown no new connection is taken, idle ones end, and a running scan gets its answer."""
    release = asyncio.Event()

    async def slow(seen):
        await release.wait()
        return OUTCOMES[Action.RELAY]

    filter_ = ScriptedFilter(slow)

    async def scenario():
        async with listening(filter_) as listener:
            idle, busy, half = [await listener.mta() for _ in range(3)]
            for mta in (idle, busy, half):
                await mta.greet()
            await busy.mail()
            await half.mail()
            busy.content()
            await filter_.until(lambda f: f.running == 1)
            draining = asyncio.ensure_future(listener.server.drain(10))
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

    run(scenario)


def test_drain_cuts_off_what_does_not_end(caplog):
    """When the time for an orderly end is over, the rest is cancelled; the mail server keeps its mail."""
    filter_ = ScriptedFilter(forever)

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            mta.content()
            await filter_.until(lambda f: f.running == 1)
            await listener.server.drain(0.05)
            assert await mta.closed()
            await filter_.until(lambda f: f.cancelled == 1)

    run(scenario)
    assert "cut off at shutdown" in caplog.text


def test_mail_aborted_while_draining_ends_the_connection():
    """A connection that becomes idle at shutdown has nothing left to do."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            await mta.mail()
            draining = asyncio.ensure_future(listener.server.drain(10))
            await asyncio.sleep(0)
            mta.send(frame("A"))
            assert await mta.closed()
            await draining

    run(scenario)


def test_replies_of_one_burst_go_out_in_one_write():
    """Pipelined events cost one write: all their answers arrive in one read."""
    filter_ = ScriptedFilter()

    async def scenario():
        async with listening(filter_) as listener:
            mta = await listener.mta()
            await mta.greet()
            burst = [frame("M", b"<a@b>\0")] + [frame("R", b"<b@c>\0")] * 20
            mta.send(b"".join(burst))
            assert await mta.reader.read(65536) == frame("c") * 21

    run(scenario)


def test_log_lines_of_a_noisy_peer_are_bounded(caplog):
    """A peer that breaks the protocol a hundred times a second writes a line a second."""

    async def scenario():
        async with listening(ScriptedFilter()) as listener:
            for _ in range(100):
                mta = await listener.mta()
                mta.send(b"\0\0\0\0")
                assert await mta.closed()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert 1 <= len(caplog.records) <= 5


def test_connections_and_refusals_are_counted():
    """The daemon's metrics hear of every connection, and of what was turned away."""
    told = []
    hooks = {name: lambda value, name=name: told.append((name, value)) for name in HOOKS}
    filter_ = ScriptedFilter()
    filter_.saturated = Reply(451, "4.3.2", "Busy")

    async def scenario():
        async with listening(filter_, max_connections=1, hooks=hooks) as listener:
            mta = await listener.mta()
            await mta.greet()
            assert await (await listener.mta()).closed()
            await mta.ask(frame("M", b"<a@b>\0"))

    run(scenario)
    assert told[:3] == [("on_connections", 1), ("on_refused", "limit"), ("on_connections", 1)]
    assert told[3:] == [("on_saturated", "mail"), ("on_connections", 0)]


HOOKS = ("on_connections", "on_refused", "on_saturated")


def test_default_settings_trust_this_machine_only():
    """Nobody from elsewhere may connect unless the operator says so."""
    assert {str(network) for network in SETTINGS.trusted} == {"127.0.0.0/8", "::1/128"}
