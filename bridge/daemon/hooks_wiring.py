"""From the configuration to the settings of an MTA Hooks listener."""

from __future__ import annotations

import hashlib
import ipaddress
from pathlib import Path

from bridge.config.listener import Listener
from bridge.config.model import Config
from bridge.daemon import directories, named_files, wiring
from bridge.intake.hooks.context import HooksSettings


def hooks_settings(conf: Config, listener: Listener, token: str, ended: Path) -> HooksSettings:
    """Raises ConfigError."""
    assert listener.hooks is not None
    limits, hooks = conf.limits, listener.hooks
    tls = listener.tls
    return HooksSettings(
        name=listener.name,
        token=token,
        token_digest=hashlib.sha256(token.encode("ascii")).digest(),
        ended=ended,
        trusted=tuple(ipaddress.ip_network(network) for network in listener.trusted_clients),
        tls=named_files.listener_tls(tls, conf.directory, f"listeners.{listener.name}.tls") if tls else None,
        max_connections=limits.max_connections,
        max_connections_per_client=limits.max_connections_per_client,
        max_message_size=limits.max_message_size,
        max_recipients=limits.max_recipients,
        groups=wiring.tenant_groups(conf),
        can_delete=hooks.deletes,
        defers_lossy=hooks.lossy_content == "tempfail",
        data_timeout_s=limits.data_timeout,
        mail_timeout_s=limits.mail_timeout,
        min_data_rate=limits.min_data_rate,
    )


def read_token(conf: Config, listener: Listener) -> str:
    """Raises ConfigError."""
    assert listener.hooks is not None
    path = named_files.locate(listener.hooks.token_file, conf.directory)
    return named_files.read_secret(path, f"listener {listener.name}: hooks.token_file")


def make_ended(state: Path) -> Path:
    """Where registrations that were ended are remembered. Raises ConfigError."""
    return directories.make_directory(state / "mta-hooks", "state_directory")
