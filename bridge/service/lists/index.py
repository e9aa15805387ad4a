"""The lists in memory: what a mail is matched against, without asking the database.

Sets and dictionaries only, so a look-up costs the same in a list of ten entries and of a million.
What an entry matches is told by `bridge.matching`; what only the content of a mail shows (a URL's
host, an attachment) is known here. Knows nothing of storage: `listfollow` feeds it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from bridge.matching.match import Length, address, find_address, find_network, upwards
from bridge.service.lists.store import GLOBAL
from bridge.service.settings import ListDefinition


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a mail is compared with lists, already normalised."""

    envelope_sender: str = ""
    header_senders: tuple[str, ...] = ()
    client: str = ""
    hosts: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


class ListIndex:
    def __init__(self, definitions: Iterable[ListDefinition]) -> None:
        self._categories = {one.name: one.category for one in definitions}
        self._words: dict[str, dict[str, set[str]]] = {}  # by scope and list
        self._networks: dict[str, dict[str, dict[Length, set[int]]]] = {}

    def add(self, scope: str, name: str, entry: str) -> None:
        if self._categories.get(name) == "network":
            network = ipaddress.ip_network(entry)
            place = self._networks.setdefault(scope, {}).setdefault(name, {})
            place.setdefault((network.version, network.prefixlen), set()).add(int(network.network_address))
        elif name in self._categories:  # a list that is no longer configured stays in the database only
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
        """The names of the lists, of the tenant or the deployment, that this mail is on."""
        found = set()
        for scope in (GLOBAL, tenant) if tenant else (GLOBAL,):
            found |= {name for name, words in self._words.get(scope, {}).items() if self._hit(name, words, traits)}
            found |= {name for name, lengths in self._networks.get(scope, {}).items() if _within(lengths, traits)}
        return sorted(found)

    def _hit(self, name: str, words: set[str], traits: Traits) -> bool:
        # A From header is written by whoever wrote the mail: it may put a mail on a list, but never free it.
        senders = [traits.envelope_sender]
        if not name.startswith("allowed-"):
            senders += traits.header_senders
        category = self._categories[name]
        match category:
            case "sender" | "domain":
                return any(find_address(category, words, one) for one in senders)
            case "url":
                return any(d in words for host in traits.hosts for d in upwards(host))
            case "attachment":
                return not words.isdisjoint(traits.digests)
            case _:
                return False


def traits_of(sender: str, header_senders: Iterable[str], client: str | None, hosts: Iterable[str],
              digests: Iterable[str]) -> Traits:  # fmt: skip
    """Normalise what strangers wrote; what has no normal form matches nothing."""
    return Traits(
        address(sender),
        tuple(a for a in map(address, header_senders) if a),
        client or "",
        tuple(hosts),
        tuple(digests),
    )


def _within(lengths: dict[Length, set[int]], traits: Traits) -> bool:
    if not traits.client or not lengths:
        return False
    return find_network(lengths, lambda of, length, first: first in lengths[of, length], traits.client) is not None
