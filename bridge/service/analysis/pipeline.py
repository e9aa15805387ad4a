"""The analysis of one mail: runs all analyzers and combines their findings into a result.

Inspection of the bytes runs in the event loop if that is cheaper than handing it over (small mail
without archives), else in a separate process. Engines run concurrently with it, each with its own
deadline. An analyzer that fails, times out or reaches its own limit never fails the request; if it is
required, the mail gets the tag `incomplete`. Tags say what happened: `failed:NAME`, `limit:NAME`.

An error in our own code is such a failure too, whatever raises it: the mail that triggers it is `incomplete`.
If an error escaped from here, one sender could make the service answer 500 at will, and a client that
counts failures would take the whole service for broken.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from bridge.api.scanning import MAX_LIST_MATCHES, AnalysisResult, Decision
from bridge.errors import ConfigError
from bridge.matching.dangerous_tags import has_danger
from bridge.mime.structure import Bounds
from bridge.service.analysis.connections import BadAnswer
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.content.optional_formats import formats_of
from bridge.service.analysis.decision import INCOMPLETE, Assessment, DecisionTable
from bridge.service.analysis.engine import ContentInPieces, Engine, Findings, LimitReached, Mail
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.inspector import Inspector
from bridge.service.analysis.job import AnalysisJob, utc_now
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.opinions import together as opinions_together
from bridge.service.analysis.parts import Collector, MailParts
from bridge.service.analysis.phishing_judgement import Judgement, search_of
from bridge.service.analysis.plugin import PluginFailed
from bridge.service.analysis.worker_pool import WorkerFailed
from bridge.service.analysis.yara_rules import YaraAnswer, compiled_setup
from bridge.service.analyzer_settings import Analyzers, Mime, Urls
from bridge.service.engine_settings import Yara
from bridge.service.learning.follow import Learned
from bridge.service.learning.votes import senders_of
from bridge.service.lists.follow import ListFollower
from bridge.service.lists.index import Traits, traits_of
from bridge.service.metrics import ServiceMetrics
from bridge.service.scanning.records import RecordWriter
from bridge.service.settings import ServiceConfig

INLINE_BYTES = 64 * 1024  # inspection of a larger mail would block the event loop for more than 1-2 ms
INLINE_PARTS = 200  # 10 ms; ordinary mail of this size has fewer than ten
INLINE_NAMING = 10_000  # work for the names of all parts (see `bridge.mime.names`): 10 ms
MAX_SCORE = 1e9
_LIST = "list:"  # how tags of lists begin

log = logging.getLogger("bridge.service")


@dataclass(frozen=True, slots=True)
class _Answer:
    """One analyzer's answer, including a failure."""

    findings: Findings = field(default_factory=Findings)
    incomplete: bool = False


_NOTHING = _Answer()
_UNDECIDED = Assessment("incomplete", Decision.UNDECIDED, 0.0)


class Pipeline:
    def __init__(
        self,
        config: ServiceConfig,
        follower: ListFollower,
        records: RecordWriter,
        engines: Sequence[Engine],
        metrics: ServiceMetrics,
        learned: Learned | None = None,
    ) -> None:
        analyzers = config.analyzers
        self._table = DecisionTable(config.decisions)
        self._personal_allowing = {f"list:{name}" for name in follower.index.personal_allowing}
        self._follower = follower
        self._records = records
        self._engines = list(engines)
        self._metrics = metrics
        self._log_scans = config.log_scans
        self._reads_parts = any(engine.reads_parts for engine in engines)
        self._limits = replace(
            limits_of(analyzers),
            keep_objects=any(engine.scans_objects for engine in engines),
            keep_parts=self._reads_parts,
            show_members=analyzers.yara is not None,
        )
        self._inline = limits_of(analyzers, archives=False)
        self._mime = analyzers.mime or Mime()
        self._yara = analyzers.yara
        self._inspect_s = self._mime.timeout + (self._yara.timeout + 1 if self._yara else 0)  # YARA counts in seconds
        self._analyzers = analyzers
        self._phishing = Judgement(analyzers.phishing) if analyzers.phishing else None
        self._learned = learned if analyzers.phishing and analyzers.phishing.learn else None
        self._inspector = Inspector(analyzers.processes, analyzers.process_memory)

    async def start(self) -> None:
        """Raises ConfigError if a custom analyzer cannot be created, or a YARA rule is wrong."""
        if self._yara is not None:
            await self._load_rules(self._yara)
        for engine in self._engines:
            await engine.analyzer.start()

    async def _load_rules(self, settings: Yara) -> None:
        setup = {"yara": await asyncio.to_thread(compiled_setup, settings)}
        self._inspector = Inspector(self._analyzers.processes, self._analyzers.process_memory, setup)
        try:
            await self._inspector.start()
        except WorkerFailed:
            raise ConfigError(
                "analyzers.yara: a process could not load the rules; is analyzers.process_memory large enough?"
            ) from None

    async def stop(self) -> None:
        await self._inspector.stop()
        for engine in self._engines:
            await engine.analyzer.close()

    @property
    def ready(self) -> bool:
        """Whether the lists are loaded; without them, blocked mail would be delivered."""
        return self._follower.loaded

    def analyze_now(self, job: AnalysisJob) -> AnalysisResult | None:
        """The result if the whole analysis takes only microseconds, else None."""
        if self._engines:
            return None
        inspected = self._inspect_now(job)
        return None if inspected is None else self._conclude(job, inspected[0], [inspected[1]])

    async def analyze(self, job: AnalysisJob) -> AnalysisResult:
        mail = Mail(job.ggrid, job.request, job.mail)
        async with asyncio.TaskGroup() as group:
            inspecting = group.create_task(self._inspect(job))
            asking = [group.create_task(self._ask(engine, mail)) for engine in self._engines if not engine.reads_parts]
        inspection, answer = inspecting.result()
        answers = [answer, *(task.result() for task in asking)]
        if self._yara:
            answers.append(self._answer_of_yara(job.ggrid, inspection.yara, self._yara.required))
        answers += await self._ask_about_content(mail, inspection)
        return self._conclude(job, inspection, answers)

    def _answer_of_yara(self, ggrid: str, found: YaraAnswer | None, required: bool) -> _Answer:
        if found is None:  # the inspection failed
            return self._failure(ggrid, "yara", "failed:yara", required)
        findings = Findings(found.tags, found.score)
        if found.is_complete:
            return _Answer(findings)
        reached = self._failure(ggrid, "yara", "limit:yara", required)
        return replace(reached, findings=Findings(found.tags | reached.findings.tags, found.score))

    async def _ask_about_content(self, mail: Mail, inspection: Inspection) -> list[_Answer]:
        """The engines that get what the inspection found."""
        if not inspection.rendition and not self._reads_parts:
            return []
        try:
            asking = [self._ask_about_objects(mail, inspection.rendition)] if inspection.rendition else []
            asking.append(self._ask_about_parts(mail, inspection.parts))
            return [answer for answers in await asyncio.gather(*asking) for answer in answers]
        finally:
            if inspection.parts is not None:
                inspection.parts.close()

    async def _ask_about_parts(self, mail: Mail, parts: MailParts | None) -> list[_Answer]:
        engines = [engine for engine in self._engines if engine.reads_parts]
        if parts is None:  # the inspection failed
            return [
                self._failure(mail.ggrid, engine.name, f"failed:{engine.name}", engine.required) for engine in engines
            ]
        with_parts = replace(mail, found_parts=parts)
        return list(await asyncio.gather(*(self._ask(engine, with_parts) for engine in engines)))

    async def _ask_about_objects(self, mail: Mail, pieces: list[bytes]) -> list[_Answer]:
        """An ambiguous mail: the engines that look for malware read it in one way, and get everything else here."""
        rendition = Mail(mail.ggrid, mail.request, ContentInPieces(pieces))
        engines = [engine for engine in self._engines if engine.scans_objects]
        return list(await asyncio.gather(*(self._ask(engine, rendition) for engine in engines)))

    def _inspect_now(self, job: AnalysisJob) -> tuple[Inspection, _Answer] | None:
        if job.mail.size > INLINE_BYTES or job.mail.needs_process or self._yara:
            return None
        try:
            return self._inspect_here(job.mail.content(), self._limits_for(job, self._inline)), _NOTHING
        except NeedsProcess:
            job.mail.needs_process = True
            return None
        except Exception as exc:  # also RecursionError and MemoryError
            return self._crashed(job, exc)

    def _inspect_here(self, content: bytes, limits: Limits) -> Inspection:
        if not self._reads_parts:
            return inspect(content, limits)
        parts = Collector()
        found = inspect(content, limits, parts.see)
        found.parts = MailParts(iter(parts.contents), parts.described, is_complete=not found.limits)
        return found

    def _limits_for(self, job: AnalysisJob, limits: Limits) -> Limits:
        """The envelope says who sent a mail, which the mail itself need not."""
        sender = job.request.border.envelope_from
        return replace(limits, envelope_from=sender) if self._phishing and sender else limits

    async def _inspect(self, job: AnalysisJob) -> tuple[Inspection, _Answer]:
        inspected = self._inspect_now(job)
        if inspected is not None:
            return inspected
        try:
            limits = self._limits_for(job, self._limits)
            return await self._inspector.inspect(job.mail, limits, self._inspect_s), _NOTHING
        except WorkerFailed as exc:
            return Inspection(), self._failure(job.ggrid, "mime", f"failed:mime-{exc}", self._mime.required)
        except Exception as exc:
            return self._crashed(job, exc)

    def _crashed(self, job: AnalysisJob, exc: Exception) -> tuple[Inspection, _Answer]:
        log.error("ggrid=%s inspection failed: %s", job.ggrid, _place(exc))
        return Inspection(), self._failure(job.ggrid, "mime", "failed:mime-crash", self._mime.required)

    async def _ask(self, engine: Engine, mail: Mail) -> _Answer:
        start = time.monotonic()
        try:
            return await self._answer(engine, mail)
        finally:
            self._metrics.engine_took(engine.name, time.monotonic() - start)

    async def _answer(self, engine: Engine, mail: Mail) -> _Answer:
        try:
            async with asyncio.timeout(engine.timeout_s):
                return _Answer(await engine.analyzer.analyze(mail))
        except LimitReached:
            return self._failure(mail.ggrid, engine.name, f"limit:{engine.name}", engine.required)
        except (Exception, SystemExit, asyncio.CancelledError) as exc:  # whatever goes wrong counts as its answer
            if _is_cancelled(exc):
                raise
            why = str(exc) if isinstance(exc, WorkerFailed | PluginFailed | BadAnswer) else type(exc).__name__
            log.warning("ggrid=%s engine=%s no answer: %s", mail.ggrid, engine.name, why)
            return self._failure(mail.ggrid, engine.name, f"failed:{engine.name}", engine.required)

    def _failure(self, ggrid: str, name: str, tag: str, required: bool) -> _Answer:
        self._metrics.engine_failed(name)
        log.info("ggrid=%s analyzer=%s %s", ggrid, name, tag)
        return _Answer(Findings(frozenset({tag})), incomplete=required)

    def _conclude(self, job: AnalysisJob, inspection: Inspection, answers: Sequence[_Answer]) -> AnalysisResult:
        why: tuple[str, ...] = ()
        scoring = None
        try:
            tags = self._tags(job, inspection, answers)
            scores = _engine_score(answers), self._model_points(job, inspection, tags)
            assessment = self._table.decide(tags, *scores)
            scoring = self._table.scoring(assessment, tags, *scores)
            why = self._phishing.reasons(inspection.phishing, tags) if self._phishing else ()
        except Exception as exc:
            log.error("ggrid=%s no decision could be made: %s", job.ggrid, _place(exc))
            tags, assessment = {"failed:conclusion", INCOMPLETE}, _UNDECIDED
        result = AnalysisResult(
            decision=assessment.decision,
            ggrid=job.ggrid,
            verdict=assessment.verdict,
            tags=tuple(sorted(tags)),
            created=job.created,
            completed=utc_now(),
            reasons=why,
            listed=self._listed(job, inspection, tags),
            scoring=scoring,
        )
        try:
            self._report(job, result, assessment.score)
        except Exception as exc:  # the result stands without its record
            log.error("ggrid=%s could not be recorded: %s", job.ggrid, _place(exc))
        return result

    def _model_points(self, job: AnalysisJob, inspection: Inspection, tags: set[str]) -> float:
        if self._phishing is None:
            return 0.0
        shift = 0.0
        if self._learned is not None and self._learned.has_votes and inspection.phishing is not None:
            senders = senders_of(inspection.authors, job.request.border.remote_address, tags)
            tenant, signals = job.request.tenant_uid, inspection.phishing.signals
            weights = self._phishing.weights
            shift = self._learned.shift(tenant, senders, signals, weights, is_dangerous=has_danger(tags))
        return self._phishing.points(inspection.phishing, tags, shift)

    def _tags(self, job: AnalysisJob, inspection: Inspection, answers: Sequence[_Answer]) -> set[str]:
        tags = inspection.tags | {f"limit:{name}" for name in inspection.limits}
        tags |= self._list_tags(job, inspection)
        for answer in answers:
            tags |= answer.findings.tags
        if any(answer.incomplete for answer in answers) or (inspection.limits and self._mime.required):
            tags.add(INCOMPLETE)
        if has_danger(tags):  # a recipient's own wish must not get it delivered
            tags -= self._personal_allowing
        return tags

    def _report(self, job: AnalysisJob, result: AnalysisResult, score: float) -> None:
        self._records.add(result, job.request.tenant_uid, score, job.mail.size)
        self._metrics.decided(result.decision)
        if self._log_scans:
            tags = ",".join(result.tags)
            text = "ggrid=%s size=%d decision=%s verdict=%s score=%s tags=%s"
            log.info(text, job.ggrid, job.mail.size, result.decision, result.verdict, score, tags)

    def _list_tags(self, job: AnalysisJob, inspection: Inspection) -> set[str]:
        try:
            names = self._follower.index.match(job.request.tenant_uid, _traits(job, inspection))
            return {f"{_LIST}{name}" for name in names}
        except Exception as exc:
            log.error("ggrid=%s lists could not be matched: %s", job.ggrid, _place(exc))
            return {"failed:lists", INCOMPLETE}

    def _listed(self, job: AnalysisJob, inspection: Inspection, tags: set[str]) -> tuple[tuple[str, str], ...]:
        """The entries that matched, for the few mails that are on a list. The decision does not depend on this."""
        names = sorted(tag.removeprefix(_LIST) for tag in tags if tag.startswith(_LIST))[:MAX_LIST_MATCHES]
        try:
            index, tenant = self._follower.index, job.request.tenant_uid
            traits = _traits(job, inspection) if names else Traits()
            found = ((name, index.entry(tenant, name, traits)) for name in names)
            return tuple((name, entry) for name, entry in found if entry)
        except Exception as exc:
            log.error("ggrid=%s the matching list entries could not be found: %s", job.ggrid, _place(exc))
            return ()


def _traits(job: AnalysisJob, inspection: Inspection) -> Traits:
    border = job.request.border
    return traits_of(
        sender=border.envelope_from,
        header_senders=inspection.senders,
        client=border.remote_address,
        hosts=inspection.hosts,
        digests=inspection.digests,
        recipients=border.envelope_recipients,
    )


def _is_cancelled(exc: BaseException) -> bool:
    """Whether we cancelled this analysis; an analyzer that cancels itself has merely failed."""
    task = asyncio.current_task()
    return isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _place(exc: Exception) -> str:
    """The type of an exception and where it was raised, never its text, which may quote the mail."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" in {PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
    return type(exc).__name__ + where


def _engine_score(answers: Sequence[_Answer]) -> float:
    opinions = opinions_together(answer.findings.opinion for answer in answers)
    return _finite(opinions + sum(answer.findings.score for answer in answers))


def _finite(score: float) -> float:
    """Scores of several engines may add up to infinity, which no database column holds."""
    return 0.0 if math.isnan(score) else max(-MAX_SCORE, min(score, MAX_SCORE))


def limits_of(analyzers: Analyzers, *, archives: bool = True, envelope_from: str = "") -> Limits:
    """Without `archives`: those of an inspection in the event loop."""
    mime, urls = analyzers.mime or Mime(), analyzers.urls or Urls()
    bounds = Bounds(mime.max_parts, mime.max_depth, mime.max_header_size)
    if not archives:
        bounds = replace(bounds, parts=min(mime.max_parts, INLINE_PARTS), naming_work=INLINE_NAMING)
    return Limits(
        bounds=bounds,
        archive_depth=mime.max_archive_depth,
        archive_members=mime.max_archive_members,
        extracted_bytes=mime.max_extracted_size,
        urls=urls.max_urls,
        look_at_mime=analyzers.mime is not None,
        look_at_urls=analyzers.urls is not None,
        look_at_headers=analyzers.headers is not None,
        phishing=search_of(analyzers.phishing) if analyzers.phishing else None,
        envelope_from=envelope_from,
        archives=archives,
        formats=formats_of(mime),
    )
