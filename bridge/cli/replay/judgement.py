"""What a scanner says about one mail, what was said before, and whether they differ.

Pure data: no I/O, no terminal. Tags are compared as sets: their order means nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

NO_DECISION = "no decision"
LEVELS = ("decision", "verdict", "tags")  # each also compares those before it


@dataclass(frozen=True, slots=True)
class Judgement:
    decision: str = ""  # "": there is none
    verdict: str = ""
    tags: tuple[str, ...] = ()
    problem: str = ""  # why there is no decision

    @property
    def label(self) -> str:
        return self.decision or NO_DECISION

    def to_dict(self) -> dict[str, Any]:
        return {
            "decision": self.decision or None,
            "verdict": self.verdict,
            "tags": list(self.tags),
            "problem": self.problem or None,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Judgement:
        """Raises ValueError, TypeError or KeyError if it is not one of `to_dict`."""
        decision, verdict, tags, problem = data["decision"], data["verdict"], data["tags"], data["problem"]
        if not all(isinstance(text, str) for text in (decision or "", verdict, problem or "", *tags)):
            raise TypeError("not text")
        return cls(decision or "", verdict, tuple(tags), problem or "")


class Status(StrEnum):
    SAME = "same"
    CHANGED = "changed"
    NEW = "new"  # there is no earlier decision to compare with
    FAILED = "failed"  # there is no decision now


@dataclass(frozen=True, slots=True)
class Row:
    """One mail that was replayed."""

    name: str  # the quarantine's id, or the path of the file
    now: Judgement
    before: Judgement | None = None
    status: Status = Status.FAILED
    sha256: str = ""  # of the content as the scanner got it; "": it could not be read
    sender: str = ""
    recipients: tuple[str, ...] = ()
    remote_address: str | None = None
    helo: str | None = None
    tenant: str | None = None
    subject: str = ""
    envelope: str = ""  # where it comes from: record, options, header, default

    @property
    def why(self) -> str:
        """What went wrong; empty if there is a decision."""
        if self.now.problem:
            return self.now.problem
        return f"baseline: {self.before.problem}" if self.status is Status.FAILED and self.before else ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "mail": self.name,
            "status": str(self.status),
            "sha256": self.sha256 or None,
            "sender": self.sender,
            "recipients": list(self.recipients),
            "remote_address": self.remote_address,
            "helo": self.helo,
            "tenant": self.tenant,
            "subject": self.subject,
            "envelope": self.envelope or None,
            "before": self.before.to_dict() if self.before is not None else None,
            "now": self.now.to_dict(),
        }


def compare(before: Judgement | None, now: Judgement, level: str, *, is_baseline: bool = False) -> Status:
    """`is_baseline`: both were asked now, so a missing decision from either is a failure."""
    if not now.decision:
        return Status.FAILED
    if before is None or not before.decision:
        return Status.FAILED if is_baseline else Status.NEW
    depth = LEVELS.index(level) + 1
    return Status.SAME if _parts(before)[:depth] == _parts(now)[:depth] else Status.CHANGED


def _parts(judgement: Judgement) -> tuple[str, str, frozenset[str]]:
    return judgement.decision, judgement.verdict, frozenset(judgement.tags)


@dataclass(slots=True)
class Replay:
    """All that was replayed, in the order of the mails; None for one that was not finished."""

    scanner: str
    compared_with: str
    level: str = LEVELS[-1]
    rows: list[Row | None] = field(default_factory=list)
    is_interrupted: bool = False
    stopped: str = ""  # why no more mail was sent
    missing: int = 0  # mails of --expect that are not among these

    @property
    def done(self) -> list[Row]:
        return [row for row in self.rows if row is not None]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(row.status for row in self.done)
        return {str(status): found[status] for status in Status}

    @property
    def matrix(self) -> dict[str, dict[str, int]]:
        """The number of mails for each earlier and each new decision. Mail that could not be read is not counted."""
        found: dict[str, dict[str, int]] = {}
        for row in self.done:
            if row.before is not None and row.sha256:
                line = found.setdefault(row.before.label, {})
                line[row.now.label] = line.get(row.now.label, 0) + 1
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": 1,
            "scanner": self.scanner,
            "compared_with": self.compared_with,
            "compared": list(LEVELS[: LEVELS.index(self.level) + 1]),
            "interrupted": self.is_interrupted,
            "stopped": self.stopped or None,
            "totals": {"selected": len(self.rows), "replayed": len(self.done), **self.counts, "missing": self.missing},
            "matrix": self.matrix,
            "mails": [row.to_dict() for row in self.done],
        }


def in_order(labels: set[str]) -> list[str]:
    """Decisions, the mildest first, then unknown words, then `no decision`."""
    known = ("deliver", "undecided", "quarantine", "bounce", "drop")
    unknown = sorted(labels - {*known, NO_DECISION})
    return [label for label in (*known, *unknown, NO_DECISION) if label in labels]
