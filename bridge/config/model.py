"""The operator's configuration: every key, its type, its default and what it is for.

`docs/configuration.md` and `scanbridge config schema` are made from these models, so a
description here is the documentation. Nothing here opens a socket; files named here are read
by `daemon`, which knows their place (`Config.directory`, `$CREDENTIALS_DIRECTORY`).
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

from bridge.api.scanning import DEFAULT_IN_PROCESSING, MAX_MESSAGE_BYTES
from bridge.config.fields import ALLOW_PLAIN_HTTP, AddressField, DatabaseUrl, Network, Section, TenantUid, base_url
from bridge.config.lists import DoorLists, Lists
from bridge.config.policy import Policy
from bridge.config.profiles import DEFAULT_PROFILE, PROFILES
from bridge.config.relay import Relay, TenantRelay
from bridge.runtime import units, yaml_file
from bridge.runtime.endpoints import Address
from bridge.runtime.units import Duration, Size

KiB, MiB, GiB = 1024, 1024**2, 1024**3


class Scanner(Section):
    allow_plain_http: bool = Field(False, description=ALLOW_PLAIN_HTTP)
    urls: list[str] = Field(
        min_length=1,
        description="Base addresses of the scanning service. With several, the least busy one is asked first.",
    )
    token_file: str = Field(
        description="File with the bearer token. Looked for in $CREDENTIALS_DIRECTORY, then beside this file."
    )
    tenant_uid: TenantUid | None = Field(None, description="Tenant of all mail that no entry of `tenants` claims.")
    ca_file: str | None = Field(None, description="Certificates to trust in place of the system's.")
    client_cert_file: str | None = Field(None, description="Our certificate, for mutual TLS.")
    client_key_file: str | None = Field(None, validate_default=True, description="Its key.")
    status_interval: Duration = Field(5.0, ge=0.1, description="How often the service's own status is asked.")
    connect_timeout: Duration = Field(5.0, gt=0, description="Longest wait for a connection to the service.")
    resubmit: bool = Field(
        False,
        description="Give a mail to another host also when the first one had it whole and then failed. "
        "It may then be scanned twice.",
    )

    @field_validator("urls")
    @classmethod
    def _urls(cls, urls: list[str], info: ValidationInfo) -> list[str]:
        return [base_url(url, bool(info.data.get("allow_plain_http"))) for url in urls]

    @field_validator("client_key_file")
    @classmethod
    def _pair(cls, key_file: str | None, info: ValidationInfo) -> str | None:
        if bool(key_file) != bool(info.data.get("client_cert_file")):
            raise ValueError("client_cert_file and client_key_file go together")
        return key_file


class Tls(Section):
    cert_file: str = Field(description="Certificate chain, PEM.")
    key_file: str = Field(description="Its private key, PEM.")
    required: bool = Field(False, description="Refuse MAIL before STARTTLS with 530.")


def _no_default(schema: dict[str, Any]) -> None:
    """The default depends on other keys, so an editor must not be told one."""
    schema.pop("default", None)


class Listener(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$", description="Its name in logs and metrics.")
    protocol: Literal["smtp", "lmtp", "milter"] = Field("smtp", description="What the mail server speaks to us.")
    address: AddressField = Field(description="host:port, [IPv6]:port, unix:/path or systemd:NAME.")
    profile: str = Field(
        "",
        json_schema_extra=_no_default,
        description="The mail server in front: deadline and outcome defaults. One of "
        + ", ".join(f"`{p}`" for p in PROFILES)
        + ". Default: `postfix-proxy` for SMTP and LMTP, `postfix-milter` for milter.",
    )
    deadline: Duration = Field(
        0.0, json_schema_extra=_no_default, description="End of data to our reply; the profile's when absent."
    )
    trusted_clients: list[Network] = Field(
        [],
        validate_default=True,
        json_schema_extra=_no_default,
        description="Networks of the mail servers that may send through us and whose XFORWARD and XCLIENT "
        "are believed. Default: this machine. Must be given when the address is not loopback.",
    )
    tls: Tls | None = Field(None, description="Offer STARTTLS.")
    proxy_protocol: bool = Field(False, description="Expect a PROXY header (v1 or v2) on every connection.")
    client_header: str | None = Field(
        None,
        pattern=r"^[Xx]-[A-Za-z0-9-]{1,60}$",
        description="Header field in which a mail server that speaks no XFORWARD names its client, on top of each "
        "mail: `X-Scanbridge-Client: ADDR=192.0.2.7 HELO=mx.example.org`. Only the topmost is believed, all are taken "
        "out. The mail server must add it to every mail: see [the client's address](../operate/client-address.md).",
    )
    hide_extensions: list[Literal["8BITMIME", "DSN", "PRDR", "SMTPUTF8"]] = Field(
        [],
        description="ESMTP extensions neither announced nor taken. For those that the next hop lacks: the mail server "
        "in front then converts (8BITMIME), reports the delivery (DSN) or refuses (SMTPUTF8) by itself.",
    )
    unix_mode: str = Field("0660", pattern=r"^0[0-7]{3}$", description="Permissions of a unix socket.")
    unix_owner: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$",
        description="Owner of a unix socket, `user` or `user:group`; ours when absent. Needs the right to chown.",
    )
    policy: Policy = Field(Policy(), description="Overrides of the general policy.")
    lists: DoorLists | None = Field(None, description="Lists that are enforced before the content travels.")
    mode: Literal["enforce", "shadow"] = Field(
        "enforce",
        description="`shadow`: mail is scanned, what would have been done is logged and counted, and it is relayed.",
    )
    shadow_percent: float = Field(
        0.0, ge=0, le=100, description="With `mode: enforce`, the share of mail that is treated as in shadow mode."
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
            raise ValueError(f"there is no such profile; the profiles are {', '.join(PROFILES)}")
        if (profile.protocol == "milter") != (protocol == "milter"):
            raise ValueError(f"{name} is for {profile.protocol}, but this listener speaks {protocol}")
        return name

    @field_validator("tls", "proxy_protocol", "client_header", "hide_extensions")
    @classmethod
    def _not_for_milter(cls, value: Tls | bool | str | list[str] | None, info: ValidationInfo) -> Any:
        if value and info.data.get("protocol") == "milter":
            raise ValueError(
                "a milter listener has neither tls nor proxy_protocol nor client_header nor hide_extensions"
            )
        return value

    @field_validator("lists")
    @classmethod
    def _before_the_queue(cls, lists: DoorLists | None, info: ValidationInfo) -> DoorLists | None:
        """After a queue a refusal becomes a bounce, to a sender who may be forged."""
        profile = PROFILES.get(info.data.get("profile", ""))
        if lists and profile and profile.is_after_queue and (lists.block or lists.block_recipients):
            raise ValueError(
                f"a refusal would become a bounce: {info.data['profile']} is behind the queue. "
                "Refuse at a listener before it, or leave it to the scan"
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


class Admission(Section):
    max_in_processing: int = Field(
        DEFAULT_IN_PROCESSING,
        ge=1,
        description="Mails in processing at once (the service's maxGuardRequestsInProcessing); above it 451 4.3.2.",
    )
    throttle_threshold: int = Field(
        DEFAULT_IN_PROCESSING,
        ge=1,
        description="Mails in processing at which the linear delay starts (guardRequestThrottleThreshold); "
        "while the scanner says YELLOW, it starts at once. Not below max_in_processing: no delay.",
    )
    throttle_max_delay: Duration = Field(5.0, description="The delay when the limit is reached.")
    max_bytes_in_processing: Size = Field(GiB, ge=1, description="Bytes of all mail in processing; above it 451 4.3.2.")
    limit: Literal["fixed", "adaptive"] = Field(
        "fixed", description="`adaptive`: found from the scanner's latency, never above max_in_processing."
    )


class LateDecisions(Section):
    store: Literal["off", "memory", "sqlite", "database"] = Field(
        "database",
        description="Where decisions that came after the deadline wait for their mail to come back. `database`: in "
        "`state_database`, for all machines that share it, or, where that is not set, as with `sqlite`: a file in the "
        "state directory, shared by all workers, kept over a restart.",
    )
    max_age: Duration = Field(86400.0, gt=0, description="How long a decision is kept.")
    max_entries: int = Field(100_000, ge=1, description="How many are kept; beyond it the oldest go.")
    scan_limit: Duration = Field(3600.0, gt=0, description="How long a scan may go on after its mail's deadline.")


class Limits(Section):
    max_message_size: Size = Field(MAX_MESSAGE_BYTES, ge=1, description="Larger mail is refused with 552.")
    max_recipients: int = Field(1000, ge=1, description="Recipients of one mail; then 452 4.5.3.")
    max_connections: int = Field(2000, ge=1, description="Connections per listener; then 421.")
    max_connections_per_client: int = Field(500, ge=1, description="Connections from one address; then 421.")
    max_mails_per_connection: int = Field(10_000, ge=1, description="Mails on one SMTP connection; then 421.")
    max_errors: int = Field(20, ge=1, description="Bad commands in one session; then 421.")
    command_timeout: Duration = Field(300.0, gt=0, description="Silence between commands; then 421.")
    data_timeout: Duration = Field(180.0, gt=0, description="Silence within the mail; then 421.")
    mail_timeout: Duration = Field(7200.0, gt=0, description="The whole content of one mail over SMTP; then 421.")
    min_data_rate: Size = Field(256, description="Bytes per second, averaged over 30 s of DATA; slower is cut.")
    max_received: int = Field(99, ge=10, description="Received headers; more is a loop, 554 5.4.6.")

    @field_validator("max_message_size")
    @classmethod
    def _within_api(cls, value: int) -> int:
        if value > MAX_MESSAGE_BYTES:
            raise ValueError("the service takes 50 MiB at most")
        return value


class Spool(Section):
    memory_per_mail: Size = Field(
        256 * KiB,
        description="A larger mail goes to an unlinked temporary file; one still coming does at three quarters.",
    )
    directory: str | None = Field(None, description="Where; the system's temporary directory when absent.")


class Tenant(Section):
    uid: TenantUid = Field(description="The service's tenantUid.")
    recipient_domains: list[Annotated[str, Field(pattern=r"^[^@\s]+$")]] = Field(
        min_length=1, description="Mail to these domains belongs to the tenant."
    )
    policy: Policy = Field(Policy(), description="Overrides of the listener's policy.")
    relay: TenantRelay | None = Field(
        None,
        description="The tenant's own next hop, before any of `relay.routes`; the settings of `relay` hold for it.",
    )


class S3(Section):
    allow_plain_http: bool = Field(
        False, description="Allow http:// to a host that is not loopback. Mail then travels in the clear."
    )
    bucket: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,62}$", description="Its name; it must be there already.")
    endpoint: str | None = Field(None, description="Base address of the server; Amazon's own when absent.")
    region: str = Field("us-east-1", pattern=r"^[A-Za-z0-9-]{1,64}$", description="Most other servers ignore it.")
    prefix: str = Field(
        "",
        pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$",
        description="Start of the objects' names, without the last slash.",
    )
    access_key_file: str | None = Field(
        None,
        description="File with the access key. Looked for in $CREDENTIALS_DIRECTORY, then beside this file. "
        "Without it the usual environment variables count (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY).",
    )
    secret_key_file: str | None = Field(None, validate_default=True, description="File with the secret key.")
    ca_file: str | None = Field(None, description="Certificates to trust beside the system's.")

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, url: str | None, info: ValidationInfo) -> str | None:
        return None if url is None else base_url(url, bool(info.data.get("allow_plain_http")))

    @field_validator("secret_key_file")
    @classmethod
    def _pair(cls, secret: str | None, info: ValidationInfo) -> str | None:
        if bool(secret) != bool(info.data.get("access_key_file")):
            raise ValueError("access_key_file and secret_key_file go together")
        return secret


class Quarantine(Section):
    directory: str = Field("quarantine", description="Relative to the state directory.")
    s3: S3 | None = Field(
        None, description="Keep the mail in S3-compatible object storage; the directory then has only `actions.log`."
    )
    retention: Duration = Field(30 * 86400.0, description="How long quarantined mail is kept.")
    max_size: Size | None = Field(
        None,
        ge=1,
        description="Bytes of all quarantined mail; above it 452 4.3.1. What was kept is never removed to make room.",
    )
    release_key_file: str | None = Field(
        None,
        description="File with the key of released mail's marks, the same on all machines that mail may pass. Looked "
        "for in $CREDENTIALS_DIRECTORY, then beside this file. Default: one of its own, in the state directory.",
    )


class Headers(Section):
    prefix: str = Field(
        "X-Scan-",
        pattern=r"^[A-Za-z][A-Za-z0-9-]{1,40}-$",
        description="Our header fields start with this. Incoming ones that do are stripped.",
    )
    received: bool = Field(True, description="Add a Received field.")


class Admin(Section):
    address: AddressField = Field(Address("127.0.0.1", 9082), description="/metrics, /livez, /readyz, /status.")


class Log(Section):
    format: Literal["keyvalue", "json"] = Field("keyvalue", description="One line per mail in this form.")
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least important line shown. The line of each mail is always shown."
    )
    addresses: Literal["full", "domain", "hashed"] = Field(
        "full",
        description="How mail addresses and Message-IDs are shown: as they are, `*@example.org`, or a name in their "
        "place that is the same in all lines (its key is `log-key` in the state directory).",
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
        description="Where an OpenTelemetry collector takes traces by OTLP over HTTP: http://127.0.0.1:4318/v1/traces. "
        "Needs the extra `scanbridge[otel]`.",
    )
    sample_percent: float = Field(100.0, ge=0, le=100, description="The share of mail that is traced.")


class Config(Section):
    """Everything `scanbridge run` needs to know."""

    scanner: Scanner
    listeners: list[Listener] = Field(min_length=1)
    admission: Admission = Admission()
    limits: Limits = Limits()
    late_decisions: LateDecisions = LateDecisions()
    policy: Policy = Policy()
    tenants: list[Tenant] = Field([], description="Whose mail it is, by the recipients' domains.")
    relay: Relay | None = Field(None, validate_default=True)
    quarantine: Quarantine = Quarantine()
    headers: Headers = Field(Headers(), validate_default=True)
    spool: Spool = Spool()
    lists: Lists | None = Field(None, validate_default=True)
    admin: Admin = Admin()
    workers: Workers = Field(
        1,
        description="Processes that take mail; `auto` is one for each processor. The limits of `admission` are for "
        "all of them together. With more than one a supervisor watches over them.",
    )
    log: Log = Log()
    tracing: Tracing | None = None
    hostname: str | None = Field(None, description="Our name in greetings and Received; the machine's when absent.")
    state_directory: str | None = Field(
        None, description="Default: $STATE_DIRECTORY, else the XDG state folder (~/.local/state/scanbridge)."
    )
    state_database: DatabaseUrl | None = Field(
        None,
        description="The database of everything that is to be found again: `postgresql://user@host/name` when several "
        "machines share it, or `sqlite:///file`. Default: SQLite files in the state directory.",
    )
    state_database_password_file: str | None = Field(
        None,
        validate_default=True,
        description="File with its password. Looked for in $CREDENTIALS_DIRECTORY, then beside this file.",
    )
    drain_timeout: Duration = Field(60.0, description="Longest wait for running mail when told to stop.")
    embedded_service: bool = Field(
        False, description="Run the scanning service beside the bridge, at the first scanner URL."
    )
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("listeners")
    @classmethod
    def _names(cls, listeners: list[Listener]) -> list[Listener]:
        if len({listener.name for listener in listeners}) != len(listeners):
            raise ValueError("two listeners have the same name")
        return listeners

    @field_validator("tenants")
    @classmethod
    def _domains(cls, tenants: list[Tenant]) -> list[Tenant]:
        domains = [domain.lower() for tenant in tenants for domain in tenant.recipient_domains]
        if len(set(domains)) != len(domains):
            raise ValueError("one recipient domain belongs to two tenants")
        if len({tenant.uid for tenant in tenants}) != len(tenants):
            raise ValueError("two tenants have the same uid; give one of them all the domains")
        return tenants

    @field_validator("state_database_password_file")
    @classmethod
    def _for_a_server(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and not (info.data.get("state_database") or "").startswith("postgresql:"):
            raise ValueError("only a PostgreSQL database has a password: set state_database to its URL")
        return name

    @field_validator("relay")
    @classmethod
    def _next_hop(cls, relay: Relay | None, info: ValidationInfo) -> Relay | None:
        if relay is None and any(one.protocol != "milter" for one in info.data.get("listeners", [])):
            raise ValueError("an SMTP or LMTP listener needs a next hop: set relay.next_hop")
        if relay is None and any(tenant.relay for tenant in info.data.get("tenants", [])):
            raise ValueError("a tenant has a next hop of its own, but there is none for all others: set relay.next_hop")
        return relay

    @field_validator("headers")
    @classmethod
    def _apart(cls, headers: Headers, info: ValidationInfo) -> Headers:
        for one in info.data.get("listeners", []):
            if (one.client_header or "").lower().startswith(headers.prefix.lower()):
                raise ValueError(
                    f"{one.name}.client_header starts with our prefix {headers.prefix}: give it another name"
                )
        return headers

    @field_validator("lists")
    @classmethod
    def _lists(cls, lists: Lists | None, info: ValidationInfo) -> Lists | None:
        if lists is None and any(one.lists is not None for one in info.data.get("listeners", [])):
            raise ValueError("a listener names lists: say where they are, lists.url and lists.api_key_file")
        return lists

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Config:
        self._directory = (info.context or {}).get("directory", Path())
        return self

    @property
    def directory(self) -> Path:
        """Where the configuration file lies; relative file names start there."""
        return self._directory

    def policy_for(self, listener: Listener, tenant: Tenant | None = None) -> Policy:
        """Defaults, then the profile's, then the operator's: general, listener, tenant."""
        policy = Policy().overridden_by(Policy.model_validate(dict(PROFILES[listener.profile].policy)))
        policy = policy.overridden_by(self.policy).overridden_by(listener.policy)
        return policy.overridden_by(tenant.policy) if tenant else policy


def load(path: Path) -> Config:
    return yaml_file.load(path, Config)


EMBEDDED = """\
# The embedded default: everything on this machine, nothing to set up.
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
state_directory: "{state}"
"""


def embedded(state: Path) -> Config:
    """What runs when no file is given."""
    return yaml_file.load(Path("embedded default"), Config, EMBEDDED.format(state=json.dumps(str(state))[1:-1]))
