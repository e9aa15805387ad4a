"""Scans for the console, as `scanbridge scan` does it."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.api.scanning import AnalysisRequest, AnalysisResult
from bridge.cli.scanner_remedy import next_step
from bridge.config.model import Config
from bridge.console.scanning import NoDecision
from bridge.daemon import wiring
from bridge.errors import ConfigError, Saturated, ScanError
from bridge.mail.message import Message
from bridge.scanner.client import Scanner
from bridge.scanner.stored_mail import scan_stored


@dataclass(frozen=True, slots=True)
class ConsoleScans:
    config: Config

    async def __call__(self, mail: Message, request: AnalysisRequest) -> AnalysisResult:
        try:
            scanner = Scanner(wiring.scanner_settings(self.config, wiring.token(self.config)))
        except ConfigError as exc:
            raise NoDecision(str(exc)) from exc
        try:
            return await scan_stored(scanner, mail, request)
        except (ScanError, Saturated) as exc:
            raise NoDecision(f"{exc}{next_step(exc, self.config)}") from exc
        finally:
            scanner.close()
