"""What outlives a reload: the state directory, the accounts of mail in processing, metrics and log.

A `Core` is built once, when the process starts, and everything that a reload replaces
(`components`) is built on top of it. Knows nothing of listeners, scanners or next hops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.config.model import Config
from bridge.daemon import directories, personal_wiring, wiring
from bridge.daemon.digests import DigestNumbers
from bridge.daemon.events import Events
from bridge.daemon.feedback import Feedback
from bridge.daemon.list_refresh import ListRefresh
from bridge.daemon.loop_lag import LoopLag
from bridge.daemon.personal_refresh import PersonalRefresh
from bridge.daemon.rate_exchange import RateExchange, rate_exchange
from bridge.daemon.reload import ReloadHistory
from bridge.daemon.workers.worker_context import WorkerContext
from bridge.filter.admission import Admission
from bridge.filter.late.decisions import LateDecisions
from bridge.filter.mail_rates import MailRates
from bridge.filter.outcome import Record
from bridge.history.recorder import Recorder
from bridge.intake.refused_client import RefusedClient
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.mail.trace_context import Trace
from bridge.observe.last_mails import RecentMails
from bridge.observe.log_writer import LineWriter
from bridge.observe.mail_log import MailLog
from bridge.observe.metric_types import Counter
from bridge.observe.metrics import Metrics

if TYPE_CHECKING:
    from bridge.observe.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Core:
    state: Path
    worker: WorkerContext
    metrics: Metrics
    admission: Admission
    spool: Spool
    late: LateDecisions | None
    list_refresh: ListRefresh
    personal: PersonalRefresh
    rates: MailRates
    rate_exchange: RateExchange
    mail_log: MailLog
    recent: RecentMails
    history: Recorder | None
    tracing: Tracing | None
    events: Events
    feedback: Feedback
    digests: DigestNumbers
    reloads: ReloadHistory = field(default_factory=ReloadHistory)
    lag: LoopLag = field(default_factory=LoopLag)

    @property
    def begin_trace(self) -> Callable[[], Trace | None] | None:
        """None when mail is not traced."""
        return self.tracing.begin if self.tracing is not None else None

    def report(self, record: Record) -> None:
        """A mail is finished: count it, log it, record it, trace it, tell the event sinks."""
        self.metrics.record(record)
        self.recent.note(record)
        self.mail_log.decided(record)
        if self.history is not None:
            self.history.note(record)
        if self.tracing is not None:
            self.tracing.report(record)
        if (recorder := self.events.recorder) is not None:
            recorder.put(record)

    def note_late_answer(self, mail_id: str, recipients: Sequence[str], reply: Reply) -> None:
        """The next hop has answered for a mail whose client had gone away."""
        if self.history is not None:
            self.history.note_late_answer(mail_id, recipients, reply)

    def note_refusal(self, listener: str, refusal: RefusedClient) -> None:
        """A client was refused before there was a mail."""
        if self.history is not None:
            self.history.note_refusal(listener, refusal)


def build_core(conf: Config, writer: LineWriter | None, worker: WorkerContext) -> Core:
    """Raises ConfigError. Without a `writer`, the lines of mails go to the logger `scanbridge.mail`."""
    state = directories.make_directory(directories.state_directory(conf.state_directory), "state_directory")
    metrics = Metrics(listener.name for listener in conf.listeners)
    put = logging.getLogger("scanbridge.mail").info if writer is None else writer.put
    if writer is not None:
        writer.on_lost = lambda: count(metrics.log_lines_lost)
        writer.throttle.on_suppressed = lambda: count(metrics.log_lines_held_back)
    rates = MailRates(conf.limits.max_mails_per_client_per_minute)
    return Core(
        state=state,
        worker=worker,
        metrics=metrics,
        admission=worker.admission(wiring.admission_settings(conf)),
        spool=worker.spool(*wiring.spool_settings(conf)),
        late=wiring.late_decisions(conf, state, lambda end: count(metrics.late_scans, end.value)),
        list_refresh=ListRefresh(conf, state, metrics, is_ours=lambda: worker.is_first),
        personal=personal_wiring.refresh(conf, state),
        rates=rates,
        rate_exchange=rate_exchange(conf, state, rates),
        mail_log=MailLog(put, as_json=conf.log.format == "json", redaction=wiring.redaction(conf)),
        recent=RecentMails(),
        history=wiring.recorder(
            conf, state, lambda: worker.is_first, lambda result, n: _add(metrics.history, result, n)
        ),
        tracing=wiring.tracing(conf),
        events=Events(metrics, is_ours=lambda: worker.is_first),
        feedback=Feedback(state, metrics, is_ours=lambda: worker.is_first),
        digests=DigestNumbers(state, metrics, is_ours=lambda: worker.is_first),
    )


def count(counter: Counter, *labels: str) -> None:
    counter.values[labels] += 1


def _add(counter: Counter, label: str, number: int) -> None:
    counter.values[label,] += number
