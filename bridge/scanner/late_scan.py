"""A scan that continues after the deadline of its mail: its decision may come in time for the next attempt."""

from __future__ import annotations

import asyncio

from bridge.api.scanning import AnalysisResult
from bridge.errors import ScanMalformed, ScanTimeout, ScanUnavailable
from bridge.scanner.host import Host
from bridge.scanner.http import AnswerTooLarge, ConnectionLost, LateAnswer, WrongAnswer


class LateScan:
    """A scan that continues after the deadline of its mail. It must be awaited or abandoned."""

    def __init__(self, host: Host, late: LateAnswer) -> None:
        self._host = host
        self._late: LateAnswer | None = late
        host.in_flight += 1
        host.awaited.add(late.connection)

    async def result(self) -> AnalysisResult:
        """Wait for the decision. Raises ScanError, Saturated."""
        late, host, loop = self._late, self._host, asyncio.get_running_loop()
        assert late is not None
        try:
            answer = await late.answer()
            host.give_back(late.connection, loop.time())
            return host.result_of(answer, loop.time(), began=0.0)
        except ConnectionLost as exc:
            raise ScanUnavailable(f"{host.url}: {exc}") from exc
        except AnswerTooLarge as exc:
            raise ScanMalformed(f"{host.url}: the answer is too large") from exc
        except WrongAnswer as exc:
            raise ScanMalformed(f"{host.url}: the answer belongs to another request") from exc
        finally:
            self._end()

    def abandon(self) -> None:
        """Give the scan up. Does nothing when it has ended."""
        if self._late is not None:
            self._late.abandon()
            self._end()

    def _end(self) -> None:
        if self._late is not None:
            self._host.awaited.discard(self._late.connection)
            self._late = None
            self._host.in_flight -= 1


class ScanGoesOn(ScanTimeout):
    """The deadline passed, but the scanner has the whole mail: `scan` must be awaited or abandoned."""

    def __init__(self, text: str, is_slow: bool, others_pass: bool, scan: LateScan) -> None:
        super().__init__(text, is_slow, others_pass)
        self.scan = scan
