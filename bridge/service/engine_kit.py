"""A test kit for engines of your own: ask one about a mail, as the service would. docs/operate/own-engine.md shows it.

An engine is `package.module:Class`, which is run in a process with its limits, or the URL of a hook. The checks of its
answer are the service's own, so an engine that passes here is not refused there.

    python -m bridge.service.engine_kit invoices:Invoices mail.eml --options '{"word": "bill"}'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.errors import ConfigError
from bridge.mail.message import Spool
from bridge.service.analysis.engine import Analyzer, Findings, Mail
from bridge.service.analysis.hook import HookAnalyzer
from bridge.service.analysis.inspection import parts_of
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.plugin import ENTRY_POINTS, PluginAnalyzer
from bridge.service.engine_settings import Hook, Plugin

KiB, MiB = 1024, 1024**2
NAME = "engine"
_ENVELOPE = BorderMtaData("sender@example.org", ("recipient@example.net",), "192.0.2.1", "mail.example.org")


@dataclass(frozen=True, slots=True)
class Trial:
    """What an engine did with one mail."""

    mail: str
    seconds: float
    findings: Findings
    problem: str  # empty: it answered


def try_engine(
    engine: str,
    mail: bytes,
    options: dict[str, Any] | None = None,
    *,
    envelope: BorderMtaData = _ENVELOPE,
    timeout_s: float = 30.0,
) -> Findings:
    """Its answer. Raises whatever keeps it from answering: PluginFailed, WorkerFailed, LimitReached, ConfigError."""

    async def ask() -> Findings:
        async with _started(engine, options, timeout_s) as analyzer:
            return await _asked(analyzer, mail, envelope, timeout_s)

    return asyncio.run(ask())


def try_awkward_mails(engine: str, options: dict[str, Any] | None = None, *, timeout_s: float = 30.0) -> list[Trial]:
    """One trial for each mail that makes programs stumble: empty, broken, deep, large."""
    return try_mails(engine, awkward_mails(), options, timeout_s=timeout_s)


def try_mails(
    engine: str, mails: dict[str, bytes], options: dict[str, Any] | None = None, *, timeout_s: float = 30.0
) -> list[Trial]:
    """All by the same engine, one after another. Raises ConfigError."""

    async def ask() -> list[Trial]:
        async with _started(engine, options, timeout_s) as analyzer:
            return [await _trial(analyzer, name, mail, timeout_s) for name, mail in mails.items()]

    return asyncio.run(ask())


async def _trial(analyzer: Analyzer, name: str, mail: bytes, timeout_s: float) -> Trial:
    start = time.monotonic()
    try:
        found, problem = await _asked(analyzer, mail, _ENVELOPE, timeout_s), ""
    except Exception as exc:
        found, problem = Findings(), f"{type(exc).__name__}: {exc}"
    return Trial(name, time.monotonic() - start, found, problem)


def mail_with(name: str, content: bytes, content_type: str = "application/octet-stream") -> bytes:
    """A mail with one attachment."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "sender@example.org", "recipient@example.net", "test"
    mail.set_content("see attachment\n")
    main, _, sub = content_type.partition("/")
    mail.add_attachment(content, main, sub, filename=name)
    return mail.as_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def awkward_mails() -> dict[str, bytes]:
    head = b"From: a@example.org\r\n"
    kind = b'Content-Type: multipart/mixed; boundary="%d"\r\n\r\n'
    deep = b"".join(kind % level + b"--%d\r\n" % level for level in range(25))
    parts = b"".join(b"--0\r\n\r\n%d\r\n" % number for number in range(1000))
    return {
        "empty": b"",
        "only a header": head,
        "only a body": b"\r\nhello\r\n",
        "8-bit bytes and NUL": head + b"Subject: \xff\xfe\0\r\n\r\n\xc3\x28\0\r\n",
        "no boundary": head + b"Content-Type: multipart/mixed\r\n\r\n--x\r\n\r\nhello\r\n",
        "unknown charset": head + b"Content-Type: text/plain; charset=nonsense\r\n\r\nhello\r\n",
        "broken Base64": head + b"Content-Transfer-Encoding: base64\r\n\r\n!!!=a\r\n",
        "nested": head + deep + b"\r\nhello\r\n",
        "a thousand parts": head + kind % 0 + parts + b"--0--\r\n",
        "a name of 10,000 characters": mail_with("a" * 10_000 + ".pdf", b"x"),
        "5 MiB": mail_with("large.bin", b"x" * 5 * MiB),
    }


@asynccontextmanager
async def _started(engine: str, options: dict[str, Any] | None, timeout_s: float) -> AsyncIterator[Analyzer]:
    analyzer = _analyzer(engine, options or {}, timeout_s)
    await analyzer.start()
    try:
        yield analyzer
    finally:
        await analyzer.close()


def _analyzer(engine: str, options: dict[str, Any], timeout_s: float) -> Analyzer:
    """Raises ConfigError."""
    timeout = f"{timeout_s:f}s"
    if engine.startswith(("http://", "https://")):
        return HookAnalyzer(NAME, Hook.model_validate({"url": engine, "timeout": timeout}))
    if ":" not in engine:
        raise ConfigError(f"{engine}: an engine must be given as package.module:Class, or as a URL")
    settings = Plugin.model_validate({"options": options, "timeout": timeout, "processes": 1})
    return PluginAnalyzer(NAME, settings, EntryPoint(NAME, engine, ENTRY_POINTS))


async def _asked(analyzer: Analyzer, content: bytes, envelope: BorderMtaData, timeout_s: float) -> Findings:
    stored = StoredMail(Spool(100 * MiB))
    stored.write(content)
    parts = parts_of(content) if isinstance(analyzer, HookAnalyzer) else None
    try:
        async with asyncio.timeout(timeout_s):
            return await analyzer.analyze(Mail("trial", AnalysisRequest(envelope), stored, parts))
    finally:
        stored.close()
        if parts is not None:
            parts.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bridge.service.engine_kit", description="Try your own engine.")
    parser.add_argument("engine", help="package.module:Class, or the URL of a hook")
    parser.add_argument(
        "mails", nargs="*", type=Path, help="mail files (default: built-in mails that are hard to parse)"
    )
    parser.add_argument("--options", type=json.loads, default={}, help="the engine's options, as JSON")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="maximum time for one mail, in seconds (default: 30)"
    )
    given = parser.parse_args(arguments)
    mails = {str(path): path.read_bytes() for path in given.mails} or awkward_mails()
    try:
        trials = try_mails(given.engine, mails, given.options, timeout_s=given.timeout)
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 78
    for trial in trials:
        said = trial.problem or f"score {trial.findings.score:g} {' '.join(sorted(trial.findings.tags))}".strip()
        print(f"{trial.mail}: {'FAILED' if trial.problem else 'ok'}, {trial.seconds:.2f} s, {ascii(said)[1:-1]}")
    return 1 if any(trial.problem for trial in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
