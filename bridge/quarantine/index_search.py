"""A search of the quarantine's index: what can be asked for, and the conditions on the tables that express it.

What is compared is normalised as the columns are (`index_tables`). If this is wrong, a search misses a mail or shows
one that does not match; with `tenants`, one of a tenant that the user may not see.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, or_, select

from bridge.mail.address import comparable_address, comparable_domain
from bridge.quarantine.index_tables import indexed_text, ip_number, mails, search_text, tags


@dataclass(frozen=True, slots=True)
class Query:
    """A search; all given fields must match. `*` matches anything; a pattern with it must match the whole value.

    Without `*`, an address or a tag matches as a whole, `@example.org` matches the domain; other text matches anywhere.
    """

    recipient: str = ""
    sender: str | None = None  # "": the null sender
    subject: str = ""
    tag: str = ""
    tenant: str = ""
    decision: str = ""
    listener: str = ""
    state: str = ""
    client: str = ""  # an IP address or network
    since: float | None = None  # Unix time
    until: float | None = None
    tenants: frozenset[str] | None = None  # one of these; None: all mail
    before: tuple[float, str] | None = None  # time and id of the last mail of the previous page
    limit: int = 0  # 0: no limit


def conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    """The cheapest conditions come first: SQLite evaluates them in this order."""
    if query.tenants is not None:
        yield mails.c.tenant.in_(sorted(map(search_text, query.tenants - {""})))
    for name in ("tenant", "decision", "listener", "state"):
        if wanted := getattr(query, name):
            yield mails.c[name] == search_text(wanted)
    if query.since is not None:
        yield mails.c.kept_at >= query.since
    if query.until is not None:
        yield mails.c.kept_at < query.until
    if query.before is not None:
        at, mail_id = query.before
        yield mails.c.kept_at <= at
        yield or_(mails.c.kept_at < at, mails.c.id < mail_id)
    if query.client:
        network = ipaddress.ip_network(query.client, strict=False)
        first, last = (f"{ip_number(ip):032x}" for ip in (network.network_address, network.broadcast_address))
        yield mails.c.client.between(first, last)
    if query.sender is not None:
        yield is_address(mails.c.sender, query.sender) if query.sender else mails.c.sender == ""
    if query.subject:
        yield mails.c.subject.like(_pattern(query.subject), escape="\\")
    if query.tag:
        yield from _of_tag(query.tag)


def _of_tag(wanted: str) -> Iterator[ColumnElement[bool]]:
    pattern = _pattern(wanted, whole=True)
    yield mails.c.tags.like(f"%\n{pattern}\n%", escape="\\")
    if "*" in wanted:  # which may match the end of one tag and the beginning of another
        is_tag = tags.c.tag.like(pattern, escape="\\")
        yield select(tags.c.id).where(tags.c.place == mails.c.place, tags.c.id == mails.c.id, is_tag).exists()


def is_address(column: Column[str], wanted: str) -> ColumnElement[bool]:
    """A whole address or `@domain` matches exactly, in its normal form; other text matches as given, or as a domain."""
    local, at, domain = wanted.rpartition("@")
    if at and domain and "*" not in wanted:
        # The column ends with the form of the address that is compared, after a space if it came in another spelling.
        if not local:
            return column.like(f"%@{_escaped(comparable_domain(domain))}", escape="\\")
        address = search_text(comparable_address(wanted))
        spellings = sorted({address, indexed_text(address)})
        return or_(column.in_(spellings), column.like(f"% {_escaped(address)}", escape="\\"))
    texts = dict.fromkeys((wanted, f"{local}{at}{comparable_domain(domain)}"))
    return or_(*(column.like(_pattern(text), escape="\\") for text in texts))


def _pattern(wanted: str, whole: bool = False) -> str:
    """A LIKE pattern: `*` matches anything; text without `*` matches anywhere, unless `whole`."""
    pattern = _escaped(wanted)
    return pattern.replace("*", "%") if whole or "*" in pattern else f"%{pattern}%"


def _escaped(wanted: str) -> str:
    """Normalised, for LIKE with the escape character `\\`."""
    pattern = search_text(wanted)
    for special in "\\%_":
        pattern = pattern.replace(special, "\\" + special)
    return pattern
