"""The operator's configuration: every key, its type, its default and what it is for.

`docs/reference/configuration.md` and `scanbridge config schema` are generated from these models, so a description
here is the documentation. Nothing here opens a socket. Files named here are read by `daemon`, which
knows where they are (`Config.directory`, `$CREDENTIALS_DIRECTORY`).
"""

from __future__ import annotations

import json
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
from bridge.config.console import Console
from bridge.config.digests import Digests
from bridge.config.events import EventSinks
from bridge.config.feedback import Feedback
from bridge.config.fields import (
    FILE_LOOKUP,
    AddressField,
    DatabaseUrl,
    DomainField,
    HostName,
    Network,
    Section,
    TenantUid,
    domain_places,
    refuse_same_domain,
)
from bridge.config.history import History
from bridge.config.hooks import Hooks
from bridge.config.limits import Admission, Limits, Spool
from bridge.config.lists import DoorLists, Lists
from bridge.config.loops import hop_places, refuse_own_listeners, relay_places
from bridge.config.personal import PersonalLists
from bridge.config.policy import Policy
from bridge.config.profiles import DEFAULT_PROFILE, PROFILES, kind_of
from bridge.config.quarantine import Quarantine
from bridge.config.relay import Relay, TenantRelay
from bridge.config.scanner import DEFAULT_DIALECT, Scanner
from bridge.runtime import units, yaml_file
from bridge.runtime.suggestion import did_you_mean
from bridge.runtime.units import Duration


class Tls(Section):
    cert_file: str = Field(description="Certificate chain (PEM).")
    key_file: str = Field(description="Private key of `cert_file` (PEM).")
    required: bool = Field(False, description="Require STARTTLS: MAIL is refused with 530 until TLS is in use.")


def _no_default(schema: dict[str, Any]) -> None:
    """The default depends on other keys, so the schema for editors must not state one."""
    schema.pop("default", None)


class Listener(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$", description="Name of the listener in logs and metrics.")
    protocol: Literal["smtp", "lmtp", "milter", "mta-hooks"] = Field(
        "smtp",
        description="Protocol that the mail server speaks to us. "
        "[`mta-hooks`](../operate/mta-hooks.md) is experimental.",
    )
    address: AddressField = Field(description="Where to listen: host:port, [IPv6]:port, unix:/path or systemd:NAME.")
    profile: str = Field(
        "",
        json_schema_extra=_no_default,
        description="The mail server in front of us, which sets the defaults of `deadline` and `policy`. One of "
        + ", ".join(f"`{p}`" for p in PROFILES)
        + ". Default: `postfix-proxy` for SMTP and LMTP, `postfix-milter` for milter, `mta-hooks` for MTA Hooks.",
    )
    deadline: Duration = Field(
        0.0,
        json_schema_extra=_no_default,
        description="Maximum time from the end of a mail's content to our reply. Default: set by the profile.",
    )
    trusted_clients: list[Network] = Field(
        [],
        validate_default=True,
        json_schema_extra=_no_default,
        description="Networks of the mail servers that may send mail through us. Their XFORWARD and XCLIENT are "
        "trusted. Default: this machine. Required if the address is not loopback.",
    )
    hooks: Hooks | None = Field(None, validate_default=True, description="Required for MTA Hooks.")
    tls: Tls | None = Field(
        None,
        validate_default=True,
        description="Offer STARTTLS with this certificate. MTA Hooks: speak HTTPS with it.",
    )
    proxy_protocol: bool = Field(False, description="Expect a PROXY protocol header (v1 or v2) on every connection.")
    client_header: str | None = Field(
        None,
        pattern=r"^[Xx]-[A-Za-z0-9-]{1,60}$",
        description="Header field in which a mail server without XFORWARD names its client at the top of each mail: "
        "`X-Scanbridge-Client: ADDR=192.0.2.7 HELO=mx.example.org`. Only the topmost field of this "
        "name is trusted, and all of them are removed. The mail server must add it to every mail: see "
        "[the client's address](../operate/client-address.md).",
    )
    refuse_ambiguous_mime: bool = Field(
        False,
        description="Refuse mail whose MIME structure mail programs may read differently, with 554 5.6.0 and without a "
        "scan, for [reasons](../operate/service.md#ambiguous-mail) that score 8 or 2. Some real mail has them; "
        "`mode: shadow` shows what would be refused.",
    )
    hide_extensions: list[Literal["8BITMIME", "DSN", "PRDR", "SMTPUTF8"]] = Field(
        [],
        description="ESMTP extensions that are neither announced nor accepted. Meant for those that the next hop "
        "lacks: the mail server in front then converts the mail (8BITMIME), reports its delivery (DSN) or refuses it "
        "(SMTPUTF8) itself.",
    )
    unix_mode: str = Field("0660", pattern=r"^0[0-7]{3}$", description="Permissions of the unix socket.")
    unix_owner: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$",
        description="Owner of the unix socket, `user` or `user:group`. Default: the user scanbridge runs as. Requires "
        "the privilege to change owners.",
    )
    policy: Policy = Field(Policy(), description="Overrides of the general `policy` for this listener.")
    lists: DoorLists | None = Field(None, description="Lists that are enforced before a mail's content is received.")
    mode: Literal["enforce", "shadow"] = Field(
        "enforce",
        description="`shadow`: mail is scanned and relayed; what `enforce` would have done is only logged and counted.",
    )
    shadow_percent: float = Field(
        0.0, ge=0, le=100, description="With `mode: enforce`, the percentage of mail that is treated as in shadow mode."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        """Fill in the profile, and the profile's deadline."""
        if not isinstance(value, dict):
            return value
        name = value.get("profile") or DEFAULT_PROFILE.get(value.get("protocol", "smtp"), "")
        if name not in PROFILES:
            return value
        return {"deadline": units.show_duration(PROFILES[name].deadline_s), **value, "profile": name}

    @field_validator("profile")
    @classmethod
    def _profile(cls, name: str, info: ValidationInfo) -> str:
        profile, protocol = PROFILES.get(name), info.data.get("protocol", "smtp")
        if profile is None:
            raise ValueError(
                f"unknown profile; available profiles: {', '.join(PROFILES)}{did_you_mean(name, PROFILES)}"
            )
        if profile.protocol != kind_of(protocol):
            raise ValueError(f"{name} is a profile for {profile.protocol}, but this listener speaks {protocol}")
        return name

    @field_validator("tls", "proxy_protocol", "client_header", "hide_extensions")
    @classmethod
    def _not_for_milter(cls, value: Tls | bool | str | list[str] | None, info: ValidationInfo) -> Any:
        protocol, is_tls = info.data.get("protocol"), info.field_name == "tls"
        if value and protocol == "milter":
            raise ValueError("a milter listener cannot have tls, proxy_protocol, client_header or hide_extensions")
        if value and protocol == "mta-hooks" and not is_tls:
            raise ValueError("an mta-hooks listener cannot have proxy_protocol, client_header or hide_extensions")
        address = info.data.get("address")
        is_plain = not value and protocol == "mta-hooks" and is_tls
        if is_plain and address is not None and not (address.is_local or address.systemd):
            raise ValueError(f"{address} can be reached from other machines, so the token and the mail need tls")
        return value

    @field_validator("hooks")
    @classmethod
    def _for_hooks(cls, hooks: Hooks | None, info: ValidationInfo) -> Hooks | None:
        speaks = info.data.get("protocol") == "mta-hooks"
        if speaks and hooks is None:
            raise ValueError("an mta-hooks listener needs a token: set hooks.token_file")
        if hooks is not None and not speaks and "protocol" in info.data:
            raise ValueError("only an mta-hooks listener has hooks")
        return hooks

    @property
    def hands_on(self) -> bool:
        """Whether we pass the mail to a next hop; otherwise the mail server in front delivers it."""
        return self.protocol in ("smtp", "lmtp")

    @field_validator("lists")
    @classmethod
    def _before_the_queue(cls, lists: DoorLists | None, info: ValidationInfo) -> DoorLists | None:
        """After the queue, a refusal becomes a bounce to a sender that may be forged."""
        profile = PROFILES.get(info.data.get("profile", ""))
        if lists and profile and profile.is_after_queue and (lists.block or lists.block_recipients):
            raise ValueError(
                f"a refusal would become a bounce, because {info.data['profile']} runs after the queue; "
                "refuse at a listener before the queue, or leave it to the scan"
            )
        return lists

    @field_validator("deadline")
    @classmethod
    def _deadline(cls, value: float) -> float:
        if value < 1.0:
            raise ValueError("must be at least 1s")
        return value

    @field_validator("trusted_clients")
    @classmethod
    def _trusted(cls, networks: list[str], info: ValidationInfo) -> list[str]:
        address = info.data.get("address")
        if not networks and address is not None and not (address.is_local or address.systemd):
            raise ValueError(
                f"{address} can be reached from other machines: name the mail servers that may use it, "
                "or listen on 127.0.0.1"
            )
        return networks or ["127.0.0.0/8", "::1/128"]


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
        "may be written in any spelling: with capitals, a final dot, in Unicode or as `xn--`.",
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
        description="Prefix of the header fields that we add. Fields with this prefix in incoming mail are removed.",
    )
    received: bool = Field(True, description="Add a Received header field.")


class Admin(Section):
    address: AddressField = Field(
        admin_address.DEFAULT,
        description="Address of the admin pages /, /metrics, /livez, /healthz, /readyz and /status, and of the "
        "[HTTP API](api.md).",
    )


class Log(Section):
    format: Literal["keyvalue", "json"] = Field("keyvalue", description="Format of the log lines.")
    timestamp: bool = Field(
        False,
        description="Begin each line with `time=`, in UTC. Meant for a log in a file or a container: journald adds the "
        "time itself, and JSON lines always have it.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum severity of the lines that are logged. The line of each mail is always logged."
    )
    addresses: Literal["full", "domain", "hashed"] = Field(
        "full",
        description="How mail addresses and Message-IDs are logged. `full`: unchanged. `domain`: as `*@example.org`. "
        "`hashed`: as a pseudonym that is the same in all lines (its key is `log-key` in the state directory).",
    )


def _workers(value: Any) -> Any:
    if value == "auto" or (type(value) is int and 1 <= value <= 64):
        return value
    raise ValueError("a number from 1 to 64 is expected here, or `auto`")


_COUNT_OR_AUTO = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 64}, {"enum": ["auto"]}]}
Workers = Annotated[int | Literal["auto"], PlainValidator(_workers), WithJsonSchema(_COUNT_OR_AUTO)]


class Tracing(Section):
    endpoint: str = Field(
        pattern=r"^https?://[^\s/]+",
        description="URL at which an OpenTelemetry collector receives traces (OTLP over HTTP), for example "
        "http://127.0.0.1:4318/v1/traces. Requires the extra `scanbridge[otel]`.",
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
        "apply to all of them together. With more than one, a supervisor starts and restarts them.",
    )
    log: Log = Log()
    events: EventSinks = Field([], description="Sinks that receive events about mail, lists and scanners.")
    tracing: Tracing | None = None
    hostname: HostName | None = Field(
        None, description="Our name in SMTP greetings and Received fields. Default: the host name of the machine."
    )
    state_directory: str | None = Field(
        None,
        description="Directory for everything that must survive a restart. Default: $STATE_DIRECTORY, else the XDG "
        "state directory (~/.local/state/scanbridge).",
    )
    state_database: DatabaseUrl | None = Field(
        None,
        description="Database for late decisions, the history, the outbox of events and the index of the quarantine: "
        "`postgresql://user@host/name` if several machines share it, or `sqlite:///file`. Default: SQLite files in "
        "the state directory.",
    )
    state_database_password_file: str | None = Field(
        None,
        validate_default=True,
        description=f"File with the password of `state_database`. {FILE_LOOKUP}",
    )
    drain_timeout: Duration = Field(
        60.0, description="Maximum time to finish mail in processing when scanbridge stops."
    )
    embedded_service: bool = Field(
        False, description="Also run the embedded scanning service, at the first of `scanner.urls`."
    )
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("listeners")
    @classmethod
    def _names(cls, listeners: list[Listener]) -> list[Listener]:
        for i, listener in enumerate(listeners):
            for other in listeners[:i]:
                if other.name == listener.name:
                    raise ValueError(f"two listeners are named {listener.name}: give one of them another name")
                if other.address == listener.address and listener.address.port != 0:
                    raise ValueError(
                        f"{other.name} and {listener.name} have the same address, {listener.address}: "
                        "use another port for one of them"
                    )
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
        if len({tenant.uid for tenant in tenants}) != len(tenants):
            raise ValueError("two tenants have the same uid; give one of them all the domains")
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
                    f"{listener.name}.client_header starts with our prefix {headers.prefix}: choose another name for it"
                )
        return headers

    @field_validator("lists")
    @classmethod
    def _lists(cls, lists: Lists | None, info: ValidationInfo) -> Lists | None:
        if lists is None and any(listener.lists is not None for listener in info.data.get("listeners", [])):
            raise ValueError("a listener names lists: set lists.url and lists.api_key_file")
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
        others = [(f"the listener {one.name}", one.address) for one in info.data.get("listeners", ())]
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
            raise ValueError(f"digests.tenants: {unknown[0]} is not one of tenants")
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
        others += [(f"the listener {one.name}", one.address) for one in info.data.get("listeners", ())]
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
        return embedded

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Config:
        self._directory = (info.context or {}).get("directory", Path())
        return self

    @property
    def directory(self) -> Path:
        """The directory of the configuration file; relative file names are relative to it."""
        return self._directory

    def policy_for(self, listener: Listener, tenant: Tenant | None = None) -> Policy:
        """The defaults, overridden by the profile, then by the general, listener and tenant policies."""
        policy = Policy().overridden_by(Policy.model_validate(dict(PROFILES[listener.profile].policy)))
        policy = policy.overridden_by(self.policy).overridden_by(listener.policy)
        return policy.overridden_by(tenant.policy) if tenant else policy

    def personal_lists_of(self, tenant_uid: str | None) -> PersonalLists:
        """The general `personal_lists`, overridden by those of the tenant."""
        tenant = next((each for each in self.tenants if each.uid == tenant_uid), None)
        return self.personal_lists.overridden_by(tenant.personal_lists) if tenant else self.personal_lists


def load(path: Path) -> Config:
    return yaml_file.load(path, Config)


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
