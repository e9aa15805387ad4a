"""The process in which somebody's plain (synchronous) analyzer looks at mail.

Trusted to be what the operator installed, not to be right: it may raise, hang, eat memory or end
the process, and costs one mail the answer. What it logs goes where the service's own log goes.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.service.analysis.engine import Findings, LimitReached, Mail
from bridge.service.analysis.worker import Handler, serve

BLOCK = 256 * 1024
GRACE_S = 5


def begin(setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    """Make the analyzer; say that it waits (`async`: it then runs elsewhere), or why it cannot be made."""
    found = list(entry_points(group=setup["group"], name=setup["name"]))
    if not found:
        return {"failed": "not installed"}, _none
    try:
        analyzer = found[0].load()(setup["options"])
        waits = inspect.iscoroutinefunction(analyzer.analyze)
    except Exception as exc:
        return {"failed": type(exc).__name__}, _none
    # If our parent is gone and cannot kill us, the kernel does: also inside of somebody's C code.
    alarm_s = math.ceil(setup["timeout_s"]) + GRACE_S
    return {"async": waits}, lambda request, mail: _timed(analyzer, request, mail, alarm_s)


def _none(_request: dict[str, Any], _mail: int) -> dict[str, Any]:
    return {"failed": "absent"}


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
        return {"failed": "not Findings"}
    return {"tags": list(found.tags), "score": found.score}


class _File:
    """A mail in a file, which other processes may be reading too: no position is moved."""

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
    return Mail(request["ggrid"], AnalysisRequest(BorderMtaData(**border), request["tenant_uid"]), _File(file))


if __name__ == "__main__":
    serve(begin)
