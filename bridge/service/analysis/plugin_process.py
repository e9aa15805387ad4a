"""The process in which a custom synchronous analyzer runs.

The operator installed it, so it is not hostile, but it may be faulty: it may raise, hang, use up
memory or end the process, and then one mail gets no answer. It logs to the service's own log.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.service.analysis.engine import Findings, LimitReached, Mail
from bridge.service.analysis.worker import Answer, Handler, serve

BLOCK = 256 * 1024
GRACE_S = 5


def begin(setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    """Create the analyzer and report whether it is asynchronous (it then runs elsewhere), or why creation failed."""
    try:
        analyzer = EntryPoint(setup["name"], setup["value"], setup["group"]).load()(setup["options"])
        is_async = inspect.iscoroutinefunction(analyzer.analyze)
    except Exception as exc:
        return {"failed": type(exc).__name__}, _no_analyzer
    # If the parent has died and cannot kill this process, the kernel's alarm does, even in the middle of C code.
    alarm_s = math.ceil(setup["timeout_s"]) + GRACE_S
    return {"async": is_async}, lambda request, mail: (_timed(analyzer, request, mail, alarm_s), b"")


def _no_analyzer(_request: dict[str, Any], _mail: int) -> Answer:
    return {"failed": "absent"}, b""


def _timed(analyzer: Any, request: dict[str, Any], mail: int, alarm_s: int) -> dict[str, Any]:
    signal.alarm(alarm_s)
    try:
        return _analyze(analyzer, request, mail)
    finally:
        signal.alarm(0)


def _analyze(analyzer: Any, request: dict[str, Any], mail: int) -> dict[str, Any]:
    try:
        found = analyzer.analyze(_mail(request, mail))
    except LimitReached:
        return {"limit": "own"}
    except MemoryError:
        return {"limit": "memory"}
    except Exception as exc:
        return {"failed": type(exc).__name__}
    if not isinstance(found, Findings):
        return {"failed": "the result is not a Findings object"}
    return {"tags": list(found.tags), "score": found.score}


class _MailFile:
    """A mail in a file. Other processes may be reading it too, so the file position must not move."""

    def __init__(self, file: int) -> None:
        self._file = file

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def chunks(self) -> Iterator[bytes]:
        offset = 0
        while block := os.pread(self._file, BLOCK, offset):
            offset += len(block)
            yield block


def _mail(request: dict[str, Any], file: int) -> Mail:
    border = request["border"]
    border["envelope_recipients"] = tuple(border["envelope_recipients"])
    return Mail(request["ggrid"], AnalysisRequest(BorderMtaData(**border), request["tenant_uid"]), _MailFile(file))


if __name__ == "__main__":
    serve(begin)
