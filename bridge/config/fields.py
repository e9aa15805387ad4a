"""Kinds of values that the configuration has: addresses, networks, tenants, base addresses.

Each says in its error what it wants, and never what it got: that may be a secret in the wrong place.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from bridge.runtime.endpoints import Address, NextHop

ALLOW_PLAIN_HTTP = "Allow http:// to a host that is not loopback. The secret then travels in the clear."


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _reader(kind: type[Address] | type[NextHop]) -> BeforeValidator:
    return BeforeValidator(lambda v: kind.parse(v) if isinstance(v, str) else v)


_AS_TEXT = (PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"}))
AddressField = Annotated[Address, _reader(Address), *_AS_TEXT]
NextHopField = Annotated[NextHop, _reader(NextHop), *_AS_TEXT]


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise ValueError("a network is an address or a block such as 192.0.2.0/24 or 2001:db8::/32") from None
    return value


Network = Annotated[str, AfterValidator(_network)]


def _tenant(value: Any) -> str:
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise ValueError("a tenant is a UUID, for example 123e4567-e89b-12d3-a456-426614174000") from None


TenantUid = Annotated[str, BeforeValidator(_tenant), WithJsonSchema({"type": "string", "format": "uuid"})]


def base_url(url: str, allow_plain_http: bool) -> str:
    """A base address without its last slash. Raises ValueError, never with the address in it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"[^\x21-\x7e]", url):
        raise ValueError("a base address is https://host:port, or http://host:port on loopback")
    if parts.username or parts.password:
        raise ValueError("a base address must not hold a user name or password; secrets have files of their own")
    if parts.query or parts.fragment:
        raise ValueError("a base address has no query and no fragment")
    if parts.scheme == "http" and not allow_plain_http and not Address(host=parts.hostname or "").is_local:
        raise ValueError(
            "http:// to a host that is not loopback sends the secret in the clear; "
            "use https://, or set allow_plain_http: true"
        )
    return url.rstrip("/")


def _database_url(value: str) -> str:
    """Raises ValueError, never with the address in it."""
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
        raise ValueError("it must not hold a password; that has a file of its own: state_database_password_file")
    return value


DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
