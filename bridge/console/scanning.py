"""What the console asks of the scanner."""

from __future__ import annotations

from typing import Protocol

from bridge.api.scanning import AnalysisRequest, AnalysisResult
from bridge.errors import BridgeError
from bridge.mail.message import Message


class NoDecision(BridgeError):
    """The scanner did not decide; the text says why, and what to do."""


class Scans(Protocol):
    async def __call__(self, mail: Message, request: AnalysisRequest) -> AnalysisResult:
        """Raises NoDecision."""
