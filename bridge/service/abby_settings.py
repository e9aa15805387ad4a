"""The section `abby`: where scans are forwarded, and the tokens that may use the service.

It keeps the documented camelCase keys of the original service's `abby.yml`. Secrets are `SecretStr`, so no dump or
traceback shows one. If this file is wrong, a token is valid that was not configured, or may do more than it should.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, SecretStr, ValidationInfo, field_validator, model_validator

from bridge.runtime.endpoints import Endpoint
from bridge.service.engine_settings import check_url
from bridge.service.nats_settings import Nats
from bridge.service.section import Section, abby_directory
from bridge.service.token_files import tokens_in

PLACEHOLDER_HINT = (
    "a core host contains a placeholder: write the name of the machine instead, such as https://mta1.example.org:9785"
)
MAX_TOKENS = 10  # per name; two are enough to replace one
SHORT_TOKEN = 16  # a shorter token can be guessed, so the service logs a warning at start


class Core(Section):
    hosts: list[str] = Field([], description="Base URLs of core nodes; if empty, this process analyses mail itself.")
    longRequestTimeout: int = Field(  # noqa: N815
        3_600_000, ge=1000, description="Maximum time for one analysis, in milliseconds."
    )
    caFile: str | None = Field(None, description="CA certificates for the hosts, instead of the system's.")  # noqa: N815
    nats: Nats | None = Field(None, description="Pass scans on to workers through a queue in NATS, not to hosts.")
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
            rule = "a core host must be given as https://host:9785, or as http://host:port on loopback"
            check_url(host, rule, https=True)
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
    FEEDBACK = "feedback"


PERMISSIONS = {
    Permission.SCAN: "submit mail (submitEmail)",
    Permission.STATUS: "read the status of the queue (admin/status)",
    Permission.METRICS: "read /metrics from another machine",
    Permission.FEEDBACK: "report mail as spam or not spam, so that the phishing model can learn from it (feedback)",
}


class StaticApiToken(Section):
    name: str = Field(min_length=1, max_length=100, description="Name of the token's user, for the log.")
    token: tuple[SecretStr, ...] = Field(
        (), description="The secret, or a list of secrets that are all valid. We recommend 64 hex digits."
    )
    token_file: str | list[str] | None = Field(
        None,
        exclude=True,
        description="File that contains the secret, or several secrets, one per line; or a list of such files. A "
        "relative name is looked up in $CREDENTIALS_DIRECTORY, then next to this file.",
    )
    permissions: list[str] = Field(
        [], description="What the token may do: scan, status, metrics, feedback; all if empty."
    )

    def may(self, permission: str) -> bool:
        return not self.permissions or permission in self.permissions

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
                "a token must consist of at most 512 printable characters without spaces; "
                "create one with `scanbridge service token`"
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
        names = [token.name for token in tokens]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(
                f"two tokens are named {twice}: give one of them another name, or list both as its `token`"
            )
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
