"""The service's configuration, in the shape an operator of the original knows.

`guard` and `abby` keep their documented camelCase keys, what is ours stands beside them.
`docs/service.md` explains every key. Secrets are `SecretStr`, so no dump or traceback shows one.
If this file is wrong, a service starts with limits or tokens nobody asked for: so every model
refuses unknown keys, and every mistake is reported at once with its line.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from bridge.api.scanning import DEFAULT_IN_PROCESSING, Decision
from bridge.runtime import yaml_file
from bridge.runtime.endpoints import Address
from bridge.runtime.units import Duration, Size

KiB, MiB = 1024, 1024**2
SHORT_TOKEN = 16  # below it, whoever starts the service is warned: it can be guessed


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


AddressField = Annotated[
    Address,
    BeforeValidator(lambda v: Address.parse(v) if isinstance(v, str) else v),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]


class Tls(Section):
    cert_file: str = Field(description="Certificate chain, PEM.")
    key_file: str = Field(description="Its private key, PEM.")


class ScanSources(Section):
    restApi: dict[str, None] | None = Field(  # noqa: N815
        None, max_length=0, description="Present (as an empty map): submitEmail is served."
    )


class Guard(Section):
    scanSources: ScanSources = Field(ScanSources(), description="Where mail may come from.")  # noqa: N815
    mainWorkerCount: int = Field(DEFAULT_IN_PROCESSING, ge=1, le=10_000, description="Analyses at once.")  # noqa: N815
    maxGuardRequestsInProcessing: int = Field(  # noqa: N815
        DEFAULT_IN_PROCESSING,
        ge=1,
        le=10_000,
        description="Requests in processing; at it, 503. Default: mainWorkerCount.",
    )
    guardRequestThrottleThreshold: int = Field(  # noqa: N815
        DEFAULT_IN_PROCESSING, ge=1, le=10_000, description="Where the linear delay starts. Default: mainWorkerCount."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        workers = value.get("mainWorkerCount", DEFAULT_IN_PROCESSING)
        return {"maxGuardRequestsInProcessing": workers, "guardRequestThrottleThreshold": workers, **value}


class Core(Section):
    hosts: list[str] = Field([], description="Base addresses of core nodes; empty: the core is this process.")
    longRequestTimeout: int = Field(  # noqa: N815
        3_600_000, ge=1000, description="Longest wait for one analysis, in milliseconds."
    )
    caFile: str | None = Field(None, description="Certificates to trust for the hosts, in place of the system's.")  # noqa: N815

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            _check_url(host, "a core host is https://host:9785, or http://host:port on loopback", https=True)
        return [host.rstrip("/") for host in hosts]


class ServiceProviders(Section):
    core: Core = Core()


class Permission:
    """What a static token may do; the values are ours."""

    SCAN = "scan"
    STATUS = "status"
    METRICS = "metrics"


class StaticApiToken(Section):
    name: str = Field(min_length=1, max_length=100, description="Name of the token's user, for the log.")
    token: SecretStr | None = Field(None, description="The secret itself; 64 hex digits are recommended.")
    token_file: str | None = Field(
        None,
        exclude=True,
        description="Or the file that holds it: in $CREDENTIALS_DIRECTORY if it is there, else relative to this file.",
    )
    permissions: list[Literal["scan", "status", "metrics"]] = Field(
        [], description="What it may do: scan, status, metrics. Empty: no limit."
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        """Replace `token_file` by what the file holds, so that the rest of the service sees tokens only."""
        if not isinstance(value, dict):
            return value
        if (value.get("token") is None) == (value.get("token_file") is None):
            raise ValueError("give either token or token_file")
        if value.get("token_file") is None:
            return value
        name = value["token_file"]
        place = Path((info.context or {}).get("directory", Path())) / str(name)
        credential = Path(os.environ.get("CREDENTIALS_DIRECTORY") or place.parent) / str(name)
        try:
            text = (credential if credential.exists() else place).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ValueError(f"token_file {name} cannot be read") from exc
        return {**value, "token": text}

    @field_validator("token")
    @classmethod
    def _strong(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not re.fullmatch(r"[\x21-\x7e]{1,512}", token.get_secret_value()):
            raise ValueError(
                "a token is up to 512 printable characters without spaces; make one with `scanbridge service token`"
            )
        return token

    @property
    def secret(self) -> str:
        return self.token.get_secret_value() if self.token else ""


class Abby(Section):
    serviceProviders: ServiceProviders = ServiceProviders()  # noqa: N815
    staticApiTokens: list[StaticApiToken] = []  # noqa: N815

    @field_validator("staticApiTokens")
    @classmethod
    def _names(cls, tokens: list[StaticApiToken]) -> list[StaticApiToken]:
        if len({t.name for t in tokens}) != len(tokens):
            raise ValueError("two tokens have the same name")
        if len({t.secret for t in tokens}) != len(tokens):
            raise ValueError("two names share one token")
        return tokens


LIST_NAME = r"^[a-z0-9][a-z0-9-]{0,63}$"


class ListDefinition(Section):
    name: str = Field(pattern=LIST_NAME, description="The listName of the API.")
    displayName: str = Field("", max_length=200)  # noqa: N815
    category: str = Field(
        pattern=r"^[a-z][a-z0-9-]{0,31}$",
        description="What its entries are compared with: sender, domain, network, url or attachment. "
        "A list of any other category is kept and served, but no mail is matched against it.",
    )
    description: str = Field("", max_length=1000)
    maxSize: int = Field(100_000, ge=1, le=10_000_000, description="Largest number of entries per scope.")  # noqa: N815


class Bounded(Section):
    """What every analyzer has."""

    required: bool = Field(True, description="Without its answer no mail is delivered: undecided.")
    timeout: Duration = Field(30.0, description="Longest wait for its answer.")


class ClamAv(Bounded):
    address: AddressField = Field(description="clamd's socket: host:port or unix:/path.")
    max_size: Size = Field(50 * MiB, description="clamd's StreamMaxLength; larger mail is not sent: a limit.")


class Rspamd(Bounded):
    url: str = Field(description="rspamd's normal worker, for example http://127.0.0.1:11333.")
    max_size: Size = Field(50 * MiB, description="Larger mail is not sent: a limit.")

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        _check_url(url, "rspamd's url is http://host:port", https=False)
        return url.rstrip("/")


class Mime(Bounded):
    timeout: Duration = 20.0
    max_parts: int = Field(2000, ge=1, description="MIME parts of one mail.")
    max_depth: int = Field(30, ge=1, description="MIME nesting.")
    max_header_size: Size = Field(256 * KiB, description="Header section of the mail or of one part.")
    max_archive_depth: int = Field(4, ge=0, description="Archives within archives.")
    max_archive_members: int = Field(10_000, ge=1, description="Members of all archives together.")
    max_extracted_size: Size = Field(256 * MiB, description="Bytes unpacked from all archives together.")


class Urls(Bounded):
    timeout: Duration = 20.0
    max_urls: int = Field(1000, ge=1, description="Hosts looked up in lists; the rest is not looked at.")


class HeadersAnalyzer(Bounded):
    timeout: Duration = 20.0


class Authentication(Bounded):
    required: bool = False
    timeout: Duration = 10.0
    dns: bool = Field(False, description="Whether DNS may be asked. Without: no SPF, DKIM, DMARC.")
    nameservers: list[AddressField] = Field([], description="Ask these in place of the system's.")


class Plugin(Bounded):
    """An analyzer of one's own, found as an entry point of this name."""

    options: dict[str, Any] = Field({}, description="Handed to the analyzer's factory.")
    memory: Size = Field(1024 * MiB, description="Address space of each of its processes.")
    processes: int = Field(2, ge=1, le=64, description="Mails it looks at at once, unless it is asynchronous.")
    max_size: Size = Field(50 * MiB, description="Larger mail is not shown to it: a limit.")


class Analyzers(Section):
    mime: Mime | None = Mime()
    urls: Urls | None = Urls()
    headers: HeadersAnalyzer | None = HeadersAnalyzer()
    authentication: Authentication | None = None
    clamav: ClamAv | None = None
    rspamd: Rspamd | None = None
    plugins: dict[str, Plugin] = {}
    processes: int = Field(2, ge=1, le=64, description="Processes that look into large mail and archives.")
    process_memory: Size = Field(1024 * MiB, description="Address space of each such process.")


class Rule(Section):
    """One row of the decisions table: all conditions given must hold."""

    tags: list[str] = Field([], description="At least one tag matches one of these patterns (`*` is a wildcard).")
    score: float | None = Field(None, description="The sum of scores is at least this.")
    verdict: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="The verdict to report.")
    decision: Decision

    @model_validator(mode="after")
    def _has_condition(self) -> Rule:
        if not self.tags and self.score is None:
            raise ValueError("a rule needs tags, a score, or both")
        return self


DEFAULT_RULES = [
    Rule(tags=["malware:*"], verdict="malware", decision=Decision.QUARANTINE),
    Rule(tags=["list:blocked-*"], verdict="blocked", decision=Decision.BOUNCE),
    Rule(tags=["spam:gtube", "rspamd:reject"], verdict="spam", decision=Decision.BOUNCE),
    Rule(tags=["incomplete"], verdict="incomplete", decision=Decision.UNDECIDED),
    Rule(tags=["list:allowed-*"], verdict="allowed", decision=Decision.DELIVER),
    Rule(tags=["rspamd:soft-reject"], verdict="deferred", decision=Decision.UNDECIDED),
    Rule(score=15.0, verdict="spam", decision=Decision.BOUNCE),
    Rule(score=8.0, verdict="suspicious", decision=Decision.QUARANTINE),
]


class Decisions(Section):
    rules: list[Rule] = Field(DEFAULT_RULES, description="First match wins.")
    scores: dict[str, float] = Field({}, description="Scores of tags that differ from the default.")
    otherwise: Decision = Field(Decision.DELIVER, description="When no rule matches (verdict `clean`).")


class Records(Section):
    retention: Duration = Field(30 * 86400.0, description="How long analysis records are kept.")


class ServiceConfig(Section):
    """Everything `scanbridge service` needs to know."""

    listen: AddressField = Field(Address("127.0.0.1", 9081), description="host:port, [IPv6]:port or unix:/path.")
    tls: Tls | None = None
    guard: Guard = Guard()
    abby: Abby = Abby()
    database: SecretStr = Field(SecretStr("sqlite:///service.sqlite"), description="SQLAlchemy URL.")
    lists: list[ListDefinition] = []
    analyzers: Analyzers = Analyzers()
    decisions: Decisions = Decisions()
    records: Records = Records()
    log_scans: bool = Field(True, description="One line in the log per analysis.")
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("listen")
    @classmethod
    def _not_systemd(cls, address: Address) -> Address:
        if address.systemd:
            raise ValueError("the service listens at host:port, [IPv6]:port or unix:/path")
        return address

    @field_validator("database")
    @classmethod
    def _known_database(cls, url: SecretStr) -> SecretStr:
        if not re.match(r"(sqlite|postgresql)(\+[a-z0-9_]+)?://", url.get_secret_value()):
            raise ValueError("a database is sqlite:///file or postgresql://user:password@host/name")
        return url

    @field_validator("lists")
    @classmethod
    def _list_names(cls, lists: list[ListDefinition]) -> list[ListDefinition]:
        if len({one.name for one in lists}) != len(lists):
            raise ValueError("two lists have the same name")
        return lists

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> ServiceConfig:
        self._directory = (info.context or {}).get("directory", Path())
        return self

    @property
    def directory(self) -> Path:
        """Where relative file names start."""
        return self._directory

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def database_url(self) -> str:
        """The URL with a relative SQLite file placed in $STATE_DIRECTORY, else beside the configuration."""
        url = self.database.get_secret_value()
        if url.startswith("sqlite:///") and not url.startswith("sqlite:////") and url != "sqlite:///:memory:":
            state = Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or self.directory).absolute()
            return f"sqlite:///{state / url.removeprefix('sqlite:///')}"
        return url


def load(path: Path) -> ServiceConfig:
    return yaml_file.load(path, ServiceConfig)


def embedded(state_dir: Path, listen: str, token: str) -> ServiceConfig:
    """What runs beside the bridge when no file is given."""
    return ServiceConfig(
        listen=Address.parse(listen),
        guard=Guard(scanSources=ScanSources(restApi={})),
        abby=Abby(staticApiTokens=[StaticApiToken(name="bridge", token=SecretStr(token))]),
        database=SecretStr(embedded_database(state_dir)),
        log_scans=False,  # the bridge has its own line per mail
    )


def embedded_database(state_dir: Path) -> str:
    return f"sqlite:///{state_dir.absolute() / 'service.sqlite'}"


def _check_url(url: str, rule: str, *, https: bool) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(rule) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise ValueError(rule)
    if parts.username or parts.password:
        raise ValueError("a URL here must not hold a user name or password")
    if https and parts.scheme == "http" and not Address(host=parts.hostname).is_local:
        raise ValueError(rule)
