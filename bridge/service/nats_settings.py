"""`abby.serviceProviders.core.nats`: how the queue of analyses is reached, and how much it may hold.

Mail passes through the NATS server, so the same rule applies as to core hosts: without TLS, it must be on this
machine. Secrets are in files, never in URLs, which end up in logs and process lists.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Size
from bridge.service.section import Section, abby_directory
from bridge.service.token_files import token_path

_SERVER = re.compile(r"(nats|tls)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_FILE = "A relative name is looked up in $CREDENTIALS_DIRECTORY, then next to this file."


class Nats(Section):
    servers: list[str] = Field(
        min_length=1, description="URLs of the servers, tls://host:port, or nats://host:port on this machine."
    )
    credentials_file: str | None = Field(None, description=f"File that contains credentials (.creds). {_FILE}")
    token_file: str | None = Field(None, description=f"File that contains a token. {_FILE}")
    user: str | None = Field(None, min_length=1, description="User name, with password_file.")
    password_file: str | None = Field(None, description=f"File that contains the user's password. {_FILE}")
    ca_file: str | None = Field(None, description="CA certificates for the servers, instead of the system's.")
    client_cert_file: str | None = Field(None, description="Certificate chain for mutual TLS, PEM.")
    client_key_file: str | None = Field(None, description="Its private key, PEM.")
    name: str = Field(
        "scanbridge",
        pattern=r"^[A-Za-z0-9_-]{1,32}$",
        description="First word of all subjects and streams. Two deployments in one account need different names.",
    )
    replicas: Literal[1, 3, 5] = Field(1, description="Number of servers in the NATS cluster that store a queued mail.")
    storage: Literal["memory", "file"] = Field(
        "memory", description="Where the servers store queued mail. They never have the only copy of a mail."
    )
    max_size: Size = Field(
        256 * 1024**2,
        ge=1024**2,
        description="Space for queued mail, and the same amount again for large mail. NATS reserves it.",
    )
    _directory: Path = PrivateAttr(default=Path())

    @field_validator("servers")
    @classmethod
    def _servers(cls, servers: list[str]) -> list[str]:
        for server in servers:
            if not _SERVER.fullmatch(server):
                raise ValueError(
                    "a server must be given as tls://host:port or nats://host:port, without a user name or password"
                )
            parts = urlsplit(server)
            if parts.scheme == "nats" and not Endpoint(host=parts.hostname or "").is_local:
                raise ValueError("nats:// is not encrypted; use tls://host:port for a server on another machine")
        if len({urlsplit(server).scheme for server in servers}) > 1:
            raise ValueError("use either tls:// or nats:// for all servers")
        return servers

    @model_validator(mode="after")
    def _together(self, info: ValidationInfo) -> Nats:
        if sum(value is not None for value in (self.credentials_file, self.token_file, self.user)) > 1:
            raise ValueError("set only one of credentials_file, token_file and user")
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file must be set together")
        if (self.client_cert_file is None) != (self.client_key_file is None):
            raise ValueError("client_cert_file and client_key_file must be set together")
        if not self.is_encrypted and (self.ca_file or self.client_cert_file):
            raise ValueError("ca_file and client_cert_file have no effect without tls:// servers")
        self._directory = abby_directory(info)
        return self

    @property
    def is_encrypted(self) -> bool:
        return self.servers[0].startswith("tls:")

    @property
    def is_local(self) -> bool:
        """Whether all servers are on this machine."""
        return all(Endpoint(host=urlsplit(server).hostname or "").is_local for server in self.servers)

    def path(self, name: str) -> Path:
        return token_path(name, self._directory)
