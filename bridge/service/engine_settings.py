"""The settings of engines: programs and services that the scanning service asks about a mail.

`settings` has the rest of the configuration. What is checked here is checked before the service starts; whether an
engine answers is known only later, and `required` says what happens to mail if it does not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Duration, Size
from bridge.service.section import Section
from bridge.service.token_files import tokens_in

MiB = 1024**2
ICAP_PORT = 1344
ICAPS_PORT = 11344  # in no standard, but used by c-icap and Squid
OUR_NAMES = (  # of analyzers and parts of the service, in tags such as `failed:clamav`
    *("mime", "urls", "headers", "authentication", "clamav", "rspamd", "icap", "spamassassin", "yara", "phishing"),
    *("lists", "core", "conclusion", "auth", "header", "list", "malware", "spam", "url"),
)


AddressField = Annotated[
    Endpoint,
    BeforeValidator(lambda v: Endpoint.parse(v) if isinstance(v, str) else v),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]


class AnalyzerSection(Section):
    """Keys that every analyzer has."""

    required: bool = Field(True, description="If true, a mail without this analyzer's answer is undecided.")
    timeout: Duration = Field(30.0, description="Maximum time to wait for its answer.")


class ClamAv(AnalyzerSection):
    address: AddressField = Field(description="clamd's socket: host:port or unix:/path.")
    max_size: Size = Field(
        50 * MiB, description="clamd's StreamMaxLength; larger mail is not sent and is tagged `limit:clamav`."
    )


class Rspamd(AnalyzerSection):
    url: str = Field(description="rspamd's normal worker, for example http://127.0.0.1:11333.")
    max_size: Size = Field(50 * MiB, description="Larger mail is not sent and is tagged `limit:rspamd`.")
    spam_score: float = Field(
        2.0,
        ge=0,
        le=1000,
        description="Our score for mail that rspamd considers spam: this much just below its threshold for `reject`, "
        "and proportionally less at lower scores.",
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        check_url(url, "rspamd's url must be http://host:port", https=False)
        return url.rstrip("/")


class Icap(AnalyzerSection):
    url: str = Field(
        description="The service of an ICAP server, icap://host:port/name, or icaps://host:port/name over TLS."
    )
    ca_file: str | None = Field(None, description="CA certificates for icaps://, instead of the system's.")
    connections: int = Field(
        10, ge=1, le=1000, description="Maximum number of connections, and of objects sent at the same time."
    )
    max_size: Size = Field(50 * MiB, description="A larger object is not sent; its mail is tagged `limit:icap`.")
    max_objects: int = Field(
        500, ge=1, description="Maximum number of objects in one mail; a mail with more is tagged `limit:icap`."
    )
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        rule = "an ICAP service must be given as icap://host:port/name or icaps://host:port/name"
        check_url(url, rule, https=False, schemes=("icap", "icaps"))
        if not re.fullmatch(r"[\x21-\x7e]+", url):
            raise ValueError(rule)
        return url

    @model_validator(mode="after")
    def _trust(self, info: ValidationInfo) -> Icap:
        if self.ca_file is not None and not self.is_encrypted:
            raise ValueError("ca_file has no effect without icaps://")
        self._directory = directory_of(info)
        return self

    @property
    def is_encrypted(self) -> bool:
        return urlsplit(self.url).scheme == "icaps"

    @property
    def ca_path(self) -> str | None:
        return None if self.ca_file is None else str(self._directory / self.ca_file)

    @property
    def address(self) -> Endpoint:
        return endpoint_of(self.url)


class SpamAssassin(AnalyzerSection):
    address: AddressField = Field(description="spamd's socket: host:port or unix:/path.")
    user: str = Field("", pattern=r"^[A-Za-z0-9._@+-]{0,128}$", description="User whose preferences spamd uses.")
    connections: int = Field(
        10, ge=1, le=1000, description="Maximum number of mails sent at the same time; spamd's --max-children."
    )
    max_size: Size = Field(50 * MiB, description="Larger mail is not sent and is tagged `limit:spamassassin`.")
    spam_score: float = Field(
        1.0, ge=0, le=1000, description="Our score for a mail that just reaches SpamAssassin's own threshold."
    )


class Hook(AnalyzerSection):
    """A program of the operator's own, reached over HTTP."""

    url: str = Field(description="URL to which the parsed mail is posted: http://host:port/path or https://...")
    token: SecretStr | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    token_file: str | None = Field(None, exclude=True, description="File that contains the token, instead of `token`.")
    connections: int = Field(10, ge=1, le=1000, description="Maximum number of mails sent at the same time.")
    max_size: Size = Field(50 * MiB, description="Larger mail is not sent and is tagged `limit:NAME`.")
    content: bool = Field(True, description="If false, parts are sent without their content.")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict) or value.get("token_file") is None:
            return value
        if value.get("token") is not None:
            raise ValueError("set either token or token_file")
        return {**value, "token": tokens_in(str(value["token_file"]), directory_of(info))[0]}

    @model_validator(mode="after")
    def _keeps_its_token(self) -> Hook:
        if self.token is not None and urlsplit(self.url).scheme == "http" and not endpoint_of(self.url).is_local:
            raise ValueError("a token is sent only to an https:// URL, or to this machine")
        return self

    @field_validator("token")
    @classmethod
    def _printable(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not re.fullmatch(r"[\x21-\x7e]{1,512}", token.get_secret_value()):
            raise ValueError("a token must consist of at most 512 printable characters without spaces")
        return token

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        check_url(url, "a hook's url must be http://host:port/path or https://host:port/path", https=False)
        return url


def _hook_names(hooks: dict[str, Hook]) -> dict[str, Hook]:
    for name in hooks:
        if name in OUR_NAMES or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", name):
            raise ValueError(f"{name}: choose another name, using only lower-case letters, digits and hyphens")
    return hooks


Hooks = Annotated[dict[str, Hook], AfterValidator(_hook_names)]


class Yara(AnalyzerSection):
    timeout: Duration = Field(20.0, description="Maximum time for all objects of one mail.")
    rules: list[str] = Field(
        min_length=1, description="Rule files; `*` is a wildcard. Names are relative to this file."
    )
    score: float = Field(8.0, ge=-1000, le=1000, description="Score of a rule that has no `score` in its `meta`.")
    _directory: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Yara:
        self._directory = directory_of(info)
        return self

    @property
    def directory(self) -> Path:
        """The directory that file names are relative to."""
        return self._directory


class Plugin(AnalyzerSection):
    """A custom analyzer, found as an entry point of this name."""

    options: dict[str, Any] = Field({}, description="Passed to the analyzer's factory.")
    memory: Size = Field(1024 * MiB, description="Maximum address space of each of its processes.")
    processes: int = Field(
        2, ge=1, le=64, description="Number of mails analysed concurrently, unless the analyzer is asynchronous."
    )
    max_size: Size = Field(50 * MiB, description="Larger mail is not passed to it and is tagged `limit:NAME`.")


_PORTS = {"icap": ICAP_PORT, "icaps": ICAPS_PORT, "http": 80, "https": 443}


def endpoint_of(url: str) -> Endpoint:
    parts = urlsplit(url)
    return Endpoint(host=parts.hostname or "", port=parts.port or _PORTS[parts.scheme])


def directory_of(info: ValidationInfo) -> Path:
    """The directory of the configuration file."""
    return Path((info.context or {}).get("directory") or "")


def check_url(url: str, rule: str, *, https: bool, schemes: tuple[str, ...] = ("http", "https")) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(rule) from None
    query = "" if "icap" in schemes else parts.query
    if parts.scheme not in schemes or not parts.hostname or port == 0 or query or parts.fragment:
        raise ValueError(rule)
    if parts.username or parts.password:
        raise ValueError("a URL here must not contain a user name or password")
    if https and parts.scheme == "http" and not Endpoint(host=parts.hostname).is_local:
        raise ValueError(rule)
