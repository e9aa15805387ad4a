"""The lists in memory: mail is matched against them without a database query.

Only sets and dictionaries, so a lookup takes as long in a list of ten entries as in one of a million. A mail may have
thousands of links to hosts with more than a hundred labels, so only those parents of a host are looked up that have
as many labels as some entry.
`bridge.matching` defines what an entry matches; this module adds what only the content of a mail
shows (the host of a URL, an attachment). Knows nothing about storage: `follow` fills it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from bridge.mail.address import comparable_address, spellings_of_recipient
from bridge.matching.match import DOMAIN, SENDER, Length, address, entries_about, find_network
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
    recipients: tuple[str, ...] = ()


class ListIndex:
    def __init__(self, definitions: Iterable[ListDefinition], allowing: frozenset[str]) -> None:
        self._categories = {definition.name: definition.category for definition in definitions}
        self._allowing = allowing  # lists that can get a mail delivered
        self._words: dict[str, dict[str, set[str]]] = {}  # by scope, then list
        self._labels: dict[tuple[str, str], set[int]] = {}  # by scope and list: label counts of a URL list's entries
        self._networks: dict[str, dict[str, dict[Length, set[int]]]] = {}

    @property
    def personal_allowing(self) -> frozenset[str]:
        """Lists of recipients' own entries that can get a mail delivered."""
        return frozenset(name for name in self._allowing if self._categories.get(name) == "personal")

    def add(self, scope: str, name: str, entry: str) -> None:
        if self._categories.get(name) == "network":
            if (network := _as_network(entry)) is not None:
                lengths = self._networks.setdefault(scope, {}).setdefault(name, {})
                lengths.setdefault((network.version, network.prefixlen), set()).add(int(network.network_address))
        elif name in self._categories:  # the entries of a list that is no longer configured stay in the database
            self._words.setdefault(scope, {}).setdefault(name, set()).add(entry)
            if self._categories[name] == "url":
                self._labels.setdefault((scope, name), set()).add(entry.count(".") + 1)

    def remove(self, scope: str, name: str, entry: str) -> None:
        if self._categories.get(name) == "network":
            if (network := _as_network(entry)) is None:
                return
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
        envelope = _Senders((traits.envelope_sender,))
        every = _Senders((traits.envelope_sender, *traits.header_senders))
        for scope in (GLOBAL, tenant) if tenant else (GLOBAL,):
            for name in self._words.get(scope, {}):
                # The author of a mail chooses its From header, so it can get a mail blocked but never allowed.
                if self._matches(scope, name, traits, envelope if name in self._allowing else every):
                    found.add(name)
            found |= {name for name, lengths in self._networks.get(scope, {}).items() if _network(lengths, traits)}
        return sorted(found)

    def entry(self, tenant: str | None, name: str, traits: Traits) -> str:
        """The entry of a list in `match`; "" for personal lists, whose entries concern their recipients only."""
        senders = (traits.envelope_sender, *(() if name in self._allowing else traits.header_senders))
        for scope in (GLOBAL, tenant) if tenant else (GLOBAL,):
            if found := self._entry(scope, name, traits, _Senders(senders)):
                return found
        return ""

    def _entry(self, scope: str, name: str, traits: Traits, senders: _Senders) -> str:
        words = self._words.get(scope, {}).get(name, set())
        match self._categories.get(name):
            case "network":
                return _network(self._networks.get(scope, {}).get(name, {}), traits) or ""
            case "sender":
                return next(filter(words.__contains__, senders.entries), "")
            case "domain":
                return next(filter(words.__contains__, senders.domains), "")
            case "url":
                return _host(words, sorted(self._labels.get((scope, name), ())), sorted(traits.hosts))
            case "attachment":
                return next(filter(words.__contains__, sorted(traits.digests)), "")
            case _:
                return ""

    def _matches(self, scope: str, name: str, traits: Traits, senders: _Senders) -> bool:
        category, words = self._categories[name], self._words[scope][name]
        match category:
            case "sender":
                return not words.isdisjoint(senders.entries)
            case "domain":
                return not words.isdisjoint(senders.domains)
            case "url":
                return bool(_host(words, sorted(self._labels[scope, name]), traits.hosts))
            case "attachment":
                return not words.isdisjoint(traits.digests)
            case "personal":
                spell = _own_spelling if name in self._allowing else spellings_of_recipient
                return _all_agree(words, traits.recipients, senders.entries, spell)
            case _:
                return False


def _as_network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """None for an entry that was added when the list had another category; it matches nothing."""
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None


class _Senders:
    """What lists may say about some senders. Computed once: each may have 200 addresses of more than 100 labels."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    @cached_property
    def entries(self) -> dict[str, None]:
        return dict.fromkeys(entry for each in self._addresses for entry in entries_about(SENDER, each))

    @cached_property
    def domains(self) -> dict[str, None]:
        return dict.fromkeys(entry for each in self._addresses for entry in entries_about(DOMAIN, each))


def _all_agree(
    words: set[str],
    recipients: tuple[str, ...],
    entries: Iterable[str],
    spell: Callable[[str], tuple[str, ...]],
) -> bool:
    """Whether every recipient has one of these entries: one decision applies to all of them.

    Ends with the first recipient without one: a mail may have thousands of recipients.
    """
    return bool(recipients) and all(
        any(f"{normal} {entry}" in words for normal in spellings for entry in entries)
        for spellings in map(spell, recipients)
    )


def _own_spelling(recipient: str) -> tuple[str, ...]:
    """An entry that allows a sender applies to this spelling only, whatever others a mail server delivers to it."""
    return (comparable_address(recipient),)


def _host(words: set[str], counts: list[int], hosts: Iterable[str]) -> str:
    """The first of the hosts, or a parent of it, that is an entry; entries have one of these numbers of labels."""
    for host in hosts if counts else ():
        labels = host.rsplit(".", counts[-1])
        for count in counts:
            if count <= len(labels) and (name := ".".join(labels[-count:])) in words:
                return name
    return ""


def traits_of(
    sender: str,
    header_senders: Iterable[str],
    client: str | None,
    hosts: Iterable[str],
    digests: Iterable[str],
    recipients: Iterable[str] = (),
) -> Traits:
    """Normalise remote input; a value without a normal form matches nothing."""
    return Traits(
        address(sender),
        tuple(normal for normal in map(address, header_senders) if normal),
        client or "",
        tuple(hosts),
        tuple(digests),
        tuple(recipients),
    )


def _network(lengths: dict[Length, set[int]], traits: Traits) -> str | None:
    """The entry that contains the client."""
    if not traits.client or not lengths:
        return None
    return find_network(lengths, lambda of, length, first: first in lengths[of, length], traits.client)
