"""Refreshes local copies from the service's stream: each copy completely, or not at all.

Also a program, `python -m bridge.lists.fetch`. The daemon runs it as a separate process, with the
job on standard input, because a million entries take seconds of CPU time that mail must not wait for,
and memory that only the end of a process returns for certain. `scanbridge lists refresh` does the same
in its own process; a lock prevents the two from running together. A stream that is cut off is read
again. If a list cannot be fetched, its old copy is kept.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import random
import ssl
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.api.lists import ListFileInfo
from bridge.lists.client import ListClient, ListSettings
from bridge.lists.copies import REPORT, Wanted, tidy
from bridge.lists.errors import ListsError, ListsMalformed, ListsUnavailable, clean
from bridge.lists.retry import RetrySettings
from bridge.lists.sync import with_rereads
from bridge.matching import table
from bridge.matching.match import DOMAIN, NETWORK, SENDER
from bridge.matching.table import BadTable, TableMaker
from bridge.runtime.early_signals import ignore_hangup
from bridge.runtime.suggestion import did_you_mean

# A list that does not end is named, and the next one is fetched, before the daemon ends the program after an hour.
_LONGEST_S = 1800.0
_dice = random.Random()  # noqa: S311 - nothing secret

KINDS = (SENDER, DOMAIN, NETWORK)  # all that MAIL and RCPT can be matched against
_LOWER_PRIORITY = 10

Problems = dict[str, ListsError]  # by list and scope


@dataclass(frozen=True, slots=True)
class Job:
    """What to fetch, and where to store it."""

    settings: ListSettings
    ca_file: Path | None  # the file that settings.tls was loaded from
    directory: Path
    wanted: tuple[Wanted, ...]  # copies of other lists are removed
    due: tuple[Wanted, ...]


async def refresh(job: Job) -> Problems:
    """Refresh every copy that can be fetched; the others are kept. Raises OSError if copies cannot be stored."""
    with _exclusive(job.directory):
        tidy(job.directory, job.wanted)
        problems = await _fetch_all(job)
        texts = {name: str(error) for name, error in problems.items()}
        _replace(job.directory / REPORT, [json.dumps({"at": round(time.time(), 3), "problems": texts}).encode()])
    return problems


async def _fetch_all(job: Job) -> Problems:
    """In random order: a list or tenant that always fails must not come before the same others each time."""
    problems: Problems = {}
    async with ListClient(job.settings) as client:
        scopes = await scopes_of(client, _in_random_order(job.wanted))
        for due in _in_random_order(job.due):
            try:
                await _fetch(client, job.directory, due, kind_of(due, scopes))
            except ListsUnavailable as exc:
                problems[str(due)] = exc
                scopes = dict.fromkeys(scopes, exc)  # the patience is used up: do not try the other lists
            except ListsError as exc:
                problems[str(due)] = exc
    return problems


def _in_random_order(wanted: tuple[Wanted, ...]) -> list[Wanted]:
    return _dice.sample(wanted, len(wanted))


Scopes = Mapping[str | None, dict[str, ListFileInfo] | ListsError]


async def scopes_of(client: ListClient, wanted: Iterable[Wanted]) -> Scopes:
    """The lists of every scope, or why they are not known."""
    scopes: dict[str | None, dict[str, ListFileInfo] | ListsError] = {}
    failed: ListsUnavailable | None = None
    for tenant in dict.fromkeys(item.tenant for item in wanted):
        try:
            scopes[tenant] = failed or {info.name: info for info in await client.lists(tenant)}
        except ListsUnavailable as exc:
            failed = scopes[tenant] = exc
        except ListsError as exc:
            scopes[tenant] = exc
    return scopes


class NotMatchable(ListsError):
    """There is no such list, or MAIL and RCPT cannot be matched against its entries."""


def kind_of(wanted: Wanted, scopes: Scopes) -> str | None:
    """What the entries of a list are; None if only other scopes have this list.

    Raises ListsError.
    """
    infos = scopes[wanted.tenant]
    if isinstance(infos, ListsError):
        raise infos
    if wanted.name not in infos:
        if any(wanted.name in others for others in scopes.values() if isinstance(others, dict)):
            return None
        raise NotMatchable(f"the service has no list with this name{did_you_mean(wanted.name, infos)}")
    kind = wanted.kind or infos[wanted.name].category
    if kind not in KINDS:
        category = clean(infos[wanted.name].category) or "none"
        raise NotMatchable(
            f"its category at the service is {category!r}, which cannot be matched at MAIL or RCPT; "
            "if its entries are senders, domains or networks, set lists.kinds"
        )
    return kind


async def _fetch(client: ListClient, directory: Path, wanted: Wanted, kind: str | None) -> None:
    async def read() -> TableMaker:
        maker = TableMaker(kind or SENDER)
        if kind is not None:
            async with aclosing(client.entry_chunks(wanted.name, wanted.tenant)) as chunks:
                async for chunk in chunks:
                    for entry in chunk:
                        maker.add(entry.entry)
                    if maker.added > table.MAX_ENTRIES:
                        raise ListsMalformed(f"the list has more than {table.MAX_ENTRIES:,} entries")
        return maker

    path, old = directory / wanted.file_name, _about(directory / wanted.file_name)
    if kind is None and old is not None and old.count:
        raise NotMatchable("the service no longer has this list; keeping its last copy")
    about, body = (await with_rereads(read)).finish(wanted.name, wanted.tenant)
    if about == old:
        os.utime(path)
    else:
        _replace(path, [table.head(about), *body])


def _about(path: Path) -> table.About | None:
    try:
        return table.Table.open(path).about
    except (BadTable, OSError):
        return None


def _replace(path: Path, parts: Iterable[bytes]) -> None:
    """Write, fsync, rename, and fsync the directory: after a power cut, the old file or the new one is there."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Only one refresh at a time; another one waits."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# The program


def dump(job: Job) -> bytes:
    """The program's input. It contains the key, so it is sent through a pipe and not on the command line."""
    settings = job.settings
    return json.dumps(
        {
            "urls": settings.urls,
            "api_key": settings.api_key,
            "ca_file": str(job.ca_file) if job.ca_file else None,
            "patience_s": settings.retry.patience_s,
            "directory": str(job.directory),
            "wanted": [[wanted.name, wanted.tenant, wanted.kind] for wanted in job.wanted],
            "due": [[wanted.name, wanted.tenant, wanted.kind] for wanted in job.due],
        }
    ).encode()


def _load(text: str) -> Job:
    given: dict[str, Any] = json.loads(text)
    tls = None
    url, *others = given["urls"]
    if any(each.startswith("https:") for each in given["urls"]):
        tls = ssl.create_default_context(cafile=given["ca_file"])
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
    retry = RetrySettings(patience_s=given["patience_s"])
    return Job(
        ListSettings(url, given["api_key"], tls, longest_s=_LONGEST_S, retry=retry, other_urls=tuple(others)),
        Path(given["ca_file"]) if given["ca_file"] else None,
        Path(given["directory"]),
        tuple(Wanted(*fields) for fields in given["wanted"]),
        tuple(Wanted(*fields) for fields in given["due"]),
    )


def main() -> int:
    """Exit code 0: the copies are fresh; 1: some are not (see `refresh.json`), or they cannot be stored."""
    ignore_hangup()
    logging.disable(logging.WARNING)
    with suppress(OSError):  # may be forbidden
        os.nice(_LOWER_PRIORITY)
    try:
        return 1 if asyncio.run(refresh(_load(sys.stdin.read()))) else 0
    except OSError as exc:  # includes ssl.SSLError
        print(exc.strerror or type(exc).__name__, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
