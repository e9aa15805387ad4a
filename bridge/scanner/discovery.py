"""Discovery: which hosts does a name in DNS currently stand for?

Hosts come and go with the addresses or SRV records of the configured names, looked up in the background as often as
their TTL says, within two bounds. No mail waits for DNS, except for the very first answer. Whatever goes wrong (no
answer, SERVFAIL, an empty answer, garbage, far too many records), the last known hosts are kept: a name server that
fails must not stop mail that the scanners could take.

    addresses   each A and AAAA record is a host. TLS and the Host field use the name in the URL, because that is the
                name in the certificates
    srv         each SRV target is a host, with the port of the record. TLS uses the target's name: every node proves
                its identity with its own certificate. A forged SRV record could therefore name the forger's own host,
                with a valid certificate: SRV records are trusted like the configuration

Knows no host's state: `client.py` decides which host gets mail.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from importlib.util import find_spec
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

from bridge.errors import ConfigError
from bridge.runtime.counted import counted
from bridge.runtime.value import value

MAX_HOSTS = 64  # per name
MAX_ADDRESSES = 8  # per SRV target
QUERY_S = 5.0  # for one query, including retries

_HOST_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")

log = logging.getLogger(__name__)


@value
class DiscoverySettings:
    records: str  # "addresses" or "srv"
    nameservers: tuple[tuple[str, int], ...] = ()  # empty: the system's
    min_interval_s: float = 5.0
    max_interval_s: float = 60.0


@value
class Place:
    """A host's addresses, and the names that are used for it."""

    url: str  # what logs, metrics and status call it
    base_url: str  # base of the URLs requested from it
    name: str  # the name expected in its certificate
    port: int
    addresses: tuple[str, ...]
    priority: int = 0
    weight: int = 1


class Discovery:
    """The hosts of one URL."""

    def __init__(self, url: str, settings: DiscoverySettings) -> None:
        """Raises ConfigError if the library is missing."""
        if find_spec("dns") is None:
            raise ConfigError("scanner.discovery: a library is missing: pip install 'scanbridge[dns]'")
        self.url = url
        self._parts: SplitResult = urlsplit(url)
        self._settings = settings
        self._answers: dict[tuple[str, str], list[Any]] = {}  # the last usable one for each name and type
        self._asked: set[tuple[str, str]] = set()  # in this lookup
        self.places: tuple[Place, ...] = ()
        self.problem = ""
        self._found_at: float | None = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the last usable answer from DNS; None if there was none."""
        return None if self._found_at is None else time.monotonic() - self._found_at

    async def look(self) -> float:
        """Query DNS; returns the seconds until the next lookup. Never raises: `problem` says what went wrong."""
        settings = self._settings
        problems: list[str] = []
        ttls: list[float] = []
        self._asked.clear()
        found = await (self._services if settings.records == "srv" else self._hosts)(problems, ttls)
        self._answers = {key: records for key, records in self._answers.items() if key in self._asked}
        wanted = 0.0
        if found:
            self.places = bounded(found, self.places)
        if found and not problems:
            self._found_at = time.monotonic()
            wanted = min(ttls, default=0.0)
        if len(found) > MAX_HOSTS:
            problems.append(f"more than {MAX_HOSTS} hosts; the others receive no mail")
        self._note("; ".join(dict.fromkeys(problems)))
        return min(max(wanted, settings.min_interval_s), settings.max_interval_s)

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("scanner.discovery: %s: %s; keeping %s", self.url, problem, counted(len(self.places), "host"))
        elif self.problem and not problem:
            log.info("scanner.discovery: %s is answering again: %s", self.url, counted(len(self.places), "host"))
        self.problem = problem

    async def _hosts(self, problems: list[str], ttls: list[float]) -> list[Place]:
        name, parts = self._parts.hostname or "", self._parts
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = await self._addresses(name, problems, ttls)
        return [Place(_at(parts, address, port), self.url, name, port, (address,)) for address in addresses]

    async def _services(self, problems: list[str], ttls: list[float]) -> list[Place]:
        """Records with low priority are used only while there is room."""
        records = await self._ask(self._parts.hostname or "", "SRV", problems, ttls)
        records.sort(key=lambda record: (record.priority, -record.weight, str(record.target), record.port))
        if not records:
            problems.append("no SRV record")
        places = await asyncio.gather(*(self._service(record, problems, ttls) for record in records[: MAX_HOSTS + 1]))
        return [place for place in places if place is not None]

    async def _service(self, record: Any, problems: list[str], ttls: list[float]) -> Place | None:
        target = record.target.to_text(omit_final_dot=True)
        if target in ("", "."):  # RFC 2782: decidedly not available
            problems.append("its SRV record says that there is no such service")
            return None
        if not _HOST_NAME.fullmatch(target) or not record.port:  # it becomes part of a URL, and of a certificate check
            problems.append("an SRV record does not specify a host and a port")
            return None
        addresses = tuple((await self._addresses(target, problems, ttls))[:MAX_ADDRESSES])
        url = _at(self._parts, target, record.port)
        return Place(url, url, target, record.port, addresses, record.priority, record.weight) if addresses else None

    async def _addresses(self, name: str, problems: list[str], ttls: list[float]) -> list[str]:
        """Addresses of both families. If one lookup fails, its last addresses are kept."""
        kinds = ("A", "AAAA")
        answers = await asyncio.gather(*(self._ask(name, kind, problems, ttls) for kind in kinds))
        found = sorted({record.address for records in answers for record in records})
        if not found:
            problems.append(f"no address for {name}")
        return found

    async def _ask(self, name: str, kind: str, problems: list[str], ttls: list[float]) -> list[Any]:
        import dns.resolver

        key = (name, kind)
        self._asked.add(key)
        try:
            resolver = self._resolver()
            async with asyncio.timeout(QUERY_S * 2):
                answer = await resolver.resolve(name, kind, lifetime=QUERY_S, search=True, raise_on_no_answer=False)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            self._answers.pop(key, None)
            return []
        except Exception as exc:  # whatever the other side sent; the loop that calls us must continue
            problems.append(f"{kind} of {name}: {_reason(exc)}")
            return list(self._answers.get(key, ()))
        if answer.rrset is not None:
            ttls.append(float(answer.rrset.ttl))
        self._answers[key] = list(answer.rrset or ())
        return list(self._answers[key])

    def _resolver(self) -> Any:
        """Created for each query: /etc/resolv.conf may have changed. Raises dns.exception.DNSException."""
        import dns.asyncresolver
        import dns.nameserver

        given = self._settings.nameservers
        resolver = dns.asyncresolver.Resolver(configure=not given)
        if given:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in given]
        return resolver


def bounded(found: Iterable[Place], known: Iterable[Place]) -> tuple[Place, ...]:
    """At most `MAX_HOSTS`; hosts with a better priority, then hosts already in use, come first."""
    had = {place.url for place in known}
    places = {place.url: place for place in found}  # there may be duplicate records
    ordered = sorted(places.values(), key=lambda place: (place.priority, place.url not in had, place.url))
    return tuple(ordered[:MAX_HOSTS])


def _at(parts: SplitResult, host: str, port: int) -> str:
    """The same URL with another host and port."""
    try:
        shown = f"[{host}]" if isinstance(ip_address(host), IPv6Address) else host
    except ValueError:
        shown = host
    return f"{parts.scheme}://{shown}:{port}{parts.path}"


def _reason(exc: Exception) -> str:
    import dns.exception
    import dns.resolver

    if isinstance(exc, dns.resolver.LifetimeTimeout | TimeoutError):
        return "no answer"
    if isinstance(exc, dns.resolver.NoNameservers):
        return "the name servers give no usable answer (SERVFAIL, or malformed)"
    if isinstance(exc, dns.resolver.NoResolverConfiguration):
        return "the system has no name servers (/etc/resolv.conf)"
    return f"unusable answer ({type(exc).__name__})"
