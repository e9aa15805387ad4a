"""The process that inspects large mail and archives. It cannot write to any file."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from bridge.mime.rendition import as_mail
from bridge.service.analysis.content import archives, file_types
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.parts import Collector
from bridge.service.analysis.worker import Answer, Handler, serve
from bridge.service.analysis.yara_rules import Matcher

MAX_OBJECTS = 32 * 1024 * 1024  # bytes; they are part of the answer


def begin(setup: dict[str, Any]) -> tuple[dict[str, Any], Handler]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    matcher = Matcher(setup["yara"]) if "yara" in setup else None
    return {}, lambda request, mail: _inspect(Limits.from_dict(request), mail, matcher)


def _inspect(limits: Limits, mail: int, matcher: Matcher | None) -> Answer:
    objects = _Objects(limits, matcher)
    try:
        with _opened(mail) as data:
            if matcher:
                matcher.begin()
                matcher.see(data, ())
            found = inspect(data, limits, objects.add if objects.are_wanted else None)
        return _answer(found, objects, matcher)
    except (MemoryError, RecursionError):
        return Inspection(limits={"memory"}).to_dict(), b""


@contextmanager
def _opened(mail: int) -> Iterator[bytes | mmap.mmap]:
    if not os.fstat(mail).st_size:  # an empty file cannot be mapped
        yield b""
        return
    with mmap.mmap(mail, 0, access=mmap.ACCESS_READ) as data:
        yield data


def _answer(found: Inspection, objects: _Objects, matcher: Matcher | None) -> Answer:
    chosen = objects.all if any(tag.startswith("mime:ambiguous:") for tag in found.tags) else objects.opaque
    if chosen.is_full or objects.parts.is_full:
        found.limits.add("objects")
    value: dict[str, Any] = dict(found.to_dict())
    content = as_mail(chosen.kept) if chosen.kept else b""
    if objects.keeps_parts:
        value["parts"] = objects.parts.described
        content = b"".join([*objects.parts.contents, content])
    if matcher:
        value["yara"] = matcher.answer(saw_all=not found.limits)
    return value, content


class _Objects:
    """The objects of a mail that an engine should see: all, and those in containers that it may not open."""

    def __init__(self, limits: Limits, matcher: Matcher | None) -> None:
        self.all, self.opaque, self.parts = _Kept(), _Kept(), Collector()
        self.keeps_parts = limits.keep_parts
        self.are_wanted = limits.keep_objects or limits.keep_parts or matcher is not None
        self._keeps_objects = limits.keep_objects
        self._matcher = matcher

    def add(self, content: bytes, names: Collection[str], is_opaque: bool, content_type: str | None) -> None:
        if self._matcher:
            self._matcher.see(content, names)
        if content_type is None:  # a file in an archive, which engines open themselves
            return
        if self.keeps_parts:
            self.parts.add(content, names, content_type)
        if self._keeps_objects and (archives.kind_of(content) or not file_types.is_noise(content)):
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
