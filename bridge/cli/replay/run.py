"""Replays mails: a few at the same time, each read, scanned and compared on its own.

A scanner that has no room is asked again later, with growing pauses. A mail that cannot be read or scanned is one
failed row; only a refused token ends the replay, because no other mail would fare better.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.api.scanning import AnalysisRequest, AnalysisResult
from bridge.cli.replay.judgement import Judgement, Replay, Row, Status, compare
from bridge.cli.replay.mails import Source, StoredMail
from bridge.cli.replay.saved import Expected
from bridge.errors import BridgeError, Saturated, ScanError, ScanFailed, ScanUnavailable
from bridge.mail.message import Message, Spool
from bridge.scanner.answers import TokenRefused
from bridge.scanner.client import Scanner

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 15.0
_TRIES = 5  # for a scanner that cannot be reached
_dice = random.Random()  # noqa: S311 - spreads load, keeps no secret


@dataclass(frozen=True, slots=True)
class Settings:
    concurrency: int = 4
    timeout_s: float = 300.0  # for one scan, and for repeated attempts if a scanner has no room
    level: str = "tags"


@dataclass(slots=True)
class Asked:
    """A scanner, and what is known about it."""

    scanner: Scanner
    settings: Settings
    is_down: bool = False  # several attempts with one mail failed to reach it, and no other has succeeded since
    problem: str = ""  # why it could not be reached

    async def judge(self, request: AnalysisRequest, content: bytes) -> Judgement:
        """Raises TokenRefused only."""
        loop = asyncio.get_running_loop()
        give_up_at, pause_s, tries = loop.time() + self.settings.timeout_s, _FIRST_PAUSE_S, 1
        while True:
            try:
                result = await self._submit(request, content)
            except TokenRefused:
                raise
            except Saturated as exc:
                problem, wait_s = f"saturated: {exc}", max(pause_s, exc.retry_after_s or 0.0)
            except (ScanError, OSError) as exc:
                if not isinstance(exc, ScanUnavailable) or isinstance(exc, ScanFailed):
                    return Judgement(problem=str(exc))
                problem, wait_s = self._unreachable(exc), pause_s
                if tries >= _TRIES or self.is_down:
                    self.is_down = True
                    return Judgement(problem=problem)
                tries += 1
            else:
                self.is_down = False
                return Judgement(str(result.decision), result.verdict, result.tags)
            wait_s *= _dice.uniform(0.8, 1.2)
            if loop.time() + wait_s > give_up_at:
                return Judgement(problem=problem)
            await asyncio.sleep(wait_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _unreachable(self, exc: ScanUnavailable) -> str:
        """While its circuit is open, mail is not sent at all: the last error says why."""
        if any(host.url in str(exc) for host in self.scanner.hosts):
            self.problem = str(exc)
        return self.problem or str(exc)

    async def _submit(self, request: AnalysisRequest, content: bytes) -> AnalysisResult:
        message = Message(Spool(len(content), len(content)))
        message.write(content)
        try:
            deadline = asyncio.get_running_loop().time() + self.settings.timeout_s
            return await self.scanner.submit(request, message, deadline)
        finally:
            message.close()


@dataclass(slots=True)
class Work:
    """One replay: what to ask, and what to compare the answers with."""

    replay: Replay
    scanner: Asked
    settings: Settings
    baseline: Asked | None = None
    expected: Expected | None = None

    async def run(self, sources: Sequence[Source], advance: Callable[[int], None]) -> None:
        """Fills `replay.rows`; if cancelled, it keeps the rows that are done. Raises TokenRefused."""
        self.replay.rows = [None] * len(sources)
        waiting = iter(enumerate(sources))

        async def worker() -> None:
            for number, source in waiting:
                self.replay.rows[number] = await self._replay(source)
                advance(1)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self.settings.concurrency, len(sources))):
                    tasks.create_task(worker())
        except ExceptionGroup as group:  # from the first workers that were refused; the others were cancelled
            raise group.exceptions[0] from None

    async def _replay(self, source: Source) -> Row:
        try:
            mail = await asyncio.to_thread(source.read)
        except OSError as exc:
            return Row(source.name, Judgement(problem=f"cannot be read: {exc.strerror or exc}"))
        except BridgeError as exc:
            return Row(source.name, Judgement(problem=f"cannot be read: {exc}"))
        digest = hashlib.sha256(mail.content).hexdigest()
        before = await self._before(source.name, digest, mail)
        now = await self.scanner.judge(mail.request, mail.content)
        status = compare(before, now, self.settings.level, is_baseline=self.baseline is not None)
        return _row(source.name, mail, digest, before, now, status)

    async def _before(self, name: str, digest: str, mail: StoredMail) -> Judgement | None:
        if self.baseline is not None:
            return await self.baseline.judge(mail.request, mail.content)
        if self.expected is not None:
            return self.expected.find(name, digest)
        return mail.before


def _row(name: str, mail: StoredMail, digest: str, before: Judgement | None, now: Judgement, status: Status) -> Row:
    border = mail.request.border
    return Row(
        name=name,
        now=now,
        before=before,
        status=status,
        sha256=digest,
        sender=border.envelope_from,
        recipients=border.envelope_recipients,
        remote_address=border.remote_address,
        helo=border.sender_helo,
        tenant=mail.request.tenant_uid,
        subject=mail.subject,
        envelope=mail.envelope,
    )
