"""The milter codec, without I/O: frames, negotiation, the content of events, responses."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ProtocolError
from bridge.intake.milter import codec, protocol
from bridge.intake.milter.codec import Decoder
from bridge.mail.reply import Reply
from tests.intake.milter.milter_kit import ALL_ACTIONS, ALL_STEPS, event_name, frame

MESSAGE_EVENTS = [command for command, event in protocol.EVENTS.items() if event.responses]


def decode(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """All events, with the pieces of a body joined."""
    decoder, events, body = Decoder(), [], b""
    for piece in pieces:
        for command, data in decoder.feed(piece):
            if command == protocol.BODY_PART:
                body += data
            else:
                events.append((command, body + data if command == protocol.BODY else data))
                body = b""
    return events


frames = st.lists(st.tuples(st.sampled_from(sorted(protocol.EVENTS)), st.binary(max_size=300)), max_size=20)


@given(frames)
def test_frames_read_whole_or_byte_by_byte_are_the_same(events):
    """How the network splits a stream makes no difference."""
    stream = b"".join(frame(command, data) for command, data in events)
    assert decode([stream]) == events
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == events


@given(frames, st.data())
def test_frames_cut_anywhere_are_the_same(events, data):
    """Two reads, split anywhere, give the same events as one read."""
    stream = b"".join(frame(command, payload) for command, payload in events)
    cut = data.draw(st.integers(0, len(stream)))
    assert decode([stream[:cut], stream[cut:]]) == events


@given(frames, st.data())
def test_truncated_stream_gives_its_complete_frames(events, data):
    """A stream that ends early gives its complete frames, and no error."""
    stream = b"".join(frame(command, payload) for command, payload in events)
    cut = stream[: data.draw(st.integers(0, len(stream)))]
    decoder = Decoder()
    complete = [event for event in decoder.feed(cut) if event[0] != protocol.BODY_PART]
    assert complete == events[: len(complete)]
    assert sum(map(len, decoder._buffer)) <= len(cut)


@given(st.binary(max_size=600), frames, st.data())
def test_noise_raises_protocol_error_or_nothing(noise, events, data):
    """No input raises any exception but ours, and none makes the decoder buffer more than a frame."""
    stream = bytearray(b"".join(frame(command, payload) for command, payload in events) + noise)
    for _ in range(data.draw(st.integers(0, 4))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    decoder = Decoder()
    try:
        for i in range(0, len(stream), 7):
            for _ in decoder.feed(bytes(stream[i : i + 7])):
                pass
            assert sum(map(len, decoder._buffer)) <= protocol.CONTENT_LIMIT + 5
    except ProtocolError:
        pass


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF, protocol.CONTENT_LIMIT + 2])
def test_impossible_length_is_refused_before_anything_is_kept(length):
    """The four bytes of the length are enough to refuse a frame."""
    with pytest.raises(ProtocolError):
        list(Decoder().feed(struct.pack(">I", length)))


@pytest.mark.parametrize("command", sorted(protocol.EVENTS), ids=event_name)
def test_every_event_has_its_longest_frame(command):
    """A frame at the limit passes, one byte more does not."""
    limit = protocol.EVENTS[command].limit
    assert decode([frame(command, b"x" * limit)]) == [(command, b"x" * limit)]
    with pytest.raises(ProtocolError):
        list(Decoder().feed(struct.pack(">IB", limit + 2, command)))


@pytest.mark.parametrize("command", sorted(set(range(256)) - set(protocol.EVENTS)))
def test_unknown_command_is_refused(command):
    """An unknown command ends the connection, whatever data it has."""
    with pytest.raises(ProtocolError):
        list(Decoder().feed(frame(command, b"x")))


def test_body_is_passed_on_before_its_frame_is_complete():
    """The decoder buffers no body bytes: they are held only where the spool counts them."""
    decoder = Decoder()
    data = frame("B", b"x" * 60000)
    assert list(decoder.feed(data[:1000])) == [(protocol.BODY_PART, b"x" * 995)]
    assert decoder.partial
    assert not decoder._buffer
    assert [command for command, _ in decoder.feed(data[1000:])] == [protocol.BODY]
    assert not decoder.partial


def test_dribbled_frame_is_seen_as_stalled():
    """Bytes that do not complete a frame are not progress."""
    decoder = Decoder()
    data = frame("H", b"client.example\0")
    list(decoder.feed(data[:6]))
    assert not decoder.stalled
    list(decoder.feed(data[6:8]))
    assert decoder.stalled
    assert list(decoder.feed(data[8:])) == [(protocol.HELO, b"client.example\0")]
    assert not decoder.stalled


# --- negotiation ---


@pytest.mark.parametrize("offered", [2, 3, 4, 5, 6, 7, 99])
def test_version_is_at_most_the_mail_servers_and_six(offered):
    """We support versions 2 to 6, and answer a newer mail server with 6."""
    assert codec.negotiate(struct.pack(">III", offered, 0, 0)).version == min(offered, 6)


@pytest.mark.parametrize("offer", [b"", b"\0" * 11, struct.pack(">III", 1, 0, 0), struct.pack(">III", 0, 0, 0)])
def test_impossible_offer_is_refused(offer):
    """Version 1 and a truncated offer are not supported."""
    with pytest.raises(ProtocolError):
        codec.negotiate(offer)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(2, 2**32 - 1))
def test_nothing_is_asked_for_that_was_not_offered(actions, steps, version):
    """Postfix drops a filter that asks for more than was offered."""
    agreement = codec.negotiate(struct.pack(">III", version, actions, steps))
    assert agreement.actions & ~actions == 0
    assert agreement.steps & ~steps == 0


def test_every_nr_flag_on_offer_is_used():
    """The mail server waits for our answer to MAIL, RCPT and the end of the message only."""
    agreement = codec.negotiate(struct.pack(">III", 6, ALL_ACTIONS, ALL_STEPS))
    assert agreement.answered == {protocol.NEGOTIATE, protocol.MAIL, protocol.RCPT, protocol.END_OF_BODY}
    assert agreement.steps & protocol.LEADING_SPACE


def test_version_two_peer_gets_an_answer_to_everything():
    """Without the NR flags every event of a mail is answered."""
    agreement = codec.negotiate(struct.pack(">III", 2, 0x3F, 0x7F))
    assert agreement.answered == set(MESSAGE_EVENTS)


@pytest.mark.parametrize(
    ("offered", "taken"),
    [(0, 0), (protocol.DATA_256K, protocol.DATA_256K), (protocol.DATA_256K | protocol.DATA_1M, protocol.DATA_1M)],
)
def test_larger_data_sizes_are_used(offered, taken):
    """The largest body chunk on offer is the one used."""
    assert codec.negotiate(struct.pack(">III", 6, 0, offered)).steps == taken


def test_symbol_lists_cover_every_stage():
    """Postfix uses its own, longer list for a stage without one, so we send all seven."""
    data = codec.encode_negotiation(codec.negotiate(struct.pack(">III", 6, ALL_ACTIONS, ALL_STEPS)))[5 + 12 :]
    stages = {}
    while data:
        (stage,) = struct.unpack(">I", data[:4])
        names, _, data = data[4:].partition(b"\0")
        stages[stage] = names
    assert set(stages) == set(range(7))
    assert all(stages.values())
    assert stages[protocol.STAGE_END_OF_BODY] == b"i"


def test_symbol_lists_are_sent_only_if_supported():
    """A mail server that cannot take symbol lists gets none."""
    data = codec.encode_negotiation(codec.negotiate(struct.pack(">III", 6, 0xFF, ALL_STEPS)))
    assert len(data) == 5 + 12


# --- the content of events ---


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"mx.example\x004\x09\xdd203.0.113.9\0", codec.Connect("mx.example", "203.0.113.9", 2525)),
        (b"[203.0.113.9]\x004\x00\x00203.0.113.9\0", codec.Connect(None, "203.0.113.9", None)),
        (b"x\x006\0\x19IPv6:2001:db8::1\0", codec.Connect("x", "2001:db8::1", 25)),
        (b"x\x006\0\x19ipv6:2001:DB8:0::1\0", codec.Connect("x", "2001:db8::1", 25)),
        (b"x\x006\0\x19IPv6:::ffff:192.0.2.1\0", codec.Connect("x", "192.0.2.1", 25)),
        (b"x\x006\0\x192001:db8::1\0", codec.Connect("x", "2001:db8::1", 25)),
        (b"localhost\0L\0\0/run/socket\0", codec.Connect("localhost")),
        (b"localhost\0U", codec.Connect("localhost")),
        (b"unknown\x004\0\x19unknown\0", codec.Connect(None, None, 25)),
        (b"x\x004\0\x19not-an-ip\xff\0", codec.Connect("x", None, 25)),
        (b"h\xff\x004\0\x19192.0.2.1\0", codec.Connect("h\ufffd", "192.0.2.1", 25)),
    ],
)
def test_connect_is_read_for_every_family(data, expected):
    """Only a valid address is used; what is unknown is left out."""
    assert codec.parse_connect(data) == expected


@pytest.mark.parametrize("data", [b"", b"x", b"x\0", b"x\x004", b"x\x004\0\x19192.0.2.1", b"x\0Z\0\0y\0"])
def test_malformed_connect_is_refused(data):
    """A CONNECT that is truncated or has an unknown family ends the connection."""
    with pytest.raises(ProtocolError):
        codec.parse_connect(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"<a@example.org>\0", ("a@example.org", ())),
        (b"<>\0SIZE=100\0BODY=8BITMIME\0", ("", ("SIZE=100", "BODY=8BITMIME"))),
        (b"a@example.org\0", ("a@example.org", ())),
        (b'<"a b"@example.org>\0', ('"a b"@example.org', ())),
        ("<ü@example.org>\0SMTPUTF8\0".encode(), ("ü@example.org", ("SMTPUTF8",))),
        (b"<=?utf-8?q?x?=@d>\0", ("=?utf-8?q?x?=@d", ())),
    ],
)
def test_address_is_taken_as_it_came(data, expected):
    """Only the brackets are removed from an address."""
    assert codec.parse_address(data) == expected


@pytest.mark.parametrize("raw", [b"<a\rb@d>", b"<a\nb@d>", b"<a\x7f@d>", b"<\xff\xfe@d>", b"<" + b"x" * 3000 + b">"])
def test_address_that_does_not_fit_into_a_file_or_json_is_refused(raw):
    """Control characters, invalid UTF-8 and overlong addresses get 553."""
    reply = codec.parse_address(raw + b"\0")
    assert isinstance(reply, Reply)
    assert reply.code == 553


def test_macros_are_bytes_of_any_kind():
    """Names and values are kept as they are; a name without a value is ignored."""
    assert codec.parse_macros(b"{auth_authen}\0j\xfcrgen\0i\0ABC\0") == {b"{auth_authen}": b"j\xfcrgen", b"i": b"ABC"}
    assert codec.parse_macros(b"") == {}
    assert codec.parse_macros(b"odd\0") == {}


@given(st.binary(max_size=2000))
def test_text_from_peers_is_always_valid_utf8(raw):
    """HELO and macros of any bytes become text that JSON can carry."""
    assert len(codec.decode_text(raw).encode("utf-8")) <= 3 * 512


@given(st.binary(max_size=100))
def test_parsers_raise_protocol_error_or_nothing(data):
    """Whatever an event contains, its parser returns a value or raises our own error."""
    for parse in (codec.parse_connect, codec.parse_address, codec.parse_macros, codec.negotiate, codec.parse_strings):
        try:
            assert parse(data) is not None
        except ProtocolError:
            pass


# --- responses ---


@pytest.mark.parametrize("command", sorted(protocol.EVENTS), ids=event_name)
def test_only_the_responses_of_the_table_can_be_created(command):
    """A response that the event does not allow is our bug, and raises."""
    for code in range(256):
        if code in protocol.EVENTS[command].responses:
            assert codec.encode_response(command, code) == frame(code)
        else:
            with pytest.raises(ValueError, match="not a response"):
                codec.encode_response(command, code)


def test_discard_is_not_an_answer_to_connect_or_helo():
    """Postfix would log a warning and ignore it."""
    assert (
        protocol.DISCARD not in protocol.EVENTS[protocol.CONNECT].responses | protocol.EVENTS[protocol.HELO].responses
    )
    assert protocol.DISCARD in protocol.EVENTS[protocol.END_OF_BODY].responses


def test_edits_are_for_the_end_of_the_message_only():
    """At any other time, a header edit would end the connection."""
    for command, event in protocol.EVENTS.items():
        assert (protocol.ADD_HEADER in event.responses) == (command == protocol.END_OF_BODY)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(550, "5.7.1", "No"), b"550 5.7.1 No\0"),
        (Reply(451, "4.3.2", "50% of 100%"), b"451 4.3.2 50%% of 100%%\0"),
        (Reply(550, "5.7.1", "One\nTwo"), b"550-5.7.1 One\r\n550 5.7.1 Two\0"),
        (Reply(550, "", "4 things"), b"550 5.7.1 4 things\0"),
        (Reply(550, "5.7.1", "b\u00fcrk\r\x00"), b"550 5.7.1 b?rk??\0"),
    ],
)
def test_reply_code_is_a_safe_format_string(reply, expected):
    """Every percent sign is doubled, every line has its code, and only ASCII is sent."""
    assert codec.encode_reply(protocol.END_OF_BODY, reply)[5:] == expected


def test_reply_code_is_bounded():
    """Neither the lines nor their number exceed what libmilter accepts."""
    text = codec.encode_reply(protocol.MAIL, Reply(451, "4.3.2", "\n".join(["x" * 2000] * 100)))[5:]
    lines = text.split(b"\r\n")
    assert len(lines) == 32
    assert max(map(len, lines)) < 980


def test_success_is_not_a_reply_code():
    """Every mail server takes a 250 in REPLYCODE for malformed."""
    with pytest.raises(ValueError, match="4xx or 5xx"):
        codec.encode_reply(protocol.END_OF_BODY, Reply(250, "2.0.0", "Ok"))


@pytest.mark.parametrize(
    ("value", "expected"), [("a", b" a"), ("a\r\n b", b" a\n b"), ("a\nBcc: x", b" a Bcc: x"), ("a\0b", b" ab")]
)
def test_added_header_cannot_start_another_one(value, expected):
    """A line end in a header value is kept only before a continuation line."""
    agreement = codec.Agreement(6, protocol.CAN_ADD_HEADERS, protocol.LEADING_SPACE)
    assert codec.encode_add_header("X-Scan-Id", value, agreement)[5:] == b"X-Scan-Id\0" + expected + b"\0"


def test_header_space_is_sent_only_if_negotiated():
    """Without HDR_LEADSPC the mail server adds the space itself."""
    agreement = codec.Agreement(2, protocol.CAN_ADD_HEADERS, 0)
    assert codec.encode_add_header("X-Scan-Id", "a", agreement)[5:] == b"X-Scan-Id\0a\0"
    assert codec.encode_delete_header(b"x-scan-id", 2)[5:] == b"\0\0\0\2x-scan-id\0\0"


def test_every_state_has_a_successor_for_each_of_its_events():
    """The table has a row for each state, leads only to states, and allows no content before MAIL."""
    assert set(protocol.TRANSITIONS) == set(protocol.State)
    for row in protocol.TRANSITIONS.values():
        assert set(row) <= set(protocol.EVENTS) | {protocol.BODY_PART}
        assert set(row.values()) <= set(protocol.State)
    content = {
        protocol.RCPT,
        protocol.HEADER,
        protocol.BODY,
        protocol.BODY_PART,
        protocol.END_OF_HEADERS,
        protocol.END_OF_BODY,
    }
    assert not content & (
        set(protocol.TRANSITIONS[protocol.State.READY]) | set(protocol.TRANSITIONS[protocol.State.NEW])
    )
