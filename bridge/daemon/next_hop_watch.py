"""Tests next hops that get no mail, so that an untried next hop is not reported as up.

A test is one connection with EHLO and QUIT. It is made at the start, and when nothing has been learned about a next
hop for `relay.probe_interval`; a next hop that takes mail is never tested. With several workers, one of them tests
for all.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bridge.daemon.running import Running
from bridge.relay.monitored import MonitoredRelay

_TURN_S = 0.5


async def watch_next_hops(running: Running) -> None:
    tests: dict[MonitoredRelay, asyncio.Task[None]] = {}
    try:
        while True:
            tests = {hop: test for hop, test in tests.items() if not test.done()}
            relay = running.config.relay
            if relay is not None and relay.probe_interval and running.core.worker.is_first:
                for hop in running.components.hops:
                    if hop not in tests and not hop.busy and hop.age_s >= relay.probe_interval:
                        tests[hop] = asyncio.create_task(hop.test(relay.connect_timeout))
            await asyncio.sleep(_TURN_S)
    finally:
        for test in tests.values():
            test.cancel()
            with suppress(asyncio.CancelledError):
                await test
