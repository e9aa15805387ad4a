"""Whether a sender or a client is on a list, independent of how the entries are stored.

A domain matches its subdomains, even in a sender list (`@example.org`). A network needs one lookup
for each prefix length in use. So a lookup takes as long in a list of ten entries as in one of a
million. Remote input is first converted to the spelling of entries (`bridge.mail.address`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache

from bridge.mail.address import comparable_address, domain_of, spellings_of_recipient
from bridge.runtime.ip import parse_ip

SENDER, DOMAIN, NETWORK = "sender", "domain", "network"

_MAX_LABELS = 127  # in 253 characters

Length = tuple[int, int]  # IP version and prefix length


def address(text: str) -> str:
    """An address in the spelling of entries; "" if it has none (the null sender, a name without a domain).

    Nothing is checked: a domain must match even if no entry could have this local part or this subdomain
    (quoted, with odd characters).
    """
    return comparable_address(text) if domain_of(text) else ""


def recipient_spellings(text: str) -> tuple[str, ...]:
    """The spellings of a recipient, each as `address` returns it: mail servers differ in which of them are the same."""
    return spellings_of_recipient(text) if domain_of(text) else ()


def find_address(category: str, words: Container[str], text: str) -> str | None:
    """The entry of a `sender` or `domain` list that matches this address; `text` comes from `address`."""
    if not text:
        return None
    names = domain_and_parents(text.rpartition("@")[2])
    if category == DOMAIN:
        return next((name for name in names if name in words), None)
    if text in words:
        return text
    return next((rule for name in names if (rule := "@" + name) in words), None)


def entries_about(category: str, text: str) -> Iterator[str]:
    """All entries that `find_address` looks up, the most specific first: for callers with several lookups."""
    if category == SENDER and text:
        yield text
    mark = "@" if category == SENDER else ""
    yield from (mark + name for name in domain_and_parents(text.rpartition("@")[2]))


def find_network(lengths: Iterable[Length], has: Callable[[int, int, int], bool], client: str) -> str | None:
    """The entry of a `network` list that contains this address; `has` takes version, length and first address."""
    ip = _ip(client)
    number, bits = int(ip), ip.max_prefixlen
    for version, length in lengths:
        if version == ip.version:
            first = number >> (bits - length) << (bits - length)
            if has(version, length, first):
                return f"{type(ip)(first)}/{length}"
    return None


_ip = lru_cache(1024)(parse_ip)  # the same clients connect again and again


def domain_and_parents(name: str) -> Iterator[str]:
    """a.b.c, b.c, c; of an impossible name, only as many as a name can have"""
    if name.count(".") >= _MAX_LABELS:
        name = name.split(".", name.count(".") - _MAX_LABELS + 1)[-1]
    while name:
        yield name
        name = name.partition(".")[2]
