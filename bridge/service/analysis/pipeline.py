"""The analyzers of one mail, together, and what they amount to.

Inspection of the bytes runs here in the event loop when that is cheaper than handing it away
(small mail, no archive in it), else in a process. Engines run beside it, each under its own
deadline. An analyzer that fails, is late, or meets its own bound leaves the tag `incomplete` if it
is required; it never fails the request. Tags tell what happened: `failed:NAME`, `limit:NAME`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from bridge.api.scanning import AnalysisRequest, AnalysisResult
from bridge.service.analysis.decision import INCOMPLETE, DecisionTable
from bridge.service.analysis.engine import Engine, Findings, LimitReached, Mail
from bridge.service.analysis.inspect import Inspection, Limits, NeedsProcess, inspect
from bridge.service.analysis.inspector import Inspector
from bridge.service.analysis.plugin import PluginFailed
from bridge.service.analysis.structure import Bounds
from bridge.service.analysis.workers import WorkerFailed
from bridge.service.lists.follow import ListFollower
from bridge.service.lists.index import traits_of
from bridge.service.metrics import Metrics
from bridge.service.scanning.records import Records
from bridge.service.scanning.upload import StoredMail
from bridge.service.settings import Analyzers, Mime, ServiceConfig, Urls

INLINE_BYTES = 64 * 1024  # a millisecond or two of inspection at most

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


@dataclass(frozen=True, slots=True)
class _Answer:
    """One analyzer's part, failures included."""

    findings: Findings = field(default_factory=Findings)
    incomplete: bool = False


class Pipeline:
    def __init__(
        self,
        config: ServiceConfig,
        follower: ListFollower,
        records: Records,
        engines: Sequence[Engine],
        metrics: Metrics,
    ) -> None:
        analyzers = config.analyzers
        self._table = DecisionTable(config.decisions)
        self._follower = follower
        self._records = records
        self._engines = list(engines)
        self._metrics = metrics
        self._log_scans = config.log_scans
        self._limits = _limits(analyzers)
        self._inline = _limits(analyzers, archives=False)
        self._mime = analyzers.mime or Mime()
        self._inspector = Inspector(analyzers.processes, analyzers.process_memory)

    async def start(self) -> None:
        """Raises ConfigError when an analyzer of one's own cannot be made."""
        for engine in self._engines:
            await engine.analyzer.start()

    async def stop(self) -> None:
        await self._inspector.stop()
        for engine in self._engines:
            await engine.analyzer.close()

    @property
    def ready(self) -> bool:
        """Whether there are lists to match with: without, what is blocked would be delivered."""
        return self._follower.loaded

    def analyze_now(self, job: Job) -> AnalysisResult | None:
        """The whole analysis, if it is a matter of microseconds; else None."""
        if self._engines:
            return None
        inspection = self._inspect_now(job)
        return None if inspection is None else self._conclude(job, inspection, [])

    async def analyze(self, job: Job) -> AnalysisResult:
        mail = Mail(job.ggrid, job.request, job.mail)
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._inspect(job))
            asking = [group.create_task(self._ask(engine, mail)) for engine in self._engines]
        inspection, answer = looking.result()
        return self._conclude(job, inspection, [answer, *(task.result() for task in asking)])

    def _inspect_now(self, job: Job) -> Inspection | None:
        if job.mail.size > INLINE_BYTES:
            return None
        try:
            return inspect(job.mail.content(), self._inline)
        except NeedsProcess:
            return None

    async def _inspect(self, job: Job) -> tuple[Inspection, _Answer]:
        inspection = self._inspect_now(job)
        if inspection is not None:
            return inspection, _Answer()
        try:
            return await self._inspector.inspect(job.mail, self._limits, self._mime.timeout), _Answer()
        except WorkerFailed as exc:
            return Inspection(), self._failure(job.ggrid, "mime", f"failed:mime-{exc}", self._mime.required)

    async def _ask(self, engine: Engine, mail: Mail) -> _Answer:
        try:
            async with asyncio.timeout(engine.timeout_s):
                return _Answer(await engine.analyzer.analyze(mail))
        except LimitReached:
            return self._failure(mail.ggrid, engine.name, f"limit:{engine.name}", engine.required)
        except Exception as exc:  # an engine's own failure is its answer
            why = str(exc) if isinstance(exc, WorkerFailed | PluginFailed) else type(exc).__name__
            log.warning("ggrid=%s engine=%s no answer: %s", mail.ggrid, engine.name, why)
            return self._failure(mail.ggrid, engine.name, f"failed:{engine.name}", engine.required)

    def _failure(self, ggrid: str, name: str, tag: str, required: bool) -> _Answer:
        self._metrics.engine_failed(name)
        log.info("ggrid=%s analyzer=%s %s", ggrid, name, tag)
        return _Answer(Findings(frozenset({tag})), incomplete=required)

    def _conclude(self, job: Job, inspection: Inspection, answers: Sequence[_Answer]) -> AnalysisResult:
        tags = inspection.tags | {f"limit:{name}" for name in inspection.limits}
        tags |= self._on_lists(job, inspection)
        for answer in answers:
            tags |= answer.findings.tags
        if any(answer.incomplete for answer in answers) or (inspection.limits and self._mime.required):
            tags.add(INCOMPLETE)
        outcome = self._table.decide(tags, sum(answer.findings.score for answer in answers))
        result = AnalysisResult(
            decision=outcome.decision,
            ggrid=job.ggrid,
            verdict=outcome.verdict,
            tags=tuple(sorted(tags)),
            created=job.created,
            completed=utc_now(),
        )
        self._records.add(result, job.request.tenant_uid, outcome.score, job.mail.size)
        self._metrics.decided(outcome.decision)
        if self._log_scans:
            log.info(
                "ggrid=%s size=%d decision=%s verdict=%s score=%s tags=%s",
                *(job.ggrid, job.mail.size, result.decision, result.verdict, outcome.score, ",".join(result.tags)),
            )
        return result

    def _on_lists(self, job: Job, inspection: Inspection) -> set[str]:
        border = job.request.border
        traits = traits_of(
            border.envelope_from, inspection.senders, border.remote_address, inspection.hosts, inspection.digests
        )
        return {f"list:{name}" for name in self._follower.index.match(job.request.tenant_uid, traits)}


def _limits(analyzers: Analyzers, *, archives: bool = True) -> Limits:
    mime, urls = analyzers.mime or Mime(), analyzers.urls or Urls()
    return Limits(
        bounds=Bounds(mime.max_parts, mime.max_depth, mime.max_header_size),
        archive_depth=mime.max_archive_depth,
        archive_members=mime.max_archive_members,
        extracted_bytes=mime.max_extracted_size,
        urls=urls.max_urls,
        look_at_mime=analyzers.mime is not None,
        look_at_urls=analyzers.urls is not None,
        look_at_headers=analyzers.headers is not None,
        archives=archives,
    )


def utc_now() -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
