"""Transaction: one mail in processing: session, envelope, message and deadline."""

from __future__ import annotations

import itertools
import os
import time

from bridge.mail.envelope import Envelope
from bridge.mail.message import Message
from bridge.mail.session import Session
from bridge.runtime.value import value

_numbers = itertools.count(int.from_bytes(os.urandom(2)))


@value
class Transaction:
    """One complete mail, with the time of its arrival and its deadline (monotonic clock, seconds)."""

    id: str
    session: Session
    envelope: Envelope
    message: Message
    received_at: float  # when the last byte arrived
    deadline: float  # when the client must have its reply
    is_per_recipient: bool = False  # the client receives one reply for each recipient (LMTP, PRDR)
    can_hold: bool = True  # milter: the mail server offers to put a mail into its hold queue
    can_remove: bool = True  # milter: the mail server offers to remove recipients


def new_id() -> str:
    """A short id that sorts by time and does not repeat across processes and restarts."""
    return f"{time.time_ns() // 1_000_000:X}{_process}{next(_numbers) & 0xFFFF:04X}"


def _draw_process() -> None:
    """Draw the part of an id that differs between processes, including forked ones."""
    global _process
    _process = f"{int.from_bytes(os.urandom(2)):04X}"


_process = ""
_draw_process()
os.register_at_fork(after_in_child=_draw_process)
