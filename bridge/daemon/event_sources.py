"""Events that are not about one mail: a list or the state of a scanner host has changed.

Looks once a second, in the first worker: neither the lists nor the scanner need to know about events, and a state that
lasts less than a second is not worth a message.
"""

from __future__ import annotations

import asyncio
import time

from bridge.daemon.running import Running
from bridge.events.event import Event, ScannerState, list_changed, scanner_state
from bridge.lists.copies import Wanted
from bridge.matching.table import About
from bridge.observe.redaction import Redaction
from bridge.scanner.client import Host

_TURN_S = 1.0


async def watch_event_sources(running: Running) -> None:
    core = running.core
    changes: Changes | None = None
    while True:
        recorder = core.events.recorder
        if recorder is None or not core.worker.is_first:
            changes = None
        else:
            changes = changes or Changes(running)
            for event in changes.look(recorder.settings.redaction):
                recorder.put(event)
        await asyncio.sleep(_TURN_S)


class Changes:
    """What has changed since the last look."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._hosts: dict[str, ScannerState] = {}
        self._lists: dict[Wanted, About] = self._copies()

    def look(self, redaction: Redaction) -> list[Event]:
        return [*self._scanner(redaction), *self._changed_lists()]

    def _scanner(self, redaction: Redaction) -> list[Event]:
        found = []
        hosts = self._running.scanner.hosts
        current = {host.url for host in hosts}
        self._hosts = {url: state for url, state in self._hosts.items() if url in current}  # others left the DNS
        for host in hosts:
            state, problem = state_of(host)
            before = self._hosts.get(host.url)
            if state is None or state is before:
                continue
            self._hosts[host.url] = state
            if before is not None or state is not ScannerState.UP:
                found.append(scanner_state(host.url, state, before, problem, time.time(), redaction))
        return found

    def _changed_lists(self) -> list[Event]:
        before, self._lists = self._lists, self._copies()
        return [
            list_changed(wanted.name, wanted.tenant, about.count, old.count if old else None, time.time())
            for wanted, about in self._lists.items()
            for old in [before.get(wanted)]
            if about != old
        ]

    def _copies(self) -> dict[Wanted, About]:
        copies = self._running.core.list_refresh.copies
        return {
            wanted: copy.table.about
            for wanted in copies.wanted
            if (copy := copies.get(wanted.name, wanted.tenant)) is not None
        }


def state_of(host: Host) -> tuple[ScannerState | None, str]:
    """None if nothing is known yet: right after the start, or after a reload."""
    problem, case = host.outage
    if problem:
        is_token = case == "refused" and "token" in problem
        return (ScannerState.REFUSED if is_token else ScannerState.DOWN), problem
    if host.is_saturated(asyncio.get_running_loop().time()):
        return ScannerState.SATURATED, ""
    is_unknown = host.status is None and not host.decided_since and not host.status_problem
    return (None if is_unknown else ScannerState.UP), ""
