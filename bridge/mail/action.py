"""Action: what we do with a mail, after policy has had its say."""

from __future__ import annotations

from enum import StrEnum


class Action(StrEnum):
    RELAY = "relay"  # hand it on; the next hop's reply is ours
    REJECT = "reject"  # 5xx
    DISCARD = "discard"  # 250, and nothing more
    QUARANTINE = "quarantine"  # into our store, then 250
    HOLD = "hold"  # milter: into the mail server's own hold queue
    TEMPFAIL = "tempfail"  # 4xx
