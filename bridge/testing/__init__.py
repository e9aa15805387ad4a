"""A test kit, for our tests and for yours: a bridge in a thread, a scripted scanner, a recording next hop.

Sockets, HTTP and SMTP are real. Only what the scanner and the next hop say is scripted, because
tests need them to misbehave. Nothing in the daemon imports this package.
"""

from bridge.testing.background import Background
from bridge.testing.daemon import TOKEN, RunningBridge, configuration, running_bridge
from bridge.testing.next_hop import NextHop, Received, WaitingHop
from bridge.testing.ports import free_port
from bridge.testing.scanner import FakeScanner, Submission, answer, result
from bridge.testing.smtp_client import SmtpClient, is_cut
from bridge.testing.waiting import DEADLINES_S, eventually, until, whole_lines

__all__ = [
    "DEADLINES_S",
    "TOKEN",
    "Background",
    "FakeScanner",
    "NextHop",
    "Received",
    "RunningBridge",
    "SmtpClient",
    "Submission",
    "WaitingHop",
    "answer",
    "configuration",
    "eventually",
    "free_port",
    "is_cut",
    "result",
    "running_bridge",
    "until",
    "whole_lines",
]
