"""The addresses that the daemon listens on, with the keys that hold them, as messages name them."""

from __future__ import annotations

from bridge.config.listener import Listener
from bridge.config.model import Config
from bridge.runtime.endpoints import Endpoint

ADMIN_KEY = "admin.address"
SERVICE_KEY = "scanner.urls"  # of the embedded service, which listens at the first one


def addresses(conf: Config) -> list[tuple[str, Endpoint]]:
    listeners = [(listener_key(listener), listener.address) for listener in conf.listeners]
    return [*listeners, (ADMIN_KEY, conf.admin.address)]


def listener_key(listener: Listener) -> str:
    return f"listeners.{listener.name}.address"
