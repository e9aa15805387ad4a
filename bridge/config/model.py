"""The operator's configuration: every key, its type, its default and what it is for.

`docs/reference/configuration.md` and `scanbridge config schema` are generated from these models, so a description
here is the documentation. This file has the whole, what must fit together in it, and the small sections; each large
section has its own file beside it. Nothing here opens a socket. Files named here are read by `daemon`, which
knows where they are (`Config.directory`, `$CREDENTIALS_DIRECTORY`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from bridge.api.scanning import MAX_MESSAGE_BYTES, SMALLEST_FORM_BYTES
from bridge.config import admin_address
from bridge.config.api import Api
from bridge.config.cluster import Cluster
from bridge.config.console import Console
from bridge.config.digests import Digests
from bridge.config.events import EventSinks
from bridge.config.feedback import Feedback
from bridge.config.fields import (
    FILE_LOOKUP,
    AddressField,
    DatabaseUrl,
    Directory,
    DomainField,
    HostName,
    Place,
    Section,
    TenantUid,
    domain_places,
    refuse_at,
    refuse_same_domain,
    refuse_twice,
)
from bridge.config.history import History
from bridge.config.limits import Admission, Limits, Spool
from bridge.config.listener import Listener
from bridge.config.lists import Lists
from bridge.config.mail_server_profiles import PROFILES
from bridge.config.own_listeners import hop_places, refuse_own_listeners, relay_places
from bridge.config.personal import PersonalLists
from bridge.config.policy import Policy
from bridge.config.quarantine import Quarantine
from bridge.config.relay import Relay, TenantRelay
from bridge.config.renamed import RENAMED
from bridge.config.scanner import DEFAULT_DIALECT, Scanner
from bridge.runtime import yaml_file
from bridge.runtime.renamed_keys import Renamed
from bridge.runtime.units import Duration


class LateDecisions(Section):
    store: Literal["off", "memory", "sqlite", "database"] = Field(
        "database",
        description="Where to keep decisions that arrived after the deadline, until the mail is sent again. `sqlite`: "
        "a file in the state directory, shared by all workers and kept across restarts. `database`: in "
        "`state_database`, shared by all machines that use it; if that is not set, the same as `sqlite`.",
    )
    max_age: Duration = Field(86400.0, gt=0, description="How long a late decision is kept.")
    max_entries: int = Field(
        100_000, ge=1, description="Maximum number of late decisions kept; the oldest are deleted."
    )
    scan_limit: Duration = Field(
        3600.0, gt=0, description="How long a scan may continue after the deadline of its mail."
    )


class Tenant(Section):
    uid: TenantUid = Field(description="The tenantUid of the service.")
    recipient_domains: list[DomainField] = Field(
        min_length=1,
        description="Mail to recipients in these domains, without their subdomains, belongs to the tenant. A domain "
        "may be written in any form: with capitals, with a trailing dot, in Unicode or as `xn--`.",
    )
    policy: Policy = Field(Policy(), description="Overrides of the listener's `policy` for this tenant.")
    relay: TenantRelay | None = Field(
        None,
        description="The tenant's own next hop, which takes precedence over `relay.routes`. The other settings of "
        "`relay` apply to it.",
    )
    personal_lists: PersonalLists = Field(
        PersonalLists(), description="Overrides of the general `personal_lists` for this tenant."
    )


class Headers(Section):
    prefix: str = Field(
        "X-Scan-",
        pattern=r"^[A-Za-z][A-Za-z0-9-]{1,40}-$",
        description="Prefix of the header fields that the bridge adds. Fields with this prefix in incoming mail are "
        "removed.",
    )
    received: bool = Field(True, description="Add a Received header field.")
    authserv_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$",
        description="Name under which the bridge writes the scanner's SPF, DKIM and DMARC results into an "
        "Authentication-Results field, usually the domain or the mail server's host name. Fields with this name in "
        "incoming mail are removed ([Authentication-Results](../operate/authentication-results.md)). Default: none; "
        "such fields are then neither written nor removed.",
    )


class Admin(Section):
    address: AddressField = Field(
        admin_address.DEFAULT,
        description="Address of the admin pages /, /metrics, /livez, /healthz, /readyz and /status, and of the "
        "[HTTP API](api.md).",
    )
    hosts: list[str] = Field(
        [],
        description="Host names under which a proxy on this machine reaches the admin pages. On a loopback address, "
        "the pages are shown only if the requested host is an IP address, a name without a dot, this machine's name, "
        "or one of these names. Otherwise, another site could make a browser on this machine read the pages.",
    )

    @property
    def names(self) -> list[str]:
        return [*self.hosts, self.address.host]


class Log(Section):
    format: Literal["keyvalue", "json"] = Field("keyvalue", description="Format of the log lines.")
    timestamp: bool = Field(
        False,
        description="Start each line with `time=`, in UTC. Meant for a log in a file or a container: journald adds the "
        "time itself, and JSON lines always contain it.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum severity of the lines that are logged. The line for each mail is always logged."
    )
    addresses: Literal["full", "domain", "hashed"] = Field(
        "full",
        description="How mail addresses and Message-IDs are logged. `full`: unchanged. `domain`: as `*@example.org`. "
        "`hashed`: as a pseudonym that is the same in all lines (its key is `log-key` in the state directory).",
    )


def _workers(value: Any) -> Any:
    if value == "auto" or (type(value) is int and 1 <= value <= 64):
        return value
    raise ValueError("expected a number from 1 to 64, or `auto`")


_COUNT_OR_AUTO = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 64}, {"enum": ["auto"]}]}
Workers = Annotated[int | Literal["auto"], PlainValidator(_workers), WithJsonSchema(_COUNT_OR_AUTO)]


class Tracing(Section):
    endpoint: str = Field(
        pattern=r"^https?://[^\s/]+",
        description="URL at which an OpenTelemetry collector receives traces (OTLP over HTTP), for example "
        "http://127.0.0.1:4318/v1/traces. Requires the `scanbridge[otel]` extra.",
    )
    sample_percent: float = Field(100.0, ge=0, le=100, description="Percentage of mail that is traced.")


class Config(Section):
    """The whole configuration of `scanbridge run`."""

    scanner: Scanner
    listeners: list[Listener] = Field(min_length=1)
    admission: Admission = Admission()
    limits: Limits = Field(Limits(), validate_default=True)
    late_decisions: LateDecisions = LateDecisions()
    policy: Policy = Policy()
    tenants: list[Tenant] = Field([], description="Tenants of the service, each with its recipient domains.")
    relay: Relay | None = Field(None, validate_default=True)
    quarantine: Quarantine = Quarantine()
    history: History = History()
    headers: Headers = Field(Headers(), validate_default=True)
    spool: Spool = Spool()
    lists: Lists | None = Field(None, validate_default=True)
    personal_lists: PersonalLists = PersonalLists()
    feedback: Feedback = Feedback()
    admin: Admin = Admin()
    cluster: Cluster = Cluster()
    api: Api = Api()
    console: Console | None = Field(
        None, description="The [web console](../operate/console.md), a separate process: `scanbridge console`."
    )
    digests: Digests = Field(
        Digests(),
        description="[Digests and pages for users](../operate/digests.md), sent and served by a separate process: "
        "`scanbridge digest serve`.",
    )
    workers: Workers = Field(
        1,
        description="Number of processes that accept mail; `auto` means one per processor. The limits of `admission` "
        "apply to all of them together. If there is more than one, a supervisor starts and restarts them.",
    )
    log: Log = Log()
    events: EventSinks = Field([], description="Sinks that receive events about mail, lists and scanners.")
    tracing: Tracing | None = None
    hostname: HostName | None = Field(
        None, description="Name of the bridge in SMTP greetings and Received fields. Default: the machine's host name."
    )
    state_directory: Directory | None = Field(
        None,
        description="Directory for everything that must survive a restart; a relative name is next to the "
        "configuration file. Default: $STATE_DIRECTORY, else the XDG state directory (~/.local/state/scanbridge).",
    )
    state_database: DatabaseUrl | None = Field(
        None,
        description="Database for late decisions, the history, the event outbox and the quarantine index: "
        "`postgresql://user@host/name` if several machines share it, or `sqlite:///file`. Default: SQLite files in "
        "the state directory.",
    )
    state_database_password_file: str | None = Field(
        None,
        validate_default=True,
        description=f"File that contains the password of `state_database`. {FILE_LOOKUP}",
    )
    drain_timeout: Duration = Field(60.0, description="Maximum time to finish processing mail when scanbridge stops.")
    embedded_service: bool = Field(
        False, description="Also run the embedded scanning service, at the first of `scanner.urls`."
    )
    _directory: Path = PrivateAttr(default=Path())
    _warnings: list[str] = PrivateAttr(default_factory=list)

    @field_validator("listeners")
    @classmethod
    def _names(cls, listeners: list[Listener]) -> list[Listener]:
        refuse_twice(
            "listeners",
            "name",
            (listener.name for listener in listeners),
            "two listeners are named {value}, {first} and this one: give one of them another name",
        )
        taken: dict[str, str] = {}
        mistakes: list[tuple[Place, str]] = []
        for number, listener in enumerate(listeners):
            other = taken.setdefault(str(listener.address), listener.name)
            if other != listener.name and listener.address.port != 0:
                problem = f"{other} and {listener.name} have the same address, {listener.address}"
                mistakes.append(((number, "address"), f"{problem}: use another port for one of them"))
        refuse_at("listeners", mistakes)
        return listeners

    @field_validator("limits")
    @classmethod
    def _fits_in_request(cls, limits: Limits, info: ValidationInfo) -> Limits:
        """What is certainly too large is refused at MAIL; the scanner checks the rest when the envelope is known."""
        scanner = info.data.get("scanner")
        largest = MAX_MESSAGE_BYTES - SMALLEST_FORM_BYTES
        if scanner is None or scanner.size_limit_counts == "mail" or limits.max_message_size <= largest:
            return limits
        return limits.model_copy(update={"max_message_size": largest})

    @field_validator("tenants")
    @classmethod
    def _domains(cls, tenants: list[Tenant], info: ValidationInfo) -> list[Tenant]:
        refuse_same_domain("tenants", domain_places(tenants))
        refuse_twice(
            "tenants",
            "uid",
            (tenant.uid for tenant in tenants),
            "two tenants have the same uid, {first} and this one: list all their domains under one of them",
        )
        hops = (
            place
            for number, tenant in enumerate(tenants)
            if tenant.relay
            for place in hop_places(tenant.relay, number, "relay")
        )
        refuse_own_listeners("tenants", hops, info.data.get("listeners", []))
        return tenants

    @field_validator("state_database_password_file")
    @classmethod
    def _for_a_server(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and not (info.data.get("state_database") or "").startswith("postgresql:"):
            raise ValueError("only a PostgreSQL database has a password: set state_database to a postgresql:// URL")
        return name

    @field_validator("relay")
    @classmethod
    def _next_hop(cls, relay: Relay | None, info: ValidationInfo) -> Relay | None:
        if relay is None and any(listener.hands_on for listener in info.data.get("listeners", [])):
            raise ValueError("an SMTP or LMTP listener needs a next hop: set relay.next_hop")
        if relay is None and any(tenant.relay for tenant in info.data.get("tenants", [])):
            raise ValueError("a tenant has its own next hop, but there is none for all other mail: set relay.next_hop")
        if relay is not None:
            refuse_own_listeners("relay", relay_places(relay), info.data.get("listeners", []))
        return relay

    @field_validator("headers")
    @classmethod
    def _not_client_header(cls, headers: Headers, info: ValidationInfo) -> Headers:
        for listener in info.data.get("listeners", []):
            if (listener.client_header or "").lower().startswith(headers.prefix.lower()):
                raise ValueError(
                    f"{listener.name}.client_header starts with {headers.prefix}, which is reserved: choose another "
                    "name for it"
                )
        return headers

    @field_validator("lists")
    @classmethod
    def _lists(cls, lists: Lists | None, info: ValidationInfo) -> Lists | None:
        if lists is None and any(listener.lists is not None for listener in info.data.get("listeners", [])):
            raise ValueError("a listener uses lists: set lists.url and lists.api_key_file")
        return lists

    @field_validator("admin")
    @classmethod
    def _admin(cls, admin: Admin, info: ValidationInfo) -> Admin:
        for listener in info.data.get("listeners", ()):
            if listener.address == admin.address and admin.address.port != 0:
                raise ValueError(f"the listener {listener.name} has the same address: use another port for one of them")
        return admin

    @field_validator("console")
    @classmethod
    def _console(cls, console: Console | None, info: ValidationInfo) -> Console | None:
        admin = info.data.get("admin")
        others = [(f"the listener {listener.name}", listener.address) for listener in info.data.get("listeners", ())]
        others += [("the admin page", admin.address)] if admin else []
        for name, address in others:
            if console and console.address == address and address.port != 0:
                raise ValueError(f"{name} has the same address: use another port for one of them")
        return console

    @field_validator("digests")
    @classmethod
    def _digests(cls, digests: Digests, info: ValidationInfo) -> Digests:
        tenants = {tenant.uid: tenant for tenant in info.data.get("tenants", ())}
        unknown = [entry.uid for entry in digests.tenants if entry.uid not in tenants]
        if unknown:
            raise ValueError(f"digests.tenants: {unknown[0]} is not listed in tenants")
        if not digests.is_on:
            return digests
        if digests.from_ is None:
            raise ValueError("digests need a sender: set digests.from")
        if not digests.domains and not tenants:
            raise ValueError("set digests.domains: only recipients in your own domains get digests")
        if info.data.get("relay") is None:
            raise ValueError("digests are sent to the next hop: set relay.next_hop")
        console, admin = info.data.get("console"), info.data.get("admin")
        others = [("the console", console.address)] if console else []
        others += [("the admin page", admin.address)] if admin else []
        others += [(f"the listener {listener.name}", listener.address) for listener in info.data.get("listeners", ())]
        for name, address in others:
            if digests.page.address == address and address.port != 0:
                raise ValueError(f"{name} has the same address as digests.page: use another port for one of them")
        return digests

    @field_validator("embedded_service")
    @classmethod
    def _speaks_our_dialect(cls, embedded: bool, info: ValidationInfo) -> bool:
        scanner = info.data.get("scanner")
        if embedded and scanner is not None and scanner.dialect != DEFAULT_DIALECT:
            raise ValueError(f"the embedded service does not speak {scanner.dialect}: remove scanner.dialect")
        if embedded and scanner is not None and scanner.discovery is not None:
            raise ValueError("the embedded service is on this machine: remove scanner.discovery")
        return embedded

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Config:
        context = info.context or {}
        self._directory, self._warnings = context.get("directory", Path()), context.get("warnings", [])
        return self

    @property
    def directory(self) -> Path:
        """The directory of the configuration file; relative file names are relative to it."""
        return self._directory

    @property
    def warnings(self) -> list[str]:
        """Things that work but should be changed in the file, with file and line."""
        return self._warnings

    def policy_for(self, listener: Listener, tenant: Tenant | None = None) -> Policy:
        """The defaults, overridden by the profile, then by the general, listener and tenant policies."""
        policy = Policy().overridden_by(Policy.model_validate(dict(PROFILES[listener.profile].policy)))
        policy = policy.overridden_by(self.policy).overridden_by(listener.policy)
        return policy.overridden_by(tenant.policy) if tenant else policy

    def personal_lists_of(self, tenant_uid: str | None) -> PersonalLists:
        """The general `personal_lists`, overridden by those of the tenant."""
        tenant = next((each for each in self.tenants if each.uid == tenant_uid), None)
        return self.personal_lists.overridden_by(tenant.personal_lists) if tenant else self.personal_lists


def load(path: Path, renamed: Sequence[Renamed] = RENAMED) -> Config:
    return yaml_file.load(path, Config, renamed=renamed)


EMBEDDED = """\
# The embedded default: everything on this machine, no setup needed.
embedded_service: true
scanner:
  urls: [http://127.0.0.1:9081]
  token_file: "{state}/api-token"
lists:
  url: http://127.0.0.1:9081
  api_key_file: "{state}/api-key"
listeners:
  - {{name: smtp, protocol: smtp, address: "127.0.0.1:10025", profile: postfix-proxy}}
  - {{name: milter, protocol: milter, address: "127.0.0.1:10027", profile: postfix-milter}}
relay:
  next_hop: "maildir:{state}/Maildir"
admin: {{address: "127.0.0.1:9082"}}
console: {{address: "127.0.0.1:9083"}}
state_directory: "{state}"
"""


def embedded(state: Path) -> Config:
    """The configuration if no file is given."""
    return yaml_file.load(Path("embedded default"), Config, embedded_text(state))


def embedded_text(state: Path) -> str:
    return EMBEDDED.format(state=json.dumps(str(state))[1:-1])
