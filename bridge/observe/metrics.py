"""Metrics: every name an operator can graph, declared once.

Names and labels are an interface; `docs/metrics.md` is made from this file. Label values come
from closed sets (listener names, actions, decisions, reasons), never from mail or strangers, and
every combination starts at 0, so that a rate over it works from the first scrape.

With several workers each counts for itself (`bridge.observe.metric_types`); `snapshot` and `add` carry the
numbers to whichever of them is scraped.
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
from bridge.mail.action import Action
from bridge.mail.list_match import ListAction
from bridge.observe.metric_types import Count, Level, Times

DECISIONS = (*(d.value for d in Decision), "none")  # none: no decision could be had
ACTIONS = (*(a.value for a in Action), "cancelled")  # cancelled: the client went away
CODES = ("2xx", "4xx", "5xx")
REFUSED_CONNECTIONS = ("limit", "client_limit", "untrusted")
STAGES = ("mail", "data")
LIMITS = (  # docs/limits.md has the reason of each
    *("line", "command", "frame", "header", "max_message_size", "max_bytes_in_processing"),
    *("max_recipients", "max_received"),
    *("max_mails_per_connection", "max_errors", "idle_commands"),
    *("command_timeout", "data_timeout", "mail_timeout", "min_data_rate"),
)
SATURATION = ("limit", "scanner")
TOLD = ("each", "one")
REFRESHES = ("ok", "failed")


class Metrics(Collector):
    """All of them. The daemon tells the levels where to look."""

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
        self._declare_upkeep()
        self._declare_process()
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(self)
        self.start(listeners)

    def _declare_mails(self) -> None:
        self.mails = Count(
            "scanbridge_mails",
            "Mails that came to their end, by the service's decision and our action.",
            ("listener", "decision", "action"),
        )
        self.replies = Count(
            "scanbridge_replies",
            "Replies to mails, by the first digit of the code; where recipients are answered apart, the weightiest.",
            ("listener", "code"),
        )
        self.mixed_mails = Count(
            "scanbridge_mixed_mails",
            "Mails that the next hop took for some recipients only, by how the client was told: each recipient's own "
            "reply (LMTP, PRDR), or one for all, so that those who have it may get it twice.",
            ("listener", "told"),
        )
        self.mail_bytes = Count("scanbridge_mail_bytes", "Bytes of the mails that came to their end.", ("listener",))
        self.failures = Count(
            "scanbridge_failures", "Mails that something went wrong with, by what it was.", ("reason",)
        )
        self.failures.start([label.value for label in FailureLabel])
        self.shadow_mails = Count(
            "scanbridge_shadow_mails", "Mails in shadow mode, by what would have been done.", ("listener", "would")
        )

    def _declare_late(self) -> None:
        self.late_mails = Count(
            "scanbridge_late_mails",
            "Mails that late decisions had to do with: answered by one (hit), deferred again while the scan runs "
            "(running), deferred while the scan goes on (awaited).",
            ("late",),
        )
        self.late_mails.start(list(LateStatus))
        self.late_scans = Count(
            "scanbridge_late_scans", "Scans that went on after the deadline, by how they ended.", ("end",)
        )
        self.late_scans.start(list(LateScanEnd))

    def _declare_lists(self) -> None:
        self.list_matches = Count(
            "scanbridge_list_matches",
            "Mails, and at RCPT single recipients, that were on a list at the door: refused, not scanned (skipped), "
            "or what shadow mode only tells.",
            ("listener", "list", "action"),
        )
        self.list_refreshes = Count(
            "scanbridge_list_refreshes",
            "Times the local copies of lists were made anew, by how it ended.",
            ("outcome",),
        )
        self.list_refreshes.start(REFRESHES)

    def _declare_refusals(self) -> None:
        self.refused_early = Count(
            "scanbridge_saturated_replies",
            "451s given before the mail travelled, at MAIL or before 354.",
            ("listener", "stage"),
        )
        self.refused_connections = Count(
            "scanbridge_connections_refused", "Connections turned away.", ("listener", "reason")
        )
        self.limits_hit = Count(
            "scanbridge_limits_hit",
            "Times that a client passed one of the limits of docs/limits.md.",
            ("listener", "limit"),
        )
        self.log_lines_lost = Count("scanbridge_log_lines_lost", "Log lines that could not be written in time.", ())
        self.log_lines_lost.start()
        self.log_lines_held_back = Count(
            "scanbridge_log_lines_held_back", "Log lines left out because many like them came at once.", ()
        )
        self.log_lines_held_back.start()

    def _declare_times(self) -> None:
        self.wait = Times("scanbridge_wait_seconds", "Time a mail waited in the throttle.")
        self.scan = Times("scanbridge_scan_seconds", "Time the scanner took.")
        self.relay = Times("scanbridge_relay_seconds", "Time the next hop took.")

    def _declare_levels(self) -> None:
        self.connections = Level("scanbridge_connections", "Open connections.", ("listener",), together=sum)
        self.in_processing = Level("scanbridge_in_processing", "Mails in processing.")
        self.in_processing_limit = Level("scanbridge_in_processing_limit", "Where saturation begins.")
        self.adaptive_limit = Level(
            "scanbridge_in_processing_adaptive_limit", "Where the adaptive limit is now; absent when it is not in use."
        )
        self.late_running = Level("scanbridge_late_scans_running", "Scans that went on and still run.", together=sum)
        self.bytes_in_processing = Level("scanbridge_bytes_in_processing", "Bytes of the mails held.")
        self.bytes_limit = Level("scanbridge_bytes_in_processing_limit", "Where saturation begins.")
        self.throttle_delay = Level(
            "scanbridge_throttle_delay_seconds", "What the next mail would wait in the throttle."
        )
        self.saturated = Level(
            "scanbridge_saturated",
            "1 while new mail is refused with 451 4.3.2, by cause: our limit, or the scanner said that it has no room.",
            ("cause",),
        )
        self.scanner_status = Level(
            "scanbridge_scanner_status",
            "What the service says of itself: 0 GREEN, 1 YELLOW, 2 RED, -1 unknown.",
            ("host",),
        )
        self.scanner_circuit = Level(
            "scanbridge_scanner_circuit",
            "Whether this host gets mail: 0 closed (it does), 1 half open (one mail tries it), 2 open (it does not).",
            ("host",),
        )
        self.scanner_in_flight = Level(
            "scanbridge_scanner_in_flight", "Requests at this scanner host now.", ("host",), together=sum
        )

    def _declare_next_hops(self) -> None:
        self.next_hop_mails = Count(
            "scanbridge_next_hop_mails",
            "Mails given to a next hop: taken, deferred (its 4xx) or refused (its 5xx) by it, unreachable (no "
            "connection), lost (no answer, or not in time).",
            ("next_hop", "result"),
        )
        self.next_hop_up = Level(
            "scanbridge_next_hop_up",
            "0 if the last try to connect, within the last minute, failed; else 1.",
            ("next_hop",),
            together=min,
        )
        self.next_hop_connections = Level(
            "scanbridge_next_hop_connections", "Connections to a next hop.", ("next_hop", "state"), together=sum
        )

    def _declare_quarantine(self) -> None:
        self.quarantine_mails = Level("scanbridge_quarantine_mails", "Mails in the quarantine.")
        self.quarantine_bytes = Level("scanbridge_quarantine_bytes", "Bytes of the files in the quarantine.")
        self.quarantine_limit = Level(
            "scanbridge_quarantine_limit_bytes",
            "Above it mail is refused with 452; absent without quarantine.max_size.",
        )
        self.quarantine_age = Level(
            "scanbridge_quarantine_oldest_age_seconds", "Age of the oldest mail in the quarantine, 0 when it is empty."
        )
        self.quarantine_disk_free = Level(
            "scanbridge_quarantine_disk_free_bytes", "What we could still write to the quarantine's disk."
        )
        self.quarantine_disk_size = Level("scanbridge_quarantine_disk_size_bytes", "Size of the quarantine's disk.")

    def _declare_upkeep(self) -> None:
        """What an operator looks after: certificates, lists, workers, the configuration."""
        self.certificate_expiry = Level(
            "scanbridge_tls_certificate_expiry_time_seconds",
            "When a certificate ends, Unix time; of a chain, the first that ends. Those of scanner and next_hop as "
            "last seen on a connection.",
            ("role", "name"),
            together=min,
        )
        self.loop_lag = Level(
            "scanbridge_event_loop_lag_seconds",
            "How late the event loop turned, the worst of the last 15 to 30 s.",
        )
        self.list_entries = Level(
            "scanbridge_list_entries", "Entries in the local copies of this list, of all scopes together.", ("list",)
        )
        self.list_age = Level(
            "scanbridge_list_age_seconds",
            "How long ago the service was last seen to agree with the local copy; the oldest of all scopes.",
            ("list",),
        )
        self.list_missing = Level(
            "scanbridge_list_copies_missing",
            "Scopes of this list that have no local copy yet: it is not enforced there.",
            ("list",),
        )
        self.workers = Level("scanbridge_workers", "Processes that take mail.", together=sum)
        self.workers_silent = Level(
            "scanbridge_workers_silent", "Workers that did not answer this scrape; their last known numbers are in it."
        )
        self.worker_restarts = Count(
            "scanbridge_worker_restarts", "Workers started in place of one that ended unasked.", ()
        )
        self.worker_restarts.start()
        self.reload_success = Level(
            "scanbridge_config_reload_success", "1 if the last reading of the configuration succeeded, else 0."
        )
        self.reload_time = Level(
            "scanbridge_config_reload_time_seconds", "When the configuration in force was read, Unix time."
        )

    def _declare_process(self) -> None:
        """The names that every Prometheus client has, for all workers together."""
        self.cpu = Count("process_cpu_seconds", "User and system CPU time of all workers.", ())
        self.cpu.start()
        self._cpu_counted = 0.0
        self.memory = Level("process_resident_memory_bytes", "Resident memory of all workers.", together=sum)
        self.open_fds = Level("process_open_fds", "Open file descriptors of all workers.", together=sum)
        self.max_fds = Level("process_max_fds", "The limit for them, of all workers together.", together=sum)
        self.start_time = Level(
            "process_start_time_seconds", "When the oldest of the processes began, Unix time.", together=min
        )

    def start(self, listeners: Iterable[str]) -> None:
        """All series of these listeners are there, from 0."""
        names = tuple(listeners)
        self.mails.start(names, DECISIONS, ACTIONS)
        self.replies.start(names, CODES)
        self.mixed_mails.start(names, TOLD)
        self.mail_bytes.start(names)
        self.shadow_mails.start(names, [a.value for a in Action])
        self.refused_early.start(names, STAGES)
        self.refused_connections.start(names, REFUSED_CONNECTIONS)
        self.limits_hit.start(names, LIMITS)
        for times in (self.wait, self.scan, self.relay):
            times.start(names)

    def start_lists(self, listener: str, names: Iterable[str]) -> None:
        """All series of the lists that this listener names, from 0."""
        self.list_matches.start([listener], names, [one.value for one in ListAction])

    def snapshot(self) -> dict[str, Any]:
        """Plain numbers, for another process."""
        self._count_cpu()
        return {name: part.dump() for name, part in self._parts()}

    def add(self, snapshot: dict[str, Any]) -> None:
        """Another process' counts and times on top of ours. Levels pass away with their process."""
        for name, part in self._parts():
            if name in snapshot and not isinstance(part, Level):
                part.add(snapshot[name])

    def merged(self, others: Sequence[dict[str, Any]]) -> Metrics:
        """These numbers and the others', as one."""
        whole, snapshots = Metrics(), [self.snapshot(), *others]
        whole._is_sum = True
        for name, part in whole._parts():
            if isinstance(part, Count):
                part.start_like(getattr(self, name))
            elif isinstance(part, Times):
                part.start(getattr(self, name).rows)
        for snapshot in snapshots:
            whole.add(snapshot)
        for name, part in whole._parts():
            if isinstance(part, Level):
                part.show(snapshot.get(name, []) for snapshot in snapshots)
        return whole

    def _parts(self) -> list[tuple[str, Count | Times | Level]]:
        return [(name, part) for name, part in vars(self).items() if isinstance(part, Count | Times | Level)]

    def collect(self) -> Iterator[Metric]:
        """Everything declared above, in that order, and the version."""
        self._count_cpu()
        for _, part in self._parts():
            yield part.family()
        yield InfoMetricFamily("scanbridge_build", "The running version.", value={"version": __version__})

    def _count_cpu(self) -> None:
        """What this process used since the last time; a sum of several has no processor of its own."""
        if not self._is_sum:
            now = process_time()
            self.cpu.values[()] += now - self._cpu_counted
            self._cpu_counted = now

    def record(self, record: Record) -> None:
        """Count one mail that came to its end."""
        listener, outcome = record.tx.session.listener, record.outcome
        if record.listed is not None:
            self.list_matches.values[listener, record.listed.name, record.listed.action.value] += 1
        if record.at == "rcpt":
            return  # one recipient, not a mail
        self.mail_bytes.values[listener,] += record.size
        if record.limit is not None:
            self.limits_hit.values[listener, record.limit] += 1
        if record.error is not None:
            self.failures.values[reason_of(record.error),] += 1
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
        if record.scan_s:
            self.wait.observe(listener, record.wait_s)
            self.scan.observe(listener, record.scan_s)
        if record.relay_s:
            self.relay.observe(listener, record.relay_s)


def reason_of(error: BaseException) -> str:
    """The label of an error, the same in the log and the metrics."""
    return (error if isinstance(error, BridgeError) else BridgeError).label.value
