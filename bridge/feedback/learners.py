"""Passes a report to everything that learns from it: rspamd, the included scanning service, or both.

Each of them remembers what it has learned, so a report that could not be passed to one of them is later passed to
both again.
"""

from __future__ import annotations

from bridge.feedback.report import LearnableMail, ReportKind, ReportState
from bridge.feedback.rspamd_learning import Learning, LearningRefused, LearningUnavailable
from bridge.feedback.service_learning import ScannerLearning


class Learners:
    def __init__(self, rspamd: Learning | None = None, scanner: ScannerLearning | None = None) -> None:
        self._rspamd = rspamd
        self._scanner = scanner

    @property
    def names(self) -> str:
        return " and ".join(name for name, learner in _named(self._rspamd, self._scanner) if learner is not None)

    def learn(self, kind: ReportKind, mail: LearnableMail) -> tuple[ReportState, str]:
        """The result, with a sentence for the person. Raises LearningUnavailable, after all have been asked."""
        unavailable: LearningUnavailable | None = None
        learned: list[str] = []
        known: list[str] = []
        refused: list[str] = []
        for name, learner in _named(self._rspamd, self._scanner):
            try:
                if isinstance(learner, Learning):
                    (learned if learner.learn(kind, mail.content) else known).append(name)
                elif learner is not None:
                    (learned if learner.learn(kind, mail) else known).append(name)
            except LearningRefused as exc:
                refused.append(str(exc))
            except LearningUnavailable as exc:
                unavailable = unavailable or exc
        if unavailable is not None:
            raise unavailable
        if learned:
            return ReportState.LEARNED, "; ".join([f"learned by {' and '.join(learned)}", *refused])
        if known:
            return ReportState.KNOWN, "; ".join([f"{' and '.join(known)} already knew it", *refused])
        return ReportState.REFUSED, "; ".join(refused)


def _named(
    rspamd: Learning | None, scanner: ScannerLearning | None
) -> list[tuple[str, Learning | ScannerLearning | None]]:
    return [("rspamd", rspamd), ("the scanning service", scanner)]
