"""Milter frames: bytes to events, events to values, responses to bytes.

No sockets and no clock. Everything from the wire is checked and bounded here; what cannot be
parsed raises ProtocolError, which ends only its own connection. Strangers choose HELO, addresses
and some macros, so decoding text never fails.

The content of a BODY frame is passed on as it arrives. A connection therefore buffers at most one
frame, never body bytes: those are held only where the spool counts them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from socket import AF_INET, inet_ntop, inet_pton

from bridge.errors import ProtocolError
from bridge.intake.milter import protocol
from bridge.mail.reply import Reply
from bridge.mail.session import canonical_ip

# The longest frame of each command, with its command byte; 0: there is no such command.
_FRAME_LIMITS = [protocol.EVENTS[code].limit + 1 if code in protocol.EVENTS else 0 for code in range(256)]
_LONGEST_FRAME = max(_FRAME_LIMITS)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_ADDRESS_LIMIT = 2048  # Postfix's line_length_limit; RFC 5321 has 256
_REPLY_LINE_LIMIT = 900  # libmilter's MAXREPLYLEN is 980, including the code
_MAX_REPLY_LINES = 32  # libmilter's MAXREPLIES
_MAX_TEXT_BYTES = 512
_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">IB")  # length, command
_NEGOTIATION = struct.Struct(">III")


class FrameTooLong(ProtocolError):
    """A frame exceeds the limit of its command; none of it was kept."""


class Decoder:
    """Cuts a byte stream into (command, data); how the stream is cut into reads makes no difference."""

    __slots__ = ("_body_left", "_buffer", "_buffered", "_needed", "stalled")

    def __init__(self) -> None:
        self._buffer: list[bytes] = []  # pieces of an incomplete frame
        self._buffered = 0  # bytes in it
        self._needed = 0  # bytes that complete it
        self._body_left = 0  # bytes missing from an open BODY frame
        self.stalled = False  # the last feed did not complete the frame that was open before it

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._buffer) or self._body_left > 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Every event that `data` completes. Pieces of a long body come as BODY_PART, the last as BODY."""
        events: list[tuple[int, bytes]] = []
        position = 0
        self.stalled = False
        if self._buffer or self._body_left:
            data, position = self._resume(data, events)
        end, limits, unpack_head = len(data), _FRAME_LIMITS, _HEAD.unpack_from
        last_head = end - _HEAD.size
        while position <= last_head:
            length, command = unpack_head(data, position)
            if length > limits[command] or not length:
                kind = FrameTooLong if length > limits[command] > 0 else ProtocolError
                raise kind(f"invalid frame: {length} bytes, command {command:#04x}")
            stop = position + 4 + length
            if stop > end:
                self._begin_frame(command, data[position:], 4 + length, events)
                return events
            events.append((command, data[position + 5 : stop]))
            position = stop
        if position < end:
            if end - position == 4 and not 0 < _U32.unpack_from(data, position)[0] <= _LONGEST_FRAME:
                raise FrameTooLong("invalid frame: impossible length")
            self._hold(data[position:], 5)
        return events

    def _resume(self, data: bytes, events: list[tuple[int, bytes]]) -> tuple[bytes, int]:
        """Continue the open frame; returns the bytes to cut next, and where to start in them."""
        if self._buffer:
            self._buffer.append(data)
            self._buffered += len(data)
            self.stalled = self._buffered < self._needed
            if self.stalled:
                return b"", 0
            data = b"".join(self._buffer)
            self._buffer = []
            return data, 0
        position = min(self._body_left, len(data))
        self._body_left -= position
        self.stalled = self._body_left > 0
        events.append((protocol.BODY_PART if self.stalled else protocol.BODY, data[:position]))
        return data, position

    def _begin_frame(self, command: int, start: bytes, needed: int, events: list[tuple[int, bytes]]) -> None:
        """The rest of this frame comes with a later read."""
        if command == protocol.BODY:
            self._body_left = needed - len(start)
            events.append((protocol.BODY_PART, start[5:]))
        else:
            self._hold(start, needed)

    def _hold(self, start: bytes, needed: int) -> None:
        self._buffer, self._buffered, self._needed = [start], len(start), needed


# --- negotiation ---------------------------------------------------------------------------------

WANTED_ACTIONS = (
    protocol.CAN_ADD_HEADERS
    | protocol.CAN_CHANGE_HEADERS
    | protocol.CAN_DELETE_RCPT
    | protocol.CAN_QUARANTINE
    | protocol.CAN_SET_SYMBOLS
)

# MAIL is answered, because a saturated bridge refuses there. RCPT is answered, because 452 for the
# first recipient too many makes the client split the mail; at the end of the message it would make
# the client retry forever.
WANTED_STEPS = (
    protocol.NO_DATA
    | protocol.NO_UNKNOWN
    | protocol.CAN_SKIP
    | protocol.NR_CONNECT
    | protocol.NR_HELO
    | protocol.NR_DATA
    | protocol.NR_UNKNOWN
    | protocol.NR_HEADER
    | protocol.NR_END_OF_HEADERS
    | protocol.NR_BODY
    | protocol.LEADING_SPACE
)

# The macros we ask for. For a stage without a list Postfix falls back to its own, which is longer
# (and costs it a lookup per recipient), so every stage asks for something. It knows its queue id (i)
# only after the first recipient.
SYMBOLS: dict[int, str] = {
    protocol.STAGE_CONNECT: "{client_resolve}",
    protocol.STAGE_HELO: "{tls_version}",
    protocol.STAGE_MAIL: "i {auth_authen} {tls_version} {cipher}",
    protocol.STAGE_RCPT: "i",
    protocol.STAGE_DATA: "i",
    protocol.STAGE_END_OF_BODY: "i",
    protocol.STAGE_END_OF_HEADERS: "i",
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides can do, and therefore will do."""

    version: int
    actions: int
    steps: int

    @property
    def answered(self) -> frozenset[int]:
        """The events after which the mail server waits for our answer."""
        return _answered(self.steps)

    @property
    def leading_space(self) -> bool:
        """Whether header values keep the space after the colon."""
        return bool(self.steps & protocol.LEADING_SPACE)

    @property
    def can_quarantine(self) -> bool:
        return bool(self.actions & protocol.CAN_QUARANTINE)

    @property
    def can_remove(self) -> bool:
        return bool(self.actions & protocol.CAN_DELETE_RCPT)


# Cached, here and below: a mail server makes the same offer on every connection, and some of them
# open a connection for every mail.
@lru_cache(maxsize=16)
def _answered(steps: int) -> frozenset[int]:
    return frozenset(code for code, event in protocol.EVENTS.items() if event.responses and not steps & event.no_reply)


@lru_cache(maxsize=16)
def negotiate(offer: bytes) -> Agreement:
    """Choose from the mail server's offer: never a newer version, never a bit that it did not offer."""
    if len(offer) < _NEGOTIATION.size:
        raise ProtocolError("negotiation is truncated")
    version, actions, steps = _NEGOTIATION.unpack_from(offer)
    if version < protocol.VERSIONS[0]:
        raise ProtocolError(f"protocol version {version} is not supported")
    size = steps & protocol.DATA_1M or steps & protocol.DATA_256K
    return Agreement(min(version, protocol.VERSIONS[-1]), actions & WANTED_ACTIONS, (steps & WANTED_STEPS) | size)


@lru_cache(maxsize=16)
def encode_negotiation(agreement: Agreement) -> bytes:
    """Our side of the negotiation, with the macros we want if we may ask for them."""
    symbols = b""
    if agreement.actions & protocol.CAN_SET_SYMBOLS:
        symbols = b"".join(_U32.pack(stage) + names.encode("ascii") + b"\0" for stage, names in SYMBOLS.items())
    flags = _NEGOTIATION.pack(agreement.version, agreement.actions, agreement.steps)
    return encode_response(protocol.NEGOTIATE, protocol.NEGOTIATE, flags + symbols)


# --- the content of events ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """The SMTP client as the mail server sees it."""

    name: str | None = None
    address: str | None = None
    port: int | None = None


def parse_connect(data: bytes) -> Connect:
    """CONNECT: host name, NUL, family; then, unless the family is unknown, port and address."""
    name, nul, rest = data.partition(b"\0")
    if not nul or not rest:
        raise ProtocolError("CONNECT is truncated")
    host = None if name[:1] == b"[" or name in (b"", b"unknown") else decode_text(name)
    family = rest[:1]
    if family == b"U":
        return Connect(host)
    if family not in (b"L", b"4", b"6") or len(rest) < 4 or rest[-1:] != b"\0":
        raise ProtocolError("CONNECT has a malformed address")
    if family == b"L":
        return Connect(host)
    return Connect(host, _ip(rest[3:-1]), int.from_bytes(rest[1:3]) or None)


def _ip(raw: bytes) -> str | None:
    """The address in its canonical form. Postfix and Sendmail write `IPv6:` before IPv6 addresses."""
    if raw[:5].lower() == b"ipv6:":
        raw = raw[5:]
    try:
        if b":" not in raw:  # ten times as fast as `ipaddress`, with the same result
            return inet_ntop(AF_INET, inet_pton(AF_INET, raw.decode("ascii")))
        return canonical_ip(raw.decode("ascii"))
    except (ValueError, OSError):  # "unknown", or anything else that is not an address
        return None


def parse_strings(data: bytes) -> list[bytes]:
    """NUL-terminated strings, at least one."""
    check_terminated(data)
    return data[:-1].split(b"\0")


def check_terminated(data: bytes) -> None:
    if data[-1:] != b"\0":
        raise ProtocolError("a string is not terminated")


def parse_address(data: bytes) -> tuple[str, tuple[str, ...]] | Reply:
    """MAIL and RCPT: the address without brackets and its ESMTP parameters, or the refusal.

    The mail server has accepted the address already, so its syntax is not checked again; but it goes
    into JSON and into files, which must not contain control characters or invalid UTF-8.
    """
    words = data.split(b"\0")
    if words.pop() or not words:
        raise ProtocolError("a string is not terminated")
    raw = words[0]
    if raw[:1] == b"<" and raw[-1:] == b">":
        raw = raw[1:-1]
    try:
        address = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Reply(553, "5.1.3", "The address is not valid UTF-8")
    if len(raw) > _ADDRESS_LIMIT or (not address.isprintable() and _CONTROL.search(raw)):
        return Reply(553, "5.1.3", "The address contains control characters or is too long")
    return address, () if len(words) == 1 else tuple(map(decode_text, words[1:]))


def parse_macros(data: bytes) -> dict[bytes, bytes]:
    """The names and values of one MACRO event: long names are in braces, values may be any bytes."""
    words = data.split(b"\0")
    if words.pop():
        raise ProtocolError("a macro is not terminated")
    return dict(zip(words[::2], words[1::2], strict=False))


def decode_text(raw: bytes) -> str:
    """Bytes from outside, as text of bounded length that every encoder accepts."""
    return raw[:_MAX_TEXT_BYTES].decode("utf-8", "replace")


# --- responses -----------------------------------------------------------------------------------


def encode_response(event: int, command: int, data: bytes = b"") -> bytes:
    """One frame. Raises ValueError if the table does not allow this response to the event."""
    if command not in protocol.EVENTS[event].responses:
        raise ValueError(f"{chr(command)!r} is not a response to {protocol.EVENTS[event].name}")
    return _frame(command, data)


def _frame(command: int, data: bytes) -> bytes:
    return _HEAD.pack(len(data) + 1, command) + data


def encode_reply(event: int, reply: Reply) -> bytes:
    """Our own code and text. The mail server uses it as a format string: every % is doubled."""
    digit = str(reply.code)[0]
    if digit not in "45":
        raise ValueError("a milter's reply must be a 4xx or 5xx")
    status = "" if reply.status else f"{digit}.7.1 "  # Postfix might take the first words of the text for a status
    lines = [(status + line)[:_REPLY_LINE_LIMIT].replace("%", "%%") for line in reply.lines()[:_MAX_REPLY_LINES]]
    encoded = [f"{reply.code}-{line}" for line in lines[:-1]] + [f"{reply.code} {lines[-1]}"]
    return encode_response(event, protocol.REPLY_CODE, "\r\n".join(encoded).encode("ascii") + b"\0")


def encode_add_header(name: str, value: str, agreement: Agreement) -> bytes:
    """Called several times per mail, so it uses no table of responses, and printable text is not checked again."""
    space = " " if agreement.steps & protocol.LEADING_SPACE else ""  # else the mail server adds it
    if not (name.isprintable() and value.isprintable()):
        name, value = _field_text(name), _field_text(value)
    data = f"{name}\0{space}{value}\0".encode("utf-8", "replace")
    return _HEAD.pack(len(data) + 1, protocol.ADD_HEADER) + data


def encode_insert_header(name: str, value: str, agreement: Agreement) -> bytes:
    """Add a field above all others."""
    space = " " if agreement.steps & protocol.LEADING_SPACE else ""
    data = f"{_field_text(name)}\0{space}{_field_text(value)}\0".encode("utf-8", "replace")
    return encode_response(protocol.END_OF_BODY, protocol.INSERT_HEADER, _U32.pack(0) + data)


def encode_delete_header(name: bytes, index: int) -> bytes:
    """Remove the index-th (from 1) field of this name."""
    return encode_response(protocol.END_OF_BODY, protocol.CHANGE_HEADER, _U32.pack(index) + name + b"\0\0")


def encode_delete_recipient(address: str) -> bytes:
    """Remove a recipient, named as the mail server has named it: the brackets that we removed are put back."""
    name = address if "<" in address else f"<{address}>"
    return encode_response(protocol.END_OF_BODY, protocol.DELETE_RCPT, name.encode("utf-8") + b"\0")


def encode_change_header(name: bytes, index: int, value: str, agreement: Agreement) -> bytes:
    """Give the index-th (from 1) field of this name a new value. A field that does not exist is added."""
    space = " " if agreement.steps & protocol.LEADING_SPACE else ""
    data = f"{space}{_field_text(value)}\0".encode("utf-8", "replace")
    return encode_response(protocol.END_OF_BODY, protocol.CHANGE_HEADER, _U32.pack(index) + name + b"\0" + data)


def encode_quarantine(reason: str) -> bytes:
    data = _field_text(reason).encode("utf-8", "replace") + b"\0"
    return encode_response(protocol.END_OF_BODY, protocol.QUARANTINE, data)


def _field_text(value: str) -> str:
    """Text for a header field: a line end is kept only before a continuation line."""
    if value.isprintable():  # nearly always
        return value
    lines = value.replace("\0", "").replace("\r", "").split("\n")
    return lines[0] + "".join(("\n" if line[:1] in (" ", "\t") else " ") + line for line in lines[1:])
