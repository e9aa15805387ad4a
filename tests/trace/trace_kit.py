"""A bridge's configuration in a file, and `scanbridge trace` with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from bridge.cli.trace.command import trace
from bridge.runtime import yaml_file
from bridge.testing import RunningBridge, configuration

MAIL = b"From: a@client.example\r\nSubject: x\r\n\r\nhello\r\n"


class Traces:
    """Traces mail through the configuration of a running bridge."""

    def __init__(
        self, directory: Path, bridge: RunningBridge, config: dict[str, Any] | None = None, **listener: Any
    ) -> None:
        self.directory = directory
        data = configuration(directory, bridge.scanner, bridge.next_hop, config, **listener)
        self.file = directory / "trace.yml"
        self.file.write_text(yaml_file.dump(data))

    def run(self, *args: str | Path, content: bytes = MAIL) -> subprocess.CompletedProcess[str]:
        mail = self.directory / "mail.eml"
        mail.write_bytes(content)
        given = ["-c", str(self.file), str(mail), *map(str, args)]
        done = CliRunner().invoke(trace, given)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(given, done.exit_code, done.stdout, done.stderr)

    def steps(self, *args: str | Path, content: bytes = MAIL) -> dict[str, list[dict[str, Any]]]:
        """By their names."""
        done = self.run(*args, "--json", content=content)
        assert done.returncode == 0, done.stderr
        found: dict[str, list[dict[str, Any]]] = {}
        for step in json.loads(done.stdout)["steps"]:
            found.setdefault(step["step"], []).append(step)
        return found
