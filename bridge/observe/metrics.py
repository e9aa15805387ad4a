"""Metrics: every name an operator can graph, declared once.

Names and labels are an interface; `docs/reference/metrics.md` is generated from this file. Label values come
from closed sets (listener names, actions, decisions, reasons), never from mail or clients, and
every combination starts at 0, so that a rate works from the first scrape.

With several workers, each counts its own mail (`bridge.observe.metric_types`); `snapshot` and `add` carry the
numbers to the worker that is scraped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import process_time
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bridge import __version__
from bridge.api.scanning import Decision
from bridge.errors import BridgeError, FailureLabel
from bridge.filter.late.decisions import LateScanEnd, LateStatus
from bridge.filter.outcome import Record
from bridge.filter.personal_rules import LIST as PERSONAL
from bridge.mail.action import Action
from bridge.mail.list_match import ListAction
from bridge.mime.ambiguity import REFUSED
from bridge.observe.metric_types import Counter, Gauge, Histogram

DECISIONS = (*(d.value for d in Decision), "none")  # none: no decision was reached
ACTIONS = (*(a.value for a in Action), "cancelled")  # cancelled: the client disconnected
CODES = ("2xx", "4xx", "5xx")
REFUSED_CONNECTIONS = ("limit", "client_limit", "untrusted", "token")
STAGES = ("mail", "data")
LIMITS = (  # docs/reference/limits.md explains each
    *("line", "command", "frame", "request", "header", "max_message_size", "max_bytes_in_processing"),
    *("max_recipients", "max_received"),
    *("max_mails_per_client_per_minute", "max_mails_per_connection", "max_errors", "idle_commands"),
    *("command_timeout", "data_timeout", "mail_timeout", "min_data_rate"),
)
SATURATION = ("limit", "scanner")
_PERSONAL_ACTIONS = [ListAction.BLOCKED.value, ListAction.ALLOWED.value]
_DOOR_ACTIONS = [action.value for action in ListAction if action.value not in _PERSONAL_ACTIONS]
DOUBTS = sorted(REFUSED)  # docs/operate/service.md explains each
TOLD = ("each", "one")
REFRESHES = ("ok", "failed")
DIGESTS = ("sent", "failed", "refused")
EVENTS_LOST = ("queue", "outbox", "stop", "expired")


class Metrics(Collector):
    """All metrics. The daemon gives each gauge its `read` function."""

    def __init__(self, listeners: Iterable[str] = ()) -> None:
        self._is_sum = False
        self._declare_mails()
        self._declare_late()
        self._declare_lists()
        self._declare_refusals()
        self._declare_times()
        self._declare_levels()
        self._declare_next_hops()
        self._declare_quarantine()
        self._declare_history()
        self._declare_upkeep()
        self._declare_events()
        self._declare_process()
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(self)
        self.start(listeners)

    def _declare_mails(self) -> None:
        self.mails = Counter(
            "scanbridge_mails",
            "Mails that were processed, by the service's decision and the bridge's action.",
            ("listener", "decision", "action"),
        )
        self.replies = Counter(
            "scanbridge_replies",
            "Replies to mails, by first digit of the code; if each recipient has its own reply, the most severe one "
            "counts.",
            ("listener", "code"),
        )
        self.mixed_mails = Counter(
            "scanbridge_mixed_mails",
            "Mails that the next hop accepted for some recipients only, by the kind of reply to the client: one reply "
            "per recipient (each; with LMTP or PRDR), or one reply for all recipients (one; those who have the mail "
            "may get it again).",
            ("listener", "told"),
        )
        self.mail_bytes = Counter("scanbridge_mail_bytes", "Bytes of the mails that were processed.", ("listener",))
        self.failures = Counter("scanbridge_failures", "Mails with an error, by kind of error.", ("reason",))
        self.failures.start([label.value for label in FailureLabel])
        self.ambiguous_mails = Counter(
            "scanbridge_ambiguous_mails",
            "Mails that refuse_ambiguous_mime refuses, or would refuse in shadow mode, by reason; a mail may have "
            "several.",
            ("listener", "reason"),
        )
        self.shadow_mails = Counter(
            "scanbridge_shadow_mails",
            "Mails in shadow mode, by the action that would have been taken.",
            ("listener", "would"),
        )

    def _declare_late(self) -> None:
        self.late_mails = Counter(
            "scanbridge_late_mails",
            "Mails that involved a late decision: answered by one (hit), deferred again because the scan is still "
            "running (running), or deferred at the deadline while the scan continues (awaited).",
            ("late",),
        )
        self.late_mails.start(list(LateStatus))
        self.late_scans = Counter(
            "scanbridge_late_scans", "Scans that continued after the deadline, by result.", ("end",)
        )
        self.late_scans.start(list(LateScanEnd))

    def _declare_lists(self) -> None:
        self.list_matches = Counter(
            "scanbridge_list_matches",
            "Mails, or single recipients at RCPT, that matched a list enforced by a listener: refused, not scanned "
            "(skipped), or only reported in shadow mode (shadow_refused, shadow_skipped). The list `personal` "
            "stands for the recipients' own entries: their mail was withheld (blocked) or delivered (allowed).",
            ("listener", "list", "action"),
        )
        self.list_refreshes = Counter(
            "scanbridge_list_refreshes",
            "Refreshes of the local copies of lists, by result.",
            ("outcome",),
        )
        self.list_refreshes.start(REFRESHES)

    def _declare_refusals(self) -> None:
        self.refused_early = Counter(
            "scanbridge_saturated_replies",
            "Mails refused with 451 before their content was sent, at MAIL or at DATA.",
            ("listener", "stage"),
        )
        self.refused_connections = Counter(
            "scanbridge_connections_refused", "Refused connections, by reason.", ("listener", "reason")
        )
        self.limits_hit = Counter(
            "scanbridge_limits_hit",
            "Number of times a client exceeded one of the limits in docs/reference/limits.md.",
            ("listener", "limit"),
        )
        self.log_lines_lost = Counter(
            "scanbridge_log_lines_lost", "Log lines that could not be written in time, or at all.", ()
        )
        self.log_lines_lost.start()
        self.log_lines_held_back = Counter(
            "scanbridge_log_lines_held_back", "Log lines suppressed because there were too many of their kind.", ()
        )
        self.log_lines_held_back.start()

    def _declare_times(self) -> None:
        self.wait = Histogram("scanbridge_wait_seconds", "Time that a mail waited in the throttle.")
        self.scan = Histogram("scanbridge_scan_seconds", "Time that the scanner took.")
        self.relay = Histogram("scanbridge_relay_seconds", "Time that the next hop took.")

    def _declare_levels(self) -> None:
        self.connections = Gauge("scanbridge_connections", "Open connections.", ("listener",), combine=sum)
        self.in_processing = Gauge("scanbridge_in_processing", "Mails being processed.")
        self.in_processing_limit = Gauge(
            "scanbridge_in_processing_limit", "Number of mails being processed at which new mail is refused."
        )
        self.adaptive_limit = Gauge(
            "scanbridge_in_processing_adaptive_limit",
            "The current adaptive limit; absent when admission.limit is fixed.",
        )
        self.late_running = Gauge(
            "scanbridge_late_scans_running", "Scans that are still running after their deadline.", combine=sum
        )
        self.bytes_in_processing = Gauge("scanbridge_bytes_in_processing", "Bytes of the mails being processed.")
        self.bytes_limit = Gauge(
            "scanbridge_bytes_in_processing_limit", "Number of bytes being processed at which new mail is refused."
        )
        self.throttle_delay = Gauge(
            "scanbridge_throttle_delay_seconds", "How long the next mail would wait in the throttle."
        )
        self.saturated = Gauge(
            "scanbridge_saturated",
            "1 while new mail is refused with 451 4.3.2, by cause: the bridge's own limit, or a full scanner.",
            ("cause",),
        )
        self.scanner_status = Gauge(
            "scanbridge_scanner_status",
            "Status reported by the service: 0 GREEN, 1 YELLOW, 2 RED, -1 unknown.",
            ("host",),
        )
        self.scanner_circuit = Gauge(
            "scanbridge_scanner_circuit",
            "State of the circuit breaker: 0 closed (mail is sent), 1 half open (one mail tests the host), 2 open (no "
            "mail is sent).",
            ("host",),
        )
        self.scanner_info = Gauge(
            "scanbridge_scanner_info", "1 for each scanner host, with the dialect that it speaks.", ("host", "dialect")
        )
        self.discovery_hosts = Gauge(
            "scanbridge_discovery_hosts",
            "Scanner hosts found in DNS for this name; absent without discovery.",
            ("url",),
        )
        self.discovery_failing = Gauge(
            "scanbridge_discovery_failing",
            "1 while DNS gives no usable answer for this name, so that the last known hosts are kept; absent without "
            "discovery.",
            ("url",),
        )
        self.scanner_in_flight = Gauge(
            "scanbridge_scanner_in_flight", "Requests that this scanner host is processing.", ("host",), combine=sum
        )

    def _declare_next_hops(self) -> None:
        self.next_hop_mails = Counter(
            "scanbridge_next_hop_mails",
            "Mails sent to a next hop, by result: taken, deferred (4xx), refused (5xx), unreachable (no connection), "
            "lost (no reply, or a late one).",
            ("next_hop", "result"),
        )
        self.next_hop_up = Gauge(
            "scanbridge_next_hop_up",
            "1 if the last connection, for a mail or a test, succeeded, 0 if it failed; absent before the first one.",
            ("next_hop",),
            combine=min,
        )
        self.next_hop_connections = Gauge(
            "scanbridge_next_hop_connections",
            "Connections to a next hop, by state.",
            ("next_hop", "state"),
            combine=sum,
        )

    def _declare_quarantine(self) -> None:
        self.quarantine_mails = Gauge("scanbridge_quarantine_mails", "Mails in the quarantine.")
        self.quarantine_bytes = Gauge("scanbridge_quarantine_bytes", "Bytes of the files in the quarantine.")
        self.quarantine_limit = Gauge(
            "scanbridge_quarantine_limit_bytes",
            "Size above which mail is refused with 452; absent without quarantine.max_size.",
        )
        self.quarantine_age = Gauge(
            "scanbridge_quarantine_oldest_age_seconds", "Age of the oldest mail in the quarantine; 0 if it is empty."
        )
        self.quarantine_disk_free = Gauge(
            "scanbridge_quarantine_disk_free_bytes", "Free space on the quarantine's disk."
        )
        self.quarantine_disk_size = Gauge("scanbridge_quarantine_disk_size_bytes", "Size of the quarantine's disk.")

    def _declare_history(self) -> None:
        self.history = Counter(
            "scanbridge_history",
            "The history of mails. written: mails recorded; summed: refusals before the content was sent that share a "
            "row with others; overflow, failed: mails that were not recorded because the database could not keep up, "
            "or was not available when the process ended; deleted: segments (PostgreSQL: days) that were deleted "
            "because of their age; deleted_early: those that were deleted because of history.max_size.",
            ("result",),
        )
        self.history.start(("written", "summed", "overflow", "failed", "deleted", "deleted_early"))
        self.history_size = Gauge("scanbridge_history_bytes", "Size of the history on disk.", combine=max)
        self.api_requests = Counter(
            "scanbridge_api_requests",
            "Requests to the HTTP API. ok: answered; denied: no valid token, or other tenants; mistake: a wrong path, "
            "method or parameter, or an unknown mail; busy: too many queries, or one that took too long; failed: the "
            "history could not be read.",
            ("result",),
        )
        self.api_requests.start(("ok", "denied", "mistake", "busy", "failed"))

    def _declare_upkeep(self) -> None:
        """What an operator maintains: certificates, lists, workers, the configuration."""
        self.certificate_expiry = Gauge(
            "scanbridge_tls_certificate_expiry_time_seconds",
            "When a certificate expires, in Unix time; for a chain, when the first of its certificates expires. For "
            "scanner and next_hop, as seen on the last connection.",
            ("role", "name"),
            combine=min,
        )
        self.loop_lag = Gauge(
            "scanbridge_event_loop_lag_seconds",
            "Longest delay of the event loop in the last 15 to 30 s.",
        )
        self.list_entries = Gauge(
            "scanbridge_list_entries", "Entries in the local copies of this list, in all scopes together.", ("list",)
        )
        self.list_age = Gauge(
            "scanbridge_list_age_seconds",
            "Time since the local copy was last confirmed to match the service; the longest of all scopes.",
            ("list",),
        )
        self.list_missing = Gauge(
            "scanbridge_list_copies_missing",
            "Scopes without a local copy of this list; the list is not enforced there.",
            ("list",),
        )
        self.workers = Gauge("scanbridge_workers", "Processes that accept mail.", combine=sum)
        self.workers_silent = Gauge(
            "scanbridge_workers_silent",
            "Workers that did not answer this scrape; their last known numbers are included.",
        )
        self.worker_restarts = Counter(
            "scanbridge_worker_restarts", "Workers started to replace one that exited unexpectedly.", ()
        )
        self.worker_restarts.start()
        self.reload_success = Gauge(
            "scanbridge_config_reload_success", "1 if the last reload of the configuration succeeded, otherwise 0."
        )
        self.reload_time = Gauge(
            "scanbridge_config_reload_time_seconds", "When the effective configuration was loaded, in Unix time."
        )

    def _declare_events(self) -> None:
        self.events = Counter("scanbridge_events", "Events that were recorded, by type.", ("type",))
        self.events_delivered = Counter("scanbridge_events_delivered", "Events that a sink has accepted.", ("sink",))
        self.events_failed = Counter(
            "scanbridge_events_failed_deliveries", "Failed attempts to deliver events to a sink.", ("sink",)
        )
        self.events_lost = Counter(
            "scanbridge_events_lost",
            "Events that a sink will never receive, by reason: the database was slow or unavailable and the queue in "
            "memory was full (queue), too many were waiting (outbox), the database was unavailable when scanbridge "
            "stopped (stop), or a dead letter was 30 days old (expired).",
            ("sink", "reason"),
        )
        self.reports = Gauge(
            "scanbridge_reports",
            "Mails that people reported as `spam` or `ham` (not spam), since the database was created: learned by "
            "rspamd or the scanning service, already known to them, refused by them, or only noted.",
            ("kind", "result"),
        )
        self.digests = Gauge(
            "scanbridge_digests",
            "Digests to users since the database was created: sent, failed and due to be retried, or refused by the "
            "next hop.",
            ("result",),
        )
        self.digests_run_age = Gauge(
            "scanbridge_digests_last_run_age_seconds",
            "Time since the last run that looked for due digests; before the first run, since the daemon started.",
        )
        self.digests_requests = Gauge(
            "scanbridge_digests_requests_waiting", "Users' requests that are waiting for a releaser."
        )
        self.reports_waiting = Gauge(
            "scanbridge_reports_waiting", "Reported mails that rspamd or the scanning service will learn from later."
        )
        self.events_waiting = Gauge("scanbridge_events_waiting", "Events that are waiting for delivery.", ("sink",))
        self.events_waiting_bytes = Gauge(
            "scanbridge_events_outbox_bytes", "Bytes of the events in the outbox, including dead letters.", ("sink",)
        )
        self.events_oldest = Gauge(
            "scanbridge_events_oldest_age_seconds",
            "Age of the oldest event that is waiting for delivery; 0 if there is none.",
            ("sink",),
        )
        self.events_dead = Gauge(
            "scanbridge_events_dead",
            "Dead letters: events that a sink refused repeatedly; retry or drop them.",
            ("sink",),
        )

    def _declare_process(self) -> None:
        """The names that every Prometheus client exports, for all workers together."""
        self.cpu = Counter("process_cpu_seconds", "User and system CPU time of all workers.", ())
        self.cpu.start()
        self._cpu_counted = 0.0
        self.memory = Gauge("process_resident_memory_bytes", "Resident memory of all workers.", combine=sum)
        self.open_fds = Gauge("process_open_fds", "Open file descriptors of all workers.", combine=sum)
        self.max_fds = Gauge("process_max_fds", "Maximum number of open file descriptors of all workers.", combine=sum)
        self.start_time = Gauge(
            "process_start_time_seconds", "When the oldest process started, in Unix time.", combine=min
        )

    def start(self, listeners: Iterable[str]) -> None:
        """Create all series of these listeners at 0."""
        names = tuple(listeners)
        self.mails.start(names, DECISIONS, ACTIONS)
        self.replies.start(names, CODES)
        self.mixed_mails.start(names, TOLD)
        self.mail_bytes.start(names)
        self.ambiguous_mails.start(names, DOUBTS)
        self.shadow_mails.start(names, [a.value for a in Action])
        self.refused_early.start(names, STAGES)
        self.refused_connections.start(names, REFUSED_CONNECTIONS)
        self.limits_hit.start(names, LIMITS)
        self.list_matches.start(names, [PERSONAL], _PERSONAL_ACTIONS)
        for times in (self.wait, self.scan, self.relay):
            times.start(names)

    def start_lists(self, listener: str, names: Iterable[str]) -> None:
        """Create at 0 all series of the lists that this listener names."""
        self.list_matches.start([listener], names, _DOOR_ACTIONS)

    def start_events(self, sinks: Iterable[str], types: Iterable[str]) -> None:
        """Create all series of these sinks and types at 0."""
        names = tuple(sinks)
        self.events.start(types)
        self.events_delivered.start(names)
        self.events_failed.start(names)
        self.events_lost.start(names, EVENTS_LOST)

    def snapshot(self) -> dict[str, Any]:
        """Plain numbers, for another process."""
        self._count_cpu()
        return {name: part.dump() for name, part in self._parts()}

    def add(self, snapshot: dict[str, Any]) -> None:
        """Add another process's counters and histograms to ours. Its gauges are gone with it."""
        for name, part in self._parts():
            if name in snapshot and not isinstance(part, Gauge):
                part.add(snapshot[name])

    def merged(self, others: Sequence[dict[str, Any]]) -> Metrics:
        """These numbers and the others', added up."""
        whole, snapshots = Metrics(), [self.snapshot(), *others]
        whole._is_sum = True
        for name, part in whole._parts():
            if isinstance(part, Counter):
                part.start_like(getattr(self, name))
            elif isinstance(part, Histogram):
                part.start(getattr(self, name).rows)
        for snapshot in snapshots:
            whole.add(snapshot)
        for name, part in whole._parts():
            if isinstance(part, Gauge):
                part.show(snapshot.get(name, []) for snapshot in snapshots)
        return whole

    def _parts(self) -> list[tuple[str, Counter | Histogram | Gauge]]:
        return [(name, part) for name, part in vars(self).items() if isinstance(part, Counter | Histogram | Gauge)]

    def collect(self) -> Iterator[Metric]:
        """Everything declared above, in that order, then the version."""
        self._count_cpu()
        for _, part in self._parts():
            yield part.family()
        yield InfoMetricFamily("scanbridge_build", "The running version.", value={"version": __version__})

    def _count_cpu(self) -> None:
        """Add the CPU time used since the last call; a sum of several processes uses none itself."""
        if not self._is_sum:
            now = process_time()
            self.cpu.values[()] += now - self._cpu_counted
            self._cpu_counted = now

    def record(self, record: Record) -> None:
        """Count one finished mail."""
        listener, outcome = record.tx.session.listener, record.outcome
        if record.listed is not None:
            self.list_matches.values[listener, record.listed.name, record.listed.action.value] += 1
        if record.at == "rcpt":
            return  # one recipient only, not a mail
        if not record.at:  # otherwise the size is what the client announced
            self.mail_bytes.values[listener,] += record.size
        if record.limit is not None:
            self.limits_hit.values[listener, record.limit] += 1
        if record.error is not None:
            self.failures.values[reason_of(record.error),] += 1
        for doubt in record.doubts:
            self.ambiguous_mails.values[listener, doubt] += 1
        if record.is_mixed:
            self.mixed_mails.values[listener, "each" if record.tx.is_per_recipient else "one"] += 1
        if record.late is not None:
            self.late_mails.values[record.late,] += 1
        if outcome is None:
            self.mails.values[listener, "none", "cancelled"] += 1
            return
        decision = outcome.result.decision if outcome.result else "none"
        self.mails.values[listener, decision, outcome.action] += 1
        if record.would is not None:
            self.shadow_mails.values[listener, record.would] += 1
        self.replies.values[listener, f"{outcome.reply.code // 100}xx"] += 1
        if record.scan_at:  # not a part of a mail whose scan is counted with the other part
            self.wait.observe(listener, record.wait_s)
            self.scan.observe(listener, record.scan_s)
        if record.relay_s:
            self.relay.observe(listener, record.relay_s)


def reason_of(error: BaseException) -> str:
    """The class of an error as a label: the same word in log and metrics."""
    return (error if isinstance(error, BridgeError) else BridgeError).label.value
