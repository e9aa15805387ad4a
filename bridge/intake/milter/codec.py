"""Milter frames and what is in them: bytes in, events out, responses back to bytes.

No sockets and no clock. Everything from the wire is checked and bounded here; what cannot be
read raises ProtocolError, which ends its own connection and nothing else. Strangers choose HELO,
addresses and some macros, so text is decoded without ever failing.

The content of a BODY frame is handed on as it arrives, so that a connection never holds back more
than one frame of anything else: body bytes lie only where the spool counts them.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from socket import AF_INET, inet_ntop, inet_pton

from bridge.errors import ProtocolError
from bridge.intake.milter import protocol
from bridge.mail.reply import Reply

_LIMITS = [protocol.EVENTS[code].limit + 1 if code in protocol.EVENTS else 0 for code in range(256)]  # with the command
_LONGEST = max(_LIMITS)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_ADDRESS_LIMIT = 2048  # Postfix's line_length_limit; RFC 5321 has 256
_LINE_LIMIT = 900  # libmilter's MAXREPLYLEN is 980, with the code
_LINES = 32  # libmilter's MAXREPLIES
_ADD_HEADER = chr(protocol.ADD_HEADER)
_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">IB")
_read_head = _HEAD.unpack_from
_NEGOTIATION = struct.Struct(">III")


class FrameTooLong(ProtocolError):
    """A frame over the limit of its command; none of it was kept."""


class Decoder:
    """Cuts a byte stream into (command, data); whole or byte by byte makes no difference."""

    __slots__ = ("_body_left", "_have", "_held", "_need", "stalled")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # an incomplete frame
        self._have = 0
        self._need = 0
        self._body_left = 0
        self.stalled = False  # the last feed completed nothing of the frame that was open before it

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._held) or self._body_left > 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Every event that `data` completes; pieces of a long body come as BODY_PART, the last as BODY."""
        events: list[tuple[int, bytes]] = []
        position = 0
        self.stalled = False
        if self._held or self._body_left:
            data, position = self._resume(data, events)
        end, limits = len(data), _LIMITS
        while position + 4 < end:
            length, command = _read_head(data, position)
            if length > limits[command] or not length:
                kind = FrameTooLong if length > limits[command] > 0 else ProtocolError
                raise kind(f"a frame of {length} bytes with command {command:#04x}")
            stop = position + 4 + length
            if stop <= end:
                events.append((command, data[position + 5 : stop]))
                position = stop
            elif command == protocol.BODY:
                self._body_left = stop - end
                events.append((protocol.BODY_PART, data[position + 5 :]))
                return events
            else:
                self._hold(data[position:], 4 + length)
                return events
        if position < end:
            if end - position == 4 and not 0 < _U32.unpack_from(data, position)[0] <= _LONGEST:
                raise FrameTooLong("a frame of impossible length")
            self._hold(data[position:], 5)
        return events

    def _resume(self, data: bytes, events: list[tuple[int, bytes]]) -> tuple[bytes, int]:
        """Go on with the frame that is open; returns what is to be cut now, and from where."""
        if self._held:
            self._held.append(data)
            self._have += len(data)
            self.stalled = self._have < self._need
            if self.stalled:
                return b"", 0
            data = b"".join(self._held)
            self._held = []
            return data, 0
        position = min(self._body_left, len(data))
        self._body_left -= position
        self.stalled = self._body_left > 0
        events.append((protocol.BODY_PART if self.stalled else protocol.BODY, data[:position]))
        return data, position

    def _hold(self, start: bytes, need: int) -> None:
        self._held, self._have, self._need = [start], len(start), need


# --- negotiation ---------------------------------------------------------------------------------

WANTED_ACTIONS = (
    protocol.CAN_ADD_HEADERS | protocol.CAN_CHANGE_HEADERS | protocol.CAN_QUARANTINE | protocol.CAN_SET_SYMBOLS
)

# MAIL is answered: saturation is said there. RCPT is answered: 452 at the recipient that is one too
# many makes the client split the mail, at the end of the message it would make it try for ever.
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

# For a stage without a list Postfix falls back to its own, which is longer (and costs it a look-up per
# recipient), so every stage asks for something. It knows its queue id only after the first recipient.
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
    """What both sides can, and so do."""

    version: int
    actions: int
    steps: int

    @property
    def answered(self) -> frozenset[int]:
        """The events the mail server waits for us after."""
        return _answered(self.steps)


# A mail server makes the same offer on every connection, and often a connection for every mail.
@lru_cache(maxsize=16)
def _answered(steps: int) -> frozenset[int]:
    return frozenset(code for code, event in protocol.EVENTS.items() if event.responses and not steps & event.no_reply)


@lru_cache(maxsize=16)
def negotiate(offer: bytes) -> Agreement:
    """Choose from what the mail server offers: never a newer version, never a bit it did not offer."""
    if len(offer) < _NEGOTIATION.size:
        raise ProtocolError("negotiation is cut short")
    version, actions, steps = _NEGOTIATION.unpack_from(offer)
    if version < protocol.VERSIONS[0]:
        raise ProtocolError(f"protocol version {version}")
    size = steps & protocol.DATA_1M or steps & protocol.DATA_256K
    return Agreement(min(version, protocol.VERSIONS[-1]), actions & WANTED_ACTIONS, (steps & WANTED_STEPS) | size)


@lru_cache(maxsize=16)
def negotiation(agreement: Agreement) -> bytes:
    """Our side of it, with the macros we want where we may say so."""
    symbols = b""
    if agreement.actions & protocol.CAN_SET_SYMBOLS:
        symbols = b"".join(_U32.pack(stage) + names.encode("ascii") + b"\0" for stage, names in SYMBOLS.items())
    flags = _NEGOTIATION.pack(agreement.version, agreement.actions, agreement.steps)
    return response(protocol.NEGOTIATE, protocol.NEGOTIATE, flags + symbols)


# --- what is in the events -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """The SMTP client as the mail server sees it."""

    name: str | None = None
    address: str | None = None
    port: int | None = None


def connect(data: bytes) -> Connect:
    """CONNECT: host name, NUL, family, and for all families but unknown a port and an address."""
    name, nul, rest = data.partition(b"\0")
    if not nul or not rest:
        raise ProtocolError("CONNECT is cut short")
    host = None if name[:1] == b"[" or name in (b"", b"unknown") else text(name)
    family = rest[:1]
    if family == b"U":
        return Connect(host)
    if family not in (b"L", b"4", b"6") or len(rest) < 4 or rest[-1:] != b"\0":
        raise ProtocolError("CONNECT with a malformed address")
    if family == b"L":
        return Connect(host)
    return Connect(host, _ip(rest[3:-1]), int.from_bytes(rest[1:3]) or None)


def _ip(raw: bytes) -> str | None:
    """The address in its usual form. Postfix and Sendmail write `IPv6:` before the one kind."""
    if raw[:5].lower() == b"ipv6:":
        raw = raw[5:]
    try:
        if b":" not in raw:  # a tenth of what the other way costs, and Python's answer is the same
            return inet_ntop(AF_INET, inet_pton(AF_INET, raw.decode("ascii")))
        address = ipaddress.IPv6Address(raw.decode("ascii"))
    except (ValueError, OSError):  # "unknown", and anything else that is no address
        return None
    return str(address.ipv4_mapped or address)


def strings(data: bytes) -> list[bytes]:
    """NUL-terminated strings, at least one."""
    if data[-1:] != b"\0":
        raise ProtocolError("a string without its end")
    return data[:-1].split(b"\0")


def address(data: bytes) -> tuple[str, tuple[str, ...]] | Reply:
    """MAIL and RCPT: the address without brackets and its ESMTP parameters, or the refusal.

    The mail server has accepted the address already, so its form is not judged again; but it goes
    into JSON and into files, where control characters and broken UTF-8 have no place.
    """
    words = data.split(b"\0")
    if words.pop() or not words:
        raise ProtocolError("a string without its end")
    raw = words[0]
    if raw[:1] == b"<" and raw[-1:] == b">":
        raw = raw[1:-1]
    try:
        address = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Reply(553, "5.1.3", "The address is not valid UTF-8")
    if len(raw) > _ADDRESS_LIMIT or (not address.isprintable() and _CONTROL.search(raw)):
        return Reply(553, "5.1.3", "Control characters in the address, or too long")
    return address, () if len(words) == 1 else tuple(map(text, words[1:]))


def macros(data: bytes) -> dict[bytes, bytes]:
    """The pairs of one MACRO event: long names in braces, short ones without, values of any bytes."""
    words = data.split(b"\0")
    if words.pop():
        raise ProtocolError("a macro without its end")
    return {words[0]: words[1]} if len(words) == 2 else dict(zip(words[::2], words[1::2], strict=False))


def text(raw: bytes) -> str:
    """Bytes from strangers, as text that every encoder can take, of bounded length."""
    return raw[:512].decode("utf-8", "replace")


# --- responses -----------------------------------------------------------------------------------


def response(event: int, command: int, data: bytes = b"") -> bytes:
    """One frame, checked against the table of what this event may be answered with."""
    if command not in protocol.EVENTS[event].responses:
        raise ValueError(f"{chr(command)!r} is no response to {protocol.EVENTS[event].name}")
    return _HEAD.pack(len(data) + 1, command) + data


def reply_code(event: int, reply: Reply) -> bytes:
    """Our own code and text. The mail server reads it as a format string: every % is doubled."""
    digit = str(reply.code)[0]
    if digit not in "45":
        raise ValueError("a mail server takes 4xx and 5xx replies only")
    status = "" if reply.status else f"{digit}.7.1 "  # a bare text could look like a status to Postfix
    lines = [(status + line)[:_LINE_LIMIT].replace("%", "%%") for line in reply.lines()[:_LINES]]
    wired = [f"{reply.code}-{line}" for line in lines[:-1]] + [f"{reply.code} {lines[-1]}"]
    return response(event, protocol.REPLY_CODE, "\r\n".join(wired).encode("ascii") + b"\0")


def add_header(name: str, value: str, agreement: Agreement) -> bytes:
    space = " " if agreement.steps & protocol.LEADING_SPACE else ""  # else the mail server adds it
    if not (value.isprintable() and name.isprintable()):
        name, value = _field(name), _field(value)
    data = f"{_ADD_HEADER}{name}\0{space}{value}\0".encode("utf-8", "replace")
    return _U32.pack(len(data)) + data


def delete_header(name: bytes, index: int) -> bytes:
    """Remove the index-th (from 1) field of this name."""
    return response(protocol.END_OF_BODY, protocol.CHANGE_HEADER, _U32.pack(index) + name + b"\0\0")


def quarantine(reason: str) -> bytes:
    return response(protocol.END_OF_BODY, protocol.QUARANTINE, _field(reason).encode("utf-8", "replace") + b"\0")


def _field(value: str) -> str:
    """Header text: a line end stays only where a continuation line follows it."""
    lines = value.replace("\0", "").replace("\r", "").split("\n")
    return lines[0] + "".join(("\n" if line[:1] in (" ", "\t") else " ") + line for line in lines[1:])
