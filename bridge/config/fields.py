"""Types of configuration values: addresses, networks, tenants, base URLs, databases.

Each error says what is expected and never quotes the value, which may be a secret in the wrong place. Domains that
contradict each other are named: their order in the file is not enough to find them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from bridge.mail.address import comparable_domain
from bridge.runtime.endpoints import Endpoint, NextHop

# Descriptions that several keys share
ALLOW_PLAIN_HTTP = "Allow http:// to a host that is not a loopback address. The secret is then sent unencrypted."
CA_FILE = "File that contains CA certificates (PEM) to trust instead of the system's."
FILE_LOOKUP = "A relative name is looked up in $CREDENTIALS_DIRECTORY, then next to the configuration file."


_OPERATION = re.compile(r"/(v1/messageQueue|api/public/lists)\b")  # paths of the service's operations
_SECRET = re.compile(r"[0-9a-fA-F]{32,}|(?=.*[0-9])(?=.*[A-Z])[A-Za-z0-9_+=-]{40,}")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, serialize_by_alias=True)


def _reader(kind: type[Endpoint] | type[NextHop]) -> BeforeValidator:
    return BeforeValidator(lambda v: kind.parse(v) if isinstance(v, str) else v)


def _not_the_secret(name: str) -> str:
    if _SECRET.fullmatch(name):
        raise ValueError("this looks like the secret itself; put it in a file, and give the name of that file here")
    return name


SecretFile = Annotated[str, AfterValidator(_not_the_secret)]


def _next_to_the_file(value: str, info: ValidationInfo) -> str:
    """The daemon and the commands are started in different directories, so a relative name means neither's."""
    directory: Path = (info.context or {}).get("directory", Path())
    return str(directory.absolute() / Path(value).expanduser()) if value else value


Directory = Annotated[str, AfterValidator(_next_to_the_file)]


def _host_name(name: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]{1,255}", name) or re.search(r"[\"'<>()@,;]", name):
        raise ValueError("expected a host name, for example mx.example.org")
    if "/" in name or (":" in name and not name.startswith("[")):
        raise ValueError("expected a host name without a scheme or a port, for example mx.example.org")
    return name


HostName = Annotated[str, AfterValidator(_host_name)]

_AS_TEXT = (PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"}))
AddressField = Annotated[Endpoint, _reader(Endpoint), *_AS_TEXT]
NextHopField = Annotated[NextHop, _reader(NextHop), *_AS_TEXT]


def _network(value: str) -> str:
    try:
        block = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError("a network must be an address, or a block such as 192.0.2.0/24 or 2001:db8::/32") from None
    if isinstance(block, ipaddress.IPv6Network) and block.network_address.ipv4_mapped:
        raise ValueError("write an IPv4 network as such, for example 192.0.2.0/24, not as an IPv6 network")
    if "/" in value and str(block.network_address) != str(ipaddress.ip_address(value.partition("/")[0])):
        raise ValueError(f"the address is not the first in its block: write {block}, or the address alone")
    return value


Network = Annotated[str, AfterValidator(_network)]


def _tenant(value: Any) -> str:
    try:
        return str(UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            "a tenant must be a UUID, for example 123e4567-e89b-12d3-a456-426614174000; "
            "for a new tenant, `uuidgen` prints one"
        ) from None


TenantUid = Annotated[str, BeforeValidator(_tenant), WithJsonSchema({"type": "string", "format": "uuid"})]


def _names_some(value: Any) -> Any:
    """A key with nothing behind it, for example because its entries are commented out, must not mean all mail."""
    if value is None:
        raise ValueError("no tenant is listed here: list at least one, or remove this key to allow all mail")
    return value


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]  # null, which must not be written


# Whose mail may be seen. Without the key: all mail.
OnlyTenants = Annotated[
    list[TenantUid] | None,
    Field(min_length=1, json_schema_extra=_without_default),
    BeforeValidator(_names_some),
    WithJsonSchema({"type": "array", "items": {"type": "string", "format": "uuid"}, "minItems": 1}),
]


_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_MAX_NAME = 253  # characters (RFC 1035 2.3.4)


def _domain(value: str) -> str:
    """Raises ValueError for anything that no recipient can have after the @: it would never match."""
    expected = "a domain is a name, for example example.org"
    if "@" in value:
        raise ValueError(f"{expected}: only the part after the @")
    if "/" in value:
        raise ValueError(f"{expected}: not a URL or a path")
    if value.startswith(("*", ".")):
        raise ValueError(f"{expected}: no `*` and no dot in front; list each subdomain")
    name = comparable_domain(value)
    if name.startswith("[") and name.endswith("]"):  # an address literal
        return value
    if not all(_LABEL.fullmatch(label) for label in name.split(".")) or len(name) > _MAX_NAME:
        raise ValueError(f"{expected}: labels of letters, digits and hyphens, separated by single dots")
    return value


DomainField = Annotated[str, AfterValidator(_domain)]
Place = tuple[int | str, ...]


class _HasDomains(Protocol):
    @property
    def recipient_domains(self) -> list[str]: ...


def domain_places(entries: Iterable[_HasDomains]) -> Iterator[tuple[Place, str]]:
    """Each recipient domain of tenants or routes, with its path below them."""
    for number, entry in enumerate(entries):
        for position, domain in enumerate(entry.recipient_domains):
            yield (number, "recipient_domains", position), domain


def refuse_same_domain(section: str, entries: Iterable[tuple[Place, str]]) -> None:
    """Raises a ValidationError at the second place of a domain that occurs twice, which names both.

    `section` is the key that is being validated, and each place is a path below it.
    """
    seen: dict[str, tuple[Place, str]] = {}
    mistakes = []
    for place, domain in entries:
        other_place, other = seen.setdefault(comparable_domain(domain), (place, domain))
        if other_place == place:
            continue
        where = ".".join(map(str, (section, *other_place)))
        problem = f"{other} and {domain} are the same domain, in two places: {where} and here; remove one of them"
        mistakes.append((place, problem))
    refuse_at(section, mistakes)


def refuse_twice(section: str, key: str, values: Iterable[str], problem: str) -> None:
    """Raises a ValidationError at every entry of a list whose `key` has the same value as that of an earlier entry.

    `problem` may contain the value and the earlier place as {value} and {first}.
    """
    seen: dict[str, int] = {}
    mistakes: list[tuple[Place, str]] = []
    for number, value in enumerate(values):
        first = seen.setdefault(value, number)
        if first != number:
            mistakes.append(((number, key), problem.format(value=value, first=f"{section}.{first}")))
    refuse_at(section, mistakes)


def refuse_at(section: str, mistakes: Iterable[tuple[Place, str]]) -> None:
    """Raises a ValidationError if there are any. Each place is a path below `section`, which is being validated."""
    errors = [
        InitErrorDetails(type=PydanticCustomError("mistake", "{problem}", {"problem": problem}), loc=place, input=None)
        for place, problem in mistakes
    ]
    if errors:
        raise ValidationError.from_exception_data(section, errors)


def base_url(url: str, allow_plain_http: bool) -> str:
    """The base URL without its trailing slash. Raises ValueError, which never quotes the URL."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"[^\x21-\x7e]", url):
        raise ValueError(f"a base URL must be https://host:port, or http://host:port on loopback{_url_hint(url)}")
    if parts.username or parts.password:
        raise ValueError("a base URL must not contain a user name or password; secrets belong in separate files")
    if parts.query or parts.fragment:
        raise ValueError("a base URL must not have a query or a fragment")
    if _OPERATION.search(parts.path):
        raise ValueError(
            "a base URL must end before /v1 or /api: write https://host:port; the rest is added automatically"
        )
    if parts.scheme == "http" and not allow_plain_http and not Endpoint(host=parts.hostname or "").is_local:
        raise ValueError(
            "http:// to a host other than loopback sends the secret unencrypted; "
            "use https://, or set allow_plain_http: true"
        )
    return url.rstrip("/")


def _url_hint(url: str) -> str:
    scheme, found, rest = url.partition("://")
    if not found:
        return "; write its scheme (https:// or http://) before the host"
    if scheme in ("http", "https") and "[" not in rest and rest.partition("/")[0].count(":") > 1:
        return "; an IPv6 address needs brackets, as in http://[::1]:9081"
    return ""


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
                "an SQLite database must be given as sqlite:///file, relative to the state directory, or as "
                "sqlite:////path"
            )
        return value
    if parts.scheme != "postgresql" or len(parts.path) < 2 or parts.fragment:
        hint = "; write postgresql:// instead of postgres://" if parts.scheme == "postgres" else ""
        raise ValueError(f"a database must be given as postgresql://user@host:port/name, or sqlite:///file{hint}")
    if parts.password is not None or "password" in parse_qs(parts.query):
        raise ValueError("the URL must not contain a password; set state_database_password_file")
    return value


DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
