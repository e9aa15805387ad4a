"""From `api.tokens` of the configuration to those who may ask: read at the start and at each reload."""

from __future__ import annotations

from bridge.config.model import Config
from bridge.daemon import named_files
from bridge.daemon.http_api.permissions import Caller, digest
from bridge.errors import ConfigError


def read_callers(conf: Config) -> tuple[Caller, ...]:
    """Raises ConfigError."""
    callers: list[Caller] = []
    for number, token in enumerate(conf.api.tokens):
        key = f"api.tokens.{number}.token_file"
        secret = digest(named_files.read_secret(named_files.locate(token.token_file, conf.directory), key))
        for other in callers:
            if other.digest == secret:
                raise ConfigError(
                    f"{key}: {other.name} and {token.name} have the same token; create a new one for one of them"
                )
        tenants = None if token.tenants is None else tuple(dict.fromkeys(token.tenants))
        callers.append(Caller(token.name, secret, tenants))
    return tuple(callers)
