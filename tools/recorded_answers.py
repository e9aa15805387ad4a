"""The answers of other engines, kept in a file: SpamAssassin takes a tenth of a second or more for one.

Each answer is a line of JSON, written as soon as it is there. So a run that was interrupted continues where it was, and
the same answers can be combined in another way without asking again. A line names the version of the engine and the
content of the mail; a mail that an engine did not answer is asked about again in the next run.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

from tools import evaluation_engines as engines
from tools.mail_corpus import CorpusMail, envelope_from

REPORT_S = 15.0  # between two lines about the progress


class RecordedAnswers:
    """`path` None: kept in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._said: dict[tuple[str, str], engines.Said] = {}
        self._digests: dict[Path, str] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:  # the run was interrupted while it wrote this line
                    continue
                self._said[entry["engine"], entry["mail"]] = entry["said"]

    def of(self, kind: type[engines.Engine], mail: CorpusMail) -> engines.Said | None:
        if mail.path not in self._digests:
            self._digests[mail.path] = _digest(mail.content())
        return self._said.get((engines.version_of(kind), self._digests[mail.path]))

    def ask(self, kind: type[engines.Engine], mails: Sequence[CorpusMail]) -> None:
        """Asks about the mails of which this engine has said nothing yet."""
        missing = [mail for mail in mails if self.of(kind, mail) is None]
        if not missing:
            return
        missing.sort(key=lambda mail: self._digests[mail.path])  # what an interrupted run has asked is a fair sample
        print(
            f"{kind.name}: {len(mails) - len(missing)} answers are recorded, {len(missing)} are missing",
            file=sys.stderr,
        )
        with engines.running(kind) as engine, ThreadPoolExecutor(engine.at_once) as pool:
            progress = _Progress(kind.name, len(missing))
            for digest, said in pool.map(lambda mail: _asked(engine, mail), missing):
                progress.step()
                if said is not None:
                    self._keep(engines.version_of(kind), digest, said)

    def _keep(self, engine: str, digest: str, said: engines.Said) -> None:
        self._said[engine, digest] = said
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                _write(file, {"engine": engine, "mail": digest, "said": said})


def _write(file: TextIO, entry: dict[str, object]) -> None:
    file.write(json.dumps(entry, separators=(",", ":")) + "\n")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _asked(engine: engines.Engine, mail: CorpusMail) -> tuple[str, engines.Said | None]:
    content = mail.content()
    try:
        return _digest(content), engine.ask(content, envelope_from(content))
    except (OSError, ValueError, KeyError) as exc:
        print(f"{engine.name}: {mail.path}: {type(exc).__name__}", file=sys.stderr)
        return _digest(content), None


class _Progress:
    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0
        self._start = self._said_at = time.monotonic()

    def step(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._said_at < REPORT_S and self._done < self._total:
            return
        self._said_at = now
        left = (now - self._start) / self._done * (self._total - self._done)
        print(f"{self._name}: {self._done} of {self._total} mails, {left / 60:.0f} min left", file=sys.stderr)
