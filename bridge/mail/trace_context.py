"""Trace: the ids under which tracing systems follow one mail through several programs (W3C Trace Context)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import monotonic, time_ns


@dataclass(frozen=True, slots=True)
class Trace:
    """The ids of one mail in hexadecimal, as in the header, and its start on both clocks."""

    trace_id: str
    mail_id: str  # the span of the whole mail
    scan_id: str  # the span of its scan, the parent of the scanner's own spans
    began_ns: int  # since 1970
    began_at: float  # monotonic

    @property
    def header(self) -> bytes:
        """For the request to the scanner."""
        return f"traceparent: 00-{self.trace_id}-{self.scan_id}-01\r\n".encode("ascii")


def new_trace() -> Trace:
    drawn = os.urandom(32).hex()
    return Trace(drawn[:32], drawn[32:48], drawn[48:], time_ns(), monotonic())
