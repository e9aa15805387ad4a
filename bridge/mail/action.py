"""Action: what we do with a mail; the policy chooses it."""

from __future__ import annotations

from enum import StrEnum


class Action(StrEnum):
    RELAY = "relay"  # hand it on; the client receives the next hop's reply
    REJECT = "reject"  # 5xx
    DISCARD = "discard"  # 250, then drop it
    QUARANTINE = "quarantine"  # store it, then 250
    HOLD = "hold"  # milter: put it into the mail server's hold queue
    TEMPFAIL = "tempfail"  # 4xx
