"""The process that inspects large mail and archives. It cannot write to any file."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Collection
from typing import Any

from bridge.mime.rendition import as_mail
from bridge.service.analysis import archives, file_types
from bridge.service.analysis.inspection import Inspection, Limits, inspect
from bridge.service.analysis.worker import Answer, Handler, serve

MAX_OBJECTS = 32 * 1024 * 1024  # bytes; they are part of the answer


def begin(_setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return {}, lambda request, mail: _inspect(Limits.from_dict(request), mail)


def _inspect(limits: Limits, mail: int) -> Answer:
    objects = _Objects()
    try:
        with mmap.mmap(mail, 0, access=mmap.ACCESS_READ) as data:
            found = inspect(data, limits, objects.add if limits.keep_objects else None)
        chosen = objects.all if any(tag.startswith("mime:ambiguous:") for tag in found.tags) else objects.opaque
        if chosen.is_full:
            found.limits.add("objects")
        return found.to_dict(), as_mail(chosen.kept) if chosen.kept else b""
    except (MemoryError, RecursionError):
        return Inspection(limits={"memory"}).to_dict(), b""


class _Objects:
    """The objects of a mail that an engine should see: all, and those in containers that it may not open."""

    def __init__(self) -> None:
        self.all, self.opaque = _Kept(), _Kept()

    def add(self, content: bytes, _names: Collection[str], is_opaque: bool) -> None:
        if archives.kind_of(content) or not file_types.is_noise(content):
            self.all.add(content)
            if is_opaque:
                self.opaque.add(content)


class _Kept:
    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self._size = 0
        self.is_full = False

    def add(self, content: bytes) -> None:
        self._size += len(content)
        self.is_full = self._size > MAX_OBJECTS
        if not self.is_full:
            self.kept.append(content)


if __name__ == "__main__":
    serve(begin)
