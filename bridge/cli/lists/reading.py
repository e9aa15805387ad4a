"""The work of `scanbridge lists show` and `entries`."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import click

from bridge.api.lists import ListFileInfo
from bridge.cli.lists.session import Session, naming, run
from bridge.cli.progress import meter
from bridge.cli.terminal import printing, say, say_json
from bridge.errors import BridgeError
from bridge.lists import files
from bridge.lists.client import ListClient
from bridge.lists.errors import clean
from bridge.lists.files import Format
from bridge.lists.sync import with_rereads
from bridge.runtime import output_file
from bridge.runtime.counted import counted
from bridge.runtime.visible_text import visible_lines


def show(session: Session) -> None:
    async def ask() -> list[ListFileInfo]:
        async with ListClient(session.settings) as client:
            return await client.lists(session.tenant)

    infos = run(ask())
    if session.as_json:
        say_json({"tenant": session.tenant, "lists": [info.to_dict() for info in infos]}, indent=2)
        return
    width = max((len(info.name) for info in infos), default=0)
    for info in infos:
        size = f"up to {info.max_size:,}" if info.max_size else "-"
        row = f"{info.name:{width}}  {info.category or '-':12} {size:17} {info.description or info.display_name}"
        say(clean(row))


def entries(session: Session, name: str, output: Path | None, kind: str | None) -> None:
    chosen = Format(kind) if kind else Format.JSONL if session.as_json else Format.TEXT
    if output is not None:
        chosen = Format(kind) if kind else files.format_of(output)
        count = run(naming(session, name, _save(session, name, output, chosen)))
        say(f"{output}: {counted(count, 'entry', 'entries')} of {name} of {session.scope}", err=True)
        return
    with printing(), click.open_file("-", "w", encoding="utf-8") as target:
        is_terminal = sys.stdout.isatty()
        write = (lambda text: target.write(visible_lines(text))) if is_terminal else target.write
        run(naming(session, name, _stream(session, name, write, chosen, hidden=is_terminal)))
        target.flush()


class OutputError(BridgeError):
    """The entries cannot be written."""


async def _stream(
    session: Session, name: str, write: Callable[[str], Any], kind: Format, *, hidden: bool = False
) -> int:
    count = 0
    write(files.header(kind))
    with meter(name, None, hidden=hidden) as advance:
        async with ListClient(session.settings) as client, aclosing(client.entry_chunks(name, session.tenant)) as all_:
            async for chunk in all_:
                write(files.show(chunk, kind))
                count += len(chunk)
                advance(len(chunk))
    return count


async def _save(session: Session, name: str, output: Path, kind: Format) -> int:
    """Retries an interrupted download; replaces the file only when it is complete."""
    try:
        if (fd := output_file.stream(output)) is not None:  # a pipe or a device, which must not be replaced
            with os.fdopen(fd, "w", encoding="utf-8", newline="") as target:
                return await _stream(session, name, target.write, kind)
        unfinished = output_file.beside(output, 0o644)
        try:
            count = await with_rereads(functools.partial(_save_once, session, name, unfinished, kind))
            unfinished.replace(output)
        finally:
            with suppress(OSError):
                unfinished.unlink()
    except OSError as exc:
        raise OutputError(f"{output}: cannot be written: {exc.strerror}") from exc
    return count


async def _save_once(session: Session, name: str, unfinished: Path, kind: Format) -> int:
    with output_file.emptied(unfinished) as target:
        return await _stream(session, name, target.write, kind)
