"""The service's configuration, in the form that operators of the original service know.

`guard` and `abby` keep their documented camelCase keys; our own keys are at the top level.
`docs/operate/service.md` explains every key. Secrets are `SecretStr`, so no dump or traceback shows one.
If this file is wrong, a service starts with limits or tokens that were not configured. So every model
refuses unknown keys, and all mistakes are reported together, each with its line. `config_files` reads the
files, and drops keys of the original service that have no meaning here before a model sees them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bridge.api.scanning import DEFAULT_IN_PROCESSING, Decision
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Duration, Size
from bridge.service.engine_settings import (
    AddressField,
    AnalyzerSection,
    ClamAv,
    Hooks,
    Icap,
    Plugin,
    Rspamd,
    SpamAssassin,
    Yara,
    check_url,
)
from bridge.service.nats_settings import Nats
from bridge.service.section import Section, abby_directory
from bridge.service.token_files import tokens_in

KiB, MiB = 1024, 1024**2
REST_API_HINT = "write `restApi: {}`, with a colon, below `scanSources:`"
PLACEHOLDER_HINT = (
    "a core host contains a placeholder: write the name of the machine instead, such as https://mta1.example.org:9785"
)
MAX_TOKENS = 10  # per name; two are enough to replace one
SHORT_TOKEN = 16  # a shorter token can be guessed, so the service logs a warning at start


@dataclass(frozen=True, slots=True)
class Timings:
    """Times that no configuration key changes; tests shorten them."""

    throttle_max_s: float = 5.0  # the delay of a request that takes the last slot
    probe_interval_s: float = 2.0  # between two probes of an excluded core node
    head_s: float = 30.0  # for a request's head
    upload_idle_s: float = 60.0  # the longest pause within an upload


class Tls(Section):
    cert_file: str = Field(description="Certificate chain, PEM.")
    key_file: str = Field(description="Its private key, PEM.")


class ScanSources(Section):
    restApi: dict[str, None] | None = Field(  # noqa: N815
        None, max_length=0, description="Enables submitEmail when present, as an empty map or without a value."
    )

    @model_validator(mode="before")
    @classmethod
    def _written_otherwise(cls, value: Any) -> Any:
        """`restApi {}` is text in YAML, and `- restApi` a list."""
        entries = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        if any("restApi" in (entry.split() if isinstance(entry, str) else entry or ()) for entry in entries):
            raise ValueError(REST_API_HINT)
        return value

    @field_validator("restApi", mode="before")
    @classmethod
    def _without_value(cls, value: Any) -> Any:
        """`restApi:` is present too."""
        return {} if value is None else value


class Guard(Section):
    scanSources: ScanSources = Field(ScanSources(), description="Where mail may come from.")  # noqa: N815
    mainWorkerCount: int = Field(DEFAULT_IN_PROCESSING, ge=1, le=10_000, description="Concurrent analyses.")  # noqa: N815
    maxGuardRequestsInProcessing: int = Field(  # noqa: N815
        DEFAULT_IN_PROCESSING,
        ge=1,
        le=10_000,
        description="Limit on requests in processing; the next one gets 503. Default: mainWorkerCount.",
    )
    guardRequestThrottleThreshold: int = Field(  # noqa: N815
        DEFAULT_IN_PROCESSING,
        ge=1,
        le=10_000,
        description="Requests in processing at which the linear delay starts. Default: mainWorkerCount.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        workers = value.get("mainWorkerCount")
        if not str(workers).isdigit():  # absent, or a mistake that is reported once
            return value
        return {"maxGuardRequestsInProcessing": workers, "guardRequestThrottleThreshold": workers, **value}


class Core(Section):
    hosts: list[str] = Field([], description="Base URLs of core nodes; if empty, this process analyzes mail itself.")
    longRequestTimeout: int = Field(  # noqa: N815
        3_600_000, ge=1000, description="Maximum time for one analysis, in milliseconds."
    )
    caFile: str | None = Field(None, description="CA certificates for the hosts, instead of the system's.")  # noqa: N815
    nats: Nats | None = Field(None, description="Pass scans on to workers through a queue in NATS, instead of hosts.")
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("hosts", mode="before")
    @classmethod
    def _no_hosts(cls, hosts: Any) -> Any:
        return [] if hosts is None else hosts

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            if re.search(r"[{}<>$]|%7[bd]", host, re.IGNORECASE):
                raise ValueError(PLACEHOLDER_HINT)
            check_url(host, "a core host must be https://host:9785, or http://host:port on loopback", https=True)
        return [host.rstrip("/") for host in hosts]

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Core:
        if self.hosts and self.nats is not None:
            raise ValueError("set either hosts or nats: a scan goes to core nodes or into the queue")
        self._directory = abby_directory(info)
        return self

    @property
    def ca_path(self) -> str | None:
        return str(self._directory / self.caFile) if self.caFile else None

    @property
    def remote_hosts(self) -> list[str]:
        """Those on other machines."""
        return [host for host in self.hosts if not Endpoint(host=urlsplit(host).hostname or "").is_local]


class ServiceProviders(Section):
    core: Core = Core()

    @field_validator("core", mode="before")
    @classmethod
    def _without_value(cls, value: Any) -> Any:
        return {} if value is None else value


class Permission:
    """What a static token may do. The API description names no values; these are ours."""

    SCAN = "scan"
    STATUS = "status"
    METRICS = "metrics"


PERMISSIONS = {
    Permission.SCAN: "submit mail (submitEmail)",
    Permission.STATUS: "read the status of the queue (admin/status)",
    Permission.METRICS: "read /metrics from another machine",
}


class StaticApiToken(Section):
    name: str = Field(min_length=1, max_length=100, description="Name of the token's user, for the log.")
    token: tuple[SecretStr, ...] = Field(
        (), description="The secret, or a list of secrets that are all valid. We recommend 64 hex digits."
    )
    token_file: str | list[str] | None = Field(
        None,
        exclude=True,
        description="File with the secret, or several, one per line; or a list of files. A file is in "
        "$CREDENTIALS_DIRECTORY if it exists there, else relative to this file.",
    )
    permissions: list[str] = Field([], description="What the token may do: scan, status, metrics. Empty: everything.")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        """Replace `token_file` with the file's content, so that the rest of the service sees only tokens."""
        if not isinstance(value, dict):
            return value
        given, files = _several(value.get("token")), _several(value.get("token_file"))
        if bool(given) == bool(files):
            raise ValueError("set either token or token_file")
        if not files:
            return {**value, "token": given}
        found = [token for name in files for token in tokens_in(str(name), abby_directory(info))]
        return {**value, "token": found}

    @field_validator("permissions", mode="before")
    @classmethod
    def _no_permissions(cls, value: Any) -> Any:
        return [] if value is None else value

    @field_validator("token")
    @classmethod
    def _printable(cls, tokens: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if not all(re.fullmatch(r"[\x21-\x7e]{1,512}", token.get_secret_value()) for token in tokens):
            raise ValueError(
                "a token is up to 512 printable characters without spaces; create one with `scanbridge service token`"
            )
        if len(tokens) > MAX_TOKENS:
            raise ValueError(f"at most {MAX_TOKENS} tokens can be valid for one name at the same time")
        return tuple({token.get_secret_value(): token for token in tokens}.values())

    @property
    def secrets(self) -> list[str]:
        """All that are valid now: one, or two while a token is being replaced."""
        return [token.get_secret_value() for token in self.token]

    @property
    def files(self) -> list[str]:
        return [str(name) for name in _several(self.token_file)]


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


class Abby(Section):
    serviceProviders: ServiceProviders = ServiceProviders()  # noqa: N815
    staticApiTokens: list[StaticApiToken] = Field([])  # noqa: N815
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("staticApiTokens", mode="before")
    @classmethod
    def _no_tokens(cls, tokens: Any) -> Any:
        return [] if tokens is None else tokens

    @field_validator("staticApiTokens")
    @classmethod
    def _names(cls, tokens: list[StaticApiToken]) -> list[StaticApiToken]:
        if len({token.name for token in tokens}) != len(tokens):
            raise ValueError("two tokens have the same name")
        owners: dict[str, str] = {}
        for token in tokens:
            for secret in token.secrets:
                other = owners.setdefault(secret, token.name)
                if other != token.name:
                    raise ValueError(f"{other} and {token.name} have the same token; give each name its own")
        return tokens

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Abby:
        self._directory = abby_directory(info)
        return self

    @property
    def directory(self) -> Path:
        """The directory that token files are relative to."""
        return self._directory


LIST_NAME = r"^[a-z0-9][a-z0-9-]{0,63}$"


class ListDefinition(Section):
    name: str = Field(pattern=LIST_NAME, description="The listName of the API.")
    displayName: str = Field("", max_length=200)  # noqa: N815
    category: str = Field(
        pattern=r"^[a-z][a-z0-9-]{0,31}$",
        description="What the entries are compared with: sender, domain, network, url, attachment or personal (a "
        "recipient and a sender). "
        "A list of any other category is stored and served, but no mail is matched against it.",
    )
    description: str = Field("", max_length=1000)
    maxSize: int = Field(100_000, ge=1, le=10_000_000, description="Maximum number of entries per scope.")  # noqa: N815


class Mime(AnalyzerSection):
    timeout: Duration = 20.0
    max_parts: int = Field(2000, ge=1, description="MIME parts in one mail.")
    max_depth: int = Field(30, ge=1, description="Levels of MIME nesting.")
    max_header_size: Size = Field(256 * KiB, description="Bytes in the header section of the mail or of one part.")
    max_archive_depth: int = Field(4, ge=0, description="Levels of archives within archives.")
    max_archive_members: int = Field(10_000, ge=1, description="Members of all archives together.")
    max_extracted_size: Size = Field(256 * MiB, description="Bytes unpacked from all archives together.")
    libarchive: Literal["auto"] | bool = Field(
        "auto", description="Opens RAR, 7z, cab, ISO and other archives; auto: if the extra `archives` is installed."
    )
    qr_codes: Literal["auto"] | bool = Field(
        "auto", description="Reads QR codes in pictures; auto: if the extra `pictures` is installed."
    )
    office: bool = Field(True, description="Reads Office documents and RTF: macros, links, embedded files.")
    pdf: bool = Field(True, description="Reads PDF documents: links, actions, embedded files.")
    scripts: bool = Field(True, description="Reads attached pages for files that their scripts build, and for forms.")


class Urls(AnalyzerSection):
    timeout: Duration = 20.0
    max_urls: int = Field(5000, ge=1, description="Different hosts in links; a mail with more is `incomplete`.")


class HeadersAnalyzer(AnalyzerSection):
    timeout: Duration = 20.0


class Phishing(AnalyzerSection):
    required: bool = Field(False, description="If true, a mail for which the search for phishing failed is undecided.")
    timeout: Duration = 20.0
    profile: Literal["cautious", "balanced", "strict"] = Field(
        "balanced", description="How sure the model must be before a mail is quarantined."
    )
    model_file: str | None = Field(None, description="A model of your own, from `tools/train.py`.")
    use_model: bool = Field(True, description="If false, there are only the tags of the signals, and no score.")
    ignore: list[str] = Field([], description="Tags of signals that are switched off.")
    _directory: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Phishing:
        self._directory = Path((info.context or {}).get("directory") or "")
        return self

    @property
    def model_path(self) -> str:
        """Empty: the shipped model."""
        return str(self._directory / self.model_file) if self.model_file else ""


class Authentication(AnalyzerSection):
    required: bool = False
    timeout: Duration = 10.0
    dns: bool = Field(False, description="Allows DNS queries. Without them there is no SPF, DKIM or DMARC.")
    nameservers: list[AddressField] = Field([], description="Query these instead of the system's.")


class Analyzers(Section):
    mime: Mime | None = Mime()
    urls: Urls | None = Urls()
    headers: HeadersAnalyzer | None = HeadersAnalyzer()
    phishing: Phishing | None = Phishing()
    authentication: Authentication | None = None
    clamav: ClamAv | None = None
    rspamd: Rspamd | None = None
    icap: Icap | None = None
    spamassassin: SpamAssassin | None = None
    yara: Yara | None = None
    hooks: Hooks = Field({})
    plugins: dict[str, Plugin] = Field({})
    processes: int = Field(2, ge=1, le=64, description="Processes that inspect large mail and archives.")
    process_memory: Size = Field(1024 * MiB, description="Address space of each such process.")

    @field_validator("plugins")
    @classmethod
    def _other_names(cls, plugins: dict[str, Plugin], info: ValidationInfo) -> dict[str, Plugin]:
        if both := set(plugins) & set(info.data.get("hooks", ())):
            raise ValueError(f"a hook has the same name: {min(both)}")
        return plugins


class DecisionRule(Section):
    """One row of the decision table: all given conditions must hold."""

    tags: list[str] = Field([], description="At least one tag matches one of these patterns (`*` is a wildcard).")
    score: float | None = Field(None, description="The sum of all scores is at least this.")
    verdict: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="The verdict to report.")
    decision: Decision

    @model_validator(mode="after")
    def _has_condition(self) -> DecisionRule:
        if not self.tags and self.score is None:
            raise ValueError("a rule needs tags, a score, or both")
        return self


DEFAULT_RULES = [
    DecisionRule(tags=["malware:*"], verdict="malware", decision=Decision.QUARANTINE),
    DecisionRule(tags=["list:blocked-*"], verdict="blocked", decision=Decision.BOUNCE),
    DecisionRule(tags=["spam:gtube", "rspamd:reject"], verdict="spam", decision=Decision.BOUNCE),
    DecisionRule(tags=["list:personal-blocked-*"], verdict="blocked", decision=Decision.QUARANTINE),
    DecisionRule(tags=["incomplete"], verdict="incomplete", decision=Decision.UNDECIDED),
    DecisionRule(tags=["list:allowed-*"], verdict="allowed", decision=Decision.DELIVER),
    DecisionRule(tags=["rspamd:soft-reject"], verdict="deferred", decision=Decision.UNDECIDED),
    DecisionRule(tags=["phishing:likely"], verdict="phishing", decision=Decision.QUARANTINE),
    DecisionRule(tags=["list:personal-allowed-*"], verdict="allowed", decision=Decision.DELIVER),
    DecisionRule(score=15.0, verdict="spam", decision=Decision.BOUNCE),
    DecisionRule(score=8.0, verdict="suspicious", decision=Decision.QUARANTINE),
]


class Decisions(Section):
    rules: list[DecisionRule] = Field(DEFAULT_RULES, description="The first match wins.")
    scores: dict[str, float] = Field({}, description="Scores of tags, where they differ from the default.")
    otherwise: Decision = Field(Decision.DELIVER, description="Decision when no rule matches (verdict `clean`).")

    def allowing(self, lists: Iterable[str]) -> frozenset[str]:
        """Those lists that can get a mail delivered: a rule that delivers names the tag `list:NAME`."""
        patterns = [tag for rule in self.rules if rule.decision is Decision.DELIVER for tag in rule.tags]
        return frozenset(name for name in lists if any(fnmatchcase(f"list:{name}", tag) for tag in patterns))


class Worker(Section):
    """What only `scanbridge service worker` has."""

    listen: AddressField | None = Field(
        None, description="Where a worker answers /livez, /readyz and /metrics; nowhere if absent."
    )


class Records(Section):
    retention: Duration = Field(30 * 86400.0, description="How long analysis records are kept.")


class ServiceConfig(Section):
    """The whole configuration of `scanbridge service`."""

    listen: AddressField = Field(Endpoint("127.0.0.1", 9081), description="host:port, [IPv6]:port or unix:/path.")
    tls: Tls | None = None
    guard: Guard = Guard()
    abby: Abby = Abby()
    database: SecretStr = Field(SecretStr("sqlite:///service.sqlite"), description="SQLAlchemy URL.")
    lists: list[ListDefinition] = Field([])
    analyzers: Analyzers = Analyzers()
    decisions: Decisions = Field(Decisions(), validate_default=True)
    records: Records = Records()
    worker: Worker = Worker()
    log_scans: bool = Field(True, description="Log one line per analysis.")
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("listen")
    @classmethod
    def _not_systemd(cls, address: Endpoint) -> Endpoint:
        if address.systemd:
            raise ValueError("the service can only listen on host:port, [IPv6]:port or unix:/path")
        return address

    @field_validator("database")
    @classmethod
    def _known_database(cls, url: SecretStr) -> SecretStr:
        if not re.match(r"(sqlite|postgresql)(\+[a-z0-9_]+)?://", url.get_secret_value()):
            raise ValueError("a database must be sqlite:///file or postgresql://user:password@host/name")
        return url

    @field_validator("lists")
    @classmethod
    def _list_names(cls, lists: list[ListDefinition]) -> list[ListDefinition]:
        if len({definition.name for definition in lists}) != len(lists):
            raise ValueError("two lists have the same name")
        return lists

    @field_validator("decisions")
    @classmethod
    def _lists_that_allow(cls, decisions: Decisions, info: ValidationInfo) -> Decisions:
        """One link or one attachment must not get a whole mail delivered: the rest of it may be anything."""
        for definition in info.data.get("lists", ()):
            if definition.category in ("url", "attachment") and decisions.allowing([definition.name]):
                raise ValueError(
                    f"a rule delivers mail because of the list {definition.name}, but a match with one "
                    f"{definition.category} does not make a whole mail safe; rename the list, or change the rule"
                )
        return decisions

    @field_validator("guard", "abby", mode="before")
    @classmethod
    def _without_value(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> ServiceConfig:
        self._directory = (info.context or {}).get("directory", Path())
        return self

    @property
    def directory(self) -> Path:
        """The directory that relative file names are relative to."""
        return self._directory

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def database_url(self) -> str:
        """The URL; a relative SQLite file is placed in $STATE_DIRECTORY, else next to the configuration."""
        url = self.database.get_secret_value()
        if url.startswith("sqlite:///") and not url.startswith("sqlite:////") and url != "sqlite:///:memory:":
            state = Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or self.directory).absolute()
            return f"sqlite:///{state / url.removeprefix('sqlite:///')}"
        return url


def embedded(state_dir: Path, listen: str, tokens: list[str]) -> ServiceConfig:
    """The configuration of the embedded service, which has no file."""
    return ServiceConfig(
        listen=Endpoint.parse(listen),
        guard=Guard(scanSources=ScanSources(restApi={})),
        abby=Abby(staticApiTokens=[StaticApiToken(name="bridge", token=tuple(map(SecretStr, tokens)))]),
        database=SecretStr(embedded_database(state_dir)),
        log_scans=False,  # the bridge already logs one line per mail
    )


def private(config: ServiceConfig, listen: Endpoint, token: str, directory: Path) -> ServiceConfig:
    """The same service, but with its own address, token and database."""
    only_ours = StaticApiToken(name="parent", token=(SecretStr(token),), permissions=["scan", "status"])
    return config.model_copy(
        update={
            "listen": listen,
            "tls": None,
            "abby": config.abby.model_copy(update={"staticApiTokens": [only_ours]}),
            "database": SecretStr(embedded_database(directory)),
            "log_scans": False,
        }
    )


def embedded_database(state_dir: Path) -> str:
    return f"sqlite:///{state_dir.absolute() / 'service.sqlite'}"
