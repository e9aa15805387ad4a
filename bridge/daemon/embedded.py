"""The embedded scanning service: runs next to the bridge, at the first scanner URL, with a generated token."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import list_wiring, named_files, wiring
from bridge.daemon.addresses import SERVICE_KEY
from bridge.daemon.sockets import open_listening
from bridge.service import settings
from bridge.service.keys import KeyRing, NoSuchKey
from bridge.service.server import ServiceServer
from bridge.service.store import Store

log = logging.getLogger(__name__)

KEY_NAME = "bridge"


def make_secrets(conf: Config) -> None:
    """Create the token, and the API key if the embedded service has the lists too, unless they exist.

    Raises ConfigError.
    """
    assert conf.scanner.token_file is not None  # only rspamd works without one, and this is our own service
    named_files.make_secret(named_files.locate(conf.scanner.token_file, conf.directory), "scanner.token_file")
    if has_own_lists(conf):
        assert conf.lists is not None
        named_files.make_secret(named_files.locate(conf.lists.api_key_file, conf.directory), "lists.api_key_file")


def has_own_lists(conf: Config) -> bool:
    return conf.embedded_service and conf.lists is not None and conf.lists.url == conf.scanner.urls[0]


def _adopt_key(conf: Config, database: str) -> None:
    """Make the key in the file valid for the embedded service's lists. Blocks."""
    store = Store(database)
    try:
        store.open()
        KeyRing(store).adopt(KEY_NAME, list_wiring.list_settings(conf).api_key)
    except NoSuchKey as exc:
        log.warning("lists.api_key_file: %s; to create a new key, remove the file and restart", exc)
    finally:
        store.close()


async def start_service(conf: Config, state: Path, sockets: Sequence[socket.socket] | None = None) -> ServiceServer:
    """Start it in the running event loop, on these sockets or on a new one."""
    make_secrets(conf)
    listen = wiring.service_address(conf)
    service = ServiceServer()
    if has_own_lists(conf):
        await asyncio.to_thread(_adopt_key, conf, settings.embedded_database(state))
    bound = open_listening(listen, key=SERVICE_KEY) if sockets is None else sockets
    await service.start(settings.embedded(state, str(listen), [wiring.token(conf)]), bound)
    log.info("scanning service: listening on %s", listen)
    return service


async def accept_new_token(service: ServiceServer, conf: Config, state: Path) -> None:
    """If the token file has changed, accept the new token as well as the one that mail in processing uses."""
    new, used = wiring.token(conf), service.config.abby.staticApiTokens[0].secrets[0]
    if new != used:
        await service.reload(settings.embedded(state, str(service.config.listen), [new, used]))
