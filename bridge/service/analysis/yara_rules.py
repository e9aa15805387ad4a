"""YARA rules of the operator's own: compiled once, when the service starts or reloads, and matched in the processes
that inspect mail.

Rules see the mail as it is, each of its parts decoded, and each file in its archives. `yara-python` is an optional
dependency and is imported only if there are rules. If matching takes too long, the mail counts as not examined by YARA;
the inspection itself is not affected.
"""

from __future__ import annotations

import base64
import io
import math
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.errors import ConfigError
from bridge.runtime import whole_file

if TYPE_CHECKING:  # the processes that inspect mail do not need the settings
    from bridge.service.engine_settings import Yara

INSTALL = "yara-python is not installed; run: pip install 'scanbridge[yara]'"
MAX_TAGS = 1000  # of each kind; a mail that matches more rules counts as not examined completely
_EXTERNALS = ("filename", "extension")  # variables that public rule sets expect
_PLACE = re.compile(r"(.*)\((\d+)\): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class YaraAnswer:
    tags: frozenset[str]
    score: float
    is_complete: bool

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> YaraAnswer:
        """Raises ValueError: the process may have been taken over by the mail."""
        score = float(value["score"])
        if not math.isfinite(score) or len(value["tags"]) > 2 * MAX_TAGS:
            raise ValueError("not an answer from YARA")
        return cls(frozenset(map(str, value["tags"])), score, bool(value["is_complete"]))


def compiled_setup(settings: Yara) -> dict[str, Any]:
    """The rules, as `Matcher` needs them. Raises ConfigError with the file and line of every error."""
    try:
        import yara  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ConfigError(f"analyzers.yara: {INSTALL}") from None
    files = _files(settings)
    try:
        rules = _compile(yara, files)
    except yara.Error:
        raise ConfigError("\n".join(_mistakes(yara, files))) from None
    compiled = io.BytesIO()
    rules.save(file=compiled)
    encoded = base64.b64encode(compiled.getvalue()).decode()
    return {"rules": encoded, "timeout_s": settings.timeout, "score": settings.score}


def _files(settings: Yara) -> list[str]:
    found: list[str] = []
    for pattern in settings.rules:
        path = str(settings.directory / pattern)
        files = sorted(glob(path)) if "*" in pattern else [path]  # noqa: PTH207 (a pattern may be absolute)
        if not files:
            raise ConfigError(f"analyzers.yara.rules: no file matches {pattern}")
        found += files
    for file in found:
        try:
            whole_file.refuse_endless(file)
        except OSError as exc:
            raise ConfigError(f"analyzers.yara.rules: {file} cannot be read: {exc.strerror}") from None
    return list(dict.fromkeys(found))


def _compile(yara: Any, files: list[str]) -> Any:
    return yara.compile(filepaths={file: file for file in files}, externals=dict.fromkeys(_EXTERNALS, ""))


def _mistakes(yara: Any, files: list[str]) -> list[str]:
    """The first error in each file; if all are compiled together, YARA reports only one."""
    found = []
    for file in files:
        try:
            _compile(yara, [file])
        except yara.Error as exc:
            found.append(_located(str(exc), file))
    return found or ["analyzers.yara.rules: the files cannot be compiled together"]


def _located(text: str, file: str) -> str:
    match = _PLACE.fullmatch(text)
    if not match:
        return f"{file}: {text}"
    name, line, problem = match.groups()
    if line == "0":  # the end of the file
        line = str(len(Path(name).read_bytes().splitlines()))
    return f"{name}:{line}: {problem}"


class Matcher:
    """Matches the objects of one mail after another, each mail within its time."""

    def __init__(self, setup: dict[str, Any]) -> None:
        import yara

        self._rules = yara.load(file=io.BytesIO(base64.b64decode(setup["rules"])))
        self._error = yara.Error
        self._timeout_s = setup["timeout_s"]
        self._score = setup["score"]
        self.begin()

    def begin(self) -> None:
        """The next mail."""
        self._deadline = time.monotonic() + self._timeout_s
        self._is_complete = True
        self._found: dict[str, float] = {}  # scores of the rules that matched
        self._malware: set[str] = set()

    def see(self, content: Any, names: Collection[str]) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            self._is_complete = False
            return
        name = min(names, default="")
        externals = {"filename": name, "extension": name.rpartition(".")[2].lower() if "." in name else ""}
        try:
            # The library counts whole seconds only. `fast`: we do not ask where a string was found.
            matches = self._rules.match(data=content, externals=externals, timeout=math.ceil(left_s), fast=True)
        except (self._error, ValueError, UnicodeError):  # a timeout is an Error too
            self._is_complete = False
            return
        for match in matches:
            self._found[match.rule] = _number(match.meta.get("score"), self._score)
            if "malware" in match.tags:
                self._malware.add(match.rule)

    def answer(self, *, saw_all: bool) -> dict[str, Any]:
        """For `YaraAnswer.from_dict`. `saw_all`: the inspection has reached no limit."""
        tags = [f"yara:{rule}" for rule in sorted(self._found)[:MAX_TAGS]]
        tags += [f"malware:yara.{rule.lower()}" for rule in sorted(self._malware)[:MAX_TAGS]]
        is_complete = self._is_complete and saw_all and len(self._found) <= MAX_TAGS
        return {"tags": tags, "score": sum(self._found.values()), "is_complete": is_complete}


def _number(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return default
    return number if math.isfinite(number) else default
