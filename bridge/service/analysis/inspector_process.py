"""The process that inspects large mail and archives. It cannot write to any file."""

from __future__ import annotations

import mmap
import resource
from typing import Any

from bridge.service.analysis.inspection import Inspection, Limits, inspect
from bridge.service.analysis.worker import Handler, serve


def begin(_setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return {}, lambda request, mail: _inspect(Limits.from_dict(request), mail).to_dict()


def _inspect(limits: Limits, mail: int) -> Inspection:
    try:
        with mmap.mmap(mail, 0, access=mmap.ACCESS_READ) as data:
            return inspect(data, limits)
    except (MemoryError, RecursionError):
        return Inspection(limits={"memory"})


if __name__ == "__main__":
    serve(begin)
