"""The service's configuration, in the form that operators of the original service know.

`guard` and `abby` keep their documented camelCase keys; our own keys are at the top level.
`docs/operate/service.md` explains every key. Secrets are `SecretStr`, so no dump or traceback shows one.
If this file is wrong, a service starts with limits or tokens that were not configured. So every model
refuses unknown keys, and all errors are reported together, each with its line. `config_files` reads the
files, and drops keys of the original service that have no meaning here before a model sees them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bridge.api.scanning import DEFAULT_IN_PROCESSING
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Duration
from bridge.service.abby_settings import Abby, StaticApiToken
from bridge.service.analyzer_settings import Analyzers
from bridge.service.decision_settings import Decisions
from bridge.service.engine_settings import AddressField
from bridge.service.section import Section
from bridge.service.token_files import password_in

REST_API_HINT = "write `restApi: {}`, with a colon, below `scanSources:`"


@dataclass(frozen=True, slots=True)
class Timings:
    """Times that no configuration key changes; tests shorten them."""

    throttle_max_s: float = 5.0  # the delay of a request that takes the last slot
    probe_interval_s: float = 2.0  # between two probes of an excluded core node
    head_s: float = 30.0  # for a request's head
    upload_idle_s: float = 60.0  # the longest pause within an upload
    database_s: float = 20.0  # for one call of the database


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
    mainWorkerCount: int = Field(DEFAULT_IN_PROCESSING, ge=1, le=10_000, description="Number of concurrent analyses.")  # noqa: N815
    maxGuardRequestsInProcessing: int = Field(  # noqa: N815
        DEFAULT_IN_PROCESSING,
        ge=1,
        le=10_000,
        description="Limit on requests being processed; the next one gets 503. Default: mainWorkerCount.",
    )
    guardRequestThrottleThreshold: int = Field(  # noqa: N815
        DEFAULT_IN_PROCESSING,
        ge=1,
        le=10_000,
        description="Number of requests being processed at which the linear delay starts. Default: mainWorkerCount.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        workers = value.get("mainWorkerCount")
        if not str(workers).isdigit():  # absent, or an error that is reported once
            return value
        return {"maxGuardRequestsInProcessing": workers, "guardRequestThrottleThreshold": workers, **value}


_DATABASE_HOST = re.compile(r"postgresql[^:]*://(?:[^:/]*(?::[^@]*)?@)?([^/?]*)")  # as SQLAlchemy finds it
_DATABASE_USER = re.compile(r"postgresql[^:]*://[^:/@]+(?P<password>:[^@]*)?(?=@)")
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


class Worker(Section):
    """What only `scanbridge service worker` has."""

    listen: AddressField | None = Field(
        None, description="Where a worker answers /livez, /readyz and /metrics. Default: nowhere."
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
    database_password_file: str | None = Field(
        None,
        description="File that contains the password of a PostgreSQL database, if the URL has none. A relative name "
        "is looked up in $CREDENTIALS_DIRECTORY, then next to this file.",
    )
    lists: list[ListDefinition] = Field([])
    analyzers: Analyzers = Analyzers()
    decisions: Decisions = Field(Decisions(), validate_default=True)
    records: Records = Records()
    worker: Worker = Worker()
    log_scans: bool = Field(True, description="Log one line per analysis.")
    metrics_hosts: list[str] = Field(
        [],
        description="Host names under which a client on this machine may read /metrics, besides addresses, names "
        "without a dot and this machine's name.",
    )
    _directory: Path = PrivateAttr(default=Path())
    _database_password: SecretStr | None = PrivateAttr(default=None)

    @property
    def metrics_host_names(self) -> list[str]:
        worker = [self.worker.listen.host] if self.worker.listen is not None else []
        return [*self.metrics_hosts, self.listen.host, *worker]

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
            raise ValueError("a database must be given as sqlite:///file or postgresql://user:password@host/name")
        host = _DATABASE_HOST.match(url.get_secret_value())
        if host is not None and "@" in host[1]:  # a part of the password, which an error would quote as the host
            raise ValueError("write %40 for each @ in the user name or the password")
        return url

    @field_validator("database_password_file")
    @classmethod
    def _password_of_a_server(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and (url := info.data.get("database")) is not None:
            user = _DATABASE_USER.match(url.get_secret_value())
            if user is None:
                raise ValueError("needs a PostgreSQL URL with a user name in `database` (postgresql://user@host/name)")
            if user["password"] is not None or "password=" in url.get_secret_value():
                raise ValueError("the URL in `database` already contains a password; remove one of the two")
        return name

    @field_validator("lists")
    @classmethod
    def _list_names(cls, lists: list[ListDefinition]) -> list[ListDefinition]:
        names = [definition.name for definition in lists]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two lists are named {twice}: give one of them another name")
        return lists

    @field_validator("decisions")
    @classmethod
    def _lists_that_allow(cls, decisions: Decisions, info: ValidationInfo) -> Decisions:
        """One link or one attachment must not get a whole mail delivered: the rest of it may be anything."""
        for definition in info.data.get("lists", ()):
            if definition.category in ("url", "attachment") and decisions.allowing([definition.name]):
                raise ValueError(
                    f"a rule delivers mail because of the {definition.name} list, but a match with one "
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
        if self.database_password_file is not None:
            self._database_password = SecretStr(password_in(self.database_password_file, self._directory))
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
        if self._database_password is not None and (user := _DATABASE_USER.match(url)) is not None:
            return f"{user[0]}:{quote(self._database_password.get_secret_value(), safe='')}{url[user.end() :]}"
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


def private(config: ServiceConfig, listen: Endpoint, token: str, directory: Path, profile: str = "") -> ServiceConfig:
    """The same service, but with its own address, token and database; and with this profile, if it has one.

    It analyses mail itself: core nodes and workers have the configuration that is in use, not the one to try.
    """
    only_ours = StaticApiToken(name="parent", token=(SecretStr(token),), permissions=["scan", "status"])
    analyzers = config.analyzers
    if profile and analyzers.phishing is not None:
        chosen = analyzers.phishing.model_copy(update={"profile": profile})
        analyzers = analyzers.model_copy(update={"phishing": chosen})
    core = config.abby.serviceProviders.core.model_copy(update={"hosts": [], "nats": None})
    alone = config.abby.serviceProviders.model_copy(update={"core": core})
    return config.model_copy(
        update={
            "analyzers": analyzers,
            "listen": listen,
            "tls": None,
            "abby": config.abby.model_copy(update={"staticApiTokens": [only_ours], "serviceProviders": alone}),
            "database": SecretStr(embedded_database(directory)),
            "log_scans": False,
        }
    )


def embedded_database(state_dir: Path) -> str:
    return f"sqlite:///{state_dir.absolute() / 'service.sqlite'}"
