"""Stand-ins for the parts of the bridge that have an effect: scanner, next hops, quarantine.

The filter and the listener are the real ones, and ask these instead. Each notes what it was asked for, and nothing
more: no mail is delivered, stored or marked. Only `--scan` and `--probe` pass a question on. If this is wrong, a mail
that someone only wanted to examine is delivered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.api.scanning import AnalysisRequest, AnalysisResult, Decision
from bridge.errors import (
    MessageTooLarge,
    Saturated,
    ScanError,
    ScanFailed,
    ScanMalformed,
    ScanRefused,
    ScanTimeout,
    ScanUnavailable,
)
from bridge.filter.policy import Case
from bridge.lists.copies import Copies, Copy
from bridge.mail.message import Message
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.quarantine.quarantine import Quarantine
from bridge.relay.relay import Delivered, Relay
from bridge.runtime.endpoints import NextHop
from bridge.scanner.client import Scanner, ScannerSettings

ACCEPTED = Reply(250, "2.0.0", "Ok", is_foreign=True)  # instead of the next hop's own words

_ERRORS: dict[Case, ScanError | Saturated] = {
    Case.UNAVAILABLE: ScanError("supposed"),
    Case.UNREACHABLE: ScanUnavailable("supposed"),
    Case.FAILED: ScanFailed("supposed"),
    Case.DEADLINE: ScanTimeout("supposed"),
    Case.SLOW: ScanTimeout("supposed", is_slow=True, others_pass=True),
    Case.REFUSED: ScanRefused("supposed"),
    Case.NONSENSE: ScanMalformed("supposed"),
    Case.SATURATED: Saturated("supposed"),
    Case.TOO_LARGE: MessageTooLarge("supposed"),
}


class SupposedScanner(Scanner):
    """Answers as it is told to, or asks the real one."""

    def __init__(self, case: Case, real: Scanner | None) -> None:
        super().__init__(ScannerSettings(urls=("http://127.0.0.1",), token=""))
        self._case = case
        self._real = real
        self.is_full = False
        self.requests: list[AnalysisRequest] = []

    def is_saturated(self) -> bool:
        return self.is_full

    async def submit(
        self,
        request: AnalysisRequest,
        message: Message,
        deadline: float,
        keep_late: bool = False,
        header: bytes = b"",
        on_host: Callable[[str], None] = lambda url: None,
    ) -> AnalysisResult:
        self.requests.append(request)
        if self._real is not None:
            return await self._real.submit(request, message, deadline)
        if self._case in _ERRORS:
            raise _ERRORS[self._case].with_traceback(None)
        return AnalysisResult(Decision(self._case.value))


@dataclass(frozen=True, slots=True)
class Handed:
    """What one next hop would get."""

    next_hop: str
    recipients: tuple[str, ...]
    head: bytes  # what we put in front of the mail
    problem: str = ""  # why the next hop cannot be reached, if it was asked


@dataclass(slots=True)
class NotedRelay:
    """Notes the mail. With a `real` relay, the mail passes only if that one can be reached."""

    hop: NextHop
    handed: list[Handed]
    real: Relay | None = None

    __hash__ = object.__hash__  # as `Routes` needs it

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        try:
            await self.probe()
        except NextHopError as exc:
            self.handed.append(Handed(str(self.hop), tx.envelope.addresses, head, str(exc)))
            raise
        self.handed.append(Handed(str(self.hop), tx.envelope.addresses, head))
        return Delivered(ACCEPTED, "", (ACCEPTED,) * len(tx.envelope.recipients))

    async def probe(self) -> tuple[str, ...]:
        return await self.real.probe() if self.real is not None else ()

    async def close(self) -> None:
        if self.real is not None:
            await self.real.close()


@dataclass(frozen=True, slots=True)
class ExistingMaildir:
    """Tests a Maildir without creating it."""

    path: Path

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        raise NotImplementedError

    async def probe(self) -> tuple[str, ...]:
        place = next(place for place in (self.path, *self.path.parents) if place.exists())
        if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
            return ("MAILDIR",)
        raise NextHopError(Reply(451, "4.3.0", "The mail could not be delivered"), f"{place} is not writable")

    async def close(self) -> None:
        """Nothing is open."""


class NotedQuarantine(Quarantine):
    """Notes the mail instead of storing it."""

    def __init__(self) -> None:
        self.kept: list[tuple[Transaction, bytes, dict[str, object]]] = []

    async def keep(self, tx: Transaction, head: bytes, facts: dict[str, object]) -> None:
        self.kept.append((tx, head, facts))


class NotedCopies(Copies):
    """The local copies, and which of them were asked."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked: dict[tuple[str, str | None], Copy | None] = {}

    def look(self) -> None:
        super().look()
        self.asked.clear()  # `look` itself asked for these

    def get(self, name: str, tenant: str | None) -> Copy | None:
        found = self.asked[name, tenant] = super().get(name, tenant)
        return found
