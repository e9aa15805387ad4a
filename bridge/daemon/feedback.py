"""Feedback in the daemon: retries mail that could not be learned when it was reported, and counts what was learned.

Reports are made by other processes (`scanbridge report`, the console), so the numbers come from their database. The
first worker does all of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from bridge.config.model import Config
from bridge.daemon import feedback_wiring, history_place
from bridge.errors import BridgeError
from bridge.feedback.learners import Learners
from bridge.feedback.report import LearnableMail, ReportKind, ReportState
from bridge.feedback.rspamd_learning import LearningUnavailable
from bridge.feedback.store import ReportStore, Totals, Waiting
from bridge.history.entry import LaterEvent
from bridge.mail.message import Message
from bridge.observe.metrics import Metrics

log = logging.getLogger(__name__)

_LOOK_S = 5.0
_RETRY_S = 30.0  # without feedback.rspamd, which may have been removed by mistake
COUNTED = (ReportState.LEARNED, ReportState.KNOWN, ReportState.NOTED, ReportState.REFUSED)
_MAX_PROBLEMS = 3  # a turn ends after this many mails that cannot be learned now, and the next one goes on behind them
_PER_TURN = 200  # mails that are learned before we look at the configuration again

Rows = Iterable[tuple[tuple[str, ...], float]]


class Feedback:
    """`watch` runs until cancelled."""

    def __init__(self, state: Path, metrics: Metrics, is_ours: Callable[[], bool]) -> None:
        self._state = state
        self._is_ours = is_ours
        self.totals = Totals({})
        self.problem = ""
        self._not_before = 0.0
        self._place: tuple[float, str, str] | None = None  # where the next turn begins; None: with the oldest report
        self._store: ReportStore | None = None
        self._stored_by: Config | None = None  # the configuration that the store belongs to
        metrics.reports.read = self._rows
        metrics.reports_waiting.read = lambda: [((), float(self.totals.waiting))]

    async def watch(self, config: Callable[[], Config]) -> None:
        """`config` returns the current configuration."""
        while True:
            if self._is_ours():
                try:
                    await asyncio.to_thread(self._work, config(), self._state)
                except BridgeError as exc:
                    self._fail(config(), str(exc))
                except Exception:  # the next turn may succeed
                    log.exception("feedback: unexpected error")
            await asyncio.sleep(min(_LOOK_S, _retry_s(config())))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def state(self) -> dict[str, Any]:
        """For /status."""
        counts = self.totals.counts
        return {
            "learned": {str(kind): counts.get((kind, ReportState.LEARNED), 0) for kind in ReportKind},
            "reports": {str(kind): sum(n for (of, _), n in counts.items() if of == kind) for kind in ReportKind},
            "waiting": self.totals.waiting,
            "problem": self.problem,
        }

    def _rows(self) -> Rows:
        counts = self.totals.counts
        return [((kind, state), float(counts.get((kind, state), 0))) for kind in ReportKind for state in COUNTED]

    # In a thread

    def _work(self, conf: Config, state: Path) -> None:
        if self._store is None or self._stored_by is not conf:
            self.close()
            self._store, self._stored_by, self._place = feedback_wiring.report_store(conf, state), conf, None
        store = self._store
        self.totals = store.totals()
        if not self.totals.waiting:
            self._recover()
        elif time.monotonic() >= self._not_before:
            self._learn_waiting(conf, state, store)
            self.totals = store.totals()

    def _learn_waiting(self, conf: Config, state: Path, store: ReportStore) -> None:
        learners = feedback_wiring.learners(conf)
        if learners is None:
            self._fail(conf, "feedback.rspamd and feedback.scanner are no longer configured")
            return
        place, problems, is_from_oldest = self._place, 0, self._place is None
        self._place = None
        for _ in range(_PER_TURN):
            found = store.next_waiting(place)
            if found is None:
                break
            waiting, place = found
            try:
                result, text = _learned(learners, waiting, is_last=place[0] < time.time() - conf.feedback.retention)
            except LearningUnavailable as exc:  # perhaps only for this mail: others must not wait for it
                self._fail(conf, str(exc))
                problems += 1
                if problems == _MAX_PROBLEMS:
                    self._place = place
                    break
                continue
            if result is ReportState.REFUSED:
                log.info("feedback: %s: %s", waiting.mail, text)
            store.finish(waiting.mail, waiting.person, waiting.kind, result)
            _note(conf, state, waiting, result)
        if is_from_oldest and not problems:
            self._recover()

    def _fail(self, conf: Config, problem: str) -> None:
        if problem != self.problem:
            log.warning("feedback: cannot learn from reported mail at the moment: %s", problem)
        self.problem = problem
        self._not_before = time.monotonic() + _retry_s(conf)

    def _recover(self) -> None:
        if self.problem:
            log.info("feedback: learning from reported mail has resumed")
        self.problem = ""


def _learned(learners: Learners, waiting: Waiting, *, is_last: bool) -> tuple[ReportState, str]:
    """Raises LearningUnavailable, but not for the last attempt: the report is then given up."""
    try:
        with closing(Message.of([waiting.content])) as content:
            return learners.learn(waiting.kind, LearnableMail.waiting(content, waiting.person, waiting.about))
    except (LearningUnavailable, OSError) as exc:  # also a full disk: the mail is written to disk while it is sent
        if not is_last:
            raise LearningUnavailable(str(exc)) from exc
        return ReportState.REFUSED, f"given up after feedback.retention: {exc}"


def _retry_s(conf: Config) -> float:
    return conf.feedback.rspamd.retry_interval if conf.feedback.rspamd else _RETRY_S


def _note(conf: Config, state: Path, waiting: Waiting, result: ReportState) -> None:
    """Record it in the history, if the mail is there; if that fails, only this entry is lost."""
    if ":" in waiting.mail or not conf.history.enabled:
        return
    event = "not learned" if result is ReportState.REFUSED else f"learned as {waiting.kind.words}"
    try:
        store = history_place.history(conf, state)
        try:
            store.note([LaterEvent(time.time(), waiting.mail, event, "scanbridge")])
        finally:
            store.close()
    except BridgeError as exc:
        log.warning("feedback: cannot write to the history: %s", exc)
