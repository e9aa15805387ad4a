"""Local copies made anew from the service's stream: whole, or not at all.

Also a program, `python -m bridge.lists.fetch`: the daemon runs it beside itself with the job on
its standard input, because a million entries take seconds of a processor that mail must not wait
for, and memory that is given back for certain. `scanbridge lists refresh` does the same by itself;
a lock keeps the two apart. A stream that is cut is read again, and what cannot be had leaves the old
copy as it is.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
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
from bridge.lists.sync import reading_again
from bridge.matching import table
from bridge.matching.match import DOMAIN, NETWORK, SENDER
from bridge.matching.table import BadTable, TableMaker

KINDS = (SENDER, DOMAIN, NETWORK)  # what can be known of a mail at MAIL and RCPT
_LOWER_PRIORITY = 10

Problems = dict[str, ListsError]  # by list and scope


@dataclass(frozen=True, slots=True)
class Job:
    """What to fetch, and where it goes."""

    settings: ListSettings
    ca_file: Path | None  # what settings.tls was made of
    directory: Path
    wanted: tuple[Wanted, ...]  # copies of others are removed
    due: tuple[Wanted, ...]


async def refresh(job: Job) -> Problems:
    """Every copy that can be had; the others stay. Raises OSError when there is no place for them."""
    with _alone(job.directory):
        tidy(job.directory, job.wanted)
        problems = await _fetch_all(job)
        texts = {name: str(error) for name, error in problems.items()}
        _place(job.directory / REPORT, [json.dumps({"at": round(time.time(), 3), "problems": texts}).encode()])
    return problems


async def _fetch_all(job: Job) -> Problems:
    problems: Problems = {}
    async with ListClient(job.settings) as client:
        scopes = await scopes_of(client, job.wanted)
        for one in job.due:
            try:
                await _fetch(client, job.directory, one, kind_of(one, scopes))
            except ListsUnavailable as exc:
                problems[str(one)] = exc
                scopes = dict.fromkeys(scopes, exc)  # it has been tried long enough
            except ListsError as exc:
                problems[str(one)] = exc
    return problems


Scopes = Mapping[str | None, dict[str, ListFileInfo] | ListsError]


async def scopes_of(client: ListClient, wanted: Iterable[Wanted]) -> Scopes:
    """The lists of every scope, or why they are not known."""
    scopes: dict[str | None, dict[str, ListFileInfo] | ListsError] = {}
    failed: ListsUnavailable | None = None
    for tenant in dict.fromkeys(one.tenant for one in wanted):
        try:
            scopes[tenant] = failed or {info.name: info for info in await client.lists(tenant)}
        except ListsUnavailable as exc:
            failed = scopes[tenant] = exc
        except ListsError as exc:
            scopes[tenant] = exc
    return scopes


class NotForTheDoor(ListsError):
    """There is no such list, or its entries are nothing that can be matched here."""


def kind_of(one: Wanted, scopes: Scopes) -> str | None:
    """What the entries of a list are; None when other scopes have such a list, and this one has none.

    Raises ListsError.
    """
    infos = scopes[one.tenant]
    if isinstance(infos, ListsError):
        raise infos
    if one.name not in infos:
        if any(one.name in others for others in scopes.values() if isinstance(others, dict)):
            return None
        raise NotForTheDoor("the service has no list of this name")
    kind = one.kind or infos[one.name].category
    if kind not in KINDS:
        said = clean(infos[one.name].category) or "nothing"
        raise NotForTheDoor(
            f"the service calls its entries {said!r}, which cannot be matched at the door; "
            "if they are senders, domains or networks, say so in lists.kinds"
        )
    return kind


async def _fetch(client: ListClient, directory: Path, one: Wanted, kind: str | None) -> None:
    async def read() -> TableMaker:
        maker = TableMaker(kind or SENDER)
        if kind is not None:
            async with aclosing(client.entry_chunks(one.name, one.tenant)) as chunks:
                async for chunk in chunks:
                    for entry in chunk:
                        maker.add(entry.entry)
                    if maker.added > table.MAX_ENTRIES:
                        raise ListsMalformed(f"the list has more than {table.MAX_ENTRIES:,} entries")
        return maker

    path, old = directory / one.file_name, _old(directory / one.file_name)
    if kind is None and old is not None and old.count:
        raise NotForTheDoor("the service has no such list any more; its last copy stays in force")
    about, body = (await reading_again(read)).finish(one.name, one.tenant)
    if about == old:
        os.utime(path)
    else:
        _place(path, [table.head(about), *body])


def _old(path: Path) -> table.About | None:
    try:
        return table.Table.open(path).about
    except (BadTable, OSError):
        return None


def _place(path: Path, parts: Iterable[bytes]) -> None:
    """Written, fsynced, renamed, and the directory fsynced: after a power cut it is the old one or the new."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with unfinished.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            if os.geteuid() == 0:  # what root made must be the daemon's to read
                owner = path.parent.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
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
def _alone(directory: Path) -> Iterator[None]:
    """One refresh at a time; the other waits."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# The program


def dump(job: Job) -> bytes:
    """What the program reads. It holds the key: for a pipe, not for a command line."""
    settings = job.settings
    return json.dumps(
        {
            "url": settings.url,
            "api_key": settings.api_key,
            "ca_file": str(job.ca_file) if job.ca_file else None,
            "patience_s": settings.retry.patience_s,
            "directory": str(job.directory),
            "wanted": [[one.name, one.tenant, one.kind] for one in job.wanted],
            "due": [[one.name, one.tenant, one.kind] for one in job.due],
        }
    ).encode()


def _load(text: str) -> Job:
    given: dict[str, Any] = json.loads(text)
    tls = None
    if given["url"].startswith("https:"):
        tls = ssl.create_default_context(cafile=given["ca_file"])
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
    retry = RetrySettings(patience_s=given["patience_s"])
    return Job(
        ListSettings(given["url"], given["api_key"], tls, retry=retry),
        Path(given["ca_file"]) if given["ca_file"] else None,
        Path(given["directory"]),
        tuple(Wanted(*one) for one in given["wanted"]),
        tuple(Wanted(*one) for one in given["due"]),
    )


def main() -> int:
    """Exit code 0: the copies are fresh, 1: some are not (`refresh.json` has it), or there is no place for them."""
    logging.disable(logging.WARNING)
    with suppress(OSError):  # not everybody may
        os.nice(_LOWER_PRIORITY)
    try:
        return 1 if asyncio.run(refresh(_load(sys.stdin.read()))) else 0
    except OSError as exc:  # ssl.SSLError is one
        print(exc.strerror or type(exc).__name__, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
