"""Gauges for /metrics that are read from the parts, beside those of mail in processing (`view`).

Everything is cheap, because it is read once a second by every worker: what is not (the files of the
quarantine) is counted now and then in a thread, and told from memory.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bridge.daemon import certificates, resources
from bridge.errors import StoreError
from bridge.observe.metrics import SATURATION
from bridge.quarantine.usage import Usage
from bridge.relay.monitored import STATES

if TYPE_CHECKING:
    from bridge.daemon.components import Parts
    from bridge.daemon.daemon import Daemon

log = logging.getLogger(__name__)

STOCK_INTERVAL_S = 60.0
_TURN_S = 1.0  # to see whether the worker that counted is gone
_STOCK_SHARE = 20  # counting takes at most this part of the time
_PAGE = resource.getpagesize()

Rows = Iterable[tuple[tuple[str, ...], float]]


class Levels:
    """Of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stock: Usage | None = None
        self._own_ends: dict[tuple[str, str], float] = {}

    def watch(self) -> None:
        """Tell the metrics where to look."""
        daemon, metrics = self._daemon, self._daemon.metrics
        metrics.throttle_delay.read = lambda: [((), daemon.admission.delay(daemon.scanner.is_yellow))]
        metrics.saturated.read = self._saturated
        metrics.next_hop_up.read = self._up
        metrics.next_hop_connections.read = self._connections
        metrics.quarantine_mails.read = lambda: self._of_stock(lambda stock: stock.mails)
        metrics.quarantine_bytes.read = lambda: self._of_stock(lambda stock: stock.size_bytes)
        metrics.quarantine_age.read = lambda: self._of_stock(_age)
        metrics.quarantine_disk_free.read = lambda: self._of_stock(lambda stock: stock.disk_free_bytes)
        metrics.quarantine_disk_size.read = lambda: self._of_stock(lambda stock: stock.disk_size_bytes)
        metrics.quarantine_limit.read = self._quarantine_limit
        metrics.certificate_expiry.read = self._ends
        metrics.loop_lag.read = lambda: [((), daemon.lag.worst_s)]
        metrics.memory.read = _resident_bytes
        metrics.open_fds.read = _open_fds
        metrics.max_fds.read = lambda: [((), resource.getrlimit(resource.RLIMIT_NOFILE)[0])]
        metrics.start_time.read = lambda: [((), _STARTED)]

    def adopt(self, parts: Parts) -> None:
        """The certificates that these parts have read."""
        self._own_ends = own_ends(parts)

    def _saturated(self) -> Rows:
        daemon = self._daemon
        limit = daemon.parts.limit
        full = daemon.admission.is_full or (limit is not None and daemon.admission.in_processing >= limit.current)
        return zip(((cause,) for cause in SATURATION), (full, daemon.scanner.is_saturated()), strict=True)

    def _up(self) -> Rows:
        return {(hop.name,): int(hop.is_up) for hop in self._daemon.parts.hops}.items()

    def _connections(self) -> Rows:
        found: Counter[tuple[str, ...]] = Counter()
        for hop in self._daemon.parts.hops:
            if hop.pool is not None:
                for state, count in zip(STATES, hop.pool.connections, strict=True):
                    found[hop.name, state] += count
        return found.items()

    def _ends(self) -> Rows:
        ends = dict(self._own_ends)
        for host in self._daemon.scanner.hosts:
            _note(ends, "scanner", host.url, host.certificate)
        for hop in self._daemon.parts.hops:
            _note(ends, "next_hop", hop.name, hop.pool.certificate if hop.pool is not None else None)
        return ends.items()

    # The quarantine

    def _of_stock(self, what: Callable[[Usage], float | None]) -> Rows:
        value = None if self._stock is None else what(self._stock)
        return [] if value is None else [((), value)]

    def _quarantine_limit(self) -> Rows:
        limit = self._daemon.config.quarantine.max_size
        return [] if limit is None else [((), limit)]

    async def take_stock(self) -> None:
        """For ever; with several workers one of them does it for all."""
        share, due = self._daemon.share, 0.0
        while True:
            began = time.monotonic()
            if share is not None and not share.is_first:
                self._stock, due = None, 0.0
            elif began >= due:
                self._stock = await self._count_stock()
                took = time.monotonic() - began
                rare = 10 if self._daemon.parts.quarantine.is_remote else 1  # each listing may be paid for
                due = began + max(STOCK_INTERVAL_S * rare, took * _STOCK_SHARE)
            await asyncio.sleep(_TURN_S)

    async def _count_stock(self) -> Usage | None:
        try:
            return await self._daemon.parts.quarantine.usage()
        except StoreError as exc:
            log.warning("the quarantine could not be counted: %s", exc)
            return None


def own_ends(parts: Parts) -> dict[tuple[str, str], float]:
    """Of the certificates in files that the configuration names."""
    conf, found = parts.config, {}
    named = [("listener", one.name, one.tls.cert_file) for one in conf.listeners if one.tls is not None]
    if conf.scanner.client_cert_file:
        named.append(("scanner_client", "scanner", conf.scanner.client_cert_file))
    for role, name, file in named:
        end = certificates.first_end(resources.locate(file, conf.directory))
        if end is not None:
            found[role, name] = end
    return found


def _note(ends: dict[tuple[str, str], float], role: str, name: str, certificate: bytes | None) -> None:
    end = certificates.end_of(certificate) if certificate is not None else None
    if end is not None:
        ends[role, name] = end


def _age(stock: Usage) -> float:
    return 0.0 if stock.oldest_at is None else max(time.time() - stock.oldest_at, 0.0)


def _resident_bytes() -> Rows:
    """Nothing when it cannot be read: a process without a free descriptor must still tell the rest."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return [((), int(file.read().split()[1]) * _PAGE)]
    except OSError:
        return []


def _open_fds() -> Rows:
    try:
        return [((), len(os.listdir("/proc/self/fd")) - 1)]  # noqa: PTH208  one of them is for the listing
    except OSError as exc:
        return [((), resource.getrlimit(resource.RLIMIT_NOFILE)[0])] if exc.errno == errno.EMFILE else []


_STARTED = time.time()
