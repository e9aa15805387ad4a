"""The analyzers of one mail, together, and what they amount to.

Inspection of the bytes runs here in the event loop when that is cheaper than handing it away
(small mail, no archive in it), else elsewhere. An analyzer that fails, is late, or meets its own
bound leaves the tag `incomplete` if it is required; it never fails the request.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from bridge.api.scanning import AnalysisRequest, AnalysisResult
from bridge.service.analysis.decision import INCOMPLETE, DecisionTable
from bridge.service.analysis.inspect import Inspection, Limits, NeedsProcess, inspect
from bridge.service.analysis.structure import Bounds
from bridge.service.listfollow import ListFollower
from bridge.service.listindex import traits_of
from bridge.service.records import Records
from bridge.service.settings import Mime, ServiceConfig
from bridge.service.upload import StoredMail

INLINE_BYTES = 64 * 1024  # about a millisecond of inspection at most

log = logging.getLogger("bridge.service")


@dataclass(frozen=True, slots=True)
class Job:
    """One mail to analyze."""

    ggrid: str
    created: str
    request: AnalysisRequest
    mail: StoredMail

    @classmethod
    def new(cls, request: AnalysisRequest, mail: StoredMail) -> Job:
        return cls(str(uuid4()), utc_now(), request, mail)


class Pipeline:
    def __init__(self, config: ServiceConfig, follower: ListFollower, records: Records) -> None:
        self._follower = follower
        self._records = records
        self._table = DecisionTable(config.decisions)
        self._mime = config.analyzers.mime or Mime()
        self._limits = _limits(self._mime)
        self._inline = _limits(self._mime, archives=False)

    def analyze_now(self, job: Job) -> AnalysisResult | None:
        """The whole analysis, if it is a matter of microseconds; else None."""
        if job.mail.size > INLINE_BYTES:
            return None
        try:
            inspection = inspect(job.mail.content(), self._inline)
        except NeedsProcess:
            return None
        return self._conclude(job, inspection)

    async def analyze(self, job: Job) -> AnalysisResult:
        with job.mail.view() as data:
            inspection = await asyncio.to_thread(inspect, data, self._limits)
        return self._conclude(job, inspection)

    def _conclude(self, job: Job, inspection: Inspection) -> AnalysisResult:
        tags = set(inspection.tags)
        if inspection.limits:
            tags |= {f"limit:{name}" for name in inspection.limits}
            if self._mime.required:
                tags.add(INCOMPLETE)
        tags |= self._on_lists(job, inspection)
        outcome = self._table.decide(tags)
        result = AnalysisResult(
            decision=outcome.decision,
            ggrid=job.ggrid,
            verdict=outcome.verdict,
            tags=tuple(sorted(tags)),
            created=job.created,
            completed=utc_now(),
        )
        self._records.add(result, job.request.tenant_uid, outcome.score, job.mail.size)
        return result

    def _on_lists(self, job: Job, inspection: Inspection) -> set[str]:
        border = job.request.border
        traits = traits_of(border.envelope_from, (), border.remote_address, (), ())
        return {f"list:{name}" for name in self._follower.index.match(job.request.tenant_uid, traits)}


def _limits(mime: Mime, *, archives: bool = True) -> Limits:
    return Limits(
        bounds=Bounds(mime.max_parts, mime.max_depth, mime.max_header_size),
        archive_depth=mime.max_archive_depth,
        archive_members=mime.max_archive_members,
        extracted_bytes=mime.max_extracted_size,
        archives=archives,
    )


def utc_now() -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
