"""One node away for a while, everything else healthy: what clients see meanwhile, and when it is over."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass

from tests.chain import until
from tests.cluster.monkey import Monkey, Trouble
from tests.cluster.world import ClusterWorld
from tests.faults.senders import Senders, Try

AWAY_S = 15.0
_CALM_S = 8.0
_SLOW_S = 3.0


@dataclass(frozen=True)
class Scenario:
    name: str
    accepted: int  # while the node was away
    deferred: Counter[str]  # replies, by cause
    longest_s: float  # that a client waited for a reply
    disturbed_s: float  # from the fault to the end of the last try that was deferred or slow; 0: none was
    back_s: float  # from the end of the fault until the node was ready


def play(world: ClusterWorld, monkey: Monkey, senders: Senders) -> list[Scenario]:
    with monkey.quiet():
        return [_measure(name, trouble, monkey, senders) for name, trouble in _plan(world, monkey)]


def _plan(world: ClusterWorld, monkey: Monkey) -> list[tuple[str, Trouble]]:
    cluster, leader = world.cluster, world.leader()
    follower = next(node for node in cluster.of("nats") if node is not leader)
    killed = {
        "nothing": [],
        "one of three NATS servers": [follower],
        "the NATS server that leads the queue": [leader],
        "two of three NATS servers": [leader, follower],
        "PostgreSQL": cluster.of("postgresql"),
        "the S3 storage": cluster.of("storage"),
        "one of two HAProxy servers": cluster.of("haproxy")[:1],
        "one of three bridges": cluster.of("bridge")[:1],
        "one of two API nodes": cluster.of("api")[:1],
        "one of three workers": cluster.of("worker")[:1],
        "all three workers": cluster.of("worker"),
    }
    return [(name, monkey.trouble("killed", *nodes, name=f"{name} killed")) for name, nodes in killed.items()]


def _measure(name: str, trouble: Trouble, monkey: Monkey, senders: Senders) -> Scenario:
    until(lambda: not _disturbed(senders, time.time() - _CALM_S), "a calm cluster", 240)
    began = time.time()
    monkey.cause([trouble], AWAY_S)
    back = time.time()
    time.sleep(_CALM_S)
    near = _tries(senders, began)
    during = [tried for tried in near if tried.began < began + AWAY_S]
    disturbed = _disturbed(senders, began)
    return Scenario(
        name,
        sum(not is_deferred(tried) for tried in during),
        Counter(cause_of(tried) for tried in near if is_deferred(tried)),
        max((tried.seconds for tried in near), default=0.0),
        max((tried.began + tried.seconds for tried in disturbed), default=began) - began,
        back - began - AWAY_S,
    )


def _tries(senders: Senders, since: float) -> list[Try]:
    """Those of clients that wait for a decision, which ended after this moment."""
    mails = [mail for mail in list(senders.mails) if mail.way != "queue" and mail.kind != "late"]
    return [tried for mail in mails for tried in list(mail.tries) if tried.began + tried.seconds >= since]


def _disturbed(senders: Senders, since: float) -> list[Try]:
    return [tried for tried in _tries(senders, since) if is_deferred(tried) or tried.seconds > _SLOW_S]


def is_deferred(tried: Try) -> bool:
    return not tried.reply.startswith(("250", "5"))


def cause_of(tried: Try) -> str:
    """The reply without ids, as clients receive it."""
    text = re.sub(r" \((id|ggrid)=[^)]*\)", "", tried.reply.splitlines()[0] if tried.reply else "")
    return re.sub(r"\b[0-9A-F]{10,}\b", "...", text).strip() or "connection closed"
