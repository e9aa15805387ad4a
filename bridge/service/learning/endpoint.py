"""POST /v1/feedback: one person's report of one mail.

The mail is inspected again, in a separate process as for any untrusted mail, to find its signals; none of its content
is stored. Reports are rare and no one waits long for them, so a few at a time are enough.

A report names the analysis of the mail (`ggrid`), which must be on record with the same tenant and size. Otherwise,
anyone who can report could name any client as the origin of a mail that no one ever sent. Without an analysis, a
report counts for no sender, and as mail of unknown origin.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing

from starlette.types import Receive, Scope, Send

from bridge.api.feedback import FeedbackRequest
from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.mail.message import Spool
from bridge.mail.spool import SpoolDisk
from bridge.service.abby_settings import Permission
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspector import Inspector
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.pipeline import limits_of
from bridge.service.analysis.worker_pool import TIMED_OUT, WorkerFailed
from bridge.service.analyzer_settings import Analyzers
from bridge.service.auth import StaticTokens
from bridge.service.database_calls import DatabaseCalls
from bridge.service.learning.follow import DEPLOYMENT, Learned
from bridge.service.learning.store import Analysed, TooManyScopes, VoteStore
from bridge.service.learning.votes import PROOFS, Vote, bounded, digest, digest_of_person, origin_of, senders_of
from bridge.service.metrics import ServiceMetrics
from bridge.service.requests import header
from bridge.service.responses import Refused, RequestBody, check_plain, refuse, send_json, storage_unavailable
from bridge.service.scanning.endpoint import check_length
from bridge.service.scanning.parameters import parse_feedback
from bridge.service.scanning.upload import Disconnected, Upload
from bridge.service.store import STORAGE_ERRORS

CONCURRENT = 4
RETRY_AFTER_S = 10
INSPECTION_S = 30.0
RECORD_S = 4.0  # within which the record of an analysis is written, unless the database is unavailable
_RECORD_POLL_S = 0.25

log = logging.getLogger("bridge.service")


class FeedbackEndpoint:
    def __init__(
        self,
        tokens: StaticTokens,
        votes: VoteStore,
        learned: Learned,
        analyzers: Analyzers,
        metrics: ServiceMetrics,
        idle_s: float,
        disk: SpoolDisk,
        calls: DatabaseCalls,
    ) -> None:
        self._tokens = tokens
        self._votes = votes
        self._calls = calls
        self._learned = learned
        self._analyzers = analyzers
        self._metrics = metrics
        self._idle_s = idle_s
        self._spool = Spool(CONCURRENT * MAX_MESSAGE_BYTES, disk=disk)
        self._inspector = Inspector(1, analyzers.process_memory)  # its process starts with the first report
        self._in_work = 0

    async def start(self) -> None:
        """Nothing to do before the first report."""

    async def stop(self) -> None:
        await self._inspector.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        receive = RequestBody(receive)
        try:
            self._check(scope)
            self._in_work += 1
            try:
                is_new = await self._take(scope, receive)
            finally:
                self._in_work -= 1
        except Refused as refused:
            self._metrics.reported("refused")
            await refuse(scope, receive, send, refused)
        except STORAGE_ERRORS:
            self._metrics.reported("failed")
            await refuse(scope, receive, send, storage_unavailable())
        except Disconnected:
            log.info("client disconnected before its report was complete")
        else:
            self._metrics.reported("learned" if is_new else "known")
            await send_json(send, 200, {"learned": is_new})

    def _check(self, scope: Scope) -> None:
        self._tokens.check(scope, Permission.FEEDBACK)
        if self._analyzers.phishing is None or not self._analyzers.phishing.learn:
            raise Refused(403, "learning_disabled", "analyzers.phishing.learn is switched off")
        check_plain(scope)
        check_length(scope)
        if self._in_work >= CONCURRENT:
            raise Refused(503, "saturated", "too many reports at the same time", retry_after_s=1)

    async def _take(self, scope: Scope, receive: Receive) -> bool:
        with closing(Upload(self._spool, parse_feedback, self._idle_s)) as upload:
            request = await upload.read(receive, header(scope, b"content-type"))
            found = await self._inspected(upload.mail, request)
            mail = await asyncio.to_thread(upload.mail.content)
        known = await self._analysed(request.ggrid) if request.ggrid else None
        if known is not None and (known.tenant, known.size) != (request.tenant_uid or DEPLOYMENT, len(mail)):
            raise Refused(409, "other_mail", "the ggrid belongs to another mail or another tenant")
        vote = _vote(request, mail, found, known)
        try:
            is_new = await self._calls.change(self._votes.add, request.tenant_uid or DEPLOYMENT, vote)
        except TooManyScopes:
            raise Refused(409, "too_many_tenants", "too many tenants already have reports") from None
        self._learned.wake()
        return is_new

    async def _analysed(self, ggrid: str) -> Analysed | None:
        """Records are written a moment after the analysis, which a quick report must not outrun."""
        for _ in range(round(RECORD_S / _RECORD_POLL_S)):
            if found := await self._calls.ask(self._votes.analysed, ggrid):
                return found
            await asyncio.sleep(_RECORD_POLL_S)
        return None

    async def _inspected(self, mail: StoredMail, request: FeedbackRequest) -> Inspection:
        sender = request.border.envelope_from if request.border else ""
        try:
            return await self._inspector.inspect(mail, limits_of(self._analyzers, envelope_from=sender), INSPECTION_S)
        except WorkerFailed as exc:
            text = "the mail cannot be inspected, so nothing can be learned"
            if str(exc) == TIMED_OUT:
                raise Refused(409, "not_inspected", text) from None
            raise Refused(503, "not_inspected", f"{text} now", retry_after_s=RETRY_AFTER_S) from None


def _vote(request: FeedbackRequest, mail: bytes, found: Inspection, known: Analysed | None) -> Vote:
    client = request.border.remote_address if request.border and known else None
    tags = found.tags | (known.tags & PROOFS if known else set())
    senders = senders_of(found.authors, client, tags)
    signals = found.phishing.signals if found.phishing else {}
    return Vote(
        digest(mail),
        digest_of_person(request.reporter),
        request.kind,
        senders[0] if senders else "",
        origin_of(client),
        bounded(signals),
        time.time(),
    )
