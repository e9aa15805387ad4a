"""One mail over a real socket: what the filter gets, and what the mail server reads."""

from __future__ import annotations

import json
import socket

import pytest

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.filter.outcome import Outcome
from bridge.mail.action import Action
from bridge.mail.reply import Reply
from tests.intake.milter.milter_kit import (
    ScriptedFilter,
    connect_frame,
    frame,
    letters,
    listening,
    offer,
)

pytestmark = pytest.mark.usefixtures("strict_loop")


async def send_mail(answer, *fields, body=b"Hello\r\n", **flags):
    """Send one mail through a listener; returns the responses and the filter."""
    filter_ = ScriptedFilter(answer)
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet(**flags)
        await mta.mail()
        mta.content(*fields, body=body)
        responses = await mta.until_final()
    return responses, filter_


# --- decisions ---


async def test_deliver_strips_forged_fields_and_stamps_ours():
    """Fields that only we may write are removed, the last one first; then ours are added."""
    responses, _ = await send_mail(
        Action.RELAY,
        (b"X-Scan-Id", b" forged"),
        (b"Subject", b" x"),
        (b"x-scan-ID", b" too"),
        (b"X-SCAN-Ok", b" y"),
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
async def test_decision_becomes_a_milter_response(action, expected):
    """A refusal has our own code and text; mail that is dropped or in our quarantine is discarded."""
    assert (await send_mail(action))[0] == expected


async def test_hold_is_quarantine_and_then_continue():
    """The mail server puts the mail into its own hold queue, with our fields, and answers 250."""
    responses, filter_ = await send_mail(Action.HOLD)
    assert letters(responses) == "hqc"
    assert filter_.seen[0].tx.id.encode() in responses[1][1]


async def test_hold_without_the_ability_is_deferred():
    """A mail server that cannot hold mail must not deliver it: 451."""
    responses, _ = await send_mail(Action.HOLD, actions=0x11)
    assert letters(responses) == "y"
    assert responses[0][1].startswith(b"451 4.3.0 ")


@pytest.mark.parametrize(("actions", "expected"), [(0, "c"), (0x01, "hhc"), (0x10, "mc"), (0x11, "mhhc")])
async def test_header_edits_are_limited_to_what_was_granted(actions, expected):
    """A mail server that allows no header edits delivers the mail unchanged."""
    responses, _ = await send_mail(Action.RELAY, (b"X-Scan-Id", b" forged"), actions=actions)
    assert letters(responses) == expected


async def test_broken_filter_is_451_without_details(caplog):
    """An exception in the filter is a temporary failure; its text goes to the log only."""

    async def broken(seen):
        raise RuntimeError("secret path")

    responses, _ = await send_mail(broken)
    assert responses[0][1].startswith(b"451 4.3.0 Internal problem, try again later (id=")
    assert b"secret" not in responses[0][1]
    assert "secret path" in caplog.text


async def test_refusal_with_a_success_code_is_451(caplog):
    """A mail server cannot be sent a rejection with a success code; in doubt the answer is 4xx."""

    async def confused(seen):
        return Outcome(Action.REJECT, Reply(250, "2.0.0", "Ok"))

    assert (await send_mail(confused))[0][0][1].startswith(b"451 4.3.0")


# --- the mail ---


async def test_mail_is_rebuilt_and_attributed():
    """The filter gets the whole mail, its envelope, and the mail server's client."""
    responses, filter_ = await send_mail(
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


async def test_end_of_body_may_carry_the_last_chunk():
    """Some mail servers send the last piece of the body with the command that ends it."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        await mta.mail(sender=b"<>")
        mta.send(frame("L", b"A\0 b\0"), frame("N"), frame("B", b"one "), frame("E", b"two"))
        await mta.until_final()
    assert filter_.seen[0].content == b"A: b\r\n\r\none two"
    assert filter_.seen[0].tx.envelope.sender == ""


@pytest.mark.parametrize("flag", [28, 29])
async def test_larger_body_chunks_arrive_whole(flag):
    """Chunks of 256 KiB and 1 MiB are accepted if they were negotiated."""
    filter_ = ScriptedFilter()
    size = {28: 256 * 1024 - 1, 29: 1024 * 1024 - 1}[flag]
    async with listening(filter_) as listener:
        mta = await listener.mta()
        _, _, steps, _ = await mta.negotiate(steps=0x1FFFFF | 1 << flag)
        assert steps & 1 << flag
        mta.send(connect_frame())
        await mta.mail()
        mta.send(frame("N"), frame("B", b"x" * size), frame("B", b"y" * size), frame("E"))
        await mta.until_final()
    assert filter_.seen[0].content == b"\r\n" + b"x" * size + b"y" * size


async def test_whole_dialogue_byte_by_byte_gives_the_same_mail():
    """A network that delivers single bytes makes no difference."""
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
    async with listening(filter_) as listener:
        mta = await listener.mta()
        mta.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(dialogue)):
            mta.send(dialogue[i : i + 1])
            await mta.writer.drain()
        assert letters([await mta.read() for _ in range(3)]) == "Occ"
        assert letters(await mta.until_final()) == "hhc"
    assert filter_.seen[0].content == b"Subject: x\r\n\r\nbody\r\n"
    assert filter_.seen[0].tx.session.client.ident == "Q1"


@pytest.mark.parametrize("helo", [b"xn--zzzz--", b"<script>", b"x" * 500, b"\xff\xfe\r\n\x1b[31m", "ü\u2028".encode()])
async def test_helo_of_any_bytes_is_valid_json(helo):
    """Whatever HELO contains, the request to the service is valid."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet(helo=helo)
        await mta.mail()
        mta.content()
        assert letters(await mta.until_final()) == "hhc"
    said = filter_.seen[0].tx.session.client.helo
    request = AnalysisRequest(BorderMtaData("", ("b@c",), None, said)).to_json()
    assert json.loads(request)["borderMtaData"]["senderHelo"] == said


async def test_macros_of_any_event_and_any_bytes_are_harmless():
    """Macros that we did not ask for are ignored, and undecodable ones become valid text."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        for event in range(256):
            mta.send(frame("D", bytes([event]) + b"i\0\xff\xfe\0{auth_authen}\0\xc3\0"), frame("D"))
        await mta.mail()
        mta.content()
        assert letters(await mta.until_final()) == "hhc"
    client = filter_.seen[0].tx.session.client
    assert (client.ident, client.login) == ("\ufffd\ufffd", "\ufffd")


async def test_macros_of_an_aborted_mail_named_the_login_of_the_next():
    """The mail was aborted after its macros and before MAIL; a mail server sends none if it has nothing to say."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        await mta.greet()
        mta.send(frame("D", b"Mi\0FIRST\0{auth_authen}\0ann\0"), frame("A"))
        await mta.mail()
        mta.content()
        assert letters(await mta.until_final()) == "hhc"
    client = filter_.seen[0].tx.session.client
    assert (client.ident, client.login) == (None, None)


async def test_version_two_peer_is_answered_at_every_step():
    """An old mail server waits for an answer to each event, and sends header values without the space."""
    filter_ = ScriptedFilter()
    async with listening(filter_) as listener:
        mta = await listener.mta()
        assert (await mta.negotiate(version=2, actions=0x3F, steps=0x7F))[:3] == (2, 0x39, 0)
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
    assert filter_.seen[0].content == b"Subject: hello\r\n\r\nbody"
