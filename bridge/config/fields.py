"""Types of configuration values: addresses, networks, tenants, base URLs, databases.

Each error says what is expected and never quotes the value, which may be a secret in the wrong place. Domains that
contradict each other are named: their order in the file is not enough to find them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from bridge.mail.address import comparable_domain
from bridge.runtime.endpoints import Endpoint, NextHop

# Descriptions that several keys share
ALLOW_PLAIN_HTTP = "Allow http:// to a host other than loopback. The secret is then sent unencrypted."
CA_FILE = "File with CA certificates (PEM) to trust instead of the system's."
FILE_LOOKUP = "A relative name is looked up in $CREDENTIALS_DIRECTORY, then next to the configuration file."


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _reader(kind: type[Endpoint] | type[NextHop]) -> BeforeValidator:
    return BeforeValidator(lambda v: kind.parse(v) if isinstance(v, str) else v)


_AS_TEXT = (PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"}))
AddressField = Annotated[Endpoint, _reader(Endpoint), *_AS_TEXT]
NextHopField = Annotated[NextHop, _reader(NextHop), *_AS_TEXT]


def _network(value: str) -> str:
    try:
        block = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError("a network is an address, or a block such as 192.0.2.0/24 or 2001:db8::/32") from None
    if isinstance(block, ipaddress.IPv6Network) and block.network_address.ipv4_mapped:
        raise ValueError("write an IPv4 network as such, for example 192.0.2.0/24, not as an IPv6 network")
    if "/" in value and str(block.network_address) != str(ipaddress.ip_address(value.partition("/")[0])):
        raise ValueError(f"the address is not the first one of its block: write {block}, or the address alone")
    return value


Network = Annotated[str, AfterValidator(_network)]


def _tenant(value: Any) -> str:
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise ValueError("a tenant is a UUID, for example 123e4567-e89b-12d3-a456-426614174000") from None


TenantUid = Annotated[str, BeforeValidator(_tenant), WithJsonSchema({"type": "string", "format": "uuid"})]


def _domain(value: str) -> str:
    if not comparable_domain(value):
        raise ValueError("a domain is a name, for example example.org")
    return value


DomainField = Annotated[str, Field(pattern=r"^[^@\s]+$"), AfterValidator(_domain)]


def refuse_same_domain(domains: Iterable[str], problem: str) -> None:
    """Raises ValueError, which names both spellings of a domain that occurs twice."""
    seen: dict[str, str] = {}
    for domain in domains:
        other = seen.setdefault(comparable_domain(domain), domain)
        if other is not domain:
            raise ValueError(f"{problem}: {other} and {domain} are the same domain; remove one of them")


def base_url(url: str, allow_plain_http: bool) -> str:
    """The base URL without its trailing slash. Raises ValueError, which never quotes the URL."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"[^\x21-\x7e]", url):
        raise ValueError("a base URL is https://host:port, or http://host:port on loopback")
    if parts.username or parts.password:
        raise ValueError("a base URL must not contain a user name or password; secrets belong in separate files")
    if parts.query or parts.fragment:
        raise ValueError("a base URL has no query and no fragment")
    if parts.scheme == "http" and not allow_plain_http and not Endpoint(host=parts.hostname or "").is_local:
        raise ValueError(
            "http:// to a host other than loopback sends the secret unencrypted; "
            "use https://, or set allow_plain_http: true"
        )
    return url.rstrip("/")


def _database_url(value: str) -> str:
    """Raises ValueError, which never quotes the URL."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "sqlite":
        if parts.netloc or len(parts.path) < 2 or parts.query or parts.fragment:
            raise ValueError(
                "an SQLite database is sqlite:///file, relative to the state directory, or sqlite:////path"
            )
        return value
    if parts.scheme != "postgresql" or len(parts.path) < 2 or parts.fragment:
        raise ValueError("a database is postgresql://user@host:port/name, or sqlite:///file")
    if parts.password is not None or "password" in parse_qs(parts.query):
        raise ValueError("the URL must not contain a password; set state_database_password_file")
    return value


DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
