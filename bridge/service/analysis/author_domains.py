"""The domains of a mail's authors: all that a mail program may show a reader as the sender's.

If there is no From, programs show Sender. If From is so malformed that programs may show different domains, or cannot
be read within the limits, the result says so: the mail is in doubt, whatever the domains that were found say about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from bridge.matching import spelling
from bridge.mime import authors
from bridge.mime.shown_addresses import host_of
from bridge.mime.structure import Bounds, TooMuch, walk
from bridge.service.analysis.dmarc import MAX_LABELS

MAX_AUTHORS = 4  # domains; regular mail has one
MAX_HOSTS = 16  # as they are written; those that are not domains take longest
MAX_FIELDS = 16 * 1024  # characters of all From fields
_IP = re.compile("[0-9.]+")  # or the end of one


@dataclass(frozen=True, slots=True)
class AuthorDomains:
    names: frozenset[str] = frozenset()  # "" for an author without a domain (`root`), who proves nothing
    is_clear: bool = True  # False: a reader may see another domain
    named: frozenset[str] = frozenset()  # those of `names` that are only a name, by the standard


def author_domains(content: bytes, bounds: Bounds) -> AuthorDomains:
    try:
        mail = next(walk(content, bounds, finds_files=False))
    except TooMuch:
        return AuthorDomains(is_clear=False)
    values = [value for value in mail.values("from") if value.strip()] or mail.values("sender")
    if sum(map(len, values)) > MAX_FIELDS:
        return AuthorDomains(is_clear=False)
    read = list(map(authors.read, values))
    seen = {host_of(address) for each in read for address in (*each.authors, *each.others)}
    hosts = seen | {host_of(address) for each in read for address in each.named}
    names = _all_spelled(hosts) if len(hosts) <= MAX_HOSTS else {}
    found = frozenset(names.values())
    if len(names) < len(hosts) or len(found) > MAX_AUTHORS:
        return AuthorDomains(is_clear=False)
    is_clear = not any(each.others for each in read) and all(_is_whole(name, host) for host, name in names.items())
    return AuthorDomains(found, is_clear, found.difference(names[host] for host in seen))


def _all_spelled(hosts: Iterable[str]) -> dict[str, str]:
    """The domain of each host, until there is one domain too many."""
    names: dict[str, str] = {}
    for host in hosts:
        if len(set(names.values())) > MAX_AUTHORS:
            break
        names[host] = _spelled(host)
    return names


def _spelled(host: str) -> str:
    """The domain, or its longest parent that is one: a reader of `-.bank.example` sees bank.example."""
    labels = host.split(".")
    parents = (".".join(labels[start:]) for start in range(max(1, len(labels) - MAX_LABELS), len(labels) - 1))
    for name in (host, *parents):
        if not name or _IP.fullmatch(name):
            break
        with suppress(ValueError):
            return spelling.domain(name)
    return ""


def _is_whole(name: str, host: str) -> bool:
    """Whether nothing was left out that has to do with DNS: `b@!` has no domain, and no reader sees one."""
    return name.count(".") == host.count(".") or not name
