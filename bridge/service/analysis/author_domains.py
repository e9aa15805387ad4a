"""The domains of a mail's authors: all that a mail program may show a reader as the sender's.

If there is no From, programs show Sender. If From is so malformed that programs may show different domains, or cannot
be read within the limits, the result says so: the mail is in doubt, whatever the domains that were found say about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bridge.matching import spelling
from bridge.mime import authors
from bridge.mime.shown_addresses import host_of
from bridge.mime.structure import Bounds, TooMuch, walk

MAX_AUTHORS = 4  # domains; regular mail has one
_IP = re.compile("[0-9.]+")  # or the end of one


@dataclass(frozen=True, slots=True)
class AuthorDomains:
    names: frozenset[str] = frozenset()  # "" for an author without a domain (`root`), who proves nothing
    is_clear: bool = True  # False: a reader may see another domain


def author_domains(content: bytes, bounds: Bounds) -> AuthorDomains:
    try:
        mail = next(walk(content, bounds, finds_files=False))
    except TooMuch:
        return AuthorDomains(is_clear=False)
    values = [value for value in mail.values("from") if value.strip()] or mail.values("sender")
    found: set[str] = set()
    is_clear = True
    for value in values:
        read = authors.read(value)
        hosts = [host_of(address) for address in (*read.authors, *read.others)]
        names = [_spelled(host) for host in hosts]
        found |= set(names)
        is_clear = is_clear and not read.others and all(map(_is_whole, names, hosts))
        if len(found) > MAX_AUTHORS:
            return AuthorDomains(is_clear=False)
    return AuthorDomains(frozenset(found), is_clear)


def _spelled(host: str) -> str:
    """The domain, or its longest parent that is one: a reader of `-.bank.example` sees bank.example."""
    name = host
    while name and not _IP.fullmatch(name) and (name is host or "." in name):
        try:
            return spelling.domain(name)
        except ValueError:
            name = name.partition(".")[2]
    return ""


def _is_whole(name: str, host: str) -> bool:
    """Whether nothing was left out that has to do with DNS: `b@!` has no domain, and no reader sees one."""
    return name.count(".") == host.count(".") or not name
