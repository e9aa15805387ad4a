"""Signals from links: where they really lead, compared with what they show and who sent them.

A link is read as browsers read it (`link_address`), and its host is spelled as lists spell it, so an international name
is in its `xn--` form here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

from bridge.service.analysis.content import link_address
from bridge.service.analysis.content.link_address import Address, host_of
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.detection import brands, domains
from bridge.service.detection.material import Material
from bridge.service.detection.sender import Sender

MAX_TARGETS = 600
INLINE_HOSTS = 50  # different ones in a mail, in the event loop: each takes up to a third of a millisecond
_MAX_KEPT = 300  # characters of a host that is remembered
_IN_TEXT = re.compile(r"https?:[/\\]++(?:[^\s/\\?#<>]*@)?[^\s\"'<>]+", re.IGNORECASE)
_END_OF_HOST = re.compile(f"[{link_address.TYPOGRAPHIC}]")  # in a text
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_WORD = re.compile(r"[\"']")
_REST = re.compile(r"[^\s\"'<>]*")
_SHOWN_HOST = re.compile(r"\s*(?:https?://)?(?:www\.)?([a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})+)(?:[\s/?:]|\Z)")
_ONWARD = re.compile(r"[=/?&](?:https?(?::|%3a)(?:/|%2f){2})([a-z0-9.-]{4,253})", re.IGNORECASE)
_OPAQUE = re.compile(r"[A-Za-z0-9_-]{40,}")
_ENCODED = re.compile(r"%[2-7][0-9a-f]", re.IGNORECASE)
_PICTURE = re.compile(r"src\s{0,3}=\s{0,3}[\"']?https?://([^\s/:?\"'<>]{1,253})[/:?]", re.IGNORECASE)


class Target(NamedTuple):
    host: str
    site: str  # the registered domain
    rest: str  # path, query and fragment
    has_port: bool
    shown: str  # what the link shows


def all_of(material: Material) -> tuple[list[Target], int]:
    """Every link, those of pages first, and the number of links that write a mail.

    Those of a plain text count if the pages have none, or if it is shown beside them. Else most of them are the same
    links in another form.
    """
    found: list[Target | None] = []
    mailto = 0
    for page in material.pages:
        base = link_address.read(page.base) if page.base else None
        for link in page.links:
            if link.address[:7].lower() == "mailto:":
                mailto += 1
            found.append(_target(material, link.address, link.shown, base))
        found += [_target(material, link, "", base) for link in page.other_links]
    targets = list(filter(None, found))[:MAX_TARGETS]
    is_plain = not targets
    targets += filter(None, (_target(material, code) for code in material.codes))
    return targets + list(_in_text(material, material.plain if is_plain else material.beside)), mailto


def _in_text(material: Material, text: str) -> Iterator[Target]:
    for match in islice(_IN_TEXT.finditer(text), MAX_TARGETS):
        for link in dict.fromkeys((match[0], _WORD.split(match[0], maxsplit=1)[0])):  # a quote may or may not end it
            address = link_address.read(link)
            if address:
                _spend(material, address.host)
                if target := _led_to(_without_text(address), ""):
                    yield target


def _without_text(address: Address) -> Address:
    """Some languages are written without spaces, so more text may follow the host."""
    if address.host.isascii():
        return address
    host = _END_OF_HOST.split(address.host, maxsplit=1)[0]
    if not domains.exists(host_of(host.lower())):
        host = _NOT_ASCII.split(host, maxsplit=1)[0]
    return address._replace(host=host)


def _target(material: Material, link: str, shown: str = "", base: Address | None = None) -> Target | None:
    address = link_address.read(link, base)
    if address is None or address.scheme not in _SCHEMES:
        return None
    _spend(material, address.host)
    return _led_to(address, shown)


def _spend(material: Material, host: str) -> None:
    if not host.isascii() or "%" in host:
        material.spend(unquote(host))


def _led_to(address: Address, shown: str) -> Target | None:
    host, site = (_place if len(address.host) <= _MAX_KEPT else _place.__wrapped__)(address.host)
    rest = _REST.match(address.rest)
    return Target(host, site, rest[0] if rest else "", address.port.isdigit(), shown) if host else None


_SCHEMES = link_address.WEB | {""}


@lru_cache(8192)
def _place(raw: str) -> tuple[str, str]:
    host = host_of(raw.lower())
    return host, domains.registered(host)


class Kind(NamedTuple):
    is_shortener: bool
    is_hosting: bool
    is_abused: bool
    is_random: bool
    has_random_part: bool
    imitated: str


@lru_cache(8192)
def kind_of(host: str) -> Kind:
    return Kind(
        domains.in_list(host, domains.SHORTENERS),
        domains.in_list(host, domains.HOSTING),
        domains.is_abused(host),
        domains.looks_random(domains.name_of(host)),
        any(map(domains.looks_random, host.split(".")[:-1])),
        brands.imitated(host),
    )


def signals(material: Material, sender: Sender) -> Iterator[tuple[str, str]]:
    targets, mailto = all_of(material)
    if not targets:
        if mailto:
            yield "url:mailto-only", ""
        return
    others = list(_in_text(material, material.plain)) if material.pages else []
    known = _known(material, (*targets, *others), sender)
    foreign = [target for target in targets if not known[target.host]]
    beside = {target.host: None for target in others if not known[target.host]}
    yield from _codes(material, known)
    yield from _hosts(foreign)
    yield from _imitations(beside, material)
    yield from _addresses(foreign, sender)
    yield from _purpose(targets, foreign, sender)


def _known(material: Material, targets: Iterable[Target], sender: Sender) -> dict[str, bool]:
    """Which hosts belong to the sender.

    A signature and the envelope may name any domain, so they do not make a place for everyone, or an imitation, the
    sender's own.
    """
    sites = {target.host: target.site for target in targets}
    own = sender.sites()
    of_author = {site: _is_one_of(site, {sender.site}) for site in set(sites.values())}
    vouched = {site: _is_one_of(site, own) for site in of_author}
    known = {host: of_author[site] for host, site in sites.items()}
    if material.is_inline and len(known) - sum(known.values()) > INLINE_HOSTS:
        raise NeedsProcess
    for host, site in sites.items():
        if vouched[site] and not known[host]:
            kind = kind_of(host)
            known[host] = not (kind.is_shortener or kind.is_hosting or kind.imitated)
    return known


def _is_one_of(site: str, own: set[str]) -> bool:
    return any(site == domain or brands.are_related(site, domain) for domain in own)


def _codes(material: Material, known: dict[str, bool]) -> Iterator[tuple[str, str]]:
    """A code that leads away from the sender: on a phone, nobody sees where it leads."""
    for code in material.codes:
        target = _target(material, code)
        if target and not known.get(target.host, False):
            yield "picture:qr-link", target.host


def _hosts(foreign: list[Target]) -> Iterator[tuple[str, str]]:
    for host in dict.fromkeys(target.host for target in foreign):
        kind = kind_of(host)
        if kind.is_shortener:
            yield "url:shortener", host
        if kind.is_hosting:
            yield "url:free-hosting", host
        if kind.is_abused:
            yield "url:abused-tld", host
        if kind.is_random and not kind.is_hosting:
            yield "url:random-host", host
        elif kind.has_random_part:
            yield "url:random-subdomain", host
        if kind.imitated:
            yield "url:lookalike", f"{kind.imitated}|{host}"
        if host.count(".") >= 4 and not kind.is_hosting:
            yield "url:deep-host", host


def _imitations(hosts: Iterable[str], material: Material) -> Iterator[tuple[str, str]]:
    """In a plain text that accompanies a page: some programs show it, but its other signals would count twice.

    Such a text lists the pictures of the page as well.
    """
    found = {host: imitated for host in hosts if (imitated := kind_of(host).imitated)}
    sources = material.sources if found else []
    pictures = {picture[1].lower() for source in sources for picture in _PICTURE.finditer(source)}
    for host, imitated in found.items():
        if host not in pictures:
            yield "url:lookalike", f"{imitated}|{host}"


def _addresses(foreign: list[Target], sender: Sender) -> Iterator[tuple[str, str]]:
    recipients = [address.replace("@", mark) for address in sender.recipients for mark in ("@", "%40")]
    for target in foreign:
        if target.has_port:
            yield "url:port", target.host
        onward = _ONWARD.search(target.rest) if "http" in target.rest.lower() else None
        if onward and domains.registered(onward[1].lower()) != target.site:
            yield "url:redirect", f"{target.host}|{onward[1].lower()}"
        if recipients and any(address in target.rest.lower() for address in recipients):
            yield "url:recipient", target.host
        shown = _SHOWN_HOST.match(target.shown)
        if shown and domains.exists(shown[1]) and domains.registered(shown[1]) != target.site:
            yield "url:shows-other-host", f"{shown[1]}|{target.host}"
        if len(_ENCODED.findall(target.rest)) >= 10:
            yield "url:escaped", target.host


def _purpose(targets: list[Target], foreign: list[Target], sender: Sender) -> Iterator[tuple[str, str]]:
    """Where most links lead, compared with the sender and the brand that the mail claims to come from."""
    main, _ = Counter(target.site for target in targets).most_common(1)[0]
    if not sender.is_list and len(foreign) == len(targets):
        yield "url:all-foreign", main
    sites = {target.site for target in targets}
    is_foreign = any(target.site == main for target in foreign)
    if len(sites) == 1 and len(targets) >= 2 and is_foreign:
        yield "url:single-foreign-site", main
    kind = kind_of(main)
    if is_foreign and (kind.is_hosting or kind.is_shortener or kind.is_abused or kind.is_random):
        yield "url:main-suspicious", main
    brand = sender.brand or sender.subject_brand
    if sender.is_aligned and brands.owns(brand, sender.domain):
        brand = ""  # the brand itself writes; its links may go through a service that counts clicks
    if brand and not any(brands.owns(brand, site) for site in sites):
        yield "url:not-the-brand", f"{brand}|{main}"
    elif brand and not brands.owns(brand, main) and is_foreign:
        yield "url:mostly-not-the-brand", f"{brand}|{main}"
    opaque = sum(bool(_OPAQUE.search(target.rest)) for target in foreign)
    if opaque and opaque == len(foreign) and not sender.is_list:
        yield "url:opaque", main
