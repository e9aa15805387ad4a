"""Trace: the names by which a mail is known to those who follow requests over several programs (W3C Trace Context)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import monotonic, time_ns


@dataclass(frozen=True, slots=True)
class Trace:
    """One mail's: hexadecimal, as in the header, and the two clocks at its beginning."""

    trace_id: str
    mail_id: str  # the span of the whole mail
    scan_id: str  # the span of its scan: what the scanner does is part of that
    began_ns: int  # since 1970
    began_at: float  # monotonic

    @property
    def header(self) -> bytes:
        """For the request to the scanner."""
        return f"traceparent: 00-{self.trace_id}-{self.scan_id}-01\r\n".encode("ascii")


def new_trace() -> Trace:
    chance = os.urandom(32).hex()
    return Trace(chance[:32], chance[32:48], chance[48:], time_ns(), monotonic())
