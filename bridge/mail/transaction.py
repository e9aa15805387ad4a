"""Transaction: one mail on its way: session, envelope, message, and how long there is for it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from bridge.mail.envelope import Envelope
from bridge.mail.message import Message
from bridge.mail.session import Session

_DIGITS = "0123456789BCDFGHJKLMNPQRSTVWXYZ"  # no vowels, no words: safe in any log or reply


@dataclass(frozen=True, slots=True)
class Transaction:
    """One mail, complete, and the moments that bound it (monotonic clock, seconds)."""

    id: str
    session: Session
    envelope: Envelope
    message: Message
    received_at: float  # when the last byte had come
    deadline: float  # when the client must have its reply


def new_id() -> str:
    """A short id that sorts by time and does not repeat across processes and restarts."""
    number = time.time_ns() // 1000 << 16 | int.from_bytes(os.urandom(2))
    digits = []
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
