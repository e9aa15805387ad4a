"""The work of `scanbridge scan`: submit each file, print the decision or why there is none."""

from __future__ import annotations

import sys
from contextlib import closing
from io import BytesIO
from pathlib import Path

import click

from bridge.api.changes import Changes
from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, AnalysisResult
from bridge.cli import mail_file
from bridge.cli.scanner_remedy import next_step
from bridge.cli.terminal import hide_log, say, say_json
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.errors import Saturated, ScanError
from bridge.scanner.client import Scanner
from bridge.scanner.stored_mail import as_mail, scan_stored

_MAX_FILE = MAX_MESSAGE_BYTES + 1024 * 1024  # what is somewhat too large is refused by the scanner


async def scan_files(conf: Config, files: tuple[Path, ...], request: AnalysisRequest, as_json: bool) -> bool:
    """Print a line for each file, and return whether any got no decision. Raises ConfigError."""
    hide_log()
    scanner = Scanner(wiring.scanner_settings(conf, wiring.token(conf)))
    failed = False
    # Progress goes to the terminal; standard output has results only.
    hidden = len(files) < 2 or not sys.stderr.isatty()
    with click.progressbar(files, file=sys.stderr, hidden=hidden, label="scanning") as progress:
        for file in progress:
            try:
                with closing(as_mail(BytesIO(mail_file.read(file, _MAX_FILE)))) as mail:
                    result = await scan_stored(scanner, mail, request)
                if as_json:
                    wanted = {"changes": result.changes.to_dict()} if result.changes else {}
                    say_json({"file": str(file), **result.to_dict(), **wanted})
                else:
                    say(_shown(file, result))
            except (ScanError, Saturated, OSError) as exc:
                failed = True
                why = exc.strerror if isinstance(exc, OSError) and exc.strerror else exc
                say(f"{file}: no decision: {why}{next_step(exc, conf)}", err=True)
    scanner.close()
    return failed


def _shown(file: Path, result: AnalysisResult) -> str:
    tags = ",".join(result.tags) or "-"
    shown = f"{file}: {result.decision} verdict={result.verdict or '-'} tags={tags} ggrid={result.ggrid}"
    shown += f' why="{"; ".join(result.reasons)}"' if result.reasons else ""
    return f"{shown} changes={_changes(result.changes)}" if result.changes else shown


def _changes(changes: Changes) -> str:
    """Which fields would be added and removed, and whether subject and reply are the scanner's."""
    parts = [f"+{name}" for name, _ in changes.add] + [f"-{name}" for name, _ in changes.remove]
    parts += ["subject"] if changes.subject is not None else []
    return ",".join(parts + (["reply"] if changes.reply_text else []))
