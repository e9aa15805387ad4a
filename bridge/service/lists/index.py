"""The lists in memory: mail is matched against them without a database query.

Only sets and dictionaries, so a lookup takes as long in a list of ten entries as in one of a million.
`bridge.matching` defines what an entry matches; this module adds what only the content of a mail
shows (the host of a URL, an attachment). Knows nothing about storage: `follow` fills it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from bridge.matching.match import Length, address, domain_and_parents, find_address, find_network
from bridge.service.lists.store import GLOBAL
from bridge.service.settings import ListDefinition


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a mail that are compared with lists, already normalised."""

    envelope_sender: str = ""
    header_senders: tuple[str, ...] = ()
    client: str = ""
    hosts: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


class ListIndex:
    def __init__(self, definitions: Iterable[ListDefinition], allowing: frozenset[str]) -> None:
        self._categories = {definition.name: definition.category for definition in definitions}
        self._allowing = allowing  # lists that can get a mail delivered
        self._words: dict[str, dict[str, set[str]]] = {}  # by scope, then list
        self._networks: dict[str, dict[str, dict[Length, set[int]]]] = {}

    def add(self, scope: str, name: str, entry: str) -> None:
        if self._categories.get(name) == "network":
            network = ipaddress.ip_network(entry)
            lengths = self._networks.setdefault(scope, {}).setdefault(name, {})
            lengths.setdefault((network.version, network.prefixlen), set()).add(int(network.network_address))
        elif name in self._categories:  # the entries of a list that is no longer configured stay in the database
            self._words.setdefault(scope, {}).setdefault(name, set()).add(entry)

    def remove(self, scope: str, name: str, entry: str) -> None:
        if self._categories.get(name) == "network":
            network = ipaddress.ip_network(entry)
            lengths = self._networks.get(scope, {}).get(name, {})
            numbers = lengths.get((network.version, network.prefixlen), set())
            numbers.discard(int(network.network_address))
            if not numbers:
                lengths.pop((network.version, network.prefixlen), None)
        else:
            self._words.get(scope, {}).get(name, set()).discard(entry)

    def match(self, tenant: str | None, traits: Traits) -> list[str]:
        """The names of all lists that match this mail, of the tenant and of the deployment-global scope."""
        found = set()
        for scope in (GLOBAL, tenant) if tenant else (GLOBAL,):
            found |= {name for name, words in self._words.get(scope, {}).items() if self._matches(name, words, traits)}
            found |= {name for name, lengths in self._networks.get(scope, {}).items() if _within(lengths, traits)}
        return sorted(found)

    def _matches(self, name: str, words: set[str], traits: Traits) -> bool:
        # The author of a mail chooses its From header, so it can get a mail blocked but never allowed.
        senders = [traits.envelope_sender]
        if name not in self._allowing:
            senders += traits.header_senders
        category = self._categories[name]
        match category:
            case "sender" | "domain":
                return any(find_address(category, words, sender) for sender in senders)
            case "url":
                return any(domain in words for host in traits.hosts for domain in domain_and_parents(host))
            case "attachment":
                return not words.isdisjoint(traits.digests)
            case _:
                return False


def traits_of(sender: str, header_senders: Iterable[str], client: str | None, hosts: Iterable[str],
              digests: Iterable[str]) -> Traits:  # fmt: skip
    """Normalise remote input; a value without a normal form matches nothing."""
    return Traits(
        address(sender),
        tuple(normal for normal in map(address, header_senders) if normal),
        client or "",
        tuple(hosts),
        tuple(digests),
    )


def _within(lengths: dict[Length, set[int]], traits: Traits) -> bool:
    if not traits.client or not lengths:
        return False
    return find_network(lengths, lambda of, length, first: first in lengths[of, length], traits.client) is not None
