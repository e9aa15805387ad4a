"""The process that inspects large mail and archives. It cannot write to any file."""

from __future__ import annotations

import gzip
import mmap
import os
import resource
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from bridge.mime.duplicates import digest
from bridge.mime.rendition import as_mail
from bridge.service.analysis.content import archives, file_types
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.parts import Collector
from bridge.service.analysis.worker import Answer, Handler, serve
from bridge.service.analysis.yara_rules import Matcher

MAX_OBJECTS = 36 * 1024 * 1024  # bytes; they are part of the answer, and as a mail, they fit into 50 MiB


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
    kept, is_full = objects.chosen(is_ambiguous=any(tag.startswith("mime:ambiguous:") for tag in found.tags))
    if is_full or objects.parts.is_full:
        found.limits.add("objects")
    value: dict[str, Any] = dict(found.to_dict())
    content = as_mail(kept) if kept else b""
    if objects.keeps_parts:
        value["parts"] = objects.parts.described
        content = b"".join([*objects.parts.contents, content])
    if matcher:
        value["yara"] = matcher.answer(saw_all=not found.limits)
    return value, content


class _Objects:
    """The objects of a mail that an engine should see: all, or those in containers that it may not open.

    In either case, it gets those that only some engines unpack.
    """

    def __init__(self, limits: Limits, matcher: Matcher | None) -> None:
        self.parts = Collector()
        self.keeps_parts = limits.keep_parts
        self.are_wanted = limits.keep_objects or limits.keep_parts or matcher is not None
        self._all, self._opaque, self._seldom_read = _Kept(), _Kept(may_pack=True), _Kept(may_pack=True)
        self._keeps_objects = limits.keep_objects
        self._matcher = matcher

    def add(self, content: bytes, names: Collection[str], is_opaque: bool, content_type: str | None) -> None:
        if self._matcher:
            self._matcher.see(content, names)
        if self.keeps_parts and content_type is not None:
            self.parts.add(content, names, content_type)
        if content_type is None and not is_opaque:  # a file in an archive, which engines open themselves
            return
        if not self._keeps_objects or (not archives.kind_of(content) and file_types.is_noise(content)):
            return
        if content_type is None:
            self._seldom_read.add(content)
            return
        self._all.add(content)
        if is_opaque:
            self._opaque.add(content)

    def chosen(self, *, is_ambiguous: bool) -> tuple[list[bytes], bool]:
        """The objects that engines get, and whether some are missing."""
        first = self._all if is_ambiguous else self._opaque
        kept = [*first.kept, *self._seldom_read.kept]
        size, is_full = sum(map(len, kept)), first.is_full or self._seldom_read.is_full
        if size > MAX_OBJECTS:
            kept = list(map(_packed, kept))
            size = sum(map(len, kept))
        while size > MAX_OBJECTS:
            size, is_full = size - len(kept.pop()), True
        return kept, is_full


class _Kept:
    """Each object once. What archives yield was compressed before, and may be so again if it is too large."""

    def __init__(self, *, may_pack: bool = False) -> None:
        self.kept: list[bytes] = []
        self.is_full = False
        self._may_pack = may_pack
        self._is_packed = False
        self._seen: set[bytes] = set()
        self._size = 0

    def add(self, content: bytes) -> None:
        if self.is_full or (key := digest(content)) in self._seen:
            return
        self._seen.add(key)
        self._keep(_packed(content) if self._is_packed else content)
        if self._size > MAX_OBJECTS and self._may_pack and not self._is_packed:
            self._is_packed, self._size, raw = True, 0, self.kept
            self.kept = []
            for each in raw:
                self._keep(_packed(each))
        while self._size > MAX_OBJECTS:
            self._size, self.is_full = self._size - len(self.kept.pop()), True

    def _keep(self, content: bytes) -> None:
        self._size += len(content)
        self.kept.append(content)


def _packed(content: bytes) -> bytes:
    """Engines open this format, and it takes a fraction of the time that it takes to unpack an archive."""
    return gzip.compress(content, compresslevel=1, mtime=0)


if __name__ == "__main__":
    serve(begin)
