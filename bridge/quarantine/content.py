"""A quarantined mail's content: its header section for people, its bytes for files and pipes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from bridge.mail.message import HEAD_LIMIT
from bridge.runtime import root_as_owner


def beginning(chunks: Iterable[bytes], limit: int, skip: int = 0) -> bytes:
    """The mail, or as much of it as the limit allows, without the first `skip` bytes."""
    return b"".join(between(chunks, skip, limit))


def between(chunks: Iterable[bytes], start: int, end: int) -> Iterator[bytes]:
    """A part of the mail, in chunks."""
    at = 0
    for chunk in chunks:
        if some := chunk[max(start - at, 0) : end - at]:
            yield some
        at += len(chunk)
        if at >= end:
            return


def header_section(content: bytes) -> str:
    """Including the fields that we added."""
    return content[:HEAD_LIMIT].partition(b"\r\n\r\n")[0].decode("utf-8", "replace")


def copy(chunks: Iterable[bytes], target: BinaryIO) -> None:
    for chunk in chunks:
        target.write(chunk)
    target.flush()


def copy_into(chunks: Iterable[bytes], target: Path) -> None:
    """Creates a new file, complete or not at all; never overwrites one."""
    with root_as_owner.as_operator():
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        try:
            copy(chunks, file)
        except BaseException:
            with root_as_owner.as_operator():
                target.unlink(missing_ok=True)
            raise


def copy_all_into(files: Iterable[tuple[Iterable[bytes], Path]]) -> None:
    """Creates all of these files, or none of them."""
    made: list[Path] = []
    try:
        for chunks, target in files:
            copy_into(chunks, target)
            made.append(target)
    except BaseException:
        with root_as_owner.as_operator():
            for target in made:
                target.unlink(missing_ok=True)
        raise
