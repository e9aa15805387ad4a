"""The operator's event sinks: which events go where.

Part of the configuration (`bridge.config.model`). All kinds of sinks share one section, so a key that belongs to
another kind is a mistake and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os.path import normpath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from bridge.config.fields import (
    ALLOW_PLAIN_HTTP,
    CA_FILE,
    FILE_LOOKUP,
    AddressField,
    Place,
    Section,
    refuse_at,
    refuse_twice,
)
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Duration, Size

EventTypeName = Literal[
    "mail.decided",
    "mail.refused",
    "mail.quarantined",
    "mail.released",
    "mail.reported",
    "list.changed",
    "scanner.state",
]
_ALL: list[EventTypeName] = [
    *("mail.decided", "mail.refused", "mail.quarantined", "mail.released", "mail.reported"),
    *("list.changed", "scanner.state"),
]
Facility = Literal[
    "user", "mail", "daemon", "auth", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"
]

# Keys that only one kind of sink has, and those of them that it needs.
_OWN: dict[str, set[str]] = {
    "file": {"path"},
    "webhook": {"url", "secret_file", "allow_plain_http", "timeout", "ca_file"},
    "syslog": {"address", "tls", "facility", "timeout", "ca_file"},
    "nats": {"servers", "subject", "jetstream", "credentials_file", "token_file", "timeout", "ca_file"},
}
_NEEDED: dict[str, set[str]] = {
    "file": {"path"},
    "webhook": {"url", "secret_file"},
    "syslog": {"address"},
    "nats": {"servers"},
}


class EventSink(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$", description="Name of the sink in the log and in metrics.")
    type: Literal["file", "webhook", "syslog", "nats"] = Field(
        description="`file`: JSON lines. `webhook`: HTTP POST with Standard Webhooks signatures. `syslog`: RFC 5424 "
        "over TCP or TLS. `nats`: a NATS server; requires the `scanbridge[nats]` extra."
    )
    types: list[EventTypeName] = Field(_ALL, min_length=1, description="Types of events that this sink receives.")
    format: Literal["json", "ocsf"] = Field(
        "json",
        description="`json`: as in [the reference](events.md). `ocsf`: the Open Cybersecurity Schema Framework.",
    )
    max_events: int = Field(
        1_000_000, ge=1, description="Maximum number of events waiting for this sink; further ones are lost."
    )
    max_size: Size = Field(
        1024**3, ge=1, description="Maximum size of the events waiting for this sink; further ones are lost."
    )
    max_attempts: int = Field(
        12,
        ge=2,
        description="An event that the receiver has refused this many times, while accepting others in between, "
        "becomes a dead letter. A receiver that accepts no events is retried indefinitely.",
    )
    timeout: Duration = Field(10.0, gt=0, description="`webhook`, `syslog`, `nats`: maximum time for one delivery.")
    ca_file: str | None = Field(None, description=f"`webhook`, `syslog`, `nats`: {CA_FILE[0].lower()}{CA_FILE[1:]}")
    path: str | None = Field(
        None,
        min_length=1,
        description="`file`: the file, relative to the state directory. It is reopened after it has been renamed or "
        "removed (logrotate).",
    )
    url: str | None = Field(None, description="`webhook`: the URL to which events are posted.")
    secret_file: str | None = Field(
        None,
        description="`webhook`: file that contains the secret (`whsec_` and base64) with which events are signed. If "
        f"the file has several lines, each event is signed with all of these secrets. {FILE_LOOKUP}",
    )
    allow_plain_http: bool = Field(False, description=f"`webhook`: {ALLOW_PLAIN_HTTP[0].lower()}{ALLOW_PLAIN_HTTP[1:]}")
    address: AddressField | None = Field(None, description="`syslog`: the receiver, host:port or [IPv6]:port.")
    tls: bool = Field(False, description="`syslog`: use TLS. The receiver's certificate and name are verified.")
    facility: Facility = Field("mail", description="`syslog`: the facility of the messages.")
    servers: list[str] = Field([], description="`nats`: URLs of the servers, nats://host:port or tls://host:port.")
    subject: str = Field(
        "scanbridge",
        pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
        description="`nats`: the first part of an event's subject, followed by a dot and the event's type.",
    )
    jetstream: bool = Field(False, description="`nats`: wait until a stream has stored the event.")
    credentials_file: str | None = Field(
        None, description=f"`nats`: file that contains credentials (.creds). {FILE_LOOKUP}"
    )
    token_file: str | None = Field(None, description=f"`nats`: file that contains a token. {FILE_LOOKUP}")

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        """Refuse the keys of another kind, and name those that are missing."""
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in _OWN:
            return value
        others = set().union(*_OWN.values()) - _OWN[kind]
        if wrong := [key for key in value if key in others]:
            raise ValueError(f"a sink of type {kind} does not take {', '.join(wrong)}")
        if missing := sorted(key for key in _NEEDED[kind] if not value.get(key)):
            raise ValueError(f"a sink of type {kind} needs {' and '.join(missing)}")
        return value

    @field_validator("url")
    @classmethod
    def _url(cls, url: str | None, info: ValidationInfo) -> str | None:
        """The error never quotes the URL."""
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or re.search(r"[^\x21-\x7e]", url) or parts.fragment:
            raise ValueError("a URL must be https://host/path, or http://host:port/path on loopback")
        if parts.username or parts.password:
            raise ValueError("a URL must not contain a user name or password; the signature identifies the sender")
        return url

    @model_validator(mode="after")
    def _consistent(self) -> EventSink:
        url = urlsplit(self.url or "")
        if url.scheme == "http" and not self.allow_plain_http and not Endpoint(host=url.hostname or "").is_local:
            raise ValueError(
                "http:// to a host other than loopback sends the events unencrypted; "
                "use https://, or set allow_plain_http: true"
            )
        if self.address is not None and (self.address.path or self.address.systemd or not self.address.port):
            raise ValueError("the address of a syslog server must be host:port or [IPv6]:port")
        if self.type == "syslog" and self.ca_file and not self.tls:
            raise ValueError("ca_file has no effect without tls: true")
        if self.credentials_file and self.token_file:
            raise ValueError("set either credentials_file or token_file, not both")
        return self

    @field_validator("servers")
    @classmethod
    def _servers(cls, servers: list[str]) -> list[str]:
        for server in servers:
            if not re.fullmatch(r"(nats|tls)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?", server):
                raise ValueError(
                    "a server must be given as nats://host:port or tls://host:port, without a user name or password"
                )
        return servers


def _once(sinks: list[EventSink]) -> list[EventSink]:
    refuse_twice(
        "events",
        "name",
        (sink.name for sink in sinks),
        "two sinks are named {value}, {first} and this one: give one of them another name",
    )
    refuse_at("events", _same_files(sinks))
    return sinks


def _same_files(sinks: list[EventSink]) -> Iterator[tuple[Place, str]]:
    """The file would contain events twice, and a sink that cannot write a whole line removes what it began."""
    seen: dict[str, EventSink] = {}
    for number, sink in enumerate(sinks):
        other = seen.setdefault(normpath(sink.path), sink) if sink.path else sink
        if other is not sink:
            yield (number, "path"), f"the sink {other.name} writes to the same file: give one of them another path"


EventSinks = Annotated[list[EventSink], AfterValidator(_once)]
