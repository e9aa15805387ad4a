"""The gauges of /metrics: current values, read from the running daemon when they are needed.

Every worker reads them once a second, so each read must be cheap. Expensive values (the files of the
quarantine) are counted from time to time in a thread, and read from memory here.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable

from bridge.api.scanning import QueueStatus
from bridge.daemon import certificate_expiry
from bridge.daemon.quarantine_upkeep import QuarantineUpkeep
from bridge.daemon.running import Running
from bridge.daemon.status import Status
from bridge.observe.metrics import SATURATION, Metrics
from bridge.quarantine.usage import Usage
from bridge.relay.monitored import STATES
from bridge.scanner.circuit import State

_STATUSES = {None: -1, QueueStatus.GREEN: 0, QueueStatus.YELLOW: 1, QueueStatus.RED: 2}
_CIRCUITS = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
_PAGE = resource.getpagesize()

Rows = Iterable[tuple[tuple[str, ...], float]]


def connect_gauges(running: Running, status: Status, upkeep: QuarantineUpkeep) -> None:
    """Tell each gauge of the metrics where its value comes from."""
    metrics = running.core.metrics
    _connect_mail(metrics, running)
    _connect_scanner(metrics, running)
    _connect_next_hops(metrics, running)
    _connect_quarantine(metrics, running, upkeep)
    _connect_process(metrics, running, status)
    if not running.core.worker.has_supervisor:  # otherwise the supervisor reports the reloads
        running.core.reloads.show(metrics)


# Mail in processing


def _connect_mail(metrics: Metrics, running: Running) -> None:
    core, listeners = running.core, running.listeners
    admission, spool = core.admission, core.spool
    metrics.in_processing.read = lambda: [((), admission.in_processing)]
    metrics.in_processing_limit.read = lambda: [((), admission.settings.max_in_processing)]
    metrics.bytes_in_processing.read = lambda: [((), spool.in_use)]
    metrics.bytes_limit.read = lambda: [((), spool.limit)]
    metrics.connections.read = lambda: [((name,), count) for name, count in listeners.connections_by_name().items()]
    metrics.throttle_delay.read = lambda: [((), admission.delay(running.scanner.is_yellow))]
    metrics.saturated.read = lambda: _saturated(running)
    metrics.adaptive_limit.read = lambda: _adaptive_limit(running)
    metrics.history_size.read = lambda: [((), core.history.size)] if core.history else []
    metrics.late_running.read = lambda: [((), core.late.running if core.late else 0)]


def _saturated(running: Running) -> Rows:
    return zip(((cause,) for cause in SATURATION), running.saturation, strict=True)


def _adaptive_limit(running: Running) -> Rows:
    limit = running.components.limit
    return [((), limit.current)] if limit else []


# The scanner and the next hops


def _connect_scanner(metrics: Metrics, running: Running) -> None:
    metrics.scanner_status.read = lambda: [((host.url,), _STATUSES[host.status]) for host in running.scanner.hosts]
    metrics.scanner_circuit.read = lambda: [
        ((host.url,), _CIRCUITS[host.circuit.state]) for host in running.scanner.hosts
    ]
    metrics.scanner_in_flight.read = lambda: [((host.url,), host.in_flight) for host in running.scanner.hosts]
    metrics.scanner_info.read = lambda: [((host.url, host.dialect.name), 1) for host in running.scanner.hosts]
    metrics.discovery_hosts.read = lambda: [((name.url,), len(name.places)) for name in running.scanner.discoveries]
    metrics.discovery_failing.read = lambda: [((name.url,), bool(name.problem)) for name in running.scanner.discoveries]
    metrics.certificate_expiry.read = lambda: _certificate_expiry(running)


def _connect_next_hops(metrics: Metrics, running: Running) -> None:
    metrics.next_hop_up.read = lambda: _next_hops_up(running)
    metrics.next_hop_connections.read = lambda: _next_hop_connections(running)


def _next_hops_up(running: Running) -> Rows:
    """Leaves out next hops that have not been tried yet."""
    found: dict[tuple[str, ...], int] = {}
    for hop in running.components.hops:
        if (is_up := running.components.is_up(hop)) is not None:
            found[hop.name,] = min(int(is_up), found.get((hop.name,), 1))
    return found.items()


def _next_hop_connections(running: Running) -> Rows:
    found: Counter[tuple[str, ...]] = Counter()
    for hop in running.components.hops:
        if hop.pool is not None:
            for state, count in zip(STATES, hop.pool.connections, strict=True):
                found[hop.name, state] += count
    return found.items()


def _certificate_expiry(running: Running) -> Rows:
    """Of our own certificates, and of those that scanners and next hops last showed."""
    found = dict(running.components.certificate_expiry)
    shown = [("scanner", host.url, host.certificate) for host in running.scanner.hosts]
    for hop in running.components.hops:
        shown.append(("next_hop", hop.name, hop.pool.certificate if hop.pool is not None else None))
    for role, name, certificate in shown:
        expiry = certificate_expiry.expiry_of(certificate) if certificate is not None else None
        if expiry is not None:
            found[role, name] = expiry
    return found.items()


# The quarantine


def _connect_quarantine(metrics: Metrics, running: Running, upkeep: QuarantineUpkeep) -> None:
    metrics.quarantine_mails.read = lambda: _of_usage(upkeep, lambda usage: usage.mails)
    metrics.quarantine_bytes.read = lambda: _of_usage(upkeep, lambda usage: usage.size_bytes)
    metrics.quarantine_age.read = lambda: _of_usage(upkeep, _age)
    metrics.quarantine_disk_free.read = lambda: _of_usage(upkeep, lambda usage: usage.disk_free_bytes)
    metrics.quarantine_disk_size.read = lambda: _of_usage(upkeep, lambda usage: usage.disk_size_bytes)
    metrics.quarantine_limit.read = lambda: _quarantine_limit(running)


def _of_usage(upkeep: QuarantineUpkeep, value_of: Callable[[Usage], float | None]) -> Rows:
    usage = upkeep.usage
    value = None if usage is None else value_of(usage)
    return [] if value is None else [((), value)]


def _quarantine_limit(running: Running) -> Rows:
    limit = running.config.quarantine.max_size
    return [] if limit is None else [((), limit)]


# This process


def _connect_process(metrics: Metrics, running: Running, status: Status) -> None:
    lag = running.core.lag
    metrics.workers.read = lambda: [((), 0 if status.problem() else 1)]
    metrics.loop_lag.read = lambda: [((), lag.worst_s)]
    metrics.memory.read = resident_bytes
    metrics.open_fds.read = open_descriptors
    metrics.max_fds.read = lambda: [((), resource.getrlimit(resource.RLIMIT_NOFILE)[0])]
    metrics.start_time.read = lambda: [((), _STARTED)]


def _age(usage: Usage) -> float:
    return 0.0 if usage.oldest_at is None else max(time.time() - usage.oldest_at, 0.0)


def resident_bytes() -> Rows:
    """Nothing if it cannot be read: a process without a free descriptor must still report the other values."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return [((), int(file.read().split()[1]) * _PAGE)]
    except OSError:
        return []


def open_descriptors() -> Rows:
    try:
        return [((), len(os.listdir("/proc/self/fd")) - 1)]  # noqa: PTH208  one of them is for the listing
    except OSError as exc:
        return [((), resource.getrlimit(resource.RLIMIT_NOFILE)[0])] if exc.errno == errno.EMFILE else []


_STARTED = time.time()
