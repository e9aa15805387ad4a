"""The scanner: where it is, which dialect it speaks, and what it may change in a mail."""

from __future__ import annotations

import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from bridge.api.scanning import Decision
from bridge.config.fields import (
    ALLOW_PLAIN_HTTP,
    CA_FILE,
    FILE_LOOKUP,
    AddressField,
    SecretFile,
    Section,
    TenantUid,
    base_url,
)
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Duration

DialectName = Literal["email-scanning", "rspamd", "mta-hooks"]
DEFAULT_DIALECT: DialectName = "email-scanning"

_OPERATIONS = {"rspamd": re.compile(r"/checkv2/?$|/ping/?$"), "mta-hooks": re.compile(r"/\.well-known(/|$)")}


class Rspamd(Section):
    settings_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="Id of the settings that rspamd applies to all mail from this bridge (`Settings-ID`).",
    )
    actions: dict[str, Decision] = Field(
        {},
        description="Decisions for rspamd's actions, where they differ from the "
        "[table](../operate/dialects.md#actions), and for your own actions: `{greylist: deliver}`.",
    )

    @field_validator("actions")
    @classmethod
    def _words(cls, actions: dict[str, Decision]) -> dict[str, Decision]:
        for action in actions:
            if not re.fullmatch(r"[a-z0-9_][a-z0-9_ -]{0,63}", action):
                raise ValueError("write the action as rspamd does, in lower case: `soft reject`")
        return actions


class Discovery(Section):
    records: Literal["addresses", "srv"] = Field(
        description="`addresses`: each A and AAAA record of the names in `urls` is a host. `srv`: each target of their "
        "SRV records is a host, with its port, priority and weight.",
    )
    nameservers: list[AddressField] = Field(
        [], description="Name servers, such as `127.0.0.1:8600`. Default: those of the system, in `/etc/resolv.conf`."
    )
    min_interval: Duration = Field(5.0, ge=0.1, description="Minimum time between lookups, regardless of the TTL.")
    max_interval: Duration = Field(60.0, ge=0.1, description="Maximum time between lookups.")

    @field_validator("nameservers")
    @classmethod
    def _are_addresses(cls, servers: list[Endpoint]) -> list[Endpoint]:
        if not all(server.is_ip and server.port for server in servers):
            raise ValueError("a name server must be an IP address and a port, such as 127.0.0.1:53")
        return servers

    @field_validator("max_interval")
    @classmethod
    def _order(cls, longest: float, info: ValidationInfo) -> float:
        if longest < info.data.get("min_interval", 0.0):
            raise ValueError("max_interval must not be shorter than min_interval")
        return longest

    @model_validator(mode="after")
    def _order_of_default(self) -> Self:
        if self.max_interval < self.min_interval:
            raise ValueError(f"min_interval is longer than max_interval, which is {self.max_interval:g}s by default")
        return self


def _no_default(schema: dict[str, Any]) -> None:
    """Whether the key is required depends on the dialect, so the schema for editors must not state a default."""
    schema.pop("default", None)


class Scanner(Section):
    dialect: DialectName = Field(
        DEFAULT_DIALECT,
        description="The scanner's interface: the Email Scanning API, rspamd's `/checkv2`, or MTA Hooks "
        "(draft -01, experimental). See [dialects](../operate/dialects.md).",
    )
    allow_plain_http: bool = Field(False, description=ALLOW_PLAIN_HTTP)
    urls: list[str] = Field(
        min_length=1,
        description="Base URLs of the scanning service. If there are several, each mail is sent to the least busy one.",
    )
    discovery: Discovery | None = Field(
        None,
        description="Regularly look up the hosts behind the names in `urls` in DNS. See "
        "[scanners that come and go](../operate/second-scanner.md#scanners-that-come-and-go).",
    )
    token_file: SecretFile | None = Field(
        None,
        validate_default=True,
        json_schema_extra=_no_default,
        description="File that contains the bearer token or, for `dialect: rspamd`, the password (optional). "
        f"{FILE_LOOKUP}",
    )
    tenant_uid: TenantUid | None = Field(None, description="Tenant of all mail that belongs to none of `tenants`.")
    ca_file: str | None = Field(None, description=CA_FILE)
    client_cert_file: str | None = Field(None, description="Client certificate of the bridge (PEM), for mutual TLS.")
    client_key_file: str | None = Field(
        None, validate_default=True, description="Private key of `client_cert_file` (PEM)."
    )
    status_interval: Duration = Field(5.0, ge=0.1, description="How often the status of the service is queried.")
    connect_timeout: Duration = Field(5.0, gt=0, description="Maximum time to connect to the service.")
    resubmit: bool = Field(
        False,
        description="Submit a mail to another host even if the first one received all of it and then failed. "
        "Such a mail may be scanned twice.",
    )
    size_limit_counts: Literal["mail", "request"] = Field(
        "mail",
        description="What counts towards the service's limit of 50 MiB. `mail`: the mail alone, as in the included "
        "service. `request`: the whole body of the request, with the envelope and the form around the mail; a mail "
        "for which the request would exceed the limit is refused with 552 and not sent.",
    )
    allow_changes: list[Literal["add_headers", "remove_headers", "subject", "reply_text"]] | None = Field(
        None,
        description="Changes to a mail that the scanner may request, with `dialect: rspamd` or `mta-hooks`: "
        "header fields to add and to remove, a new subject, and the text of a refusal. Other changes are "
        "ignored. Default: `[subject]`.",
    )
    rspamd: Rspamd | None = Field(None, description="Only with `dialect: rspamd`.")

    @field_validator("urls")
    @classmethod
    def _urls(cls, urls: list[str], info: ValidationInfo) -> list[str]:
        operation = _OPERATIONS.get(info.data.get("dialect", ""))
        found = [base_url(url, bool(info.data.get("allow_plain_http"))) for url in urls]
        for url in found if operation is not None else ():
            if operation is not None and (end := operation.search(url)):
                raise ValueError(
                    f"a base URL must end before {end[0]}: write https://host:port; the rest is added automatically"
                )
        return found

    @field_validator("discovery")
    @classmethod
    def _names(cls, discovery: Discovery | None, info: ValidationInfo) -> Discovery | None:
        for url in info.data.get("urls", ()) if discovery is not None else ():
            parts = urlsplit(url)
            if Endpoint(parts.hostname or "").is_ip:
                raise ValueError("urls must contain names, not addresses, to be looked up in DNS")
            if discovery is not None and discovery.records == "srv" and parts.port is not None:
                raise ValueError("with SRV records, a URL must not have a port: https://_scan._tcp.example.org")
            if parts.scheme == "http" and not info.data.get("allow_plain_http"):  # `localhost`, too, is looked up
                raise ValueError("DNS may resolve the name to any host: use https://, or set allow_plain_http: true")
        return discovery

    @field_validator("token_file")
    @classmethod
    def _token(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None and info.data.get("dialect") != "rspamd":
            raise PydanticCustomError("missing", "Field required")
        return name

    @field_validator("client_key_file")
    @classmethod
    def _pair(cls, key_file: str | None, info: ValidationInfo) -> str | None:
        if bool(key_file) != bool(info.data.get("client_cert_file")):
            raise ValueError("client_cert_file and client_key_file must be set together")
        return key_file

    @field_validator("tenant_uid", "size_limit_counts")
    @classmethod
    def _only_email_scanning(cls, value: str | None, info: ValidationInfo) -> str | None:
        dialect = info.data.get("dialect", DEFAULT_DIALECT)
        if value not in (None, "mail") and dialect != DEFAULT_DIALECT:
            raise ValueError(f"{info.field_name} belongs to the email-scanning dialect; {dialect} does not support it")
        return value

    @field_validator("allow_changes")
    @classmethod
    def _with_changes(cls, changes: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if changes and info.data.get("dialect", DEFAULT_DIALECT) == DEFAULT_DIALECT:
            raise ValueError("in the email-scanning dialect, a scanner cannot request changes; remove this key")
        return changes

    @field_validator("rspamd")
    @classmethod
    def _only_rspamd(cls, rspamd: Any, info: ValidationInfo) -> Any:
        if rspamd is not None and info.data.get("dialect") != "rspamd":
            raise ValueError("these settings need `dialect: rspamd`")
        return rspamd
