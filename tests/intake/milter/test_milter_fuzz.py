"""Whole connections fed with arbitrary events: no exception but ours, and nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.intake.milter import protocol
from bridge.intake.milter.connection import MilterConnection
from bridge.intake.milter.server import MilterServer
from bridge.mail.message import Spool
from tests.intake.milter.milter_kit import SETTINGS, ScriptedFilter, as_wanted, connect_frame, frame, offer

ROOM = 20_000


class Wire(asyncio.Transport):
    """A transport without a network."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket(socket.AF_UNIX)})
        self.said = b""
        self.over = False

    def write(self, data: bytes) -> None:
        assert not self.over
        self.said += data

    def close(self) -> None:
        self.over = True

    abort = close

    def is_closing(self) -> bool:
        return self.over


def frames_of(data: bytes) -> list[bytes]:
    """Split our answers into frames; anything but whole frames is an error."""
    frames = []
    while data:
        (length,) = struct.unpack(">I", data[:4])
        assert 1 <= length <= len(data) - 4
        frames.append(data[4 : 4 + length])
        data = data[4 + length :]
    return frames


text = st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b""))
strings = st.lists(text, min_size=1, max_size=4).map(lambda words: b"".join(word + b"\0" for word in words))
header = st.sampled_from(
    [b"Subject\0 x\0", b"X-Scan-Id\0 forged\0", b"X-Want\0 reject\0", b"X-Want\0 hold\0", b"A\0b\n c\0"]
)
event = st.one_of(
    st.builds(frame, st.sampled_from("MRHU"), strings),
    st.builds(frame, st.just("D"), st.binary(min_size=1, max_size=1).flatmap(lambda e: strings.map(lambda s: e + s))),
    st.builds(frame, st.just("L"), header),
    st.builds(frame, st.sampled_from("BE"), st.binary(max_size=3000)),
    st.sampled_from([connect_frame(), offer(), offer(2, 0x3F, 0x7F), frame("C", b"x\0U")]),
    st.sampled_from([frame(command) for command in "NTAKQE"]),
    st.builds(frame, st.sampled_from(sorted(protocol.EVENTS)), st.binary(max_size=30)),
    st.binary(max_size=10),
)
mail = st.lists(st.builds(frame, st.just("L"), header), max_size=4).map(
    lambda fields: b"".join([frame("M", b"<a@b>\0"), frame("R", b"<c@d>\0"), *fields, frame("N"), frame("E", b"x")])
)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(event, mail), max_size=25), st.integers(1, 400), st.booleans())
def test_connection_survives_anything_and_leaves_nothing_behind(events, step, breathe):
    """Valid, invalid and split events in any order: whole frames come back, and no memory stays in use."""
    stream = offer() + b"".join(events)
    problems = []

    async def scenario():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        server = MilterServer(SETTINGS, ScriptedFilter(as_wanted), Spool(ROOM))
        connection, transport = MilterConnection(server.context), Wire()
        connection.connection_made(transport)
        for start in range(0, len(stream), step):
            if not transport.over:
                connection.data_received(stream[start : start + step])
            if breathe:
                await asyncio.sleep(0)
        connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        transport.get_extra_info("socket").close()
        assert server.context.spool.in_use == 0
        assert server.connections == 0
        await server.drain(1)
        return transport.said

    with asyncio.Runner() as runner:
        said = runner.run(scenario())
    assert not problems
    known = {code for event in protocol.EVENTS.values() for code in event.responses}
    assert all(response[0] in known for response in frames_of(said))
