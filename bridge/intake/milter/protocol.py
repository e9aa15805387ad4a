"""The milter protocol as data: commands, responses, flags, and which may come when.

Numbers and names are those of libmilter's `mfdef.h` and `mfapi.h`, protocol version 6. The intake
is built on two tables, which the tests read too: `EVENTS` says how long an event may be and which
responses to it a mail server understands; `TRANSITIONS` says which event may come in which state.
An event that is not in the row of the current state ends the connection. The mail server then
applies its own default action, which is "try again later" if it is configured as we recommend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

# Commands, from the mail server to us
ABORT: Final = ord("A")  # SMFIC_ABORT
BODY: Final = ord("B")  # SMFIC_BODY
CONNECT: Final = ord("C")  # SMFIC_CONNECT
MACRO: Final = ord("D")  # SMFIC_MACRO
END_OF_BODY: Final = ord("E")  # SMFIC_BODYEOB
HELO: Final = ord("H")  # SMFIC_HELO
QUIT_NC: Final = ord("K")  # SMFIC_QUIT_NC: this SMTP client is gone, another will follow
HEADER: Final = ord("L")  # SMFIC_HEADER
MAIL: Final = ord("M")  # SMFIC_MAIL
END_OF_HEADERS: Final = ord("N")  # SMFIC_EOH
NEGOTIATE: Final = ord("O")  # SMFIC_OPTNEG
QUIT: Final = ord("Q")  # SMFIC_QUIT
RCPT: Final = ord("R")  # SMFIC_RCPT
DATA: Final = ord("T")  # SMFIC_DATA
UNKNOWN: Final = ord("U")  # SMFIC_UNKNOWN: an SMTP command that the mail server does not know
BODY_PART: Final = 0  # our own: a piece of a BODY frame that is not complete yet

# Responses, from us to the mail server
ADD_RCPT: Final = ord("+")  # SMFIR_ADDRCPT
DELETE_RCPT: Final = ord("-")  # SMFIR_DELRCPT
ADD_RCPT_PAR: Final = ord("2")  # SMFIR_ADDRCPT_PAR
SHUTDOWN: Final = ord("4")  # SMFIR_SHUTDOWN
ACCEPT: Final = ord("a")  # SMFIR_ACCEPT
REPLACE_BODY: Final = ord("b")  # SMFIR_REPLBODY
CONTINUE: Final = ord("c")  # SMFIR_CONTINUE
DISCARD: Final = ord("d")  # SMFIR_DISCARD
CHANGE_FROM: Final = ord("e")  # SMFIR_CHGFROM
CONNECTION_FAIL: Final = ord("f")  # SMFIR_CONN_FAIL
ADD_HEADER: Final = ord("h")  # SMFIR_ADDHEADER
INSERT_HEADER: Final = ord("i")  # SMFIR_INSHEADER
CHANGE_HEADER: Final = ord("m")  # SMFIR_CHGHEADER
PROGRESS: Final = ord("p")  # SMFIR_PROGRESS
QUARANTINE: Final = ord("q")  # SMFIR_QUARANTINE
REJECT: Final = ord("r")  # SMFIR_REJECT
SKIP: Final = ord("s")  # SMFIR_SKIP
TEMPFAIL: Final = ord("t")  # SMFIR_TEMPFAIL
REPLY_CODE: Final = ord("y")  # SMFIR_REPLYCODE

# Actions that a filter may ask for (SMFIF_*)
CAN_ADD_HEADERS: Final = 1 << 0  # SMFIF_ADDHDRS
CAN_CHANGE_BODY: Final = 1 << 1  # SMFIF_CHGBODY
CAN_ADD_RCPT: Final = 1 << 2  # SMFIF_ADDRCPT
CAN_DELETE_RCPT: Final = 1 << 3  # SMFIF_DELRCPT
CAN_CHANGE_HEADERS: Final = 1 << 4  # SMFIF_CHGHDRS
CAN_QUARANTINE: Final = 1 << 5  # SMFIF_QUARANTINE
CAN_CHANGE_FROM: Final = 1 << 6  # SMFIF_CHGFROM
CAN_ADD_RCPT_PAR: Final = 1 << 7  # SMFIF_ADDRCPT_PAR
CAN_SET_SYMBOLS: Final = 1 << 8  # SMFIF_SETSYMLIST

# Protocol steps (SMFIP_*): events not sent (NO_), events not answered (NR_), and some abilities
NO_CONNECT: Final = 1 << 0
NO_HELO: Final = 1 << 1
NO_MAIL: Final = 1 << 2
NO_RCPT: Final = 1 << 3
NO_BODY: Final = 1 << 4
NO_HEADERS: Final = 1 << 5
NO_END_OF_HEADERS: Final = 1 << 6
NR_HEADER: Final = 1 << 7
NO_UNKNOWN: Final = 1 << 8
NO_DATA: Final = 1 << 9
CAN_SKIP: Final = 1 << 10
RCPT_REJECTED: Final = 1 << 11  # SMFIP_RCPT_REJ: send rejected recipients too
NR_CONNECT: Final = 1 << 12
NR_HELO: Final = 1 << 13
NR_MAIL: Final = 1 << 14
NR_RCPT: Final = 1 << 15
NR_DATA: Final = 1 << 16
NR_UNKNOWN: Final = 1 << 17
NR_END_OF_HEADERS: Final = 1 << 18
NR_BODY: Final = 1 << 19
LEADING_SPACE: Final = 1 << 20  # SMFIP_HDR_LEADSPC: header values include the space after the colon
DATA_256K: Final = 1 << 28  # SMFIP_MDS_256K: body chunks up to this size
DATA_1M: Final = 1 << 29  # SMFIP_MDS_1M

# Stages of a symbol list (SMFIM_*)
STAGE_CONNECT, STAGE_HELO, STAGE_MAIL, STAGE_RCPT, STAGE_DATA, STAGE_END_OF_BODY, STAGE_END_OF_HEADERS = range(7)

VERSIONS: Final = range(2, 7)

KiB: Final = 1024
ENVELOPE_LIMIT: Final = 64 * KiB  # libmilter's MILTER_CHUNK_SIZE; for everything but content
CONTENT_LIMIT: Final = 1024 * KiB  # MILTER_MDS_1M; larger than any header field that a mail server accepts


@dataclass(frozen=True, slots=True)
class Event:
    """One command: its longest data, the flag that suppresses our answer, and the allowed responses."""

    name: str
    limit: int
    no_reply: int = 0
    responses: frozenset[int] = frozenset()


_DECIDE = frozenset({ACCEPT, CONTINUE, REJECT, TEMPFAIL, REPLY_CODE, SHUTDOWN, CONNECTION_FAIL, PROGRESS})
_ENVELOPE = _DECIDE | {DISCARD, QUARANTINE}  # DISCARD at connect or helo is an error for Postfix
_CONTENT = _ENVELOPE | {SKIP}
_EDIT = frozenset(
    {ADD_HEADER, INSERT_HEADER, CHANGE_HEADER, REPLACE_BODY, ADD_RCPT, ADD_RCPT_PAR, DELETE_RCPT, CHANGE_FROM}
)

EVENTS: Final[dict[int, Event]] = {
    NEGOTIATE: Event("SMFIC_OPTNEG", ENVELOPE_LIMIT, 0, frozenset({NEGOTIATE})),
    MACRO: Event("SMFIC_MACRO", ENVELOPE_LIMIT),
    CONNECT: Event("SMFIC_CONNECT", ENVELOPE_LIMIT, NR_CONNECT, _DECIDE),
    HELO: Event("SMFIC_HELO", ENVELOPE_LIMIT, NR_HELO, _DECIDE),
    MAIL: Event("SMFIC_MAIL", ENVELOPE_LIMIT, NR_MAIL, _ENVELOPE),
    RCPT: Event("SMFIC_RCPT", ENVELOPE_LIMIT, NR_RCPT, _CONTENT),
    DATA: Event("SMFIC_DATA", ENVELOPE_LIMIT, NR_DATA, _ENVELOPE),
    UNKNOWN: Event("SMFIC_UNKNOWN", ENVELOPE_LIMIT, NR_UNKNOWN, _DECIDE),
    HEADER: Event("SMFIC_HEADER", CONTENT_LIMIT, NR_HEADER, _CONTENT),
    END_OF_HEADERS: Event("SMFIC_EOH", ENVELOPE_LIMIT, NR_END_OF_HEADERS, _ENVELOPE),
    BODY: Event("SMFIC_BODY", CONTENT_LIMIT, NR_BODY, _CONTENT),
    END_OF_BODY: Event("SMFIC_BODYEOB", CONTENT_LIMIT, 0, _ENVELOPE | _EDIT),
    ABORT: Event("SMFIC_ABORT", ENVELOPE_LIMIT),
    QUIT: Event("SMFIC_QUIT", ENVELOPE_LIMIT),
    QUIT_NC: Event("SMFIC_QUIT_NC", ENVELOPE_LIMIT),
}


class State(Enum):
    """The phase of a connection; the value completes a log line."""

    NEW = "before negotiation"
    READY = "between mails"
    ENVELOPE = "after MAIL"
    HEADERS = "in the header section"
    BODY = "after the header section"
    BUSY = "while the mail is scanned"
    CLOSED = "after QUIT"

    __hash__ = object.__hash__  # Python 3.11: Enum.__hash__ is slow, and a mail looks up five states


# MAIL, HELO and CONNECT may come at any time and start over: after an early decision Sendmail does
# not always send ABORT first. All other events must come in order.
_ALWAYS: Final = {QUIT: State.CLOSED, QUIT_NC: State.READY, ABORT: State.READY}
_RESTART: Final = {**_ALWAYS, CONNECT: State.READY, HELO: State.READY, MAIL: State.ENVELOPE}
_BODY: Final = {BODY_PART: State.BODY, BODY: State.BODY, END_OF_BODY: State.BUSY}

TRANSITIONS: Final[dict[State, dict[int, State]]] = {
    State.NEW: {NEGOTIATE: State.READY, QUIT: State.CLOSED},
    State.READY: {**_RESTART, NEGOTIATE: State.READY, MACRO: State.READY, UNKNOWN: State.READY},
    State.ENVELOPE: {
        **_RESTART,
        **_BODY,
        MACRO: State.ENVELOPE,
        UNKNOWN: State.ENVELOPE,
        RCPT: State.ENVELOPE,
        DATA: State.ENVELOPE,
        HEADER: State.HEADERS,
        END_OF_HEADERS: State.BODY,
    },
    State.HEADERS: {
        **_RESTART,
        **_BODY,
        MACRO: State.HEADERS,
        HEADER: State.HEADERS,
        END_OF_HEADERS: State.BODY,
    },
    State.BODY: {**_RESTART, **_BODY, MACRO: State.BODY},
    State.BUSY: dict(_ALWAYS),
    State.CLOSED: {},
}
