"""A quarantine with real mail in it, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from bridge.cli.replay.command import replay
from bridge.testing import answer, result
from tests.daemon.process_kit import environment
from tests.quarantine.quarantine_kit import Desk
from tests.terminal_kit import on_terminal

DELIVER = answer(200, result("deliver", verdict="clean", tags=[]))
KEPT = {"decision": "quarantine", "verdict": "test", "tags": ["malware:eicar", "spam"], "problem": None}


@dataclass
class Replays:
    """Runs `scanbridge replay` with the configuration of a desk."""

    desk: Desk

    def command(self, *args: str | Path) -> list[str]:
        return [sys.executable, "-m", "bridge", "replay", "-c", str(self.desk.config), *map(str, args)]

    def run(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        """In this process, which is much faster."""
        done = CliRunner().invoke(replay, self.command(*args)[4:])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(self.command(*args), done.exit_code, done.stdout, done.stderr)

    def json(self, *args: str | Path) -> tuple[int, dict[str, Any]]:
        done = self.run(*args, "--json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def on_terminal(self, *args: str | Path, columns: int = 80) -> tuple[int, str]:
        """Standard output and standard error are a terminal of this width."""
        return on_terminal(self.command(*args)[3:], environment(TERM="xterm"), columns)


def everything_in(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Each file below it, with its modification time and content; without SQLite's own files."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "sqlite" not in path.name
    }
