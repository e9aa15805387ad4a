"""Tests next hops that get no mail, so that an untried next hop is not reported as up.

A test is one connection with EHLO and QUIT. It is made at the start, and when nothing has been learned about a next
hop for `relay.probe_interval`; a next hop that takes mail is never tested. One that is down is tested every two
seconds, so that its return is known at once. With several workers, one of them tests for all, and each tests what it
has found down itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bridge.daemon.running import Running
from bridge.relay.monitored import MonitoredRelay

_TURN_S = 0.5
_DOWN_S = 2.0


async def watch_next_hops(running: Running) -> None:
    tests: dict[MonitoredRelay, asyncio.Task[None]] = {}
    try:
        while True:
            tests = {hop: test for hop, test in tests.items() if not test.done()}
            relay = running.config.relay
            if relay is not None and relay.probe_interval:
                for hop in running.components.hops:
                    if hop not in tests and _is_due(hop, relay.probe_interval, running.core.worker.is_first):
                        tests[hop] = asyncio.create_task(hop.test(relay.connect_timeout))
            await asyncio.sleep(_TURN_S)
    finally:
        for test in tests.values():
            test.cancel()
            with suppress(asyncio.CancelledError):
                await test


def _is_due(hop: MonitoredRelay, interval_s: float, is_first: bool) -> bool:
    if hop.is_up is False:
        return hop.age_s >= min(interval_s, _DOWN_S)
    return is_first and not hop.busy and hop.age_s >= interval_s
